//! The history of a job in a cluster: what its objects tell, and its metrics log where that can be
//! read.

use std::path::Path;

use lockstep_api::{TrainingGroup, TrainingJob, TrainingJobStatus};
use lockstep_launch::{BestMark, BestMetric, CheckpointMark, names};
use serde_json::Value;

use super::{Checkpoint, Log, RunHistory, pod_logs, with_costs};
use crate::{
    cluster::Cluster,
    metrics_lines::Figures,
    run::{
        environment::{Machine, Start},
        folder::metrics_log_of,
    },
    worker_metrics,
};

/// The annotation with the manifest that kubectl applied. The page has the manifest anyway.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl RunHistory {
    /// Reads a job and its group, and the metrics log from the folder `log`: the job's storage,
    /// mounted or copied. Without a folder a worker sends the log, if one runs.
    ///
    /// # Errors
    /// There is no such job, or the folder cannot be read.
    pub(crate) async fn of_job(cluster: &Cluster, name: &str, log: Option<&Path>) -> anyhow::Result<Self> {
        let job = cluster.job(name).await?.whole()?;
        let group = cluster.api::<TrainingGroup>().get_opt(name).await;
        let steps = match log {
            Some(folder) => Steps::MetricsLog(metrics_log_of(folder)?),
            None => told(cluster, name, job.metadata.uid.as_deref().unwrap_or_default()).await,
        };
        Ok(of_objects(job, group.map_err(|error| error.to_string()), steps))
    }
}

/// The source of a job's steps.
enum Steps {
    /// The text of its metrics log, whole or thinned.
    MetricsLog(String),
    /// Lines in the logs of its pods.
    PodLogs(Log),
    /// Nowhere, for this reason.
    Unknown(String),
}

/// Asks the workers of a job for its metrics log. If none runs, the logs of its pods tell some
/// steps.
async fn told(cluster: &Cluster, name: &str, uid: &str) -> Steps {
    match worker_metrics::log_of(cluster, uid).await {
        Ok(text) => Steps::MetricsLog(text),
        Err(why) => match pod_logs::read(cluster, name).await {
            Ok(log) if !log.steps.is_empty() => Steps::PodLogs(log),
            Ok(_) => Steps::Unknown(why),
            Err(error) => Steps::Unknown(format!("{why}, its pods have no logs ({error:#})")),
        },
    }
}

/// Puts a history together. The group may be missing. It and the log may be unreadable.
fn of_objects(job: TrainingJob, group: Result<Option<TrainingGroup>, String>, steps: Steps) -> RunHistory {
    let name = job.metadata.name.clone().unwrap_or_default();
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let mut absent = Vec::new();
    let group = match group {
        Ok(Some(group)) => group.status.unwrap_or_default(),
        Ok(None) => {
            absent.push("The job has no group yet: no worker has joined.".to_owned());
            Default::default()
        }
        Err(error) => {
            absent.push(format!("The changes of the group cannot be read: {error}."));
            Default::default()
        }
    };
    if group.changes.first().is_some_and(|oldest| oldest.generation > 1) {
        absent.push("The cluster keeps the newest changes of the group only: the first ones are missing.".to_owned());
    }
    let folder = format!(
        "the metrics log lies in the job's storage, in the folder {}. Mount or copy that folder and name it with --log.",
        names::unique(&name, job.metadata.uid.as_deref().unwrap_or_default())
    );
    let unknown = "where the time went and what changes cost is not known";
    let mut is_whole = false;
    let mut log = match steps {
        Steps::MetricsLog(text) => {
            let log = Log::parse(&text);
            let distance = log.distance();
            is_whole = distance <= 1;
            if !is_whole {
                absent.push(format!("The curves have one step of {distance}, and {unknown}: {folder}"));
            }
            log
        }
        Steps::PodLogs(log) => {
            absent.push(format!("The curves have the steps in the logs of its pods, and {unknown}: {folder}"));
            log
        }
        Steps::Unknown(why) => {
            absent.push(format!("There are no curves: {why}, and {folder}"));
            Log::default()
        }
    };
    if !is_whole {
        log.steps.iter_mut().for_each(|step| step.phases.clear());
    }
    let costs = if is_whole { &log.steps[..] } else { &[] };
    let checkpoints = checkpoints(&status);
    if !checkpoints.is_empty() {
        absent.push("Of the checkpoints only the newest and the best are known here.".to_owned());
    }
    RunHistory {
        origin: format!("job {namespace}/{name}"),
        state: [status.phase.map(|phase| phase.to_string()), status.reason.clone()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", "),
        changes: with_costs(group.changes, costs),
        report: group.progress.or_else(|| status.report()),
        starts: started(&status).into_iter().collect(),
        checkpoints,
        manifest: manifest(job),
        name,
        log,
        absent,
    }
}

/// Returns the last start or resumption, with the image of the trainer for a version.
fn started(status: &TrainingJobStatus) -> Option<Start> {
    let version = status.trainer.as_ref().map(|trainer| trainer.image.clone()).unwrap_or_else(|| "–".to_owned());
    let time = status.start_time.as_ref()?.0.to_string();
    Some(Start { time, version, workers: status.target_replicas, machine: Machine::unknown() })
}

/// Returns the newest checkpoint and the best one, which may be the same.
fn checkpoints(status: &TrainingJobStatus) -> Vec<Checkpoint> {
    let newest = status.last_checkpoint.as_ref().map(marked);
    let best = status.best_checkpoint.as_ref().map(best);
    match (newest, best) {
        (Some(newest), Some(best)) if newest.step == best.step => {
            vec![Checkpoint { bytes: newest.bytes, ..best }]
        }
        (newest, best) => newest.into_iter().chain(best).collect(),
    }
}

