//! The life of a job: Pending → Starting → Running → Complete or Failed, with Restarting while training waits for workers, and
//! Suspended.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{CleanPodPolicy, ConditionType, LastFailure, Phase, Reason, TrainingJobStatus, ValidJob};
use lockstep_launch::{Ending, InvalidField, Progress, Task};

use crate::{
    Deletion, GroupSeen, Observed, Plan, PodSeen, PodState, Role, Settings,
    carry_on::{attendance, carry_on},
    failure::{Cause, Losses, Pulse, RETRY, Verdict, ended_at, is_alive, is_done, verdict, wanted},
    hindrance::hindrance,
    image, pod_name,
    replace::{count_failure, lose, pause_after, pause_until_there, welcome},
    status::{
        Note, Report, checkpoint_note, reported_at, restart_note, set_condition, take_changes, take_progress, told,
    },
    suspend::{resume, suspend},
    unsaved::{suspension_waits, tell_of_waiting_suspension, tell_whether_saved},
};

/// Seconds that a node has to call a pod over once its trainer has ended: one that is deleted before takes its log with it.
const CLOSING_SECONDS: i64 = 30;
/// Seconds without a report after which a worker on a node that does not report either is held for lost.
pub(crate) const STANDSTILL_SECONDS: i64 = 15;
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
    if status.phase.is_none() && !job.suspend {
        plan.events.push(Note::created(job));
    }
    if status.phase == Some(Phase::Suspended) && !job.suspend {
        resume(&mut status, &mut plan.events, now);
    }
    if !job.suspend {
        status.start_time.get_or_insert(Time(now));
    }
    let (attempt, present, earlier) = by_attempt(seen, status.attempt);
    if seen.group.is_none() && present.is_empty() {
        // Generations are counted anew.
        status.membership = None;
    }
    status.attempt = attempt;
    status.selector = Some(crate::pods::worker_selector(job));
    // What follows from the last report is said now, or never.
    let at_once = job.suspend || !wanted(job, &present).any(|(_, pod)| is_alive(pod));
    if let Some(time) = take_progress(&mut status, seen, at_once, &mut plan.events, now) {
        plan.look_again_at(time, now);
    }

    image::keep(job, &mut status, &seen.pods);
    take_changes(&mut status, seen, &mut plan.events);
    // With the pods their steps would go: until these are saved the job goes on.
    let waits = suspension_waits(job, &status, &present);
    let suspends = job.suspend && !waits;
    let (pulse, asked_again) = pulse(job, &status, &present, now);
    if let Some(time) = asked_again {
        plan.look_again_at(time, now);
    }
    match verdict(job, &present, &status, pulse, now) {
        Verdict::Done(ending) => {
            complete_job(job, &mut status, &mut plan.events, seen.group.as_ref(), *ending, now);
        }
        Verdict::Refused(failure) => {
            let message = told(&failure);
            status.last_failure = Some(failure);
            fail(&mut status, &mut plan.events, Reason::InvalidInput, &message, now);
        }
        _ if suspends => {}
        Verdict::GoesOn(_) if lacks_record(seen, &status, &present) => {
            status.last_failure = Some(LastFailure {
                pod: Some(pod_name(job, Role::Coordinator)),
                reason: Some("RecordDeleted".to_owned()),
                message: "the job's TrainingGroup is gone: leave it to Lockstep".to_owned(),
                time: Some(Time(now)),
                ..LastFailure::default()
            });
            restart(&mut status, &mut plan.events, Reason::WorkerLost, job, now);
        }
        Verdict::GoesOn(Losses { gone, settles }) => {
            if let Some(until) = settles {
                plan.look_again_at(until, now);
            }
            lose(&mut status, &mut plan.events, gone, now);
            welcome(job, &mut status, &present, &mut plan.events, now);
        }
        Verdict::AllGone(last) => {
            let mut failed = status.replacing.iter().any(|entry| entry.failed);
            if let Some((cause, failure)) = last {
                failed = cause == Cause::Failed;
                if failed {
                    count_failure(&mut status, now);
                }
                plan.events.push(Note::worker_lost(&failure));
                status.last_failure = Some(failure);
            }
            if status.failures <= job.failure_policy.backoff_limit {
                let reason = if failed { Reason::WorkerFailed } else { Reason::WorkerLost };
                restart(&mut status, &mut plan.events, reason, job, now);
            }
        }
    }
    let finished = |status: &TrainingJobStatus| status.phase.is_some_and(Phase::is_finished);
    if !finished(&status) && !suspends && status.attempt == attempt {
        begin_with_another_image(job, &mut status, &mut plan.events, &present, settings);
    }
    if !finished(&status) && !suspends {
        give_up_after_failures(job, &mut status, &mut plan.events, now);
    }
    if !finished(&status) && suspends {
        suspend(job, seen, settings, &mut status, &mut plan, &present, pulse, now);
    } else if !finished(&status) {
        if status.attempt == attempt {
            carry_on(job, seen, settings, &mut status, &mut plan, (&present, &earlier), pulse, now);
        } else {
            plan.delete = present.iter().chain(&earlier).filter_map(|pod| deletion(pod, now)).collect();
        }
        give_up_in_time(job, &mut status, (seen, &present), &mut plan, now);
        watch_terminating(&seen.pods, &mut plan, now);
    }
    let finished = finished(&status);
    if finished {
        plan = Plan { events: plan.events, ..Plan::default() };
        clean(job, &seen.pods, &mut plan, now);
    }
    if waits && !finished {
        tell_of_waiting_suspension(job, &mut status, &present, &mut plan.events, now);
    }
    tell_whether_saved(job, &mut status, &present, now);
    count(&mut status, &present);
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

