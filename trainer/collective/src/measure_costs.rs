//! What messages cost in a group, found by sending some.

use std::hint::black_box;
use std::time::Instant;

use crate::algorithm::Algorithm;
use crate::element::Reduction;
use crate::group::Group;
use crate::reducer::reducer;
use crate::tag::{NO_STEP, Tag};
use crate::{CollectiveError, Costs};

/// Bytes of the shortest slice that is summed: only its messages count. Longer ones are this doubled some times.
const SHORTEST: usize = 256;
/// How often it is doubled at most: only the bytes of a MiB count.
const MAX_DOUBLINGS: u8 = 12;
/// By how many doublings a slice may be longer than the longest before: its time is foretold by those of shorter ones.
const STEP: u8 = 3;
/// How many lengths are summed.
pub const LENGTHS: usize = 7;
/// How often each is summed, if there is time; the median counts.
const REPETITIONS: u8 = 5;
/// How often a length must be summed to be chosen while a shorter one is left.
const ENOUGH: f64 = 3.0;
/// Seconds that the sums may take. What is foretold is not what comes to pass: a quarter of 0.2 s is left for that.
const LIMIT: f64 = 0.15;

/// What is summed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    doublings: u8,
    repetitions: u8,
}

impl Trial {
    /// What rank 0 says that is summed next: doublings and repetitions.
    fn of([doublings, repetitions]: [u8; 2]) -> Option<Self> {
        let is_possible = doublings <= MAX_DOUBLINGS && (1..=REPETITIONS).contains(&repetitions);
        is_possible.then_some(Self { doublings, repetitions })
    }

    fn bytes(self) -> usize {
        SHORTEST << self.doublings
    }
}

/// What to sum after what was `measured`, doublings and seconds of each length, where so many seconds are left for all lengths to come.
/// `None` once there are [`LENGTHS`].
///
/// A length may take its share of the time that is left, as if all others took as long: those can be shorter. So the sums end in time
/// where what is foretold comes true and one sum of the shortest lengths takes no longer than its share.
fn next(measured: &[(u8, f64)], left: f64) -> Option<Trial> {
    let missing = LENGTHS.checked_sub(measured.len()).filter(|missing| *missing > 0)?;
    let share = left / missing as f64;
    let longest = measured.iter().map(|(doublings, _)| *doublings).max();
    let furthest = longest.map_or(0, |longest| (longest + STEP).min(MAX_DOUBLINGS));
    let is_new = |doublings: &u8| measured.iter().all(|(known, _)| known != doublings);
    let new = || (0..=furthest).filter(is_new);
    let fits = |doublings: &u8| ENOUGH * foretold(measured, *doublings) <= share;
    let doublings = new().rev().find(fits).or(new().next())?;
    let repetitions = (share / foretold(measured, doublings)).min(REPETITIONS.into()) as u8;
    Some(Trial { doublings, repetitions: repetitions.max(1) })
}

/// Seconds of a sum of some length: on the line through the shortest and the longest that were measured; of one that was measured, as
/// many times as long as it has bytes.
fn foretold(measured: &[(u8, f64)], doublings: u8) -> f64 {
    let bytes = |doublings: u8| (SHORTEST << doublings) as f64;
    let shortest = measured.iter().min_by_key(|(doublings, _)| *doublings);
    let longest = measured.iter().max_by_key(|(doublings, _)| *doublings);
    match (shortest, longest) {
        (Some((short, least)), Some((long, most))) if short < long => {
            let per_byte = ((most - least) / (bytes(*long) - bytes(*short))).max(0.0);
            least.min(*most) + per_byte * (bytes(doublings) - bytes(*short)).max(0.0)
        }
        (Some((only, seconds)), _) => seconds * (bytes(doublings) / bytes(*only)).max(1.0),
        (None, _) => 0.0,
    }
}

/// A measurement under way: some of the lengths were summed.
pub(crate) struct Measurement {
    /// What is summed, as long as the longest.
    data: Vec<f32>,
    reduced_byte: f64,
    /// Doublings and seconds of each length.
    measured: Vec<(u8, f64)>,
    /// The seconds that all of it took, without those in which ranks waited for each other to begin.
    spent: f64,
}

