//! The fingerprint of a state. Each step, all ranks sum the fingerprints of a window of their
//! states beside the gradients. The sum shows if the states differ.

use lockstep_data::Tally;

/// The bits in one slot, as in a [`Tally`].
const BITS: u32 = 12;
const SLOT: u32 = (1 << BITS) - 1;

/// 24 bits of the checksum of a state, or of a window of it. The default is a rank that tells
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u32);

impl Fingerprint {
    /// The number of slots that [`Self::slots`] fills.
    pub(crate) const SLOTS: usize = 2;
    /// The greatest number of ranks whose slots may be added.
    const MAX_RANKS: usize = Tally::MAX_RANKS;

    pub(crate) const fn of(checksum: u32) -> Self {
        Self(checksum & ((1 << (BITS * Self::SLOTS as u32)) - 1))
    }

    /// Returns the numbers to be summed over up to [`Self::MAX_RANKS`] ranks.
    pub(crate) fn slots(self) -> [f32; Self::SLOTS] {
        [self.0 & SLOT, self.0 >> BITS].map(|bits| bits as f32)
    }

    /// Returns true if `sums` are the added slots of `ranks` ranks with this fingerprint. Otherwise
    /// at least two ranks see a difference.
    pub(crate) fn is_that_of_all(self, sums: &[f32], ranks: usize) -> bool {
        debug_assert!(ranks <= Self::MAX_RANKS, "sums are exact");
        self.slots().map(|slot| slot * ranks as f32) == sums
    }

    /// Returns the fingerprint as the metrics log spells it.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(all: &[Fingerprint]) -> [f32; Fingerprint::SLOTS] {
        all.iter().fold([0.0; Fingerprint::SLOTS], |sums, one| {
            let slots = one.slots();
            std::array::from_fn(|slot| sums[slot] + slots[slot])
        })
    }

    #[test]
    fn any_number_of_ranks_with_equal_states_agree() {
        for checksum in [0, u32::MAX, 0x1234_5678] {
            let mine = Fingerprint::of(checksum);
            for ranks in [1, 2, 3, 1000, Fingerprint::MAX_RANKS] {
                assert!(mine.is_that_of_all(&sums(&vec![mine; ranks]), ranks), "{ranks} ranks");
            }
        }
    }

    #[test]
    fn a_rank_with_another_state_is_noticed_by_itself_and_by_others() {
        let checksum = 0x1234_5678;
        let (one, another) = (Fingerprint::of(checksum), Fingerprint::of(checksum ^ 1));
        for ranks in [2, 3, 1000, Fingerprint::MAX_RANKS] {
            let mut all = vec![one; ranks];
            all[ranks / 2] = another;
            let sums = sums(&all);
            assert!(!one.is_that_of_all(&sums, ranks) && !another.is_that_of_all(&sums, ranks), "{ranks} ranks");
        }
        // The second slot counts as well.
        let far = Fingerprint::of(checksum ^ (1 << BITS));
        assert!(!one.is_that_of_all(&sums(&[one, far]), 2));
    }
}
