//! The life of a job: Pending → Starting → Running → Complete or Failed, with Restarting after a failure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{CleanPodPolicy, ConditionType, LastFailure, Phase, Reason, TrainingJobStatus, ValidJob};
use lockstep_launch::{Ending, InvalidField, Progress, Task};

use crate::{
    Child, Deletion, GroupSeen, Observed, Plan, PodSeen, PodState, Role, Settings,
    children::children,
    failure::{Verdict, coordinator_is_gone, ended_at, replaced_at, verdict},
    pod_name,
    pods::pod,
    status::{Note, Report, at_work, checkpoint_note, restart_note, set_condition, take_progress, told},
};

/// Seconds that a node has to call a pod over once its trainer has ended: one that is deleted before takes its log with it.
const CLOSING_SECONDS: i64 = 30;
/// Longest pause before a gang starts again.
const MAX_RESTART_DELAY_SECONDS: i64 = 60;

/// Seconds between two deletions by force of a pod that something holds back.
const HELD_SECONDS: i64 = 10;

/// What to do next for a valid job.
#[must_use]
pub fn plan(job: &ValidJob, seen: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if seen.status.phase.is_some_and(Phase::is_finished) {
        return after_the_end(job, seen, now);
    }
    let mut plan = Plan::default();
    let mut status = seen.status.clone();
    status.observed_generation = seen.generation;
    if status.start_time.is_none() {
        status.start_time = Some(Time(now));
        plan.events.push(Note::created(job));
    }
    let (attempt, present, earlier) = by_attempt(seen);
    status.restarts = attempt;
    status.selector = Some(crate::pods::worker_selector(job));
    if let Some(time) = take_progress(&mut status, seen, &mut plan.events, now) {
        plan.look_again_at(time, now);
    }

    let complete = seen.status.restarts == attempt
        && seen.status.phase.is_some_and(|phase| matches!(phase, Phase::Starting | Phase::Running));
    match verdict(job, &present, complete, now) {
        Verdict::Healthy => {}
        Verdict::Settling(until) => plan.look_again_at(until, now),
        Verdict::Done(ending) => {
            complete_job(job, &mut status, &mut plan.events, seen.group.as_ref(), ending, now);
        }
        Verdict::Refused(failure) => {
            let message = told(&failure);
            status.last_failure = Some(failure);
            fail(&mut status, &mut plan.events, Reason::InvalidInput, &message, now);
        }
        Verdict::Failed(failure) => {
            status.failures += 1;
            if status.failures > job.failure_policy.backoff_limit {
                let limit = job.failure_policy.backoff_limit;
                let failures = status.failures;
                let message = format!("failure {failures}, backoffLimit is {limit}; the last: {}", told(&failure));
                plan.events.push(Note::worker_lost(&failure));
                status.last_failure = Some(failure);
                fail(&mut status, &mut plan.events, Reason::BackoffLimitExceeded, &message, now);
            } else {
                restart(&mut status, &mut plan.events, failure, Reason::WorkerFailed, job, now);
            }
        }
        Verdict::Lost(failure) => restart(&mut status, &mut plan.events, failure, Reason::WorkerLost, job, now),
    }
    if !status.phase.is_some_and(Phase::is_finished) {
        give_up_in_time(job, &mut status, (seen, &present), &mut plan, now);
    }
    let finished = status.phase.is_some_and(Phase::is_finished);
    if finished {
        clean(job, &seen.pods, &mut plan, now);
    } else if status.restarts != attempt {
        plan.delete = present.iter().chain(&earlier).filter_map(|pod| deletion(pod, now)).collect();
    } else {
        carry_on(job, seen, settings, &mut status, &mut plan, (&present, &earlier), complete, now);
    }
    if !finished {
        watch_terminating(&seen.pods, &mut plan, now);
    }
    count(&mut status, job, &present);
    status.show(job);
    if finished && let Some(ttl) = job.ttl_seconds_after_finished {
        plan.look_again_at(now + SignedDuration::from_secs(ttl.into()), now);
    }
    plan.status = Some(status).filter(|status| *status != seen.status);
    plan
}

/// What to do with an object that is no valid job: say so, once.
#[must_use]
pub fn refuse(wrong: &[InvalidField], seen: &Observed, now: Timestamp) -> Plan {
    if seen.status.phase.is_some_and(Phase::is_finished) {
        return Plan::default();
    }
    let mut plan = Plan::default();
    let mut status = seen.status.clone();
    status.observed_generation = seen.generation;
    let message = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    fail(&mut status, &mut plan.events, Reason::InvalidSpec, &message, now);
    plan.status = Some(status);
    plan
}

