//! The plan that would have been better, by what messages were found to cost and what a group's first steps took: the line may carry less
//! in the long run than in the few messages that were measured, and backward takes longer beside sums than by itself.

use std::ops::Range;

use lockstep_collective::{BucketPlan, Choice, CollectiveError, Communicator, Costs, LENGTHS};
use tracing::info;

use super::{Agreed, Recorded, bytes_sent, ends, merged};
use crate::step::rank::Slice;

/// The first steps, in which connections and caches warm up, are not looked at.
const WARM_UP: u32 = 3;
/// So many after them, and after those in which costs are measured, are.
const MEASURED: u32 = 9;
/// A plan stays where the best one would end sooner by less than this part.
const LEAST_GAIN: f64 = 0.02;

/// What the first steps of a group took on this rank, by bucket and step.
#[derive(Debug)]
pub(crate) struct Seen {
    steps: u32,
    /// Whether costs are measured beside the first steps, one length in each.
    measures: bool,
    /// Seconds from the beginning of a step until a bucket could be summed.
    ready: Vec<Vec<f64>>,
    /// Seconds that its sum took.
    took: Vec<Vec<f64>>,
}

impl Seen {
    /// Of a group that `measures` costs beside its first steps, or does not.
    pub(crate) fn of(buckets: usize, measures: bool) -> Self {
        Self { steps: 0, measures, ready: vec![Vec::new(); buckets], took: vec![Vec::new(); buckets] }
    }

    /// A bucket was ready so long after the beginning of the step, and its sum took so long.
    pub(crate) fn summed(&mut self, bucket: usize, ready: f64, took: f64) {
        if (self.warm_up()..self.warm_up() + MEASURED).contains(&self.steps) {
            self.ready[bucket].push(ready);
            self.took[bucket].push(took);
        }
    }

    /// A step was done.
    pub(crate) fn did_step(&mut self) {
        self.steps += 1;
    }

    /// Whether the step that was done last is the last to be looked at: the same one on all ranks.
    pub(crate) fn is_enough(&self) -> bool {
        self.steps == self.warm_up() + MEASURED
    }

    /// Whether a length is to be summed beside the next step.
    pub(crate) fn measures(&self) -> bool {
        self.measures && self.steps < LENGTHS as u32
    }

    /// Whether the last length was summed beside the step that was done last.
    pub(crate) fn has_measured(&self) -> bool {
        self.measures && self.steps == LENGTHS as u32
    }

    /// The steps that are not looked at.
    fn warm_up(&self) -> u32 {
        if self.measures { WARM_UP.max(LENGTHS as u32) } else { WARM_UP }
    }

    /// When buckets were ready, the mean over ranks, and what sums took for the rank that was waited for: the others' began before they
    /// could. Of the steps the one in the middle counts: in some a rank stood still, or the line carried something else.
    fn together(
        self,
        communicator: &mut Communicator<Slice>,
        step: u64,
    ) -> Result<(Vec<f64>, Vec<f64>), CollectiveError> {
        let (rank, world, buckets) = (communicator.rank(), communicator.world(), self.ready.len());
        let middles = |seconds: Vec<Vec<f64>>| seconds.into_iter().map(|seconds| middle(seconds) as f32);
        let mut values = vec![0.0; buckets * (1 + world)];
        let (ready, took) = values.split_at_mut(buckets);
        ready.iter_mut().zip(middles(self.ready)).for_each(|(slot, seconds)| *slot = seconds / world as f32);
        let own = &mut took[rank * buckets..(rank + 1) * buckets];
        own.iter_mut().zip(middles(self.took)).for_each(|(slot, seconds)| *slot = seconds);
        communicator.all_reduce_now(step, &mut values)?;
        let (ready, took) = values.split_at(buckets);
        let least = |bucket| took.iter().skip(bucket).step_by(buckets).copied().fold(f32::INFINITY, f32::min);
        Ok((ready.iter().copied().map(f64::from).collect(), (0..buckets).map(least).map(f64::from).collect()))
    }
}

fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}

