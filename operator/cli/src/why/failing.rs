//! Failures: workers that are replaced, jobs that start again, and jobs that were given up.

use lockstep_api::{ConditionType, LastFailure, Phase, Reason};
use lockstep_launch::{Exit, names};

use super::{
    facts::Facts,
    finding::Finding,
    words::{ago, count, listed, sentence},
};
use crate::logs::readable;

/// Exit codes above this one are of processes that a signal ended; the rest is the signal.
const SIGNALS: i32 = 128;
/// Lines of a log that an answer holds.
const LOG_LINES: usize = 5;
/// Reasons of Kubernetes for a worker that was taken away and did nothing wrong.
const TAKEN_AWAY: [&str; 12] = [
    "Deleted",
    "DeletionByPodGC",
    "DeletionByTaintManager",
    "Drained",
    "Evicted",
    "EvictionByEvictionAPI",
    "NodeLost",
    "NodeShutdown",
    "Preempting",
    "PreemptionByScheduler",
    "RecordDeleted",
    "TerminationByKubelet",
];

/// Finds workers that are being replaced, and a job that starts again.
pub(super) fn failing(facts: &Facts) -> Option<Finding> {
    let status = facts.status();
    let is_again = facts.is_in(Phase::Restarting) || (status.restarts > 0 && facts.is_in(Phase::Starting));
    if status.replacing.is_empty() && !is_again {
        return None;
    }
    let lost: Vec<String> = status.replacing.iter().map(|worker| names::worker(facts.name(), worker.worker)).collect();
    let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
    let (name, is_at_work) = (facts.name(), facts.is_in(Phase::Running));
    let matter = match (lost.is_empty(), is_at_work) {
        (true, _) => format!("{name} starts again after a failure, for the {} time.", ordinal(status.restarts)),
        (false, true) => format!("{}; {} is being replaced.", facts.opening(), listed(&lost)),
        (false, false) => format!("{name} waits for {}, which is being replaced.", listed(&lost)),
    };
    let due = status.replacing.iter().map(|worker| worker.not_before.0).max().filter(|due| *due > facts.now);
    let due =
        due.map(|due| format!("Its next pod comes in {}: after each failure the pause doubles.", ago(facts.now, due)));
    let from = match &status.last_checkpoint {
        Some(mark) if lost.is_empty() => Some(format!("It goes on from the checkpoint of step {}.", mark.step)),
        None if lost.is_empty() => Some("There is no checkpoint yet, so it begins at step 0.".to_owned()),
        _ => None,
    };
    let failure = status.last_failure.as_ref();
    let finding = Finding::new(matter).seen_all(failure.into_iter().flat_map(|failure| evidence(facts, failure)));
    let finding = finding.seen_all(from).seen_all(due).seen(chances(facts));
    Some(remedies(finding, facts, failure))
}

/// Describes a job that was given up.
pub(super) fn failed(facts: &Facts) -> Finding {
    let status = facts.status();
    let (name, message) = (facts.name(), facts.message(ConditionType::Failed));
    let since =
        status.completion_time.as_ref().map(|end| format!(" {} ago", ago(end.0, facts.now))).unwrap_or_default();
    let is = |reason: Reason| status.reason.as_deref() == Some(&reason.to_string());
    let failure = status.last_failure.as_ref();
    let evidence = failure.map(|failure| evidence(facts, failure)).unwrap_or_default();
    if is(Reason::InvalidSpec) {
        return Finding::new(format!("{name} failed{since}: its manifest is not valid."))
            .seen_all(message.split("; ").map(sentence))
            .next("lockstep validate MANIFEST", "check the corrected manifest without a cluster")
            .next_if(facts.create_again("the corrected manifest"));
    }
    if is(Reason::InvalidInput) {
        let matter = format!("{name} failed{since}: it refused its input, and another start would fail again.");
        return Finding::new(matter)
            .seen_all(evidence)
            .next_if(facts.create_again("that field, file or volume corrected"));
    }
    if is(Reason::BackoffLimitExceeded) {
        let limit = facts.spec().failure_policy.backoff_limit;
        let matter = format!(
            "{name} failed{since}: its workers failed {}, and spec.failurePolicy.backoffLimit allows {limit}.",
            times(status.failures)
        );
        let finding = Finding::new(matter).seen_all(evidence).seen_all(kept(facts));
        return remedies(finding, facts, failure)
            .next_if(facts.create_again("the cause mended, or a higher failurePolicy.backoffLimit"));
    }
    if is(Reason::StartupTimeout) {
        let seconds = facts.spec().failure_policy.startup_timeout_seconds;
        let matter = format!(
            "{name} failed{since}: training waited {seconds} s for workers, failurePolicy.startupTimeoutSeconds."
        );
        return Finding::new(matter)
            .seen(sentence(message))
            .seen_all(kept(facts))
            .next(events(facts), "what happened before")
            .next_if(facts.create_again("the cause mended, or a longer failurePolicy.startupTimeoutSeconds"));
    }
    if is(Reason::DeadlineExceeded) {
        let seconds = facts.spec().active_deadline_seconds.unwrap_or_default();
        let matter = format!(
            "{name} failed{since}: it was not complete {seconds} s after its start, spec.activeDeadlineSeconds."
        );
        let progress = status.progress.as_ref();
        let progress =
            progress.map(|progress| format!("It had done step {} of {}.", progress.step, progress.total_steps));
        return Finding::new(matter)
            .seen_all(progress)
            .seen_all(kept(facts))
            .next_if(facts.create_again("a longer activeDeadlineSeconds, or more workers"));
    }
    let finding = Finding::new(format!("{name} failed{since}.")).seen(sentence(message)).seen_all(evidence);
    finding.next(events(facts), "what happened before")
}