/// The present attempt, its pods, and those of earlier ones.
fn by_attempt(seen: &Observed) -> (u32, Vec<&PodSeen>, Vec<&PodSeen>) {
    let newest = seen.pods.iter().map(|pod| pod.attempt).max().unwrap_or_default();
    let attempt = newest.max(seen.status.restarts);
    let (present, earlier) = seen.pods.iter().partition(|pod| pod.attempt == attempt);
    (attempt, present, earlier)
}

/// Makes what is missing and says how far the job is.
#[allow(clippy::too_many_arguments, reason = "the parts of one plan, taken apart by the caller")]
fn carry_on(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &mut TrainingJobStatus,
    plan: &mut Plan,
    (present, earlier): (&[&PodSeen], &[&PodSeen]),
    complete: bool,
    now: Timestamp,
) {
    plan.delete = earlier.iter().filter_map(|pod| deletion(pod, now)).collect();
    let gone: Vec<_> =
        present.iter().filter(|pod| pod.role == Role::Coordinator && coordinator_is_gone(pod)).copied().collect();
    for pod in &gone {
        if let Some(time) = replaced_at(pod).filter(|time| *time > now) {
            plan.look_again_at(time, now);
            continue;
        }
        if deletion(pod, now).is_some() {
            plan.events.push(Note::coordinator_lost(pod));
        }
        plan.delete.extend(deletion(pod, now));
    }
    let pause = restart_pause_ends(status).filter(|_| present.is_empty());
    match pause.filter(|end| *end > now) {
        Some(end) => plan.look_again_at(end, now),
        None if earlier.is_empty() => {
            let there: BTreeSet<Role> = present.iter().map(|pod| pod.role).collect();
            let workers = (0..job.replicas.get()).map(Role::Worker);
            let wanted = std::iter::once(Role::Coordinator).chain(workers.filter(|_| !complete));
            let missing: Vec<Role> = wanted.filter(|role| !there.contains(role)).collect();
            create(job, seen, settings, status, plan, &missing, now);
        }
        None => {}
    }
    let (phase, reason, message) = progress_of(job, status, (seen, present), complete);
    if phase == Phase::Running && status.phase != Some(Phase::Running) {
        plan.events.push(Note::started(job, status, now));
    }
    enter(status, phase, reason, &message, now);
}

fn create(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &mut TrainingJobStatus,
    plan: &mut Plan,
    missing: &[Role],
    now: Timestamp,
) {
    if missing.contains(&Role::Coordinator) {
        plan.create = children(job, seen.group.is_none());
    }
    plan.create.extend(missing.iter().map(|role| Child::Pod(Box::new(pod(job, settings, *role, status.restarts)))));
    if !missing.is_empty() {
        status.attempt_time.get_or_insert(Time(now));
    }
}

/// Phase, reason and message of a job in which nothing is wrong.
fn progress_of(
    job: &ValidJob,
    status: &TrainingJobStatus,
    (seen, present): (&Observed, &[&PodSeen]),
    complete: bool,
) -> (Phase, Reason, String) {
    let all = job.replicas.get() as usize;
    let workers: Vec<_> = present.iter().filter(|pod| pod.role != Role::Coordinator).collect();
    let joined = workers.iter().filter(|pod| pod.ready).count();
    let up = workers.iter().filter(|pod| !matches!(pod.state, PodState::Pending(_))).count();
    if joined == all || (complete && status.phase == Some(Phase::Running)) {
        let (reason, work) = at_work(job);
        return (Phase::Running, reason, format!("{all} workers {work}"));
    }
    if up == all {
        return (Phase::Starting, Reason::WorkersJoining, format!("{joined} of {all} workers have joined"));
    }
    let phase = if status.restarts == 0 { Phase::Pending } else { Phase::Restarting };
    if let Some((reason, message)) = hindrance(present) {
        return (phase, reason, message);
    }
    if let Some(refused) = &seen.refused {
        return (phase, Reason::PodsPending, refused.clone());
    }
    let message = format!("{up} of {all} workers' pods run");
    match (&status.last_failure, phase) {
        (Some(failure), Phase::Restarting) => {
            let reason = if status.reason == Some(Reason::WorkerLost.to_string()) {
                Reason::WorkerLost
            } else {
                Reason::WorkerFailed
            };
            (phase, reason, format!("restart {} after {}; {message}", status.restarts, told(failure)))
        }
        _ => (phase, Reason::PodsPending, message),
    }
}