impl Measurement {
    pub(crate) fn new() -> Self {
        let started = Instant::now();
        let mut data = vec![0.0_f32; (SHORTEST << MAX_DOUBLINGS) / size_of::<f32>()];
        let reduced_byte = reduction_seconds(&mut data) / size_of_val(&data[..]) as f64;
        Self { data, reduced_byte, measured: Vec::new(), spent: started.elapsed().as_secs_f64() }
    }

    /// Sums the next length. All ranks do so, [`LENGTHS`] times.
    pub(crate) fn sum_next(&mut self, group: &mut Group) -> Result<(), CollectiveError> {
        let Some(own) = next(&self.measured, LIMIT - self.spent) else { unreachable!("{LENGTHS} lengths are summed") };
        let trial = group.agree_on(own)?;
        group.barrier(Tag { step: NO_STEP, bucket: LENGTHS as u32 + 1 })?;
        let started = Instant::now();
        let slice = &mut self.data[..trial.bytes() / size_of::<f32>()];
        let tag = Tag { step: NO_STEP, bucket: self.measured.len() as u32 };
        let mut seconds = Vec::new();
        for _ in 0..trial.repetitions {
            seconds.push(group.all_reduce(Algorithm::Ring, tag, slice, Reduction::Sum)?.took.as_secs_f64());
        }
        self.measured.push((trial.doublings, median(&mut seconds)));
        self.spent += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether all lengths were summed.
    pub(crate) fn is_complete(&self) -> bool {
        self.measured.len() == LENGTHS
    }

    /// What rank 0 fits to what it measured, on all ranks.
    pub(crate) fn fit(self, group: &mut Group) -> Result<Option<Costs>, CollectiveError> {
        let seconds = self.measured.iter().map(|(doublings, seconds)| (SHORTEST << doublings, *seconds));
        let fitted = Costs::fit(group.world(), &seconds.collect::<Vec<_>>(), self.reduced_byte);
        let mut costs = fitted.map_or([f64::NAN; 3], |costs| [costs.message, costs.wire_byte, costs.reduced_byte]);
        group.broadcast(0, Tag { step: NO_STEP, bucket: u32::MAX }, &mut costs)?;
        let [message, wire_byte, reduced_byte] = costs;
        let is_fitted = costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0);
        Ok(is_fitted.then_some(Costs { message, wire_byte, reduced_byte }))
    }
}

impl Group {
    /// The [`Costs`] of this group, the same on all ranks, as rank 0 sees them: fitted to ring all-reduces of [`LENGTHS`] lengths, which
    /// take less than 0.2 s from 10 Mb/s on, where the messages of one take less than 5 ms. `None` where the times fit no costs. A
    /// [`Communicator`](crate::Communicator) measures beside what its caller computes.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn measure_costs(&mut self) -> Result<Option<Costs>, CollectiveError> {
        let mut measurement = Measurement::new();
        while !measurement.is_complete() {
            measurement.sum_next(self)?;
        }
        measurement.fit(self)
    }

    /// What rank 0 sums next: each rank has times of its own.
    fn agree_on(&mut self, own: Trial) -> Result<Trial, CollectiveError> {
        let mut words = [own.doublings, own.repetitions];
        self.broadcast(0, Tag { step: NO_STEP, bucket: LENGTHS as u32 }, &mut words)?;
        match Trial::of(words) {
            Some(trial) => Ok(trial),
            None => self.end(CollectiveError::WrongFrame {
                rank: 0,
                field: "length to measure",
                expected: format!("at most {MAX_DOUBLINGS} doublings, 1 to {REPETITIONS} times"),
                found: format!("{} doublings, {} times", words[0], words[1]),
                at: None,
            }),
        }
    }
}

/// The time to reduce all of `data` once.
fn reduction_seconds(data: &mut [f32]) -> f64 {
    let terms = data.to_vec();
    let reduce = reducer::<f32>(Reduction::Sum);
    let mut seconds = [0.0; REPETITIONS as usize];
    for seconds in &mut seconds {
        let started = Instant::now();
        reduce(black_box(bytemuck::cast_slice_mut(&mut *data)), bytemuck::cast_slice(&terms));
        *seconds = started.elapsed().as_secs_f64();
    }
    median(&mut seconds)
}

