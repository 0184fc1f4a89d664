//! The condition Resizing.

use lockstep_api::{ConditionType, Phase, Reason, TrainingJobStatus};

use super::condition::{Explanation, has_condition, with_condition};
use crate::judgement::Situation;

/// Says whether the group is to have more or fewer workers than it has. A job whose group never
/// changed has no such condition.
pub(crate) fn tell_of_resizing(situation: &Situation<'_>, status: TrainingJobStatus) -> TrainingJobStatus {
    // While workers are lost, the others train on in phase Running. In each other phase none does.
    let trains = status.phase == Some(Phase::Running);
    let change = change_under_way(situation, &status).filter(|_| trains);
    let was_told = has_condition(&status, ConditionType::Resizing);
    let (holds, why) = match change {
        Some(change) => (true, Explanation::new(Reason::GroupChanges, change)),
        None if !was_told => return status,
        None if !trains => (false, Explanation::new(Reason::NoGroup, "no worker trains")),
        None => {
            let replicas = situation.job.replicas;
            (false, Explanation::new(Reason::GroupComplete, format!("the group has {replicas} workers")))
        }
    };
    with_condition(status, ConditionType::Resizing, holds, &why, situation.now)
}

fn change_under_way(situation: &Situation<'_>, status: &TrainingJobStatus) -> Option<String> {
    let replicas = situation.job.replicas.get();
    let world = status.membership.as_ref().map(|membership| membership.world_size).filter(|world| *world > 0)?;
    let leaving = situation.workers().count().saturating_sub(situation.wanted_workers().count());
    if world != replicas {
        return Some(format!("the group goes from {world} to {replicas} workers"));
    }
    (leaving > 0).then(|| format!("{leaving} workers that the group does not need any more have yet to end"))
}
