//! The catch-up of a newcomer. It takes over the state that the members hold after some step, a
//! part from each member. Then it applies the summed gradients of every later step. When the
//! members let it in, it holds their state bit for bit.

use lockstep_elastic::{Activity, Admission, Assignment, FollowedGroup};
use tracing::info;

use super::parcel::{MAX_BEHIND, receive_parts, tell_used};
use crate::{compute::training_state::TrainingState, failure::Failure, membership::session::Session};

/// Catches up with one group after another until this worker is a member.
pub(crate) fn until_member(
    session: &Session<'_>,
    training: &mut TrainingState,
    mut admission: Admission,
) -> Result<Assignment, Failure> {
    loop {
        match admission {
            Admission::Member(group) => return Ok(group),
            Admission::Newcomer(lead) => {
                let ended = catch_up(session, training, &lead);
                let failed = ended.err().filter(|_| !session.is_sealing());
                let why = failed.as_ref().map_or("it changes".to_owned(), Failure::to_string);
                info!(generation = lead.generation, step = training.step, why, "catch-up ended");
                admission = session.regroup(training.held(), failed.and_then(|failure| failure.into_break().ok()))?;
            }
        }
    }
}

/// Catches up with a group until it changes or its members send nothing more. The state is whole at
/// every moment.
fn catch_up(session: &Session<'_>, training: &mut TrainingState, lead: &FollowedGroup) -> Result<(), Failure> {
    let sources = lead.addresses.len();
    let mut star = session.follow(lead)?;
    training.put_gradients(None, 0);
    let mut state = vec![0.0; training.state_elements()];
    let (first, mut behind) = receive_parts(&mut star, sources, &mut state)?;
    training.take_over(first, &state);
    session.membership.took_over();
    drop(state);
    tell_used(&mut star, sources)?;
    info!(generation = lead.generation, step = first, behind, "state taken over; catching up");
    let mut gradients = vec![0.0; training.gradient_elements()];
    let mut has_caught_up = false;
    while !session.must_leave() {
        // A newcomer that has kept pace for so long falls no further behind.
        if !has_caught_up && (behind <= 1 || training.step - first >= 2 * MAX_BEHIND) {
            session.membership.caught_up();
            has_caught_up = true;
        }
        let step;
        (step, behind) = receive_parts(&mut star, sources, &mut gradients)?;
        if step != training.step + 1 {
            return Err(Failure::broken(format!("gradients of step {step} follow step {}", training.step)));
        }
        session.work().during(Activity::Computing, || training.repeat_step(&gradients));
        tell_used(&mut star, sources)?;
    }
    Ok(())
}