/// Of an even number the lower one: whatever comes between makes a sum longer.
fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[(seconds.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::{Abort, Hosts, JobId, Limits, Listener, RankId};

    const LATE: Duration = Duration::from_millis(200);

    /// What is measured where sums take as long as `costs` say, and the seconds that all of it takes, with a message that agrees on each.
    fn simulated(world: usize, costs: Costs) -> (Vec<(u8, f64)>, f64) {
        let (mut measured, mut spent) = (Vec::new(), 0.0);
        while let Some(trial) = next(&measured, LIMIT - spent) {
            let seconds = costs.seconds(Algorithm::Ring, &Hosts::apart(world), trial.bytes());
            spent += f64::from(trial.repetitions) * seconds + f64::from(world.ilog2() + 1) * costs.message;
            measured.push((trial.doublings, seconds));
        }
        (measured, spent)
    }

    #[test]
    fn seven_lengths_take_less_than_a_fifth_of_a_second_on_every_line() {
        for world in [2, 3, 8, 32] {
            for tenths in 10..=50 {
                let bits_per_second = 1e6 * 10_f64.powf(f64::from(tenths) / 10.0);
                for messages_of_a_sum in [1e-5, 1e-4, 1e-3, 5e-3] {
                    let message = messages_of_a_sum / (2 * (world - 1)) as f64;
                    let costs = Costs { message, wire_byte: 8.0 / bits_per_second, reduced_byte: 1e-10 };
                    let (measured, spent) = simulated(world, costs);
                    let found = format!("{world} ranks, {bits_per_second:e} b/s, {message} s: {measured:?}, {spent} s");
                    let mut lengths: Vec<u8> = measured.iter().map(|(doublings, _)| *doublings).collect();
                    lengths.sort_unstable();
                    lengths.dedup();
                    assert!(lengths.len() == LENGTHS && spent <= 0.2, "{found}");
                    let times: Vec<(usize, f64)> =
                        measured.iter().map(|(doublings, seconds)| (SHORTEST << doublings, *seconds)).collect();
                    let fitted = Costs::fit(world, &times, costs.reduced_byte).expect(&found);
                    assert!((fitted.wire_byte / costs.wire_byte - 1.0).abs() < 0.01, "{found}: {fitted:?}");
                }
            }
        }
    }

    #[test]
    fn a_rank_that_comes_late_is_not_taken_for_a_slow_line() {
        let listeners = [(); 2].map(|()| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).expect("a listener"));
        let peers = listeners.each_ref().map(Listener::address);
        let measured = |rank: usize| {
            let id = RankId { job: JobId([7; 16]), generation: 1, rank };
            let limits = Limits { shares_memory: false, ..Limits::default() };
            let group = Group::form(&listeners[rank], id, &peers, limits, &Abort::new());
            let (mut group, mut measurement) = (group.expect("a group"), Measurement::new());
            while !measurement.is_complete() {
                thread::sleep(LATE * rank as u32);
                measurement.sum_next(&mut group).expect("summed");
            }
            measurement.measured
        };
        let measured = thread::scope(|scope| {
            scope.spawn(|| measured(1));
            measured(0)
        });
        assert!(measured.iter().all(|(_, seconds)| *seconds < LATE.as_secs_f64()), "{measured:?}");
    }

    #[test]
    fn what_rank_0_says_is_summed_next_is_within_what_it_may_say() {
        assert_eq!(Trial::of([MAX_DOUBLINGS, 1]), Some(Trial { doublings: MAX_DOUBLINGS, repetitions: 1 }));
        for words in [[MAX_DOUBLINGS + 1, 1], [u8::MAX, 1], [0, 0], [0, REPETITIONS + 1]] {
            assert_eq!(Trial::of(words), None, "{words:?}");
        }
    }

    #[test]
    fn a_fast_line_is_measured_up_to_a_mebibyte() {
        let (mut measured, spent) = simulated(2, Costs::default());
        measured.sort_by_key(|(doublings, _)| *doublings);
        let lengths: Vec<u8> = measured.iter().map(|(doublings, _)| *doublings).collect();
        assert_eq!(lengths, [0, 3, 6, 9, 10, 11, MAX_DOUBLINGS]);
        assert!(spent < 0.02, "{spent} s");
    }
}
