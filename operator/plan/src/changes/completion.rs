//! The end of a job that has done its work.

use lockstep_api::{Reason, TrainingJobStatus};
use lockstep_launch::{BenchmarkReport, ByteSize, CollectivesReport, CollectivesRow, Ending, Progress, Task};

use super::{
    condition::{Explanation, complete},
    reports::{checkpoint_event, with_report},
    step::Step,
};
use crate::judgement::Situation;

/// Completes the job with the last report of its pods or its record.
pub(crate) fn complete_job(
    situation: &Situation<'_>,
    mut status: TrainingJobStatus,
    ending_of_pod: Option<Ending>,
) -> Step {
    let group = situation.seen.group.as_ref();
    let recorded_ending = group.and_then(|group| group.ending.clone());
    let recorded_progress = group.and_then(|group| group.progress.clone());
    // A pod's ending has no room for a table. An ending in the record may be an earlier attempt's.
    let in_record = [&recorded_progress, &recorded_ending.as_ref().and_then(|ending| ending.progress.clone())];
    let table = in_record.into_iter().flatten().find_map(|progress| progress.benchmark.clone());
    let Ending { message: _, progress, model_uri } = ending_of_pod.or(recorded_ending).unwrap_or_default();
    let mut saved = None;
    if let Some(progress) = progress.or(recorded_progress) {
        let progress = Progress { benchmark: progress.benchmark.or(table), ..progress };
        let last = status.last_checkpoint.clone();
        status = with_report(status, &progress, situation.now);
        saved = checkpoint_event(last.as_ref(), &status);
    }
    status.model_uri = model_uri.or(status.model_uri.take());
    let reason = match situation.job.task {
        Task::Train(_) => Reason::TrainingComplete,
        Task::Benchmark { .. } => Reason::BenchmarkComplete,
    };
    let why = Explanation::new(reason, result(&status));
    saved.into_iter().fold(Step::from(status), Step::event).then(|status| complete(status, &why, situation.now))
}

/// The result of a complete job in one line.
fn result(status: &TrainingJobStatus) -> String {
    if let Some(found) = &status.benchmark {
        return best_of(found);
    }
    let steps = status.progress.as_ref().map(|progress| format!("{} steps", progress.step));
    let accuracy = status.progress.as_ref().and_then(|progress| progress.accuracy);
    let accuracy = accuracy.map(|accuracy| format!("accuracy {:.2}%", accuracy * 100.0));
    let model = status.model_uri.as_ref().map(|uri| format!("model in {uri}"));
    let known: Vec<String> = [steps, accuracy, model].into_iter().flatten().collect();
    if known.is_empty() { "the last step is done".to_owned() } else { known.join(", ") }
}

fn best_of(found: &BenchmarkReport) -> String {
    let BenchmarkReport::Collectives(report) = found;
    let CollectivesReport { workers, .. } = report;
    match report.best() {
        Some(CollectivesRow { bytes, algorithm, bus_gigabytes_per_second, .. }) => format!(
            "best bus bandwidth {bus_gigabytes_per_second:.3} GB/s: {algorithm}, {} over {workers} workers",
            ByteSize::bytes(*bytes)
        ),
        None => "nothing was measured".to_owned(),
    }
}
