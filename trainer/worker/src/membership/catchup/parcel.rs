//! The parcels in which members send their state to a newcomer, and what both sides must agree on.

use std::ops::Range;

use lockstep_collective::{Group as Star, Tag};

use crate::failure::Failure;

/// The number of parcels that may wait to be sent to a newcomer. Each takes as much memory as this
/// rank's part of the gradients.
pub(super) const MAX_BEHIND: u64 = 8;
/// The tags of parcels carry a step that no gradient has.
const HEADER: Tag = Tag { step: u64::MAX, bucket: 3 };
const VALUES: Tag = Tag { step: u64::MAX, bucket: 4 };
/// The newcomer tells the sender that it has used a parcel.
const USED: Tag = Tag { step: u64::MAX, bucket: 5 };

/// A rank's part of a state, which comes first, or of the summed gradients of a later step.
pub(super) struct Parcel {
    /// The step that the state holds, or that the gradients make.
    pub step: u64,
    pub values: Vec<f32>,
}

impl Parcel {
    /// Sends the parcel, and the number of parcels that wait behind it.
    pub(super) fn send(mut self, star: &mut Star, to: usize, behind: u64) -> Result<(), Failure> {
        star.send(to, HEADER, &mut [self.step, behind].map(|number| number as i64)).map_err(Failure::lost)?;
        star.send(to, VALUES, &mut self.values).map_err(Failure::lost)?;
        Ok(())
    }

    /// Waits until the newcomer has used one more parcel.
    pub(super) fn wait_until_used(star: &mut Star, newcomer: usize) -> Result<(), Failure> {
        star.receive(newcomer, USED, &mut [0_u8]).map(drop).map_err(Failure::lost)
    }
}

/// Fills `values` with the parts of all ranks. Returns their step, and the number of parcels that
/// the slowest rank has still to send.
pub(super) fn receive_parts(star: &mut Star, sources: usize, values: &mut [f32]) -> Result<(u64, u64), Failure> {
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

/// Tells all sources that their parcels were used.
pub(super) fn tell_used(star: &mut Star, sources: usize) -> Result<(), Failure> {
    (0..sources).try_for_each(|source| star.send(source, USED, &mut [1_u8]).map(drop).map_err(Failure::lost))
}

/// Cuts `0..elements` into `parts` ranges of nearly equal length.
pub(super) fn parts(elements: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts).map(|part| part * elements / parts..(part + 1) * elements / parts).collect()
}