/// Whether workers that know of a membership are left without the record of it, and without the coordinator that would tell them: a new
/// record would know less than they do.
pub(crate) fn lacks_record(seen: &Observed, status: &TrainingJobStatus, present: &[&PodSeen]) -> bool {
    let is_there = present.iter().any(|pod| pod.role == Role::Coordinator && is_alive(pod));
    seen.group.is_none() && status.membership.is_some() && !is_there && present.iter().any(|pod| pod.ready)
}

/// The present attempt, its pods, and those of earlier ones.
fn by_attempt(seen: &Observed, known: u32) -> (u32, Vec<&PodSeen>, Vec<&PodSeen>) {
    let newest = seen.pods.iter().map(|pod| pod.attempt).max().unwrap_or_default();
    let attempt = newest.max(known).max(seen.status.restarts);
    let (present, earlier) = seen.pods.iter().partition(|pod| pod.attempt == attempt);
    (attempt, present, earlier)
}

/// How the group does by its newest report, and when it is to be asked again in case nothing else is heard.
fn pulse(
    job: &ValidJob,
    status: &TrainingJobStatus,
    present: &[&PodSeen],
    now: Timestamp,
) -> (Pulse, Option<Timestamp>) {
    let reported = reported_at(status);
    let stale = reported.map(|time| time + SignedDuration::from_secs(STANDSTILL_SECONDS)).filter(|time| *time > now);
    let is_lost = |pod: &PodSeen| status.replacing.iter().any(|entry| entry.uid.as_ref() == Some(&pod.uid));
    let run = || wanted(job, present).map(|(_, pod)| pod).filter(|pod| pod.state == PodState::Running && !is_lost(pod));
    let all = status.membership.as_ref().is_some_and(|membership| membership.world_size as usize >= run().count());
    // A worker may stop before anybody saw that it was ready.
    let took_part = all && run().all(|pod| pod.created.is_some() && pod.created <= reported);
    let coordinator = present.iter().copied().filter(|pod| pod.role == Role::Coordinator);
    let is_doubtful = run().chain(coordinator).any(|pod| pod.unready_since.is_some() || pod.unreachable);
    let pulse = match (stale, all) {
        (Some(_), true) => Pulse::Whole,
        (None, _) if took_part || status.phase == Some(Phase::Running) => Pulse::Still { all: took_part },
        _ => Pulse::Lacking,
    };
    (pulse, stale.filter(|_| is_doubtful))
}

/// All start anew, with a new set of pods.
fn restart(status: &mut TrainingJobStatus, events: &mut Vec<Note>, reason: Reason, job: &ValidJob, now: Timestamp) {
    status.restarts += 1;
    status.attempt += 1;
    status.attempt_time = None;
    status.target_replicas = 0;
    status.replacing.clear();
    events.push(restart_note(status, job));
    let after = status.last_failure.as_ref().map(told).unwrap_or_default();
    let message = format!("restart {} after {after}", status.restarts);
    enter(status, Phase::Restarting, reason, &message, now);
}

/// A job that has not begun gets a new set of pods where those that it has cannot start, and the
/// operator's image is another one now.
fn begin_with_another_image(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    events: &mut Vec<Note>,
    present: &[&PodSeen],
    settings: &Settings,
) {
    let outdated = image::outdated(job, status, present, settings);
    let Some(pod) = outdated.first().filter(|_| status.trainer.is_none()) else { return };
    events.push(Note::image_changed(pod, settings));
    status.attempt += 1;
    status.attempt_time = None;
    status.target_replicas = 0;
    status.replacing.clear();
}

/// Fails the job once it has failed more often than it may.
fn give_up_after_failures(job: &ValidJob, status: &mut TrainingJobStatus, events: &mut Vec<Note>, now: Timestamp) {
    let (failures, limit) = (status.failures, job.failure_policy.backoff_limit);
    if failures <= limit {
        return;
    }
    let last = status.last_failure.as_ref().map(told).unwrap_or_default();
    let message = format!("failure {failures}, backoffLimit is {limit}; the last: {last}");
    fail(status, events, Reason::BackoffLimitExceeded, &message, now);
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
        // Where the training is done, only the last pods have not ended yet.
        if end <= now && !is_done(present) {
            let message = format!("not complete {seconds} s after its start, activeDeadlineSeconds");
            return fail(status, &mut plan.events, Reason::DeadlineExceeded, &message, now);
        }
        if end > now {
            plan.look_again_at(end, now);
        }
    }
    let running = ConditionType::Running.to_string();
    let stopped = status.conditions.iter().find(|condition| condition.type_ == running && condition.status == "False");
    if let (Some(stopped), Some(asked), false) = (stopped, &status.attempt_time, is_done(present)) {
        let seconds = job.failure_policy.startup_timeout_seconds;
        let end = asked.0.max(stopped.last_transition_time.0) + SignedDuration::from_secs(seconds.into());
        if end <= now {
            let message = format!(
                "{} within {seconds} s, failurePolicy.startupTimeoutSeconds: {}",
                attendance(job, present),
                laggard(job, status, seen, present)
            );
            return fail(status, &mut plan.events, Reason::StartupTimeout, &message, now);
        }
        plan.look_again_at(end, now);
    }
}

