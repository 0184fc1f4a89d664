//! `lockstep watch`: follows a job of the cluster until it ends.

use std::{pin::pin, time::Duration};

use anyhow::{Context, anyhow, bail};
use futures::TryStreamExt;
use jiff::Timestamp;
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher},
};
use lockstep_api::{ConditionType, LastChange, Phase, TrainingGroup, TrainingJobStatus};
use lockstep_launch::GroupChange;

use crate::{
    Outcome,
    cluster::{self, MAX_FAILURES, StoredJob},
    display::{Display, eprint_line, print, summary},
};

/// Explains the output.
const OUTPUT: &str = "\
A bar or lines on stderr show the progress, changes of the group, restarts and warnings; the results
come on stdout. Exit code: 0 if the job is complete, 1 if it failed or was deleted. Ctrl-C ends the
watch, not the job.";

/// Arguments of `lockstep watch`.
#[derive(clap::Args)]
#[command(after_help = OUTPUT)]
pub(crate) struct Arguments {
    /// Name of the training job in the cluster.
    #[arg(value_name = "JOB")]
    name: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
}

/// Shows the job until it ends. The outcome is the job's.
pub(crate) async fn watch(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { name, cluster } = arguments;
    let cluster = cluster.connect().await?;
    cluster.job(name).await?;
    let (jobs, groups) = (cluster.api::<StoredJob>(), cluster.api::<TrainingGroup>());
    follow(jobs, &groups, &cluster.namespace, name).await
}

async fn follow(
    jobs: Api<StoredJob>,
    groups: &Api<TrainingGroup>,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Outcome> {
    let display = Display::on_stderr();
    let mut announced = Announced::default();
    let mut failures = 0;
    let mut versions = pin!(watcher::watch_object(jobs, name).default_backoff());
    loop {
        let job = match versions.try_next().await {
            Ok(Some(job)) => job,
            Ok(None) => bail!("the watch of {namespace}/{name} ended"),
            Err(error) => {
                failures += 1;
                if failures > MAX_FAILURES {
                    return Err(error).with_context(|| format!("watch the training job {namespace}/{name}"));
                }
                display.note(&format!("watch interrupted, trying again: {error}"));
                continue;
            }
        };
        failures = 0;
        let job = job.ok_or_else(|| anyhow!("the training job {namespace}/{name} was deleted"))?;
        let Some(status) = job.status else { continue };
        let before = match announced.has_missed(&status) {
            // A user who may not read the group learns that there may have been more changes.
            true => groups.get_opt(name).await.ok().flatten().and_then(|group| group.status),
            false => None,
        };
        for line in announced.news(&status, before.as_ref().map(|before| &before.changes[..])) {
            display.note(&line);
        }
        if let Some(phase) = status.phase {
            display.phase(&phase.to_string());
        }
        if let Some(progress) = status.report() {
            display.progress(&progress);
        }
        match status.phase {
            Some(Phase::Complete) => {
                drop(display);
                print(&results(&status));
                return Ok(Outcome::Done);
            }
            Some(Phase::Failed) => {
                drop(display);
                eprint_line(&format!("error: {}", failure(&status)));
                return Ok(Outcome::Failed);
            }
            Some(Phase::Pending | Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspended) | None => {}
        }
    }
}

/// The facts that were already shown.
#[derive(Default)]
struct Announced {
    phase: Option<(Phase, Option<String>)>,
    restarts: u32,
    generation: Option<u64>,
}

impl Announced {
    /// Returns true if the group may have changed more than once since the last shown change. The
    /// status names only the newest change, and some generations are never formed.
    fn has_missed(&self, status: &TrainingJobStatus) -> bool {
        let last = last_change(status).map(|change| change.generation);
        self.generation.zip(last).is_some_and(|(known, last)| known + 1 < last)
    }

    /// Returns a line for a new phase or reason, for every restart, and for every change of the
    /// group. `changes` holds those before the newest one, if they could be read.
    fn news(&mut self, status: &TrainingJobStatus, changes: Option<&[GroupChange]>) -> Vec<String> {
        let mut lines = Vec::new();
        if status.restarts > self.restarts {
            let cause = status.last_failure.as_ref().map_or_else(String::new, |failure| {
                let pod = failure.pod.as_deref().unwrap_or("a pod");
                format!(" after {pod}: {}", or(&failure.message, failure.reason.as_deref().unwrap_or("lost")))
            });
            lines.push(format!("restart {}{cause}", status.restarts));
        }
        self.restarts = status.restarts;
        if let Some(last) = last_change(status).filter(|change| self.generation < Some(change.generation)) {
            if self.has_missed(status) {
                let missed = |change: &&GroupChange| {
                    Some(change.generation) > self.generation && change.generation < last.generation
                };
                // The oldest changes are left out once there are many.
                let has_all =
                    |changes: &[GroupChange]| changes.first().map(|oldest| oldest.generation) <= self.generation;
                if !changes.is_some_and(has_all) {
                    lines.push("the group may have changed before that; see kubectl get events".to_owned());
                }
                let before = changes.unwrap_or_default().iter().filter(missed);
                lines.extend(before.map(|change| agreed(&change.to_string(), change.seconds)));
            }
            lines.push(agreed(&last.text, last.seconds));
            self.generation = Some(last.generation);
        }
        let phase = status.phase.map(|phase| (phase, status.reason.clone()));
        if let Some((phase, reason)) = &phase
            && !phase.is_finished()
            && self.phase.as_ref() != Some(&(*phase, reason.clone()))
        {
            let why = reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let message = message(status, ConditionType::Running).map(|text| format!(": {text}")).unwrap_or_default();
            lines.push(format!("{phase}{why}{message}"));
        }
        self.phase = phase;
        lines
    }
}

fn last_change(status: &TrainingJobStatus) -> Option<&LastChange> {
    status.membership.as_ref()?.last_change.as_ref()
}

fn agreed(change: &str, seconds: f64) -> String {
    format!("{change} (agreed on in {seconds:.2} s)")
}

fn results(status: &TrainingJobStatus) -> String {
    let progress = status.report();
    let at = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| -> Option<Timestamp> {
        time.as_ref().map(|time| time.0)
    };
    let took = at(&status.start_time)
        .zip(at(&status.completion_time))
        .and_then(|(start, end)| Duration::try_from(end.duration_since(start)).ok());
    summary(progress.as_ref(), status.model_uri.as_deref(), took)
}

fn failure(status: &TrainingJobStatus) -> String {
    let reason = status.reason.as_deref().unwrap_or("Failed");
    match message(status, ConditionType::Failed) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

fn message(status: &TrainingJobStatus, kind: ConditionType) -> Option<&str> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind.to_string())?;
    (!condition.message.is_empty()).then_some(condition.message.as_str())
}

