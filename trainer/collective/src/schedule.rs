//! The ring all-reduce as a pure schedule. (Patarasu and Yuan, 2009)
//!
//! The slice is cut into *strips*, a strip into n *segments*, one per rank. On each strip, in 2(n−1) hops, every rank
//! sends one segment to the next rank and receives one from the previous: first a reduce-scatter,
//! ```text
//! hop h in 0..n−1:      rank r sends segment r−h, adds segment r−h−1
//! ```
//! after which rank r holds the whole sum of segment r+1, then an all-gather that copies it round,
//! ```text
//! hop n−1+k, k in 0..n−1: rank r sends segment r+1−k, overwrites segment r−k
//! ```
//! (indices mod n). A rank always sends at hop h what it received at hop h−1. One segment of one strip is what one frame
//! carries. The strips are in flight together: strip s takes its hop h in slot s + 4h, so that a segment is forwarded
//! while it is in cache and the line is never idle while a rank adds.
//!
//! Each element's sum is formed along one path and then copied, so all ranks end with the same bits, and a run with the
//! same length and world repeats them.

use std::ops::Range;

/// Elements of the longest segment: 128 KiB, which stays in the second-level cache until it is forwarded.
const MAX_SEGMENT: usize = 32 * 1024;
/// Elements of the shortest segment into which a longer slice is cut: 64 KiB, below which the cost per frame shows.
const MIN_SEGMENT: usize = 16 * 1024;
/// The number of strips aimed at between these two limits.
const STRIPS: usize = 4;
/// How many slots pass between a segment's arrival and its turn to be forwarded.
const STRIP_LAG: usize = 4;

/// The ring all-reduce of `length` elements among `world` ranks, as `rank` sees it.
#[derive(Clone, Copy, Debug)]
pub struct RingSchedule {
    rank: usize,
    world: usize,
    length: usize,
    segment: usize,
}

/// What one rank does in one slot: at one hop of one strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The rank that `send` goes to.
    pub to: usize,
    /// Elements to send; empty when the strip is shorter than the group is large.
    pub send: Range<usize>,
    /// The rank that `receive` comes from.
    pub from: usize,
    /// Elements that arrive.
    pub receive: Range<usize>,
    /// What happens to them.
    pub arrival: Arrival,
}

/// What becomes of the elements that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// They are added to the local ones.
    Add,
    /// They replace the local ones.
    Copy,
}

/// A place in the order in which a rank sends, and in which its next rank receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The strip.
    pub strip: usize,
    /// The hop within the strip.
    pub hop: usize,
    /// When: hop · lag + strip; among equals, the higher hop comes first.
    time: usize,
}

impl RingSchedule {
    /// The schedule of `rank` in a group of `world` for a slice of `length` elements. All ranks must pass the same
    /// `world` and `length`.
    ///
    /// # Panics
    /// When `rank` is not below `world`.
    pub fn new(rank: usize, world: usize, length: usize) -> Self {
        let segment = length.div_ceil(world.max(1) * STRIPS).clamp(MIN_SEGMENT, MAX_SEGMENT);
        Self::with_segment(rank, world, length, segment)
    }

    /// As [`RingSchedule::new`], with segments of at most `segment` elements.
    pub(crate) fn with_segment(rank: usize, world: usize, length: usize, segment: usize) -> Self {
        assert!(rank < world, "rank {rank} is not in a group of {world}");
        assert!(segment > 0, "segments of no elements never cover a slice");
        Self { rank, world, length, segment }
    }

    /// Elements of the longest segment: the scratch space that a receiving rank needs.
    pub const fn max_segment() -> usize {
        MAX_SEGMENT
    }

    /// Hops per strip: 2(n−1).
    pub fn hops(&self) -> usize {
        2 * (self.world - 1)
    }

    /// Strips into which the slice is cut.
    pub fn strips(&self) -> usize {
        self.length.div_ceil(self.world * self.segment)
    }

    /// All slots in the order in which they are sent. The same on every rank.
    pub fn slots(&self) -> Slots {
        let strips = self.strips();
        Slots { strips, hops: self.hops(), lag: STRIP_LAG.min(strips.max(1)), time: 0, hop: None }
    }

