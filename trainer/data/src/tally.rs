//! The samples that were taken, and what they held. Tallies of ranks can be added, even in the
//! numbers of 24 bits that ranks sum anyway.

use std::{iter, ops::AddAssign};

use crate::permutation::{GOLDEN, mix};

/// Bits of a tally that go into one slot: so many ranks' slots can be added without rounding as a
/// `f32` has bits besides them.
const BITS: usize = 12;
const SLOT: u64 = (1 << BITS) - 1;
/// Slots of the hash, and of the number.
const HASHED: usize = 4;
const COUNTED: usize = 3;
/// The first slot of the contents' hash.
const CONTENTS: usize = HASHED + COUNTED;
const HASH_MASK: u64 = (1 << (BITS * HASHED)) - 1;

/// How many samples were taken, and the sums of their hashes modulo 2⁴⁸. Tallies of disjoint sets
/// add up to that of their union; a sample that is left out, foreign or taken twice changes it, but
/// for one chance in 2⁴⁸.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number, below 2³⁶.
    pub samples: u64,
    /// The sum of the hashes of the samples' numbers, below 2⁴⁸.
    pub hash: u64,
    /// The sum of the hashes of their numbers with what they held when the model got them: pixels
    /// after every random change, and labels. Below 2⁴⁸; 0 where nobody looked.
    pub contents: u64,
}

impl Tally {
    /// How many slots [`Self::slots`] gives.
    pub const SLOTS: usize = 2 * HASHED + COUNTED;
    /// How many ranks' slots may be added.
    pub const MAX_RANKS: usize = 1 << (f32::MANTISSA_DIGITS as usize - BITS);

    /// Sample `id` was taken too.
    pub const fn take(&mut self, id: u64) {
        *self = self.with(Self { samples: 1, hash: mix(id.wrapping_add(GOLDEN)), contents: 0 });
    }

    /// Sample `id` was taken too, and what it held has this hash.
    pub const fn take_with(&mut self, id: u64, contents: u64) {
        let hash = mix(id.wrapping_add(GOLDEN));
        *self = self.with(Self { samples: 1, hash, contents: mix(hash ^ contents) & HASH_MASK });
    }

    /// Numbers whose sums over ranks, up to [`Self::MAX_RANKS`], tell what all of them took.
    #[must_use]
    pub fn slots(self) -> [f32; Self::SLOTS] {
        let of = |value: u64, slot: usize| (value >> (BITS * slot) & SLOT) as f32;
        std::array::from_fn(|slot| match slot {
            0..HASHED => of(self.hash, slot),
            HASHED..CONTENTS => of(self.samples, slot - HASHED),
            _ => of(self.contents, slot - CONTENTS),
        })
    }

    /// What all took whose slots were added.
    ///
    /// # Panics
    /// Unless there are [`Self::SLOTS`].
    #[must_use]
    pub fn of_sums(slots: &[f32]) -> Self {
        assert_eq!(slots.len(), Self::SLOTS, "the slots of tallies");
        let whole = |slots: &[f32]| {
            let shifts = iter::successors(Some(0), |shift| Some(shift + BITS));
            slots.iter().zip(shifts).map(|(slot, shift)| (*slot as u64) << shift).sum()
        };
        let (counts, contents) = slots.split_at(CONTENTS);
        let (hash, samples) = counts.split_at(HASHED);
        Self::default().with(Self { samples: whole(samples), hash: whole(hash), contents: whole(contents) })
    }

    const fn with(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            hash: self.hash.wrapping_add(other.hash) & HASH_MASK,
            contents: self.contents.wrapping_add(other.contents) & HASH_MASK,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

impl FromIterator<u64> for Tally {
    fn from_iter<T: IntoIterator<Item = u64>>(ids: T) -> Self {
        let mut tally = Self::default();
        ids.into_iter().for_each(|id| tally.take(id));
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_took_adds_up_whoever_took_it_and_however_many_they_are() {
        let tally = |ids: &mut dyn Iterator<Item = u64>| {
            let mut tally = Tally::default();
            ids.for_each(|id| tally.take_with(id, id * id));
            tally
        };
        let all = tally(&mut (0..100_000));
        assert_eq!(all.samples, 100_000);
        for ranks in [1, 2, 7, 1000, Tally::MAX_RANKS as u64] {
            let mut sums = [0.0; Tally::SLOTS];
            for rank in 0..ranks {
                let mine = tally(&mut (0..100_000).filter(|id| id % ranks == rank));
                sums.iter_mut().zip(mine.slots()).for_each(|(sum, slot)| *sum += slot);
            }
            assert_eq!(Tally::of_sums(&sums), all, "{ranks} ranks");
        }
    }

    #[test]
    fn contents_that_two_samples_exchange_are_noticed() {
        let of = |contents: [u64; 2]| {
            let mut tally = Tally::default();
            contents.iter().zip(0..).for_each(|(contents, id)| tally.take_with(id, *contents));
            tally
        };
        assert_eq!(of([5, 6]).hash, of([6, 5]).hash);
        assert_ne!(of([5, 6]).contents, of([6, 5]).contents);
        assert_ne!(of([5, 6]).contents, of([5, 5]).contents);
    }

    #[test]
    fn full_slots_of_as_many_ranks_as_may_be_are_added_without_rounding() {
        let most = Tally { samples: (1 << 36) - 1, hash: (1 << 48) - 1, contents: (1 << 48) - 1 };
        let (mut sums, mut expected) = ([0.0; Tally::SLOTS], Tally::default());
        for _ in 0..Tally::MAX_RANKS {
            sums.iter_mut().zip(most.slots()).for_each(|(sum, slot)| *sum += slot);
            expected += most;
        }
        assert_eq!(Tally::of_sums(&sums), expected);
    }

    #[test]
    fn a_sample_that_is_left_out_exchanged_or_taken_twice_is_noticed() {
        let batch = || 0..64_u64;
        let whole: Tally = batch().collect();
        for id in batch() {
            assert_ne!(batch().filter(|other| *other != id).collect::<Tally>(), whole);
            assert_ne!(batch().map(|other| if other == id { 64 } else { other }).collect::<Tally>(), whole);
            assert_ne!(batch().map(|other| if other == id { (id + 1) % 64 } else { other }).collect::<Tally>(), whole);
        }
    }
}