/// Agrees with the other ranks on a plan for the steps after `step`, which may be the one that they have, and follows it; it is settled then.
/// `known` is what this rank knows of costs; that of rank 0 counts.
pub(crate) fn agree_anew(
    communicator: &mut Communicator<Slice>,
    step: u64,
    seen: Seen,
    before: &Agreed,
    ready_order: &[Range<usize>],
    known: Option<Costs>,
) -> Result<Agreed, CollectiveError> {
    let (ready, took) = seen.together(communicator, step)?;
    let present = before.plan.proposed();
    // A record that was made here reads back.
    let mut recorded: Recorded = serde_json::from_str(&before.record).unwrap_or_else(|error| unreachable!("{error}"));
    let named_size = recorded.communication.bucket_bytes.is_some();
    let plan = communicator.agree(|| better(present, named_size, ready_order, &before.ready, &ready, &took, known))?;
    let buckets = u32::try_from(plan.buckets().len()).unwrap_or(u32::MAX);
    let report = before.report.map(|report| lockstep_launch::CommunicationReport { buckets, ..report });
    (recorded.words, recorded.settled) = (plan.to_words(), true);
    let record = serde_json::to_string(&recorded).unwrap_or_default();
    info!(step, buckets, stays = plan == before.plan, "communication settled");
    Ok(Agreed { plan, record, report, measures: false, is_open: false, ..before.clone() })
}

/// The plan that ends soonest by what was seen of `present`: when its buckets were ready, and how long their sums took. `alone` is when the
/// ranges of `ready_order` were ready in a step of one rank by itself, and `known` what messages cost by themselves, where that is known
/// otherwise than from `present`. Buckets of a size that the job names stay.
fn better(
    present: &BucketPlan,
    named_size: bool,
    ready_order: &[Range<usize>],
    alone: &[f64],
    ready: &[f64],
    took: &[f64],
    known: Option<Costs>,
) -> BucketPlan {
    let thought = known.or(match present.choice {
        Choice::Cheapest(costs) => Some(costs),
        Choice::Always(_) => None,
    });
    let sums: Vec<_> = present
        .buckets
        .iter()
        .map(|bucket| bytes_sent(present, bucket.len() * size_of::<f32>()))
        .map(|bytes| (present.choice.algorithm(&present.hosts, bytes), bytes))
        .collect();
    let Some(costs) = thought.and_then(|costs| costs.seen_in(&sums, &present.hosts, took.iter().sum())) else {
        return present.clone();
    };
    let ready = as_seen(ready_order, alone, &present.buckets, ready);
    let choice = match present.choice {
        Choice::Cheapest(_) => Choice::Cheapest(costs),
        named @ Choice::Always(_) => named,
    };
    let chosen = BucketPlan { choice, ..present.clone() };
    let best = if named_size { chosen } else { merged(chosen, ready_order, &ready, &costs) };
    let (now, then) = (ends(present, ready_order, &ready, &costs), ends(&best, ready_order, &ready, &costs));
    info!(
        gigabytes_per_second = 1e-9 / costs.wire_byte,
        ends_ms = now * 1e3,
        best_ends_ms = then * 1e3,
        "communication seen"
    );
    if then < now * (1.0 - LEAST_GAIN) { best } else { present.clone() }
}

