//! Measures the costs of messages in a group.

use std::hint::black_box;
use std::time::Instant;

use crate::algorithm::Algorithm;
use crate::element::Reduction;
use crate::group::Group;
use crate::reducer::reducer;
use crate::tag::{NO_STEP, Tag};
use crate::{CollectiveError, Costs};

/// Bytes of the shortest slice, in which only messages count. Longer slices double it several
/// times.
const SHORTEST: usize = 256;
/// The most doublings. In a slice of 1 MiB only bytes count.
const MAX_DOUBLINGS: u8 = 12;
/// The most doublings by which a slice may exceed the longest one so far, because shorter slices
/// predict its time.
const STEP: u8 = 3;
/// The number of lengths.
pub const LENGTHS: usize = 7;
/// The most sums of each length. The median counts.
const REPETITIONS: u8 = 5;
/// The least sums of a length that must fit the time, as long as a shorter length is left.
const ENOUGH: f64 = 3.0;
/// Seconds for all sums. A quarter of 0.2 s is left for errors of the predictions.
const LIMIT: f64 = 0.15;

/// The next length and its number of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    doublings: u8,
    repetitions: u8,
}

impl Trial {
    /// Reads the words of rank 0: doublings and repetitions.
    fn of([doublings, repetitions]: [u8; 2]) -> Option<Self> {
        let is_possible = doublings <= MAX_DOUBLINGS && (1..=REPETITIONS).contains(&repetitions);
        is_possible.then_some(Self { doublings, repetitions })
    }

    fn bytes(self) -> usize {
        SHORTEST << self.doublings
    }
}

/// Returns the next trial, given the doublings and seconds of each `measured` length and the
/// seconds `left`. Returns `None` once there are [`LENGTHS`].
///
/// A length may take its share of the remaining time, as if all others took as long; the others can
/// be shorter. So the sums end in time if the predictions hold and one sum of the shortest lengths
/// takes no longer than its share.
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

/// Predicts the seconds of a sum. Two measured lengths predict it by the line through the shortest
/// and the longest. A single one predicts it in proportion to the bytes.
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

/// A measurement under way.
pub(crate) struct Measurement {
    /// The summed elements, as long as the longest slice.
    data: Vec<f32>,
    reduced_byte: f64,
    /// Doublings and seconds of each length.
    measured: Vec<(u8, f64)>,
    /// The seconds of the whole measurement, except those in which ranks waited for each other to
    /// begin.
    spent: f64,
}

impl Measurement {
    pub(crate) fn new() -> Self {
        let started = Instant::now();
        let mut data = vec![0.0_f32; (SHORTEST << MAX_DOUBLINGS) / size_of::<f32>()];
        let reduced_byte = reduction_seconds(&mut data) / size_of_val(&data[..]) as f64;
        Self { data, reduced_byte, measured: Vec::new(), spent: started.elapsed().as_secs_f64() }
    }

    /// Sums the next length. All ranks must call it [`LENGTHS`] times.
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

    /// Returns true once all lengths were summed.
    pub(crate) fn is_complete(&self) -> bool {
        self.measured.len() == LENGTHS
    }

    /// Returns the costs that rank 0 fits to its measurements, on all ranks.
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
    /// Measures the [`Costs`] of this group, as rank 0 sees them; they are the same on all ranks.
    ///
    /// They are fitted to ring all-reduces of [`LENGTHS`] lengths. The measurement takes less than
    /// 0.2 s on lines from 10 Mb/s, if the messages of one all-reduce take less than 5 ms. Returns
    /// `None` if the times fit no costs. A [`Communicator`](crate::Communicator) can measure while
    /// its caller computes.
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

    /// Returns the trial of rank 0, because each rank has its own times.
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

/// Returns the time to reduce all of `data` once.
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

/// Returns the median, the lower one of an even number: disturbances only make a sum longer.
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

    /// Returns the measurements and their total seconds if sums take as long as `costs` say. One
    /// more message agrees on each length.
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
    fn a_late_rank_does_not_look_like_a_slow_line() {
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
    fn only_lengths_within_the_limits_are_accepted_from_rank_0() {
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
