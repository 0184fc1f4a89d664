use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{BenchmarkReport, BestMetric, CommunicationAlgorithm, Encryption, ShortGrace, Unsaved, WireFormat};

/// The progress of a job. It travels from the reporting worker through the coordinator into
/// `status.progress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Optimiser steps done. For a benchmark, rows of its table.
    pub step: u64,
    /// Optimiser steps of the whole job. For a benchmark, rows of its table.
    pub total_steps: u64,
    /// Finished passes over the data set.
    pub epoch: u64,
    /// Number of the generation; 1 is the first.
    pub generation: u64,
    /// Number of ranks that train together.
    pub world_size: u32,
    /// Training samples of the steps done. 0 for a benchmark.
    #[serde(default)]
    pub samples: u64,
    /// Mean training loss over the samples of the newest step, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Mean loss over the held-out samples at the newest evaluation, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
    /// Accuracy on the held-out samples, or on their pixels, after the newest epoch, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Mean over the classes of intersection over union on the held-out samples, 0 to 1, where each
    /// pixel has a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_iou: Option<f64>,
    /// Optimiser step after which the accuracy was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy_step: Option<u64>,
    /// Samples per second of the whole group, averaged over the newest steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Learning rate of the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Factor of the loss in the next step; 1 if it is not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// L2 norm of the summed gradients before clipping, as last measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Global batch beyond which more samples save few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_noise_scale: Option<f64>,
    /// Samples per second of one worker that trains the whole global batch by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_samples_per_second: Option<f64>,
    /// Throughput divided by world size times the throughput of one worker that trains the same
    /// global batch by itself. Known after the first steps of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_efficiency: Option<f64>,
    /// The source of that worker's throughput: measured or estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_baseline: Option<ScalingBaseline>,
    /// Figures of the whole run so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_run: Option<WholeRun>,
    /// Floating-point operations per second of the whole group, averaged over the newest steps: 6
    /// for each multiply-accumulate of a sample's forward pass, as backward has twice as many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flops_per_second: Option<f64>,
    /// Bandwidth of the sums of gradients in bytes per second, averaged over the newest steps, as
    /// nccl-tests define it: bytes in f32 times 2(n-1)/n, divided by the mean time of the sums
    /// on the ranks, waits for slower ranks included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_bandwidth_bytes_per_second: Option<f64>,
    /// Mean useful time of the ranks divided by the greatest, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balance: Option<f64>,
    /// Greatest useful time of a rank divided by the step time, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_efficiency: Option<f64>,
    /// Pods that slow the others down: in each of the newest 20 steps their useful time was over
    /// 1.3 times the median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
    /// The way in which the workers sum gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<CommunicationReport>,
    /// Seconds until the last step at the speed of the last minute, with everything between steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_remaining_seconds: Option<f64>,
    /// The newest checkpoint that can be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointMark>,
    /// The best checkpoint so far, if the job keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestMark>,
    /// The newest checkpoint, if it is damaged and the group began with an older one. It stays
    /// until the group changes or a newer checkpoint is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged_checkpoint: Option<DamagedCheckpoint>,
    /// Steps that no checkpoint holds, while saves fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<Unsaved>,
    /// The grace period of a process, if a drain does not fit into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_grace: Option<ShortGrace>,
    /// The result of a benchmark so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Box<BenchmarkReport>>,
    /// Time of the measurement, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// The way in which the workers sum gradients, as they agreed before their first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommunicationReport {
    /// Link that carries the gradients: memory (shared by all workers) or tcp.
    pub link: LinkKind,
    /// Algorithm that sums them: auto for the cheapest one for each number of bytes, or the one
    /// that the job names.
    pub algorithm: CommunicationAlgorithm,
    /// Number format of gradients on the link.
    pub wire: WireFormat,
    /// Protection on the link: tls or none.
    #[serde(default)]
    pub encryption: Encryption,
    /// Number of buckets, which are summed one by one while backward goes on.
    pub buckets: u32,
}

/// The source of the throughput of one worker by itself.
///
/// Measured: one worker trained this job alone for a while. Estimated: a worker did a few whole
/// steps by itself before the group's first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum ScalingBaseline {
    Measured,
    Estimated,
}

