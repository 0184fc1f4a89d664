//! The changes that follow from a situation. A job's life: Pending → Starting → Running → Complete
//! or Failed, with Restarting while training waits for workers, and Suspended.

mod cleanup;
mod columns;
mod completion;
mod condition;
mod event;
mod going_on;
mod limits;
mod lost_nodes;
mod replacement;
mod reports;
mod resizing;
mod restart;
mod saves;
mod step;
mod suspension;
mod words;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{Phase, Reason, TrainingJobStatus, ValidJob};
use lockstep_launch::InvalidField;
use lockstep_lifecycle::JobFailure;

pub use event::JobEvent;

use cleanup::{after_the_end, clean_up, watch_terminating};
use condition::{Explanation, fail};
use going_on::go_on;
use limits::{give_up_after_failures, give_up_in_time, why};
use replacement::{forgive, note_losses, welcome, with_failure};
use restart::{begin_with_another_image, begin_with_another_record, delete_all, restart_all};
use step::{Actions, Step};
use suspension::{resume, suspend};

use crate::{
    DefaultImage, JobPlan, Observed,
    judgement::{
        Losses, Situation, Verdict, describe, image_begun_with, is_alive, lacks_record, pulse, suspension_waits,
        verdict,
    },
    objects::worker_selector,
};

/// Plans for a valid job.
#[must_use]
pub fn plan(job: &ValidJob, seen: &Observed, default_image: &DefaultImage, now: Timestamp) -> JobPlan {
    if seen.status.phase.is_some_and(Phase::is_finished) {
        return after_the_end(job, seen, now);
    }
    let begun = begin(job, seen, now);
    let situation = Situation::of(job, seen, default_image, begun.status.attempt, now);
    let known = begun.then(|status| take_facts(&situation, status));

    // The steps since the newest checkpoint would be lost with the pods. The job goes on until they
    // are saved.
    let waits = suspension_waits(&situation, &known.status);
    let suspends = job.suspend && !waits;
    let (pulse, silence) = pulse(&situation, &known.status);
    let verdict = verdict(&situation, &known.status, pulse);

    let mut step =
        known.and(Actions::look_again_at(silence)).then(|status| answer(&situation, status, verdict, suspends));
    step.status = lost_nodes::note_lost_node(&situation, step.status);
    if suspends {
        step = step.then_unless_finished(|status| suspend(&situation, status, pulse));
    } else {
        step = step
            .then_unless_finished(|status| begin_with_another_image(&situation, status))
            .then_unless_finished(|status| give_up_after_failures(&situation, status))
            .then_unless_finished(|status| match status.attempt == situation.attempt {
                true => go_on(&situation, status, pulse),
                false => Step::from(status).and(delete_all(&situation)),
            })
            .then_unless_finished(|status| give_up_in_time(&situation, status))
            .and(watch_terminating(&seen.pods, now));
    }
    if step.is_finished() {
        step = step.events_only().and(clean_up(job, &seen.pods, now)).and(time_to_live(job, now));
    } else if waits {
        step = step.then(|status| saves::tell_of_waiting_suspension(&situation, status));
    }
    step.then(|status| Step::from(saves::tell_of_saves(&situation, status)))
        .then(|status| Step::from(resizing::tell_of_resizing(&situation, status)))
        .then(|status| Step::from(columns::count_and_show(&situation, status)))
        .into_plan(&seen.status, now)
}

/// Plans for an object that is no valid job: the status says so, once.
#[must_use]
pub fn refuse(wrong: &[InvalidField], seen: &Observed, now: Timestamp) -> JobPlan {
    if seen.status.phase.is_some_and(Phase::is_finished) {
        return JobPlan::default();
    }
    let status = TrainingJobStatus { observed_generation: seen.generation, ..seen.status.clone() };
    let message = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    fail(status, &Explanation::new(Reason::InvalidSpec, message), now).into_plan(&seen.status, now)
}

/// Begins the job, or resumes it.
fn begin(job: &ValidJob, seen: &Observed, now: Timestamp) -> Step {
    let status = TrainingJobStatus { observed_generation: seen.generation, ..seen.status.clone() };
    if job.suspend {
        return status.into();
    }
    let step = match status.phase {
        None => Step::from(status).event(JobEvent::created(job)),
        Some(Phase::Suspended) => resume(status, now),
        Some(_) => status.into(),
    };
    step.then(|mut status| {
        status.start_time.get_or_insert(Time(now));
        status.into()
    })
}

/// Takes over what pods and the coordinator's record tell.
fn take_facts(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    if situation.seen.group.is_none() && situation.present.is_empty() {
        // Generations are counted from the beginning again.
        status.membership = None;
    }
    status.attempt = situation.attempt;
    status.selector = Some(worker_selector(situation.job));
    // If no worker is left to report again, the last report is taken at once.
    let at_once = situation.job.suspend || !situation.wanted_workers().any(|(_, pod)| is_alive(pod));
    let mut step = reports::take_progress(situation, status, at_once);
    step.status.trainer = image_begun_with(situation, &step.status);
    step.then(|status| reports::take_changes(situation, status))
        .then(|status| Step::from(forgive(status, situation.now)))
}

/// Answers the verdict on the pods. A job that suspends ends if its training has ended; its losses
/// are not replaced.
fn answer(situation: &Situation<'_>, status: TrainingJobStatus, verdict: Verdict, suspends: bool) -> Step {
    let now = situation.now;
    match verdict {
        Verdict::Done(ending) => completion::complete_job(situation, status, *ending),
        Verdict::Refused(failure) => {
            let why = why(JobFailure::InvalidInput, &describe(&failure));
            fail(with_failure(status, failure), &why, now)
        }
        Verdict::GoesOn(_) | Verdict::AllGone(_) if suspends => status.into(),
        Verdict::GoesOn(_) if lacks_record(situation, &status) => begin_with_another_record(situation, status),
        Verdict::GoesOn(Losses { lost, settles }) => {
            let noted = note_losses(status, lost, now).then(|status| welcome(situation, status));
            noted.and(Actions::look_again_at(settles))
        }
        Verdict::AllGone(last) => restart_all(situation, status, last),
    }
}

/// Looks again when a job that ends now has outlived its time to live.
fn time_to_live(job: &ValidJob, now: Timestamp) -> Actions {
    let ttl = job.ttl_seconds_after_finished;
    Actions::look_again_at(ttl.map(|ttl| now + SignedDuration::from_secs(ttl.into())))
}
