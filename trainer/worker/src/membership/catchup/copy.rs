//! The copy of a whole state while the group pauses. It is for members that lack the step on which
//! the group agreed.

use std::time::Duration;

use lockstep_collective::{Group as Ranks, Tag};
use lockstep_elastic::Assignment;
use tracing::info;

use super::parcel::parts;
use crate::{
    compute::training_state::TrainingState,
    failure::Failure,
    membership::session::{LIMITS, UNACKNOWLEDGED},
};

/// The least number of bytes that a link carries in a second.
const SLOW_LINK: f64 = 10e6;
/// The tag of a state carries a step that no gradient has.
const COPY: Tag = Tag { step: u64::MAX, bucket: 2 };

/// Gives every member the state on which the group agreed: members that lack it copy a part from
/// each member that holds it.
pub(crate) fn copy_base(group: &Assignment, ranks: &mut Ranks, training: &mut TrainingState) -> Result<(), Failure> {
    ranks.set_silence(LIMITS.silence, copying_limit(group, training)).map_err(Failure::lost)?;
    if group.copiers.contains(&group.rank) {
        copy(group, ranks, training)?;
    } else if !group.copiers.is_empty() {
        hand_out(group, ranks, training)?;
    }
    ranks.set_silence(LIMITS.silence, UNACKNOWLEDGED).map_err(Failure::lost)
}

/// Returns how long a rank's host may acknowledge nothing during a copy. A copier takes its parts
/// from one rank after another; the ranks whose turn has not come wait until then.
fn copying_limit(group: &Assignment, training: &TrainingState) -> Duration {
    let bytes = group.copiers.len() * training.state_elements() * size_of::<f32>();
    LIMITS.silence.min(UNACKNOWLEDGED + Duration::from_secs_f64(bytes as f64 / SLOW_LINK))
}

fn hand_out(group: &Assignment, ranks: &mut Ranks, training: &mut TrainingState) -> Result<(), Failure> {
    let Some(place) = group.sources.iter().position(|source| *source == group.rank) else { return Ok(()) };
    let part = parts(training.state_elements(), group.sources.len()).swap_remove(place);
    let mut values = vec![0.0; part.len()];
    training.copy_state(part, &mut values);
    for copier in &group.copiers {
        ranks.send(*copier as usize, COPY, &mut values).map_err(Failure::lost)?;
    }
    Ok(())
}

fn copy(group: &Assignment, ranks: &mut Ranks, training: &mut TrainingState) -> Result<(), Failure> {
    let mut values = vec![0.0; training.state_elements()];
    let parts = parts(values.len(), group.sources.len());
    for (source, part) in group.sources.iter().zip(parts) {
        ranks.receive(*source as usize, COPY, &mut values[part]).map_err(Failure::lost)?;
    }
    training.take_over_copy(group.base, &values)?;
    info!(step = training.step, bytes = values.len() * size_of::<f32>(), "state copied");
    Ok(())
}
