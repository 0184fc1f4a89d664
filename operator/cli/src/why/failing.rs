//! Failures: workers that are replaced, jobs that start again, and jobs that were given up.

use lockstep_api::{ConditionType, LastFailure, Phase, Reason};
use lockstep_launch::{Exit, names};
use lockstep_lifecycle::{WorkerEnd, is_own_failure};

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
    let failure = status.last_failure.as_ref();
    let evidence = failure.map(|failure| evidence(facts, failure)).unwrap_or_default();
    let because = |why: String| Finding::new(format!("{name} failed{since}: {why}"));
    let policy = &facts.spec().failure_policy;
    match given_up(facts) {
        Some(Reason::InvalidSpec) => because("its manifest is not valid.".to_owned())
            .seen_all(message.split("; ").map(sentence))
            .next("lockstep validate MANIFEST", "check the corrected manifest without a cluster")
            .next_if(facts.create_again("the corrected manifest")),
        Some(Reason::InvalidInput) => because("it refused its input, and another start would fail again.".to_owned())
            .seen_all(evidence)
            .next_if(facts.create_again("that field, file or volume corrected")),
        Some(Reason::BackoffLimitExceeded) => {
            let (times, limit) = (times(status.failures), policy.backoff_limit);
            let finding =
                because(format!("its workers failed {times}, and spec.failurePolicy.backoffLimit allows {limit}."));
            remedies(finding.seen_all(evidence).seen_all(kept(facts)), facts, failure)
                .next_if(facts.create_again("the cause mended, or a higher failurePolicy.backoffLimit"))
        }
        Some(Reason::StartupTimeout) => {
            let seconds = policy.startup_timeout_seconds;
            because(format!("training waited {seconds} s for workers, failurePolicy.startupTimeoutSeconds."))
                .seen(sentence(message))
                .seen_all(kept(facts))
                .next(events(facts), "what happened before")
                .next_if(facts.create_again("the cause mended, or a longer failurePolicy.startupTimeoutSeconds"))
        }
        Some(Reason::DeadlineExceeded) => {
            let seconds = facts.spec().active_deadline_seconds.unwrap_or_default();
            let progress = status.progress.as_ref();
            because(format!("it was not complete {seconds} s after its start, spec.activeDeadlineSeconds."))
                .seen_all(
                    progress.map(|progress| format!("It had done step {} of {}.", progress.step, progress.total_steps)),
                )
                .seen_all(kept(facts))
                .next_if(facts.create_again("a longer activeDeadlineSeconds, or more workers"))
        }
        Some(_) | None => Finding::new(format!("{name} failed{since}."))
            .seen(sentence(message))
            .seen_all(evidence)
            .next(events(facts), "what happened before"),
    }
}

/// Returns the reason for which the job was given up, if it is one of those of [`failed`].
fn given_up(facts: &Facts) -> Option<Reason> {
    const GIVEN_UP: [Reason; 5] = [
        Reason::InvalidSpec,
        Reason::InvalidInput,
        Reason::BackoffLimitExceeded,
        Reason::StartupTimeout,
        Reason::DeadlineExceeded,
    ];
    let stated = facts.status().reason.as_deref()?;
    GIVEN_UP.into_iter().find(|reason| reason.to_string() == stated)
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
    let reason = failure.reason.as_deref();
    let pod = failure.pod.as_deref().unwrap_or_default();
    let is_there = facts.pods.iter().any(|of| of.metadata.name.as_deref() == Some(pod));
    if reason.is_some_and(|reason| !is_own_failure(reason)) {
        let node = failure.node.as_ref().map(|node| format!("kubectl describe node {node}"));
        let node = node.map(|node| (node, "how that node is".to_owned()));
        let of = if pod.is_empty() { facts.name() } else { pod };
        return finding.next_if(node).next(events_of(facts, of), "who took the pod away, and when");
    }
    let finding = match is_there {
        true => finding.next(facts.log_of(pod), "its log, while the pod is there"),
        false => finding,
    };
    let finding = finding.next(events(facts), "every loss so far, with its reason");
    let memory = "a higher resources.limits.memory in spec.template, or a smaller training.globalBatchSize";
    match reason == Some(WorkerEnd::OutOfMemory.word()) {
        true => finding.next_if(facts.create_again(memory)),
        false => finding,
    }
}

/// Returns the command that shows the events of the job.
fn events(facts: &Facts) -> String {
    events_of(facts, facts.name())
}

/// Returns the command that shows the events of an object: the job or one of its pods.
fn events_of(facts: &Facts, object: &str) -> String {
    facts.kubectl(&format!(
        "get events --sort-by=.metadata.creationTimestamp --field-selector involvedObject.name={object}"
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