fn or<'a>(text: &'a str, fallback: &'a str) -> &'a str {
    if text.is_empty() { fallback } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: serde_json::Value) -> TrainingJobStatus {
        serde_json::from_value(value).expect("a status")
    }

    fn condition(kind: &str, reason: &str, message: &str) -> serde_json::Value {
        serde_json::json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        })
    }

    #[test]
    fn a_phase_is_shown_once_with_its_reason() {
        let mut announced = Announced::default();
        let pending = status(serde_json::json!({
            "phase": "Pending", "reason": "Unschedulable",
            "conditions": [condition("Running", "Unschedulable", "0/3 nodes are available")],
        }));
        assert_eq!(announced.news(&pending, None), ["Pending (Unschedulable): 0/3 nodes are available"]);
        assert_eq!(announced.news(&pending, None), Vec::<String>::new());
        assert_eq!(announced.news(&status(serde_json::json!({"phase": "Running"})), None), ["Running"]);
    }

    #[test]
    fn a_restart_is_shown_with_its_cause() {
        let mut announced = Announced::default();
        let restarting = status(serde_json::json!({
            "phase": "Restarting", "restarts": 1, "lastFailure": {"pod": "lenet-worker-1", "reason": "OOMKilled"},
        }));
        assert_eq!(announced.news(&restarting, None), ["restart 1 after lenet-worker-1: OOMKilled", "Restarting"]);
        assert_eq!(announced.news(&restarting, None), Vec::<String>::new());
    }

    #[test]
    fn a_change_of_the_group_is_shown_once_with_its_cost() {
        let mut announced = Announced::default();
        let change =
            serde_json::json!({"generation": 2, "text": "w-1 was lost (closed its connection)", "seconds": 0.061});
        let running = status(serde_json::json!({
            "phase": "Running", "membership": {"generation": 2, "worldSize": 1, "lastChange": change},
        }));
        assert_eq!(
            announced.news(&running, None),
            ["w-1 was lost (closed its connection) (agreed on in 0.06 s)", "Running"]
        );
        assert_eq!(announced.news(&running, None), Vec::<String>::new());
    }

    #[test]
    fn changes_that_the_status_skipped_are_shown_from_the_group() {
        let seen = |generation: u64| {
            let change =
                serde_json::json!({"generation": generation, "text": format!("change {generation}"), "seconds": 0.5});
            status(serde_json::json!({"membership": {"generation": generation, "worldSize": 2, "lastChange": change}}))
        };
        let changes: Vec<GroupChange> =
            (1..=5).map(|generation| GroupChange { generation, seconds: 0.25, ..GroupChange::default() }).collect();
        let mut announced = Announced::default();
        assert!(!announced.has_missed(&seen(2)), "changes before the watch are not shown");
        assert_eq!(announced.news(&seen(2), None), ["change 2 (agreed on in 0.50 s)"]);
        assert!(!announced.has_missed(&seen(3)) && announced.has_missed(&seen(5)));
        let between = [&changes[2], &changes[3]].map(|change| format!("{change} (agreed on in 0.25 s)"));
        assert_eq!(
            announced.news(&seen(5), Some(&changes)),
            [&between[..], &["change 5 (agreed on in 0.50 s)".to_owned()]].concat()
        );
        assert_eq!(announced.news(&seen(7), Some(&changes)), ["change 7 (agreed on in 0.50 s)"], "there was no sixth");
        for changes in [None, Some(&[GroupChange { generation: 8, ..GroupChange::default() }][..])] {
            let mut announced = Announced { generation: Some(7), ..Announced::default() };
            assert!(announced.news(&seen(9), changes)[0].contains("kubectl get events"), "{changes:?}");
        }
    }

    #[test]
    fn a_failure_is_shown_with_the_conditions_message() {
        let failed = status(serde_json::json!({
            "phase": "Failed", "reason": "InvalidInput",
            "conditions": [condition("Failed", "InvalidInput", "labels: 12: 0 to 9")],
        }));
        assert_eq!(failure(&failed), "InvalidInput: labels: 12: 0 to 9");
    }

    #[test]
    fn results_take_their_duration_from_the_status() {
        let complete = status(serde_json::json!({
            "phase": "Complete", "modelUri": "file:///checkpoints/lenet/model.safetensors",
            "startTime": "2026-01-02T03:04:05Z", "completionTime": "2026-01-02T03:05:10Z",
            "progress": {"step": 9, "totalSteps": 9, "epoch": 1, "percent": 100, "accuracy": 0.975},
        }));
        let text = results(&complete);
        for part in ["accuracy    0.9750", "/lenet/model.safetensors", "duration    1m 05s"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