    /// What this rank does in `slot`.
    pub fn hop(&self, slot: Slot) -> Hop {
        let Self { rank, world, .. } = *self;
        let gathering = world - 1;
        let (send, receive, arrival) = if slot.hop < gathering {
            (rank + world - slot.hop, rank + world - slot.hop - 1, Arrival::Add)
        } else {
            let k = slot.hop - gathering;
            (rank + world + 1 - k, rank + world - k, Arrival::Copy)
        };
        Hop {
            to: (rank + 1) % world,
            send: self.elements(slot.strip, send % world),
            from: (rank + world - 1) % world,
            receive: self.elements(slot.strip, receive % world),
            arrival,
        }
    }

    /// The number that a frame carries for `slot`, modulo 2³².
    pub fn chunk(&self, slot: Slot) -> u32 {
        (slot.strip * self.hops() + slot.hop) as u32
    }

    fn elements(&self, strip: usize, segment: usize) -> Range<usize> {
        let start = strip * self.world * self.segment;
        let length = (self.length - start).min(self.world * self.segment);
        start + length * segment / self.world..start + length * (segment + 1) / self.world
    }
}

impl Slot {
    /// Whether what is sent in this slot has arrived when `next` is the next slot to receive (`None`: all have).
    pub(crate) fn may_be_sent(&self, next: Option<Slot>, lag: usize) -> bool {
        if self.hop == 0 {
            return true;
        }
        let needed = (self.time - lag, std::cmp::Reverse(self.hop - 1));
        next.is_none_or(|next| needed < (next.time, std::cmp::Reverse(next.hop)))
    }
}

/// The slots of a [`RingSchedule`] in sending order.
#[derive(Clone, Debug)]
pub struct Slots {
    strips: usize,
    hops: usize,
    lag: usize,
    time: usize,
    /// The hop yielded last at this time.
    hop: Option<usize>,
}

impl Slots {
    /// Slots between a segment's arrival at hop h and its sending at hop h+1.
    pub(crate) fn lag(&self) -> usize {
        self.lag
    }
}

impl Iterator for Slots {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let Self { strips, hops, lag, .. } = *self;
        if strips == 0 || hops == 0 {
            return None;
        }
        loop {
            // Strip time − hop·lag must be one of 0..strips.
            let lowest = (self.time + 1).saturating_sub(strips).div_ceil(lag);
            let highest = (self.time / lag).min(hops - 1);
            let hop = match self.hop {
                None => Some(highest),
                Some(hop) => hop.checked_sub(1),
            };
            if let Some(hop) = hop.filter(|&hop| hop >= lowest) {
                self.hop = Some(hop);
                return Some(Slot { strip: self.time - hop * lag, hop, time: self.time });
            }
            if self.time >= (hops - 1) * lag + strips - 1 {
                return None;
            }
            self.time += 1;
            self.hop = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashSet, VecDeque};