/// When the ranges are ready beside sums: as `alone`, but so much later and slower that the first and the last bucket are ready when they
/// were seen to be.
fn as_seen(ready_order: &[Range<usize>], alone: &[f64], buckets: &[Range<usize>], seen: &[f64]) -> Vec<f64> {
    let alone_at = |bucket: &Range<usize>| {
        ready_order.iter().position(|range| range.end == bucket.end).map_or(0.0, |last| alone[last])
    };
    let ([first, ..], [.., last]) = (buckets, buckets) else { return alone.to_vec() };
    let (from, to) = (alone_at(first), alone_at(last));
    let (seen_from, seen_to) = (seen[0], seen[seen.len() - 1]);
    let slower = if to > from { ((seen_to - seen_from) / (to - from)).max(0.0) } else { 1.0 };
    alone.iter().map(|seconds| (seen_to + (seconds - to) * slower).max(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, thread};

    use lockstep_collective::{Abort, Group, Hosts, JobId, Limits, Listener, RankId, Wire, algorithm::Algorithm};
    use lockstep_launch::Communication;

    use super::*;
    use crate::{
        communication::{Found, Places, agree, replayed},
        compute::baseline::Baseline,
    };

    const READY_ORDER: [Range<usize>; 3] = [0..1000, 1000..300_000, 300_000..301_000];
    const WHOLE: Range<usize> = 0..301_000;
    /// In milliseconds 1, 2 and 3 of backward.
    const ALONE: [f64; 3] = [1e-3, 2e-3, 3e-3];
    const COSTS: Costs = Costs { message: 8e-4, wire_byte: 1e-8, reduced_byte: 0.0 };

    fn plan(buckets: &[Range<usize>], costs: Costs) -> BucketPlan {
        let choice = Choice::Cheapest(costs);
        BucketPlan { buckets: buckets.to_vec(), choice, wire: Wire::F32, hosts: Hosts::apart(4) }
    }

    /// What the sums of a plan take, by other costs than it was made for.
    fn took(present: &BucketPlan, truth: Costs) -> Vec<f64> {
        let seconds = |bytes| truth.seconds(present.choice.algorithm(&present.hosts, bytes), &present.hosts, bytes);
        present.buckets.iter().map(|bucket| seconds(bucket.len() * size_of::<f32>())).collect()
    }

    #[test]
    fn a_plan_that_is_as_good_as_any_stays() {
        let present = plan(&[0..1000, 1000..301_000], COSTS);
        let ready = [ALONE[0], ALONE[2]];
        assert_eq!(better(&present, false, &READY_ORDER, &ALONE, &ready, &took(&present, COSTS), None), present);
    }

    #[test]
    fn where_messages_were_measured_too_dear_a_plan_that_was_made_without_costs_does_not_stay() {
        let present = plan(&[0..1000, 1000..300_000, 300_000..301_000], Costs::default());
        let truth = Costs { message: 1e-2, ..COSTS };
        let measured = Costs { message: 1.5 * truth.message, ..truth };
        let ready = ALONE;
        let found = better(&present, false, &READY_ORDER, &ALONE, &ready, &took(&present, truth), Some(measured));
        assert_eq!(found.buckets, [WHOLE], "{found:?}");
    }

    #[test]
    fn a_line_that_carries_less_than_it_was_thought_to_has_its_sums_begin_sooner() {
        // At a tenth of the price the large gradient is not worth a message of its own beside the last one.
        let thought = Costs { wire_byte: 1e-11, ..COSTS };
        let present = plan(&[WHOLE], thought);
        let found = better(&present, false, &READY_ORDER, &ALONE, &[ALONE[2]], &took(&present, COSTS), None);
        assert!(found.buckets.len() > 1, "{:?}", found.buckets);
        let Choice::Cheapest(costs) = found.choice else { panic!("{:?}", found.choice) };
        assert!((costs.wire_byte / COSTS.wire_byte - 1.0).abs() < 1e-6, "{costs:?}");
    }

    #[test]
    fn a_named_algorithm_stays_named() {
        let (algorithm, costs) = (Algorithm::Ring, Costs { message: 1e-5, ..COSTS });
        let present = BucketPlan { choice: Choice::Always(algorithm), ..plan(&[WHOLE], costs) };
        let took = [costs.seconds(algorithm, &present.hosts, WHOLE.len() * size_of::<f32>())];
        let found = |known| better(&present, false, &READY_ORDER, &ALONE, &[ALONE[2]], &took, known);
        let with_costs = found(Some(costs));
        assert!(with_costs.choice == present.choice && with_costs.buckets.len() > 1, "{with_costs:?}");
        assert_eq!(found(None), present, "of unknown costs");
    }

    #[test]
    fn buckets_of_a_named_size_stay_and_are_summed_by_what_was_measured() {
        // Nothing was known of a line whose messages cost more than all their bytes.
        let present = plan(&[0..1000, 1000..301_000], Costs::default());
        let truth = Costs { message: 1.0, wire_byte: 1e-12, reduced_byte: 0.0 };
        let ready = [ALONE[0], ALONE[2]];
        let found = better(&present, true, &READY_ORDER, &ALONE, &ready, &took(&present, truth), Some(truth));
        assert_eq!(found.buckets, present.buckets);
        let algorithm = |plan: &BucketPlan| plan.choice.algorithm(&plan.hosts, 300_000 * size_of::<f32>());
        assert_eq!([&present, &found].map(algorithm), [Algorithm::HalvingDoubling, Algorithm::RecursiveDoubling]);
    }

    #[test]
    fn all_ranks_agree_on_what_rank_0_proposes_by_what_all_saw() {
        const WORLD: usize = 3;
        let listeners: Vec<_> =
            (0..WORLD).map(|_| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).expect("a listener")).collect();
        let peers: Vec<_> = listeners.iter().map(Listener::address).collect();
        let rank = |(rank, listener): (usize, Listener)| {
            let peers = peers.clone();
            thread::spawn(move || {
                let seat = RankId { job: JobId([7; 16]), generation: 1, rank };
                let limits = Limits { shares_memory: false, ..Limits::default() };
                let mut group = Group::form(&listener, seat, &peers, limits, &Abort::new()).expect("a group");
                let settings = Communication::default();
                let own = Baseline { samples_per_second: Some(1.0), ready: ALONE.to_vec() };
                let thought = Costs { message: 1e-4, wire_byte: 0.0, ..COSTS };
                let places = Places::of(&peers);
                let before =
                    agree(&mut group, &settings, &READY_ORDER, &own, None, places, Some(thought)).expect("a plan");
                let mut communicator = Communicator::<Slice>::over(group).expect("a thread");
                let mut seen = Seen::of(before.plan.buckets().len(), false);
                while !seen.is_enough() {
                    for bucket in 0..before.plan.buckets().len() {
                        // The others wait for rank 1.
                        seen.summed(bucket, ALONE[2], if rank == 1 { 4e-3 } else { 3.0 });
                    }
                    seen.did_step();
                }
                let known = (rank == 0).then_some(thought);
                let anew = agree_anew(&mut communicator, 12, seen, &before, &READY_ORDER, known).expect("agreed");
                (before, anew)
            })
        };
        let ranks: Vec<_> = listeners.into_iter().enumerate().map(rank).collect();
        let agreed: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect();
        for (before, anew) in &agreed {
            assert!(anew.plan.buckets().len() > before.plan.buckets().len(), "{:?}, {:?}", before.plan, anew.plan);
            assert_eq!((&anew.plan, &anew.record), (&agreed[0].1.plan, &agreed[0].1.record));
            let circumstances = Recorded {
                words: Vec::new(),
                settled: false,
                ..serde_json::from_str(&anew.record).expect("reads back")
            };
            let places = circumstances.places;
            let found = Found { plan: anew.plan.proposed().clone(), settled: true, places };
            assert_eq!(replayed(&anew.record, &circumstances, 301_000), Some(found));
        }
    }

    #[test]
    fn ranges_are_ready_as_much_later_as_their_buckets() {
        // The bucket that was ready after 1 ms came after 5, the one of 3 ms after 11: a stretch by 3, from 2 ms on.
        let seen = as_seen(&READY_ORDER, &ALONE, &[0..1000, 1000..301_000], &[5e-3, 11e-3]);
        let expected = [5e-3, 8e-3, 11e-3];
        assert!(seen.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 1e-9), "{seen:?}");
        // One bucket tells how much later.
        let seen = as_seen(&READY_ORDER, &ALONE, &[WHOLE], &[4e-3]);
        assert!(seen.iter().zip([2e-3, 3e-3, 4e-3]).all(|(seen, expected)| (seen - expected).abs() < 1e-9), "{seen:?}");
    }

    #[test]
    fn of_the_steps_after_the_warm_up_the_one_in_the_middle_counts() {
        for (measures, warm_up) in [(false, WARM_UP), (true, LENGTHS as u32)] {
            let mut seen = Seen::of(1, measures);
            let mut ended = Vec::new();
            for step in 0..warm_up + MEASURED {
                let stands_still = step < warm_up || step == warm_up + 2;
                assert_eq!(seen.measures(), measures && step < LENGTHS as u32, "step {step}");
                seen.summed(0, if stands_still { 1e3 } else { 2.0 }, f64::from(step));
                seen.did_step();
                assert_eq!(seen.has_measured(), measures && step + 1 == LENGTHS as u32, "step {step}");
                ended.push(seen.is_enough());
            }
            assert_eq!(middle(seen.ready[0].clone()), 2.0);
            assert_eq!(middle(seen.took[0].clone()), f64::from(warm_up + MEASURED / 2));
            assert_eq!(ended.iter().filter(|ended| **ended).count(), 1);
            assert!(ended[ended.len() - 1]);
        }
    }
}