/// Describes a failure: who, where, how, and in whose words.
fn evidence(facts: &Facts, failure: &LastFailure) -> Vec<String> {
    let LastFailure { pod, node, exit_code, reason, message, log, step: _, time } = failure;
    let pod = pod.as_deref().unwrap_or("A pod");
    let node = node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    let when = time.as_ref().map(|time| format!(", {} ago", ago(time.0, facts.now))).unwrap_or_default();
    let reason = reason.as_deref().unwrap_or("lost");
    let how = exit_code.map(|code| format!(", exit code {code}{}", meaning(code))).unwrap_or_default();
    let mut found = vec![format!("{pod}{node}: {reason}{how}{when}.")];
    found.extend(
        Some(message).filter(|message| !message.is_empty()).map(|message| format!("It said: {}", sentence(message))),
    );
    let lines: Vec<String> = log.lines().filter(|line| !line.trim().is_empty()).map(readable).collect();
    if !lines.is_empty() {
        found.push(format!("The end of its log:\n{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")));
    }
    found
}

fn meaning(code: i32) -> String {
    match Exit::from_code(code) {
        Some(Exit::Done) => " (done)".to_owned(),
        Some(Exit::Retry) => " (it asks to be started again)".to_owned(),
        Some(Exit::Drained) => " (it left as it was asked to)".to_owned(),
        Some(Exit::Fatal) => " (it refuses its input)".to_owned(),
        None if code > SIGNALS => format!(" (signal {})", code - SIGNALS),
        None => String::new(),
    }
}

/// Says how often the job may still fail.
fn chances(facts: &Facts) -> String {
    let (used, limit) = (facts.status().failures, facts.spec().failure_policy.backoff_limit);
    match limit.checked_sub(used) {
        Some(0) => format!("All {limit} failures of failurePolicy.backoffLimit are used: the next one ends the job."),
        Some(left) => format!(
            "{} left of {limit}, failurePolicy.backoffLimit; evictions and lost nodes do not count.",
            count(left, "failure")
        ),
        None => String::new(),
    }
}

/// Names the checkpoint that a failed job left.
fn kept(facts: &Facts) -> Option<String> {
    let mark = facts.status().last_checkpoint.as_ref()?;
    Some(format!("The checkpoint of step {} is kept in {}.", mark.step, mark.uri))
}

fn remedies(finding: Finding, facts: &Facts, failure: Option<&LastFailure>) -> Finding {
    let Some(failure) = failure else { return finding.next(events(facts), "what happened before") };
    let reason = failure.reason.as_deref().unwrap_or_default();
    let pod = failure.pod.as_deref().unwrap_or_default();
    let is_there = facts.pods.iter().any(|of| of.metadata.name.as_deref() == Some(pod));
    if reason == "OOMKilled" {
        return finding.next_if(
            facts.create_again(
                "a higher resources.limits.memory in spec.template, or a smaller training.globalBatchSize",
            ),
        );
    }
    if TAKEN_AWAY.contains(&reason) {
        let node = failure.node.as_ref().map(|node| format!("kubectl describe node {node}"));
        let node = node.map(|node| (node, "how that node is".to_owned()));
        return finding.next_if(node).next(events(facts), "who took the pod away, and when");
    }
    let finding = match is_there {
        true => finding.next(facts.log_of(pod), "its log, while the pod is there"),
        false => finding,
    };
    finding.next(events(facts), "every loss so far, with its reason")
}

fn events(facts: &Facts) -> String {
    facts.kubectl(&format!(
        "get events --sort-by=.metadata.creationTimestamp --field-selector involvedObject.name={}",
        facts.name()
    ))
}

fn times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        number => format!("{number} times"),
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (1, rest) if rest != 11 => "st",
        (2, rest) if rest != 12 => "nd",
        (3, rest) if rest != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_end_as_they_are_spoken() {
        assert_eq!(
            [1, 2, 3, 4, 11, 12, 21, 103].map(ordinal),
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "103rd"]
        );
    }
}