/// What keeps a pod from running, with what to do about it.
fn hindrance(pods: &[&PodSeen]) -> Option<(Reason, String)> {
    let waiting = pods.iter().filter_map(|pod| match &pod.state {
        PodState::Pending(Some(waiting)) => Some((pod, waiting)),
        PodState::Pending(None) | PodState::Running | PodState::Ended(_) => None,
    });
    // What never passes by itself comes first.
    let (pod, waiting) = waiting.min_by_key(|(pod, waiting)| match waiting.reason {
        Reason::ContainerConfigError => (0, pod.role),
        Reason::ImageNotPulled => (1, pod.role),
        _ => (2, pod.role),
    })?;
    let advice = match waiting.reason {
        Reason::ImageNotPulled => "correct the image or the pull secret in spec.template",
        Reason::ContainerConfigError => "correct spec.template or create what it names",
        _ => "free or add nodes, or ask for less in spec.template",
    };
    Some((waiting.reason, format!("pod {}: {}; {advice}", pod.name, waiting.message)))
}

fn restart(
    status: &mut TrainingJobStatus,
    events: &mut Vec<Note>,
    failure: LastFailure,
    reason: Reason,
    job: &ValidJob,
    now: Timestamp,
) {
    status.restarts += 1;
    status.attempt_time = None;
    events.push(Note::worker_lost(&failure));
    events.push(restart_note(status, job));
    let message = format!("restart {} after {}", status.restarts, told(&failure));
    status.last_failure = Some(failure);
    enter(status, Phase::Restarting, reason, &message, now);
}

/// Fails the job when its time is over; otherwise sees to it that this is asked again in time.
fn give_up_in_time(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    (seen, present): (&Observed, &[&PodSeen]),
    plan: &mut Plan,
    now: Timestamp,
) {
    if let (Some(seconds), Some(start)) = (job.active_deadline_seconds, &status.start_time) {
        let end = start.0 + SignedDuration::from_secs(seconds.into());
        if end <= now {
            let message = format!("not complete {seconds} s after its start, activeDeadlineSeconds");
            return fail(status, &mut plan.events, Reason::DeadlineExceeded, &message, now);
        }
        plan.look_again_at(end, now);
    }
    let starting = !matches!(status.phase, Some(Phase::Running));
    if let (true, Some(asked)) = (starting, &status.attempt_time) {
        let seconds = job.failure_policy.startup_timeout_seconds;
        let end = asked.0 + SignedDuration::from_secs(seconds.into());
        let joined = present.iter().filter(|pod| pod.ready && pod.role != Role::Coordinator).count();
        if joined == job.replicas.get() as usize {
            return;
        }
        if end <= now {
            let message = format!(
                "not all workers joined within {seconds} s, failurePolicy.startupTimeoutSeconds: {}",
                laggard(job, seen, present)
            );
            return fail(status, &mut plan.events, Reason::StartupTimeout, &message, now);
        }
        plan.look_again_at(end, now);
    }
}

/// The first worker that has not joined, and why.
fn laggard(job: &ValidJob, seen: &Observed, present: &[&PodSeen]) -> String {
    if let Some(message) = hindrance(present).map(|(_, message)| message).or_else(|| seen.refused.clone()) {
        return message;
    }
    let joined = |index: &u32| present.iter().any(|pod| pod.role == Role::Worker(*index) && pod.ready);
    let Some(index) = (0..job.replicas.get()).find(|index| !joined(index)) else { return "none is left".to_owned() };
    let name = pod_name(job, Role::Worker(index));
    match present.iter().find(|pod| pod.role == Role::Worker(index)).map(|pod| &pod.state) {
        None => format!("pod {name} does not exist; see the events of the job"),
        Some(PodState::Pending(_)) => format!("pod {name} does not run; see its events"),
        Some(PodState::Running | PodState::Ended(_)) => {
            format!("pod {name} runs but has not joined the group; see its log")
        }
    }
}

