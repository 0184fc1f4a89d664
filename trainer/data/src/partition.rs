//! Which samples a rank takes: pure functions of the step and of the rank's seat in the group.
//!
//! A step of B samples is cut into V virtual shards, V fixed for the job: shard v takes
//! `⌊vB/V⌋ … ⌊(v+1)B/V⌋`. Ranks take contiguous runs of shards, rank r of n the shards
//! `⌊rV/n⌋ … ⌊(r+1)V/n⌋`, so that any n ≤ V covers each sample once.
//!
//! Aligned seats take subtrees of the binary tree over V = 2ᵏ shards. The tree is first cut into
//! the greatest power of two of equal parts that is at most n. Then its first parts are halved
//! between two ranks each until there are n. A sum over shards in the tree's order has the same
//! bits for any n.

use std::ops::Range;

/// A rank's seat in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    rank: u32,
    world: u32,
    shards: u32,
    aligned: bool,
}

impl Seat {
    /// Rank `rank` of `world`, where steps are cut into `shards`.
    ///
    /// # Panics
    /// Unless `rank < world ≤ shards`: the launch contract bounds both.
    #[must_use]
    pub fn new(rank: u32, world: u32, shards: u32) -> Self {
        assert!(rank < world && world <= shards, "rank {rank} of {world} with {shards} shards");
        Self { rank, world, shards, aligned: false }
    }

    /// The same with a subtree of the shards for each rank.
    ///
    /// # Panics
    /// As [`Seat::new`], and unless `shards` is a power of two.
    #[must_use]
    pub fn aligned(rank: u32, world: u32, shards: u32) -> Self {
        assert!(shards.is_power_of_two(), "{shards} shards make no binary tree");
        Self { aligned: true, ..Self::new(rank, world, shards) }
    }

    /// The seat of another rank of the same group.
    ///
    /// # Panics
    /// As [`Seat::new`].
    #[must_use]
    pub fn of(self, rank: u32) -> Self {
        Self { aligned: self.aligned, ..Self::new(rank, self.world, self.shards) }
    }

    /// True if all ranks hold subtrees of the shards.
    #[must_use]
    pub fn is_aligned(self) -> bool {
        self.aligned
    }

    /// The virtual shards of a step.
    #[must_use]
    pub const fn shard_count(self) -> u32 {
        self.shards
    }

    /// The virtual shards of this rank.
    #[must_use]
    pub fn shards(self) -> Range<u32> {
        if self.aligned {
            let parts = 1 << self.world.ilog2();
            let (halved, size) = (self.world - parts, self.shards / parts);
            return if self.rank < 2 * halved {
                self.rank * size / 2..(self.rank + 1) * size / 2
            } else {
                (self.rank - halved) * size..(self.rank - halved + 1) * size
            };
        }
        let bound = |rank| (u64::from(rank) * u64::from(self.shards) / u64::from(self.world)) as u32;
        bound(self.rank)..bound(self.rank + 1)
    }

    /// The part of `0..samples` that is this rank's: empty where there are fewer samples than
    /// ranks.
    #[must_use]
    pub fn share(self, samples: u64) -> Range<u64> {
        self.run(self.shards(), samples)
    }

    /// The share, in the parts whose gradients are formed one by one: all of it, or on an aligned
    /// seat each shard, which may be empty.
    pub fn parts(self, samples: u64) -> impl Iterator<Item = Range<u64>> {
        let shards = self.shards();
        let size = if self.aligned { 1 } else { shards.end - shards.start };
        shards.step_by(size as usize).map(move |first| self.run(first..first + size, samples))
    }

    /// The last end of a virtual shard at or before a place in a step of so many samples; 0 where
    /// no shard ends there.
    #[must_use]
    pub(crate) fn shard_end_until(self, place: u64, samples: u64) -> u64 {
        let ended = ((u128::from(place) + 1) * u128::from(self.shards) - 1) / u128::from(samples);
        shard_start(ended.min(u128::from(self.shards)) as u32, self.shards, samples)
    }

    fn run(self, shards: Range<u32>, samples: u64) -> Range<u64> {
        shard_start(shards.start, self.shards, samples)..shard_start(shards.end, self.shards, samples)
    }
}

/// The place of a global step in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number, counted from 0 over the whole job.
    pub index: u64,
    /// Passes over the data that were finished before it.
    pub epoch: u64,
    /// Samples of this epoch that were taken before it.
    pub cursor: u64,
    /// Samples of this step over all ranks: the global batch, or what is left of the epoch.
    pub samples: u64,
}

fn shard_start(shard: u32, shards: u32, samples: u64) -> u64 {
    (u128::from(shard) * u128::from(samples) / u128::from(shards)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// True if a run of shards is all that lies below one node of the binary tree.
    fn is_a_subtree(shards: &Range<u32>) -> bool {
        let size = shards.end - shards.start;
        size.is_power_of_two() && shards.start.is_multiple_of(size)
    }

    #[test]
    fn aligned_ranks_hold_a_subtree_each_that_follow_one_another() {
        for world in 1..=64 {
            let held: Vec<Range<u32>> = (0..world).map(|rank| Seat::aligned(rank, world, 64).shards()).collect();
            assert!(held.iter().all(is_a_subtree), "{held:?}");
            assert_eq!((held[0].start, held[world as usize - 1].end), (0, 64));
            assert!(held.windows(2).all(|pair| pair[0].end == pair[1].start), "{held:?}");
            let size = |shards: &Range<u32>| shards.end - shards.start;
            let (most, least) = (held.iter().map(size).max(), held.iter().map(size).min());
            assert!(most.zip(least).is_some_and(|(most, least)| most <= 2 * least), "{held:?}");
        }
    }

    proptest! {
        #[test]
        fn the_shares_of_all_ranks_are_the_step_each_sample_once(
            shards in 1_u32..200, world in 1_u32..200, samples in 0_u64..=1 << 40
        ) {
            let world = world.min(shards);
            let mut next = 0;
            for rank in 0..world {
                let share = Seat::new(rank, world, shards).share(samples);
                prop_assert_eq!(share.start, next);
                prop_assert!(share.end >= share.start);
                next = share.end;
            }
            prop_assert_eq!(next, samples);
        }

        #[test]
        fn a_share_is_whole_shards_so_that_a_sum_over_shards_fits_any_world(
            world in 1_u32..=64, batch in 1_u64..5000
        ) {
            let edges: Vec<u64> = (0..=64).map(|shard| shard_start(shard, 64, batch)).collect();
            for rank in 0..world {
                let share = Seat::new(rank, world, 64).share(batch);
                prop_assert!(edges.contains(&share.start) && edges.contains(&share.end));
            }
        }
    }

    #[test]
    fn shares_differ_by_a_shard_at_most() {
        let sizes: Vec<u64> = (0..3).map(|rank| Seat::new(rank, 3, 64).share(64)).map(|r| r.end - r.start).collect();
        assert_eq!(sizes, [21, 21, 22]);
    }

    #[test]
    fn more_ranks_than_samples_leave_some_without() {
        let shares: Vec<_> = (0..4).map(|rank| Seat::new(rank, 4, 64).share(2)).collect();
        assert_eq!(shares.iter().filter(|share| share.is_empty()).count(), 2, "{shares:?}");
    }
}