/// Figures of a run from its first group until now. Their time includes everything: evaluation,
/// checkpoints, changes of the group, and steps that are done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WholeRun {
    /// Seconds since the coordinator formed or found its first group.
    pub seconds: f64,
    /// Samples trained on in this time, divided by it. Samples of steps that were done again count
    /// each time.
    pub samples_per_second: f64,
    /// Goodput: the same without the steps that were lost and done again.
    pub goodput_samples_per_second: f64,
    /// Share of this time that went into steps that count, 0 to 1.
    #[serde(default)]
    pub goodput_ratio: f64,
    /// Seconds of the steps that were lost and done again.
    #[serde(default)]
    pub lost_seconds: f64,
}

/// The link that carries gradients between workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum LinkKind {
    Memory,
    #[default]
    Tcp,
}

/// A checkpoint that is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CheckpointMark {
    /// Optimiser steps that it holds.
    pub step: u64,
    /// Its URI.
    pub uri: String,
    /// Time at which it became whole, RFC 3339.
    pub time: String,
    /// Bytes of all its files, if the worker that reports it has saved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The best checkpoint of those that were saved after an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BestMark {
    /// Optimiser steps that it holds.
    pub step: u64,
    /// Its URI.
    pub uri: String,
    /// Time at which it became whole, RFC 3339.
    pub time: String,
    /// The metric that decides, on the held-out samples: accuracy or loss.
    pub metric: BestMetric,
    /// The value of this metric: 0 to 1 for accuracy, in nats for loss.
    pub value: f64,
}

/// A checkpoint that no run can resume from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DamagedCheckpoint {
    /// Optimiser steps that it should hold.
    pub step: u64,
    /// Its URI.
    pub uri: String,
    /// Description of the damage.
    pub reason: String,
}

impl fmt::Display for DamagedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, uri, reason } = self;
        write!(f, "the checkpoint of step {step} in {uri} is damaged and was passed over: {reason}")
    }
}

/// A worker that slows the others down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Straggler {
    /// Its pod.
    pub pod: String,
    /// Mean of its useful time in these steps divided by the median, and no less than the smallest
    /// sample.
    pub times: f64,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, times } = self;
        write!(f, "{pod} takes {times:.1} times as long for a step as most")
    }
}

impl fmt::Display for ScalingBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Progress {
    /// Returns the share of the job that is done, 0 to 100. It is 100 only after the last step.
    #[must_use]
    pub fn percent(&self) -> u8 {
        if self.total_steps == 0 {
            return 0;
        }
        u8::try_from(self.step.min(self.total_steps) * 100 / self.total_steps).unwrap_or(100)
    }

    /// Completes the report with facts that its worker lacks: the newest checkpoint, and the
    /// failure of saves, as last reported. A worker that begins to report knows neither until its
    /// first save ends.
    #[must_use]
    pub fn after(mut self, checkpoint: Option<&CheckpointMark>, unsaved: Option<&Unsaved>) -> Self {
        if self.last_checkpoint.is_none() {
            self.unsaved = self.unsaved.or_else(|| unsaved.cloned());
            self.last_checkpoint = checkpoint.cloned();
        }
        if let Some(unsaved) = &mut self.unsaved {
            let newest = self.last_checkpoint.as_ref().map_or(0, |mark| mark.step).min(self.step);
            unsaved.since_step = unsaved.since_step.max(newest);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_takes_over_the_facts_that_its_worker_lacks() {
        let mark = |step| CheckpointMark { step, ..CheckpointMark::default() };
        let fails = |since| Some(Unsaved::new(since, "disk full", false));
        let completed = |last_checkpoint: Option<CheckpointMark>, unsaved, before: Option<&Unsaved>| {
            let report = Progress { step: 100, last_checkpoint, unsaved, ..Progress::default() };
            let report = report.after(Some(&mark(70)), before);
            (report.last_checkpoint.map(|mark| mark.step), report.unsaved.map(|unsaved| unsaved.since_step))
        };
        assert_eq!(completed(None, None, None), (Some(70), None));
        assert_eq!(completed(None, None, fails(70).as_ref()), (Some(70), Some(70)), "it has not tried to save yet");
        assert_eq!(completed(None, fails(0), None), (Some(70), Some(70)), "another worker saved before it");
        assert_eq!(completed(Some(mark(90)), None, fails(70).as_ref()), (Some(90), None), "it saved");
        assert_eq!(completed(Some(mark(90)), fails(90), None), (Some(90), Some(90)));
    }

    #[test]
    fn percent_rounds_down_so_that_only_the_last_step_is_100() {
        let at = |step| Progress { step, total_steps: 1000, ..Progress::default() }.percent();
        assert_eq!([at(0), at(9), at(10), at(999), at(1000), at(1001)], [0, 0, 1, 99, 100, 100]);
        assert_eq!(Progress::default().percent(), 0);
    }
}
