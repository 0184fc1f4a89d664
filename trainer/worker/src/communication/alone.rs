//! The throughput of one worker by itself, with which a group compares its own. Members carry it
//! from one generation to the next, and newcomers learn it from them.

use lockstep_collective::{CollectiveError, Group, Reduction, algorithm::Algorithm};
use lockstep_launch::ScalingBaseline;

use super::tag;

/// The throughput of one worker that trains the whole global batch by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alone {
    pub samples_per_second: f64,
    pub source: ScalingBaseline,
}

impl Alone {
    pub(crate) const fn measured(samples_per_second: f64) -> Self {
        Self { samples_per_second, source: ScalingBaseline::Measured }
    }

    pub(crate) const fn estimated(samples_per_second: f64) -> Self {
        Self { samples_per_second, source: ScalingBaseline::Estimated }
    }

    /// Returns the better of what all ranks know: a measured throughput replaces estimates, and the
    /// highest of several counts.
    fn of_slots([measured, estimated]: [f64; 2]) -> Option<Self> {
        let known = |rate: f64| rate.is_finite() && rate > 0.0;
        match (known(measured), known(estimated)) {
            (true, _) => Some(Self::measured(measured)),
            (false, true) => Some(Self::estimated(estimated)),
            (false, false) => None,
        }
    }

    fn slots(self) -> [f64; 2] {
        match self.source {
            ScalingBaseline::Measured => [self.samples_per_second, 0.0],
            ScalingBaseline::Estimated => [0.0, self.samples_per_second],
        }
    }
}

/// Agrees with the other ranks on the throughput of one worker, of which `rank` knows `own`. If no
/// rank knows any, rank 0 finds it out by `estimate` while all others wait. A group of one need
/// not estimate: it measures.
///
/// # Errors
/// `lost` makes an error of a failed collective.
pub(crate) fn agree_alone<E>(
    group: &mut Group,
    rank: u32,
    own: Option<Alone>,
    estimate: impl FnOnce() -> Result<Option<Alone>, E>,
    lost: impl Fn(CollectiveError) -> E,
) -> Result<Option<Alone>, E> {
    let best = best(group, 2, own).map_err(&lost)?;
    if best.is_some() || group.world() == 1 {
        return Ok(best);
    }
    let own = if rank == 0 { estimate()? } else { None };
    self::best(group, 3, own).map_err(lost)
}

fn best(group: &mut Group, bucket: u32, own: Option<Alone>) -> Result<Option<Alone>, CollectiveError> {
    let mut slots = own.map_or([0.0; 2], Alone::slots);
    group.all_reduce(Algorithm::RecursiveDoubling, tag(bucket), &mut slots, Reduction::Max)?;
    Ok(Alone::of_slots(slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_throughput_replaces_estimates_and_the_highest_counts() {
        let best = |known: &[Option<Alone>]| {
            let slots = known.iter().map(|known| known.map_or([0.0; 2], Alone::slots));
            Alone::of_slots(slots.fold([0.0; 2], |best, slots| [best[0].max(slots[0]), best[1].max(slots[1])]))
        };
        assert_eq!(best(&[None, None]), None);
        assert_eq!(
            best(&[None, Some(Alone::estimated(5.0)), Some(Alone::estimated(6.0))]),
            Some(Alone::estimated(6.0))
        );
        assert_eq!(best(&[Some(Alone::measured(4.0)), Some(Alone::estimated(5.0))]), Some(Alone::measured(4.0)));
    }
}