fn complete_job(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    events: &mut Vec<Note>,
    group: Option<&GroupSeen>,
    ending: Option<Ending>,
    now: Timestamp,
) {
    let reported = group.and_then(|group| group.ending.clone());
    let progress_told = group.and_then(|group| group.progress.clone());
    // A pod's ending has no room for a table; an ending in the record may be an earlier attempt's.
    let told = [&progress_told, &reported.as_ref().and_then(|ending| ending.progress.clone())];
    let table = told.into_iter().flatten().find_map(|told| told.benchmark.clone());
    let Ending { message: _, progress, model_uri } = ending.or(reported).unwrap_or_default();
    if let Some(progress) = progress.or(progress_told) {
        let progress = Progress { benchmark: progress.benchmark.or(table), ..progress };
        let last = status.last_checkpoint.clone();
        status.report(&progress, now);
        events.extend(checkpoint_note(last.as_ref(), status));
    }
    status.model_uri = model_uri.or(status.model_uri.take());
    let message = status.result();
    let reason = match job.task {
        Task::Train(_) => Reason::TrainingComplete,
        Task::Benchmark { .. } => Reason::BenchmarkComplete,
    };
    events.push(Note::complete(&message));
    set_condition(status, ConditionType::Complete, reason, &message, now);
    end(status, Phase::Complete, reason, &message, now);
}

fn fail(status: &mut TrainingJobStatus, events: &mut Vec<Note>, reason: Reason, message: &str, now: Timestamp) {
    events.push(Note::failed(reason, message));
    set_condition(status, ConditionType::Failed, reason, message, now);
    end(status, Phase::Failed, reason, message, now);
}

fn end(status: &mut TrainingJobStatus, phase: Phase, reason: Reason, message: &str, now: Timestamp) {
    set_condition(status, ConditionType::Finished, reason, message, now);
    status.completion_time = Some(Time(now));
    enter(status, phase, reason, message, now);
}

fn enter(status: &mut TrainingJobStatus, phase: Phase, reason: Reason, message: &str, now: Timestamp) {
    status.phase = Some(phase);
    status.reason = Some(reason.to_string());
    set_condition(status, ConditionType::Running, reason, message, now);
}

/// A finished job never makes anything again.
fn after_the_end(job: &ValidJob, seen: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    clean(job, &seen.pods, &mut plan, now);
    watch_terminating(&seen.pods, &mut plan, now);
    if let (Some(ttl), Some(ended)) = (job.ttl_seconds_after_finished, &seen.status.completion_time) {
        let end = ended.0 + SignedDuration::from_secs(ttl.into());
        if end <= now {
            plan.delete_job = true;
        } else {
            plan.look_again_at(end, now);
        }
    }
    plan
}

fn clean(job: &ValidJob, pods: &[PodSeen], plan: &mut Plan, now: Timestamp) {
    for pod in pods {
        let closed = ended_at(pod).map(|ended| ended + SignedDuration::from_secs(CLOSING_SECONDS));
        match (job.clean_pod_policy, closed.filter(|closed| *closed > now)) {
            (CleanPodPolicy::Running, Some(closed)) if !pod.over => plan.look_again_at(closed, now),
            (CleanPodPolicy::Running, _) if pod.over => {}
            (CleanPodPolicy::All | CleanPodPolicy::Running, _) => plan.delete.extend(deletion(pod, now)),
            (CleanPodPolicy::None, _) => {}
        }
    }
}

/// The deletion of a pod, unless it was asked for and its node still has time to carry it out.
fn deletion(pod: &PodSeen, now: Timestamp) -> Option<Deletion> {
    let by_force = pod.stuck_at.is_some_and(|time| time <= now);
    (pod.stuck_at.is_none() || by_force).then(|| Deletion { pod: pod.name.clone(), uid: pod.uid.clone(), by_force })
}

fn watch_terminating(pods: &[PodSeen], plan: &mut Plan, now: Timestamp) {
    for time in pods.iter().filter_map(|pod| pod.stuck_at) {
        // One that a finalizer holds is gone when its owner lets go, and its watch says so.
        plan.look_again_at(if time > now { time } else { now + SignedDuration::from_secs(HELD_SECONDS) }, now);
    }
}

fn count(status: &mut TrainingJobStatus, job: &ValidJob, present: &[&PodSeen]) {
    let workers = present.iter().filter(|pod| pod.role != Role::Coordinator);
    let (exist, joined) = workers.fold((0, 0), |(exist, joined), pod| (exist + 1, joined + u32::from(pod.ready)));
    debug_assert!(exist <= job.replicas.get());
    status.replicas = exist;
    status.ready_replicas = joined;
}

/// The end of the pause before the present attempt: none before the first restart, then 0, 1, 3, 7 … seconds.
fn restart_pause_ends(status: &TrainingJobStatus) -> Option<Timestamp> {
    let failed = status.last_failure.as_ref()?.time.as_ref()?.0;
    let doublings = status.restarts.checked_sub(1)?.min(16);
    let seconds = ((1_i64 << doublings) - 1).min(MAX_RESTART_DELAY_SECONDS);
    Some(failed + SignedDuration::from_secs(seconds))
}
