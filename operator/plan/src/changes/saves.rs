//! The conditions about saves that fail.

use lockstep_api::{ConditionType, Reason, TrainingJobStatus, ValidJob, label};
use lockstep_launch::Unsaved;

use super::{
    condition::{Explanation, has_condition, with_condition},
    event::JobEvent,
    step::Step,
};
use crate::judgement::{Situation, unsaved};

/// Says whether saves fail. A job whose saves never failed has no such condition.
pub(crate) fn tell_of_saves(situation: &Situation<'_>, status: TrainingJobStatus) -> TrainingJobStatus {
    let type_ = ConditionType::CheckpointsFailing;
    if let Some(unsaved) = unsaved(situation, &status) {
        let message = format!("{unsaved}; {}", way_out(situation.job, unsaved));
        let why = Explanation::new(Reason::SaveFailed, message);
        return with_condition(status, type_, true, &why, situation.now);
    }
    if !has_condition(&status, type_) {
        return status;
    }
    let message = match &status.last_checkpoint {
        Some(mark) => format!("the newest checkpoint holds step {}", mark.step),
        None => "no worker holds steps that are not saved".to_owned(),
    };
    with_condition(status, type_, false, &Explanation::new(Reason::Saved, message), situation.now)
}

/// Says that the suspension waits. An event says so the first time.
pub(crate) fn tell_of_waiting_suspension(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let Some(unsaved) = unsaved(situation, &status) else { return status.into() };
    let way_out = way_out(situation.job, unsaved);
    let message = format!("spec.suspend: the pods stay until their state is saved. {unsaved}; {way_out}");
    let (type_, why) = (ConditionType::Suspended, Explanation::new(Reason::SaveFailed, message));
    let is_known = status
        .conditions
        .iter()
        .any(|known| known.type_ == type_.to_string() && known.reason == why.reason.to_string());
    let step = Step::from(with_condition(status, type_, false, &why, situation.now));
    if is_known { step } else { step.event(JobEvent::suspension_waits(&why.message)) }
}

/// Tells a person how to suspend without the unsaved steps.
fn way_out(job: &ValidJob, unsaved: &Unsaved) -> String {
    let name = &job.name;
    let goes_on = if unsaved.waits { "they go on once the storage takes it; " } else { "" };
    format!("{goes_on}to suspend without these steps: kubectl annotate tj {name} {}=true", label::SUSPEND_UNSAVED)
}