/// The first worker that has not joined, and why.
fn laggard(job: &ValidJob, status: &TrainingJobStatus, seen: &Observed, present: &[&PodSeen]) -> String {
    if let Some(message) = hindrance(job, status, present).map(|(_, message)| message).or_else(|| seen.refused.clone())
    {
        return message;
    }
    let joined = |index: &u32| present.iter().any(|pod| pod.role == Role::Worker(*index) && pod.ready);
    let Some(index) = (0..job.replicas.get()).find(|index| !joined(index)) else { return "none is left".to_owned() };
    let name = pod_name(job, Role::Worker(index));
    match present.iter().find(|pod| pod.role == Role::Worker(index)).map(|pod| &pod.state) {
        None => format!("pod {name} does not exist; see the events of the job"),
        Some(PodState::Pending(_)) => format!("pod {name} does not run; see its events"),
        Some(PodState::Running | PodState::Ended(_)) => {
            format!(
                "pod {name} runs but has not joined the group; to keep its log for `kubectl logs`, run the job again with \
                 cleanPodPolicy: None"
            )
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
    set_condition(status, ConditionType::Complete, true, reason, &message, now);
    end(status, Phase::Complete, reason, &message, now);
}

fn fail(status: &mut TrainingJobStatus, events: &mut Vec<Note>, reason: Reason, message: &str, now: Timestamp) {
    events.push(Note::failed(reason, message));
    set_condition(status, ConditionType::Failed, true, reason, message, now);
    end(status, Phase::Failed, reason, message, now);
}

fn end(status: &mut TrainingJobStatus, phase: Phase, reason: Reason, message: &str, now: Timestamp) {
    set_condition(status, ConditionType::Finished, true, reason, message, now);
    status.completion_time = Some(Time(now));
    enter(status, phase, reason, message, now);
}

pub(crate) fn enter(status: &mut TrainingJobStatus, phase: Phase, reason: Reason, message: &str, now: Timestamp) {
    status.phase = Some(phase);
    status.reason = Some(reason.to_string());
    set_condition(status, ConditionType::Running, phase == Phase::Running, reason, message, now);
    if matches!(phase, Phase::Complete | Phase::Failed | Phase::Suspended) {
        // Nobody is replaced any more.
        status.replacing.clear();
        tell_not_degraded(status, reason, message, now);
    }
}

/// Takes back that the job is degraded, if that was ever told.
pub(crate) fn tell_not_degraded(status: &mut TrainingJobStatus, reason: Reason, message: &str, now: Timestamp) {
    if status.conditions.iter().any(|condition| condition.type_ == ConditionType::Degraded.to_string()) {
        set_condition(status, ConditionType::Degraded, false, reason, message, now);
    }
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
pub(crate) fn deletion(pod: &PodSeen, now: Timestamp) -> Option<Deletion> {
    let by_force = pod.stuck_at.is_some_and(|time| time <= now);
    (pod.stuck_at.is_none() || by_force).then(|| Deletion { pod: pod.name.clone(), uid: pod.uid.clone(), by_force })
}

pub(crate) fn watch_terminating(pods: &[PodSeen], plan: &mut Plan, now: Timestamp) {
    for time in pods.iter().filter_map(|pod| pod.stuck_at) {
        // One that a finalizer holds is gone when its owner lets go, and its watch says so.
        plan.look_again_at(if time > now { time } else { now + SignedDuration::from_secs(HELD_SECONDS) }, now);
    }
}

fn count(status: &mut TrainingJobStatus, present: &[&PodSeen]) {
    let workers = present.iter().filter(|pod| pod.role != Role::Coordinator);
    let (exist, joined) = workers.fold((0, 0), |(exist, joined), pod| (exist + 1, joined + u32::from(pod.ready)));
    status.replicas = exist;
    status.ready_replicas = joined;
}

/// The end of the pause before the present attempt, if it is not the first.
pub(crate) fn restart_pause_ends(status: &TrainingJobStatus) -> Option<Timestamp> {
    let failure = status.last_failure.as_ref()?;
    let failed = failure.time.as_ref()?.0;
    let asked = failure.reason.as_deref() == Some(RETRY);
    let pause = if asked { pause_until_there(status.failures) } else { pause_after(status.restarts) };
    (status.restarts > 0).then(|| failed + pause)
}
