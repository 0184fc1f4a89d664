//! The columns of `kubectl get`.

use lockstep_api::{ConditionType, JobColumns, JobProgress, Phase, TrainingJobStatus, ValidJob};
use lockstep_launch::{Progress, ScalingBaseline};

use crate::judgement::Situation;

/// Counts the workers and writes the columns.
pub(crate) fn count_and_show(situation: &Situation<'_>, mut status: TrainingJobStatus) -> TrainingJobStatus {
    let (exist, joined) =
        situation.workers().fold((0, 0), |(exist, joined), pod| (exist + 1, joined + u32::from(pod.ready)));
    status.replicas = exist;
    status.ready_replicas = joined;
    status.display = Some(columns(situation.job, &status));
    status
}

fn columns(job: &ValidJob, status: &TrainingJobStatus) -> JobColumns {
    let finished = status.phase.is_some_and(Phase::is_finished);
    let progress = status.progress.as_ref();
    JobColumns {
        workers: workers(job, status),
        progress: progress.map(|progress| percent(status, progress)),
        samples_per_second: progress.and_then(|progress| progress.samples_per_second).map(|rate| format!("{rate:.0}")),
        efficiency: progress.and_then(efficiency),
        restarts: status.worker_restarts.total().to_string(),
        parallel: progress.and_then(parallel),
        goodput: progress.and_then(|progress| progress.whole_run).map(|run| share(run.goodput_ratio)),
        loss: progress.and_then(|progress| progress.loss).map(|loss| format!("{loss:.4}")),
        remaining: progress
            .filter(|_| !finished)
            .and_then(|progress| progress.estimated_remaining_seconds)
            .map(duration),
    }
}

fn efficiency(progress: &JobProgress) -> Option<String> {
    let share = share(progress.scaling_efficiency?);
    Some(match progress.scaling_baseline {
        Some(ScalingBaseline::Measured) => share,
        Some(ScalingBaseline::Estimated) | None => format!("{share} (estimated)"),
    })
}

/// The two factors of the parallel efficiency.
fn parallel(progress: &JobProgress) -> Option<String> {
    Some(format!("{} x {}", share(progress.load_balance?), share(progress.communication_efficiency?)))
}

fn share(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// The workers that have joined. A finished job has none left. It shows the workers that saw its
/// end if it is complete, and a dash if it failed.
fn workers(job: &ValidJob, status: &TrainingJobStatus) -> String {
    let replicas = job.replicas.get();
    let last_group = status.membership.as_ref().map(|membership| membership.world_size);
    match status.phase {
        Some(Phase::Complete) => {
            let finished = last_group.filter(|world| (1..=replicas).contains(world)).unwrap_or(replicas);
            format!("{finished}/{replicas}")
        }
        Some(Phase::Failed) => "-".to_owned(),
        Some(Phase::Pending | Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspended) | None => {
            format!("{}/{replicas}", status.ready_replicas)
        }
    }
}

/// The share of the steps that is done, and the share that is saved if that is less.
fn percent(status: &TrainingJobStatus, progress: &JobProgress) -> String {
    let holds = |wanted: ConditionType| {
        status.conditions.iter().any(|known| known.type_ == wanted.to_string() && known.status == "True")
    };
    let saved = status.last_checkpoint.as_ref().map_or(0, |mark| mark.step);
    let saved = Progress { step: saved, total_steps: progress.total_steps, ..Progress::default() }.percent();
    let percent = progress.percent;
    match (status.phase, holds(ConditionType::CheckpointsFailing)) {
        (Some(Phase::Suspended), _) if saved < percent && status.benchmark.is_none() => format!("{saved}%"),
        (_, true) => format!("{percent}%, {saved}% saved"),
        (_, false) => format!("{percent}%"),
    }
}

fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}
