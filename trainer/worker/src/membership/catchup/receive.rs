//! A newcomer's way into a group that trains: it takes over the state that the members hold after some step, a part from each, applies the
//! gradients of every step since as they summed them, and so holds what they hold, bit for bit, when they let it in.

use std::ops::Range;

use lockstep_collective::{Group as Star, Tag};
use lockstep_elastic::{Activity, Admission, Assignment, FollowedGroup};
use tracing::info;

use crate::{
    compute::training_state::Trainee, failure::Failure, membership::catchup::send::MAX_BEHIND,
    membership::session::Member,
};

/// Parcels are sent in frames of a step that no gradient has.
const HEADER: Tag = Tag { step: u64::MAX, bucket: 3 };
const VALUES: Tag = Tag { step: u64::MAX, bucket: 4 };
/// That a parcel was used goes back to its sender.
const USED: Tag = Tag { step: u64::MAX, bucket: 5 };

/// A rank's part of a state, which comes first, or of a step's summed gradients.
pub(crate) struct Parcel {
    /// The step that the state holds, or that the gradients make.
    pub step: u64,
    pub values: Vec<f32>,
}

impl Parcel {
    /// Sends it, and that so many more wait behind it.
    pub(crate) fn send(mut self, star: &mut Star, to: usize, behind: u64) -> Result<(), Failure> {
        star.send(to, HEADER, &mut [self.step, behind].map(|number| number as i64)).map_err(Failure::lost)?;
        star.send(to, VALUES, &mut self.values).map_err(Failure::lost)?;
        Ok(())
    }

    /// Waits until the newcomer has used another one.
    pub(crate) fn wait_until_used(star: &mut Star, newcomer: usize) -> Result<(), Failure> {
        star.receive(newcomer, USED, &mut [0_u8]).map(drop).map_err(Failure::lost)
    }
}

/// From place to place until this worker belongs to a group.
pub(crate) fn until_let_in(
    member: &Member<'_>,
    trainee: &mut Trainee,
    mut place: Admission,
) -> Result<Assignment, Failure> {
    loop {
        match place {
            Admission::Member(group) => return Ok(group),
            Admission::Newcomer(lead) => {
                let ended = follow(member, trainee, &lead);
                let failed = ended.err().filter(|_| member.membership.sealing().is_none());
                let why = failed.as_ref().map_or("it changes".to_owned(), Failure::to_string);
                info!(generation = lead.generation, step = trainee.step, why, "the group is followed no more");
                place = member.regroup(trainee.held(), failed.and_then(|failure| failure.into_break().ok()))?;
            }
        }
    }
}

/// Follows a group until it changes, or hands over nothing more; its state is whole at every moment.
fn follow(member: &Member<'_>, trainee: &mut Trainee, lead: &FollowedGroup) -> Result<(), Failure> {
    let sources = lead.addresses.len();
    let mut star = member.follow(lead)?;
    trainee.put_gradients(None, 0);
    let mut state = vec![0.0; trainee.replica.state_elements()];
    let (step, mut behind) = receive(&mut star, sources, &mut state)?;
    trainee.take_over(step, &state);
    member.membership.took_over();
    drop(state);
    tell_used(&mut star, sources)?;
    info!(generation = lead.generation, step, behind, "state taken over; following the group");
    let mut gradients = vec![0.0; trainee.replica.table().elements()];
    let mut caught_up = false;
    let begun = step;
    while !member.membership.is_over() && !member.membership.is_stranded() {
        // Whoever has kept pace for so long falls no further behind.
        if !caught_up && (behind <= 1 || trainee.step - begun >= 2 * MAX_BEHIND) {
            member.membership.caught_up();
            caught_up = true;
        }
        let step;
        (step, behind) = receive(&mut star, sources, &mut gradients)?;
        if step != trainee.step + 1 {
            return Err(Failure::broken(format!("gradients of step {step} follow step {}", trainee.step)));
        }
        member.membership.work().during(Activity::Computing, || trainee.repeat_step(&gradients));
        tell_used(&mut star, sources)?;
    }
    Ok(())
}

/// Tells all sources that their parcels were used.
fn tell_used(star: &mut Star, sources: usize) -> Result<(), Failure> {
    (0..sources).try_for_each(|source| star.send(source, USED, &mut [1_u8]).map(drop).map_err(Failure::lost))
}

/// Fills `values` with the parts of all ranks; gives their step, and how many more the slowest of them has to send.
fn receive(star: &mut Star, sources: usize, values: &mut [f32]) -> Result<(u64, u64), Failure> {
    let (mut first, mut most) = (None, 0);
    for (source, part) in parts(values.len(), sources).into_iter().enumerate() {
        let mut header = [0_i64; 2];
        star.receive(source, HEADER, &mut header).map_err(Failure::lost)?;
        let [step, behind] = header.map(|number| number as u64);
        if *first.get_or_insert(step) != step {
            return Err(Failure::broken(format!("rank {source} sends step {step}, rank 0 {first:?}")));
        }
        most = most.max(behind);
        star.receive(source, VALUES, &mut values[part]).map_err(Failure::lost)?;
    }
    Ok((first.unwrap_or_default(), most))
}

/// `0..elements` in so many parts.
pub(crate) fn parts(elements: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts).map(|part| part * elements / parts..(part + 1) * elements / parts).collect()
}