    /// Runs the schedule of all ranks over in-memory first-in-first-out lines, in an order drawn from `seed`, and
    /// returns the elements that each rank has sent.
    fn simulate(ranks: &mut [Vec<f32>], segment: usize, mut seed: u64) -> Vec<usize> {
        struct Rank {
            schedule: RingSchedule,
            sending: std::iter::Peekable<Slots>,
            receiving: std::iter::Peekable<Slots>,
        }
        let (world, length) = (ranks.len(), ranks[0].len());
        let mut states: Vec<Rank> = (0..world)
            .map(|rank| {
                let schedule = RingSchedule::with_segment(rank, world, length, segment);
                Rank { schedule, sending: schedule.slots().peekable(), receiving: schedule.slots().peekable() }
            })
            .collect();
        let lag = states[0].schedule.slots().lag();
        let mut lines: Vec<VecDeque<Vec<f32>>> = vec![VecDeque::new(); world];
        let mut sent = vec![0; world];
        let mut moved_at = vec![0; world];
        let mut tick = 0;
        loop {
            tick += 1;
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let rank = (seed >> 33) as usize % world;
            let state = &mut states[rank];
            let next = state.receiving.peek().copied();
            let mut moved = false;
            if let Some(slot) = state.sending.next_if(|slot| slot.may_be_sent(next, lag)) {
                let hop = state.schedule.hop(slot);
                sent[rank] += hop.send.len();
                lines[hop.to].push_back(ranks[rank][hop.send].to_vec());
                moved = true;
            }
            if let Some(arrived) = lines[rank].pop_front() {
                let slot = states[rank].receiving.next().expect("more arrived than was scheduled");
                let hop = states[rank].schedule.hop(slot);
                let local = &mut ranks[rank][hop.receive];
                assert_eq!(local.len(), arrived.len());
                match hop.arrival {
                    Arrival::Add => local.iter_mut().zip(&arrived).for_each(|(sum, term)| *sum += term),
                    Arrival::Copy => local.copy_from_slice(&arrived),
                }
                moved = true;
            }
            if moved {
                moved_at[rank] = tick;
            }
            let done = states.iter_mut().all(|s| s.sending.peek().is_none() && s.receiving.peek().is_none());
            if done {
                return sent;
            }
            let quiet = tick - moved_at.iter().max().expect("a group has a rank");
            assert!(quiet < 100_000, "the schedule deadlocks");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn every_rank_ends_with_the_sequential_sum(
            world in 1usize..=17, length in 0usize..300, segment in 1usize..40, seed in any::<u64>(),
        ) {
            // Small whole numbers: their sums are exact in any order.
            let term = |rank: usize, i: usize| ((rank * 31 + i * 7) % 101) as f32;
            let mut ranks: Vec<Vec<f32>> = (0..world).map(|r| (0..length).map(|i| term(r, i)).collect()).collect();
            let sum: Vec<f32> = (0..length).map(|i| (0..world).map(|r| term(r, i)).sum()).collect();
            let sent = simulate(&mut ranks, segment, seed);
            for rank in &ranks {
                prop_assert_eq!(rank, &sum);
            }
            // 2(n−1)/n · S per rank: exactly, over the group; per rank but for one element per segment.
            prop_assert_eq!(sent.iter().sum::<usize>(), 2 * (world - 1) * length);
            let strips = RingSchedule::with_segment(0, world, length, segment).strips();
            let share = (2 * (world - 1) * length).div_ceil(world);
            for sent in sent {
                prop_assert!(sent <= share + 2 * strips, "{} > {} + {}", sent, share, 2 * strips);
            }
        }

        #[test]
        fn the_order_of_arrivals_does_not_change_a_bit(world in 2usize..=9, length in 1usize..200, seeds in any::<(u64, u64)>()) {
            let inputs: Vec<Vec<f32>> =
                (0..world).map(|r| (0..length).map(|i| ((r * 7919 + i * 104_729) % 997) as f32 / 997.0 + 1e-7).collect()).collect();
            let (mut one, mut other) = (inputs.clone(), inputs);
            simulate(&mut one, 5, seeds.0);
            simulate(&mut other, 5, seeds.1);
            prop_assert!(one.iter().all(|rank| rank.iter().map(|x| x.to_bits()).eq(other[0].iter().map(|x| x.to_bits()))));
        }

        #[test]
        fn each_slot_comes_once_and_after_the_one_it_forwards(world in 1usize..=17, length in 0usize..2000, segment in 1usize..40) {
            let schedule = RingSchedule::with_segment(0, world, length, segment);
            let mut seen = HashSet::new();
            for slot in schedule.slots() {
                prop_assert!(slot.hop == 0 || seen.contains(&(slot.strip, slot.hop - 1)));
                prop_assert!(seen.insert((slot.strip, slot.hop)));
            }
            prop_assert_eq!(seen.len(), schedule.strips() * schedule.hops());
        }

        #[test]
        fn the_segments_of_all_strips_cover_the_slice_once(world in 1usize..=33, length in 0usize..5_000_000) {
            let schedule = RingSchedule::new(0, world, length);
            let mut end = 0;
            for strip in 0..schedule.strips() {
                for segment in 0..world {
                    let elements = schedule.elements(strip, segment);
                    prop_assert_eq!(elements.start, end);
                    prop_assert!(elements.len() <= RingSchedule::max_segment());
                    end = elements.end;
                }
            }
            prop_assert_eq!(end, length);
        }
    }

    #[test]
    fn what_a_rank_sends_is_what_the_next_one_receives() {
        for world in 2..=17 {
            let schedules: Vec<_> = (0..world).map(|rank| RingSchedule::with_segment(rank, world, 1000, 7)).collect();
            for slot in schedules[0].slots() {
                for schedule in &schedules {
                    let hop = schedule.hop(slot);
                    assert_eq!(hop.send, schedules[hop.to].hop(slot).receive);
                }
            }
        }
    }
}
