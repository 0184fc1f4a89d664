//! Whether all ranks hold the same state: each step they add what a few of their weights look like to the numbers that they sum anyway.

use lockstep_data::Tally;

/// Bits that go into one slot, as in a [`Tally`].
const BITS: u32 = 12;
const SLOT: u32 = (1 << BITS) - 1;

/// 24 bits of the checksum of a state, or of a window of it; none of them are set where nothing is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u32);

impl Fingerprint {
    /// How many slots [`Self::slots`] gives.
    pub(crate) const SLOTS: usize = 2;
    /// How many ranks' slots may be added.
    const MAX_RANKS: usize = Tally::MAX_RANKS;

    pub(crate) const fn of(checksum: u32) -> Self {
        Self(checksum & ((1 << (BITS * Self::SLOTS as u32)) - 1))
    }

    /// Numbers to be summed over up to [`Self::MAX_RANKS`] ranks.
    pub(crate) fn slots(self) -> [f32; Self::SLOTS] {
        [self.0 & SLOT, self.0 >> BITS].map(|bits| bits as f32)
    }

    /// Whether these are the sums of so many ranks' slots of which all have this one. Where they do not, at least two ranks see it.
    pub(crate) fn is_that_of_all(self, sums: &[f32], ranks: usize) -> bool {
        debug_assert!(ranks <= Self::MAX_RANKS, "sums are exact");
        self.slots().map(|slot| slot * ranks as f32) == sums
    }

    /// As journals have it.
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
    fn ranks_that_hold_the_same_agree_however_many_they_are() {
        for checksum in [0, u32::MAX, 0x1234_5678] {
            let mine = Fingerprint::of(checksum);
            for ranks in [1, 2, 3, 1000, Fingerprint::MAX_RANKS] {
                assert!(mine.is_that_of_all(&sums(&vec![mine; ranks]), ranks), "{ranks} ranks");
            }
        }
    }

    #[test]
    fn one_that_holds_something_else_is_noticed_by_itself_and_by_others() {
        let checksum = 0x1234_5678;
        let (one, another) = (Fingerprint::of(checksum), Fingerprint::of(checksum ^ 1));
        for ranks in [2, 3, 1000, Fingerprint::MAX_RANKS] {
            let mut all = vec![one; ranks];
            all[ranks / 2] = another;
            let sums = sums(&all);
            assert!(!one.is_that_of_all(&sums, ranks) && !another.is_that_of_all(&sums, ranks), "{ranks} ranks");
        }
        // Both slots count.
        let far = Fingerprint::of(checksum ^ (1 << BITS));
        assert!(!one.is_that_of_all(&sums(&[one, far]), 2));
    }
}
