//! The global batch over a run, as a manifest gives it.

use crate::{InvalidField, Training};

impl Training {
    /// Returns every global batch of the run, first one first.
    pub fn batch_sizes(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.global_batch_size).chain(self.batch_size_schedule.iter().map(|to| to.global_batch_size))
    }

    /// Returns the greatest global batch of the run.
    #[must_use]
    pub fn largest_batch_size(&self) -> u32 {
        self.batch_sizes().fold(self.global_batch_size, u32::max)
    }

    /// Returns the smallest global batch of the run.
    #[must_use]
    pub fn smallest_batch_size(&self) -> u32 {
        self.batch_sizes().fold(self.global_batch_size, u32::min)
    }

    /// Checks that the changes are in the order of their epochs.
    pub(crate) fn check_batch_sizes(&self) -> Result<(), InvalidField> {
        let epochs: Vec<u32> = self.batch_size_schedule.iter().map(|change| change.epoch).collect();
        if epochs.is_sorted_by(|one, next| one < next) {
            return Ok(());
        }
        Err(InvalidField::new(
            "spec.training.batchSizeSchedule",
            format!("epochs {epochs:?}"),
            "epochs that ascend, each once",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(schedule: serde_json::Value) -> Training {
        serde_json::from_value(serde_json::json!({"globalBatchSize": 256, "batchSizeSchedule": schedule}))
            .expect("a training")
    }

    #[test]
    fn the_largest_batch_may_come_at_any_time() {
        let change = |epoch: u32, size: u32| serde_json::json!({"epoch": epoch, "globalBatchSize": size});
        let schedules = [
            (serde_json::json!([]), 256),
            (serde_json::json!([change(1, 512), change(3, 64)]), 512),
            (serde_json::json!([change(1, 64)]), 256),
        ];
        for (schedule, largest) in schedules {
            assert_eq!(training(schedule).largest_batch_size(), largest);
        }
    }

    #[test]
    fn epochs_that_do_not_ascend_are_refused_with_the_field() {
        let schedule = serde_json::json!([{"epoch": 3, "globalBatchSize": 1}, {"epoch": 2, "globalBatchSize": 2}]);
        let refused = training(schedule).check_batch_sizes().expect_err("out of order").to_string();
        assert_eq!(refused, "spec.training.batchSizeSchedule: epochs [3, 2]: epochs that ascend, each once");
    }
}
