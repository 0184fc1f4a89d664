//! The fields in which a manifest must agree with the earlier manifest of its run, so that the
//! checkpoints are found and keep their meaning.

use lockstep_api::ValidJob;
use lockstep_launch::{DatasetSpec, InvalidField, Task};
use serde_json::Value;

/// Returns the first field that gives the checkpoints of `earlier` another meaning under `later`.
/// The samples may move: the trainer compares their digest with that of its checkpoints. How many
/// threads decode them changes none of them.
pub(super) fn conflict(earlier: &Task, later: &Task) -> Option<InvalidField> {
    let decisive = |task: &Task| match task {
        Task::Train(workload) => serde_json::json!({
            "model": workload.model,
            "dataset": DatasetSpec { uri: None, max_corrupt: 0, decoding_threads: 1, ..workload.dataset.clone() },
            "training": {
                "seed": workload.training.seed,
                "globalBatchSize": workload.training.global_batch_size,
                "batchSizeSchedule": workload.training.batch_size_schedule,
                "optimizer": workload.training.optimizer.name(),
            },
        }),
        // A benchmark leaves no checkpoint, so it may measure anything.
        Task::Benchmark { .. } => serde_json::json!({ "benchmark": "given" }),
    };
    difference("spec", &decisive(earlier), &decisive(later))
}

/// Returns the first field that makes `later` look for the checkpoints of `earlier` elsewhere: in
/// another object store, inside or outside of one, or in its folder for another name.
pub(super) fn moved(earlier: &ValidJob, later: &ValidJob) -> Option<InvalidField> {
    let (Task::Train(before), Task::Train(after)) = (&earlier.task, &later.task) else { return None };
    let (before, after) = (&before.checkpoint, &after.checkpoint);
    if before.objects() != after.objects() {
        return Some(InvalidField::new("spec.checkpoint.uri", &after.uri, &before.uri));
    }
    let is_renamed = before.objects().is_some() && earlier.name != later.name;
    is_renamed.then(|| InvalidField::new("metadata.name", &later.name, &earlier.name))
}

fn difference(field: &str, earlier: &Value, later: &Value) -> Option<InvalidField> {
    if let (Value::Object(old), Value::Object(new)) = (earlier, later) {
        let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
        let at = |map: &serde_json::Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
        return names
            .into_iter()
            .find_map(|name| difference(&format!("{field}.{name}"), &at(old, name), &at(new, name)));
    }
    let text = |value: &Value| match value {
        Value::Null => "missing".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    (earlier != later).then(|| InvalidField::new(field, text(later), text(earlier)))
}

#[cfg(test)]
mod tests {
    use lockstep_launch::{
        BatchSizeChange, Benchmark, Collectives, Communication, Workload,
        optimization::{self, Optimizer},
    };

    use super::*;

    fn workload() -> Workload {
        serde_json::from_value(serde_json::json!({
            "model": {"name": "mlp", "hidden": [64]},
            "dataset": {"format": "idx", "uri": "file:///srv/mnist"},
            "training": {"seed": 7},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("a workload")
    }

    #[test]
    fn a_field_that_changes_the_meaning_of_checkpoints_is_refused() {
        type Change = fn(&mut Workload);
        let cases: [(&str, Change); 6] = [
            ("spec.model.hidden: [32]: [64]", |job| job.model.hidden = Some(vec![32])),
            ("spec.dataset.evaluationFraction: 0.2: 0.1", |job| job.dataset.evaluation_fraction = 0.2),
            ("spec.training.seed: 8: 7", |job| job.training.seed = 8),
            ("spec.training.optimizer: lars: sgd", |job| {
                job.training.optimizer = Optimizer::Lars(optimization::Lars::default());
            }),
            ("spec.training.globalBatchSize: 128: 64", |job| job.training.global_batch_size = 128),
            (r#"spec.training.batchSizeSchedule: [{"epoch":2,"globalBatchSize":128}]: []"#, |job| {
                job.training.batch_size_schedule = vec![BatchSizeChange { epoch: 2, global_batch_size: 128 }];
            }),
        ];
        for (expected, change) in cases {
            let mut later = workload();
            change(&mut later);
            let found = conflict(&Task::Train(Box::new(workload())), &Task::Train(Box::new(later)));
            assert_eq!(found.map(|field| field.to_string()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_run_continues_after_its_data_moved() {
        let mut later = workload();
        later.dataset.uri = Some("file:///home/mnist".to_owned());
        assert_eq!(conflict(&Task::Train(Box::new(workload())), &Task::Train(Box::new(later))), None);
    }

    #[test]
    fn a_run_continues_for_more_epochs_with_other_intervals() {
        let mut later = workload();
        later.training.epochs = 50;
        later.training.micro_batch_size = 16;
        later.training.optimizer = Optimizer::Sgd(optimization::Sgd { momentum: 0.5, ..Default::default() });
        later.checkpoint.interval_seconds = 5;
        assert_eq!(conflict(&Task::Train(Box::new(workload())), &Task::Train(Box::new(later))), None);
    }

    fn benchmark(collectives: Collectives) -> Task {
        Task::Benchmark { benchmark: Benchmark::Collectives(collectives), communication: Communication::default() }
    }

    #[test]
    fn a_benchmark_may_change_but_not_become_a_training() {
        let later = Collectives { repetitions: 3, ..Collectives::default() };
        assert_eq!(conflict(&benchmark(Collectives::default()), &benchmark(later)), None);
        let found = conflict(&benchmark(Collectives::default()), &Task::Train(Box::new(workload()))).expect("refused");
        assert_eq!(found.to_string(), "spec.benchmark: missing: given");
    }

    #[test]
    fn a_field_that_moves_the_checkpoints_is_refused() {
        let job = |name: &str, uri: &str| {
            ValidJob::from_value(serde_json::json!({
                "apiVersion": "lockstep.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name},
                "spec": {
                    "model": {"name": "lenet5"},
                    "dataset": {"format": "glyphs"},
                    "checkpoint": {"uri": uri},
                },
            }))
            .expect("a job")
        };
        let [folder, other, bucket] = ["file:///checkpoints", "file:///other", "s3://bucket/jobs"];
        for (earlier, later, expected) in [
            (("one", folder), ("one", bucket), Some("spec.checkpoint.uri: s3://bucket/jobs: file:///checkpoints")),
            (("one", bucket), ("one", other), Some("spec.checkpoint.uri: file:///other: s3://bucket/jobs")),
            (("one", bucket), ("two", bucket), Some("metadata.name: two: one")),
            (("one", folder), ("two", other), None),
        ] {
            let found = moved(&job(earlier.0, earlier.1), &job(later.0, later.1)).map(|field| field.to_string());
            assert_eq!(found.as_deref(), expected);
        }
    }
}
