//! The number of virtual shards of a global batch. Coordinator and workers derive it from the
//! manifest alone, and it stays the same for the whole run, whatever the number of workers.

use crate::{CommunicationAlgorithm, ModelName, ModelSpec, Task, Workload};

/// Most virtual shards of a global batch, unless a job has more workers: then each has a shard.
/// With several devices a worker, the number is multiplied by the devices.
pub const SHARDS: u32 = 64;
/// Fewest samples of a shard over which a batch norm computes, if the batch has enough.
const GROUP: u32 = 16;
/// With fewer samples, the statistics of a batch norm are so noisy that a model learns badly.
const SMALLEST_GROUP: u32 = 8;

impl Task {
    /// Returns the number of virtual shards for each device of a worker, in a job of at most
    /// `max_replicas` workers.
    #[must_use]
    pub fn shards(&self, max_replicas: u32) -> u32 {
        match self {
            Self::Train(workload) => workload.shards(max_replicas),
            Self::Benchmark { .. } => SHARDS.max(max_replicas),
        }
    }
}

impl Workload {
    /// Returns the number of virtual shards for each device of a worker, in a job of at most
    /// `max_replicas` workers. A power of two unless a job with more workers than that needs
    /// another number; always one if gradients are added as a canonical tree.
    #[must_use]
    pub fn shards(&self, max_replicas: u32) -> u32 {
        let most = if self.model.computes_over_the_batch() {
            let groups = self.training.smallest_batch_size() / GROUP / self.devices_per_worker.max(1);
            groups.checked_ilog2().map_or(1, |log| 1 << log).min(SHARDS)
        } else {
            SHARDS
        };
        match self.communication.algorithm {
            CommunicationAlgorithm::CanonicalTree => most.max(max_replicas.next_power_of_two()),
            _ => most.max(max_replicas),
        }
    }

    /// Returns what is likely to disappoint although it is valid, for a job of at most
    /// `max_replicas` workers. Each says what to change.
    #[must_use]
    pub fn warnings(&self, max_replicas: u32) -> Vec<String> {
        if !self.model.computes_over_the_batch() {
            return Vec::new();
        }
        let shards = self.shards(max_replicas).saturating_mul(self.devices_per_worker);
        let batch = self.training.smallest_batch_size();
        if batch / shards.max(1) >= SMALLEST_GROUP {
            return Vec::new();
        }
        let remedy = match shards {
            1 => String::new(),
            _ => ", or lower spec.elastic.maxReplicas, spec.replicas or spec.devicesPerWorker".to_owned(),
        };
        vec![format!(
            "spec.training.globalBatchSize: {batch}: batch norms compute over {} samples, and learn badly from fewer than \
             {SMALLEST_GROUP}: the batch is cut into {shards} shards, at least one for each device of {max_replicas} \
             workers; raise it to {} or more{remedy}",
            (f64::from(batch) / f64::from(shards)).max(1.0).round(),
            shards.saturating_mul(GROUP),
        )]
    }
}

impl ModelSpec {
    /// Returns true if a layer computes over the samples of a shard together, as batch norm does.
    #[must_use]
    pub fn computes_over_the_batch(&self) -> bool {
        match self.name {
            Some(
                ModelName::Resnet20
                | ModelName::Resnet32
                | ModelName::Resnet56
                | ModelName::Resnet18
                | ModelName::Resnet34
                | ModelName::Resnet50,
            ) => true,
            Some(
                ModelName::Perceptron
                | ModelName::Mlp
                | ModelName::Mlp25m
                | ModelName::Lenet5
                | ModelName::Alexnet
                | ModelName::Vgg16
                | ModelName::Googlenet
                | ModelName::Unet
                | ModelName::Own,
            ) => false,
            None => self.layers.iter().any(has_batch_norm),
        }
    }
}

/// Returns true if a layer, or one inside it, is a batch norm.
fn has_batch_norm(layer: &serde_json::Value) -> bool {
    use serde_json::Value;
    match layer {
        Value::String(kind) => kind == "batchNorm",
        Value::Array(layers) => layers.iter().any(has_batch_norm),
        Value::Object(fields) => fields.iter().any(|(name, value)| name == "batchNorm" || has_batch_norm(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(model: Value, batch: u32) -> Workload {
        serde_json::from_value(json!({
            "model": model,
            "dataset": {"format": "glyphs"},
            "training": {"globalBatchSize": batch},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("a workload")
    }

    fn resnet20(batch: u32) -> Workload {
        workload(json!({"name": "resnet20"}), batch)
    }

    #[test]
    fn a_shard_of_a_model_with_batch_norm_has_16_samples_if_the_workers_leave_it_so_many() {
        let cases = [(16, 2, 2), (64, 2, 4), (100, 2, 4), (128, 2, 8), (128, 10, 10), (512, 2, 32), (8192, 2, 64)];
        for (batch, max_replicas, shards) in cases {
            assert_eq!(resnet20(batch).shards(max_replicas), shards, "{batch} samples, {max_replicas} workers");
        }
        assert_eq!(resnet20(8192).shards(100), 100);
    }

    #[test]
    fn other_models_have_64_shards_or_one_for_each_worker() {
        let lenet5 = workload(json!({"name": "lenet5"}), 64);
        assert_eq!([2, 64, 100].map(|workers| lenet5.shards(workers)), [64, 64, 100]);
    }

    #[test]
    fn a_canonical_tree_has_a_power_of_two_of_shards() {
        let mut job = resnet20(128);
        job.communication.algorithm = CommunicationAlgorithm::CanonicalTree;
        assert_eq!([2, 8, 10, 64].map(|workers| job.shards(workers)), [8, 8, 16, 64]);
    }

    #[test]
    fn the_shards_of_all_devices_together_have_16_samples_each() {
        let mut job = resnet20(512);
        job.devices_per_worker = 4;
        assert_eq!(job.shards(2), 8);
    }

    #[test]
    fn the_smallest_batch_of_a_run_decides() {
        let mut job = resnet20(512);
        let change = json!([{"epoch": 1, "globalBatchSize": 128}, {"epoch": 2, "globalBatchSize": 4096}]);
        job.training.batch_size_schedule = serde_json::from_value(change).expect("a schedule");
        assert_eq!(job.shards(2), 8);
    }

    #[test]
    fn batch_norm_is_found_in_own_layers_however_deep() {
        let with = |layers: Value| workload(json!({"layers": layers}), 64).model.computes_over_the_batch();
        assert!(with(json!([{"flatten": {}}, {"residual": {"layers": [{"batchNorm": {}}]}}])));
        assert!(!with(json!([{"flatten": {}}, {"residual": {"layers": [{"layerNorm": {}}]}}])));
    }

    #[test]
    fn groups_of_fewer_than_8_samples_are_warned_of_with_a_way_out() {
        assert_eq!(resnet20(64).warnings(4), Vec::<String>::new());
        assert_eq!(workload(json!({"name": "lenet5"}), 64).warnings(32), Vec::<String>::new());
        let warnings = resnet20(64).warnings(16);
        assert_eq!(warnings.len(), 1);
        let expected = ["globalBatchSize: 64: batch norms compute over 4 samples", "16 workers", "256 or more"];
        assert!(expected.iter().all(|words| warnings[0].contains(words)), "{warnings:?}");
    }
}
