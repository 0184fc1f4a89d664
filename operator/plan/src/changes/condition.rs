//! Phases and conditions of a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::{ConditionType, Phase, Reason, TrainingJobStatus};

use super::{event::JobEvent, step::Step};

/// The reason for a phase or a condition: one word for programs, and a sentence for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Explanation {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl Explanation {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Sets a condition. Its transition time moves only with its status.
pub(crate) fn with_condition(
    mut status: TrainingJobStatus,
    type_: ConditionType,
    holds: bool,
    why: &Explanation,
    now: Timestamp,
) -> TrainingJobStatus {
    let text = if holds { "True" } else { "False" };
    let earlier = status.conditions.iter().find(|condition| condition.type_ == type_.to_string());
    let since =
        earlier.filter(|condition| condition.status == text).map(|condition| condition.last_transition_time.clone());
    let condition = Condition {
        last_transition_time: since.unwrap_or(Time(now)),
        message: why.message.clone(),
        observed_generation: status.observed_generation,
        reason: why.reason.to_string(),
        status: text.to_owned(),
        type_: type_.to_string(),
    };
    match status.conditions.iter_mut().find(|other| other.type_ == condition.type_) {
        Some(other) => *other = condition,
        None => status.conditions.push(condition),
    }
    status
}

/// True if the status has a condition of this type, whether it holds or not.
pub(crate) fn has_condition(status: &TrainingJobStatus, type_: ConditionType) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_.to_string())
}

/// Moves the job into a phase.
pub(crate) fn enter(
    mut status: TrainingJobStatus,
    phase: Phase,
    why: &Explanation,
    now: Timestamp,
) -> TrainingJobStatus {
    status.phase = Some(phase);
    status.reason = Some(why.reason.to_string());
    let mut status = with_condition(status, ConditionType::Running, phase == Phase::Running, why, now);
    if matches!(phase, Phase::Complete | Phase::Failed | Phase::Suspended) {
        // No worker is replaced any more.
        status.replacing.clear();
        return not_degraded(status, why, now);
    }
    status
}

/// Withdraws the condition Degraded, if the job ever had it.
pub(crate) fn not_degraded(status: TrainingJobStatus, why: &Explanation, now: Timestamp) -> TrainingJobStatus {
    if !has_condition(&status, ConditionType::Degraded) {
        return status;
    }
    with_condition(status, ConditionType::Degraded, false, why, now)
}

/// Ends the job as complete.
pub(crate) fn complete(status: TrainingJobStatus, why: &Explanation, now: Timestamp) -> Step {
    let status = with_condition(status, ConditionType::Complete, true, why, now);
    Step::from(end(status, Phase::Complete, why, now)).event(JobEvent::complete(&why.message))
}

/// Ends the job as failed.
pub(crate) fn fail(status: TrainingJobStatus, why: &Explanation, now: Timestamp) -> Step {
    let status = with_condition(status, ConditionType::Failed, true, why, now);
    Step::from(end(status, Phase::Failed, why, now)).event(JobEvent::failed(why.reason, &why.message))
}

fn end(status: TrainingJobStatus, phase: Phase, why: &Explanation, now: Timestamp) -> TrainingJobStatus {
    let mut status = with_condition(status, ConditionType::Finished, true, why, now);
    status.completion_time = Some(Time(now));
    enter(status, phase, why, now)
}