fn marked(CheckpointMark { step, uri: _, time, bytes }: &CheckpointMark) -> Checkpoint {
    Checkpoint {
        step: *step,
        epoch: 0,
        time: time.clone(),
        evaluation: None,
        best: false,
        bytes: *bytes,
        unusable: None,
    }
}

fn best(BestMark { step, uri: _, time, metric, value }: &BestMark) -> Checkpoint {
    let evaluation = match metric {
        BestMetric::Accuracy => Figures { accuracy: Some(*value), loss: None },
        BestMetric::Loss => Figures { accuracy: None, loss: Some(*value) },
    };
    Checkpoint {
        step: *step,
        epoch: 0,
        time: time.clone(),
        evaluation: Some(evaluation),
        best: true,
        bytes: None,
        unusable: None,
    }
}

/// Returns the job as a manifest: without what the cluster adds.
fn manifest(job: TrainingJob) -> Option<Value> {
    let TrainingJob { metadata, spec, status: _ } = job;
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    let kept = serde_json::json!({
        "name": metadata.name,
        "namespace": metadata.namespace,
        "labels": metadata.labels,
        "annotations": Some(annotations).filter(|annotations| !annotations.is_empty()),
    });
    let kept: serde_json::Map<String, Value> =
        kept.as_object()?.clone().into_iter().filter(|(_, value)| !value.is_null()).collect();
    let (version, kind) = ("lockstep.dev/v1alpha1", "TrainingJob");
    Some(
        serde_json::json!({"apiVersion": version, "kind": kind, "metadata": kept, "spec": serde_json::to_value(spec).ok()?}),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> TrainingJob {
        let job = json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": "lenet", "namespace": "ml", "uid": "0123456789abcdef",
                "annotations": {LAST_APPLIED: "{}"}, "managedFields": [],
            },
            "spec": {"model": {"name": "lenet5"}, "dataset": {"format": "glyphs"}},
            "status": {
                "phase": "Failed", "reason": "BackoffLimitExceeded",
                "progress": {"step": 9, "totalSteps": 90, "epoch": 1, "percent": 10},
                "lastCheckpoint": {"step": 8, "uri": "file:///c", "time": "2026-01-02T03:04:05Z"},
            },
        });
        serde_json::from_value(job).expect("a job")
    }

    #[test]
    fn a_job_without_its_log_tells_what_its_objects_hold_and_where_the_log_lies() {
        let found = of_objects(job(), Err("forbidden".to_owned()), Steps::Unknown("no worker runs".to_owned()));
        assert_eq!((found.origin.as_str(), found.state.as_str()), ("job ml/lenet", "Failed, BackoffLimitExceeded"));
        assert_eq!(found.report.map(|report| report.total_steps), Some(90));
        assert_eq!(found.checkpoints.len(), 1);
        let absent = found.absent.concat();
        for part in ["forbidden", "no curves: no worker runs", "lenet-01234567", "--log"] {
            assert!(absent.contains(part), "{part} in {absent}");
        }
        let manifest = found.manifest.expect("a manifest");
        assert_eq!(manifest["metadata"], json!({"name": "lenet", "namespace": "ml"}));
    }

    #[test]
    fn the_best_checkpoint_stands_beside_the_newest() {
        let mark = |step: u64| CheckpointMark { step, bytes: Some(4096), ..CheckpointMark::default() };
        let best = BestMark { step: 8, value: 0.75, ..BestMark::default() };
        let found = |newest: u64| {
            let status = TrainingJobStatus {
                last_checkpoint: Some(mark(newest)),
                best_checkpoint: Some(best.clone()),
                ..TrainingJobStatus::default()
            };
            let listed = checkpoints(&status).into_iter();
            listed.map(|found| (found.step, found.best, found.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(found(9), [(9, false, Some(4096)), (8, true, None)]);
        assert_eq!(found(8), [(8, true, Some(4096))]);
    }

    #[test]
    fn a_job_with_its_group_and_its_log_has_curves_and_changes() {
        let group = json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingGroup", "metadata": {"name": "lenet"}, "spec": {},
            "status": {"changes": [
                {"time": "t", "generation": 3, "workers": 2, "step": 40, "seconds": 0.1, "history": ""},
            ]},
        });
        let group = serde_json::from_value(group).expect("a group");
        let log = |steps: [u32; 3]| {
            let line = "\"generation\":1,\"loss\":1,\"step_seconds\":1,\"time\":\"2026-01-02T03:04:05Z\"}\n";
            let lines = steps.map(|step| format!("{{\"step\":{step},\"phases\":{{\"compute\":1}},{line}"));
            Steps::MetricsLog(lines.concat())
        };
        let found = of_objects(job(), Ok(Some(group)), log([1, 2, 3]));
        assert_eq!((found.changes.len(), found.log.steps.len(), found.log.phases().len()), (1, 3, 1));
        assert!(found.absent.concat().contains("the first ones are missing"), "{:?}", found.absent);

        let thinned = of_objects(job(), Ok(None), log([1, 5, 9]));
        assert_eq!((thinned.log.steps.len(), thinned.log.phases().len()), (3, 0));
        assert!(thinned.absent.concat().contains("one step of 4"), "{:?}", thinned.absent);

        let Steps::MetricsLog(text) = log([1, 2, 3]) else { unreachable!("made above") };
        let from_pods = of_objects(job(), Ok(None), Steps::PodLogs(Log::parse(&text)));
        assert_eq!((from_pods.log.steps.len(), from_pods.log.phases().len()), (3, 0));
        assert!(from_pods.absent.concat().contains("the logs of its pods"), "{:?}", from_pods.absent);
    }
}
