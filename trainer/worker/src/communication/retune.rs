//! A second plan, by the measured costs of messages and the times of a group's first steps. In the
//! long run a link may carry less than in the few measured messages, and backward takes longer
//! beside sums than alone.

use std::ops::Range;

use lockstep_collective::{BucketPlan, Choice, CollectiveError, Collectives, Costs, LENGTHS};
use tracing::info;

use super::{Agreed, Recorded, bytes_sent, ends, merged};

/// The number of first steps that do not count: connections and caches warm up.
const WARM_UP: u32 = 3;
/// The number of steps that count, after these and after those in which costs are measured.
const MEASURED: u32 = 9;
/// A plan stays if the best one would save less than this part of its time.
const LEAST_GAIN: f64 = 0.02;

/// The times of a group's first steps on this rank, by bucket and step.
#[derive(Debug)]
pub(crate) struct StepTimes {
    steps: u32,
    /// True if costs are measured during the first steps, one length in each.
    measures: bool,
    /// The seconds from the beginning of a step until a bucket could be summed.
    ready: Vec<Vec<f64>>,
    /// The seconds that its sum took.
    took: Vec<Vec<f64>>,
}

impl StepTimes {
    /// Begins with no step. `measures` is true if the group measures costs during its first steps.
    pub(crate) fn of(buckets: usize, measures: bool) -> Self {
        Self { steps: 0, measures, ready: vec![Vec::new(); buckets], took: vec![Vec::new(); buckets] }
    }

    /// Notes when a bucket was ready after the beginning of the step, and how long its sum took.
    pub(crate) fn summed(&mut self, bucket: usize, ready: f64, took: f64) {
        if (self.warm_up()..self.warm_up() + MEASURED).contains(&self.steps) {
            self.ready[bucket].push(ready);
            self.took[bucket].push(took);
        }
    }

    /// Notes that a step was done.
    pub(crate) fn did_step(&mut self) {
        self.steps += 1;
    }

    /// Returns true if the newest step was the last that counts. It is the same one on all ranks.
    pub(crate) fn is_enough(&self) -> bool {
        self.steps == self.warm_up() + MEASURED
    }

    /// Returns true if a length is summed beside the next step, to measure costs.
    pub(crate) fn measures(&self) -> bool {
        self.measures && self.steps < LENGTHS as u32
    }

    /// Returns true if the last length was summed beside the newest step.
    pub(crate) fn has_measured(&self) -> bool {
        self.measures && self.steps == LENGTHS as u32
    }

    /// Returns the number of steps that do not count.
    fn warm_up(&self) -> u32 {
        if self.measures { WARM_UP.max(LENGTHS as u32) } else { WARM_UP }
    }

    /// Returns the time at which each bucket was ready, as the mean over ranks, and the time of its
    /// sum on the rank for which the others waited: their sums began before they could end. The
    /// median of the steps counts: in some, a rank stood still or the link carried something else.
    fn together<M>(
        self,
        collectives: &mut dyn Collectives<M>,
        step: u64,
    ) -> Result<(Vec<f64>, Vec<f64>), CollectiveError> {
        let (rank, world, buckets) = (collectives.rank(), collectives.world(), self.ready.len());
        let middles = |seconds: Vec<Vec<f64>>| seconds.into_iter().map(|seconds| middle(seconds) as f32);
        let mut values = vec![0.0; buckets * (1 + world)];
        let (ready, took) = values.split_at_mut(buckets);
        ready.iter_mut().zip(middles(self.ready)).for_each(|(slot, seconds)| *slot = seconds / world as f32);
        let own = &mut took[rank * buckets..(rank + 1) * buckets];
        own.iter_mut().zip(middles(self.took)).for_each(|(slot, seconds)| *slot = seconds);
        collectives.all_reduce_now(step, &mut values)?;
        let (ready, took) = values.split_at(buckets);
        let least = |bucket| took.iter().skip(bucket).step_by(buckets).copied().fold(f32::INFINITY, f32::min);
        Ok((ready.iter().copied().map(f64::from).collect(), (0..buckets).map(least).map(f64::from).collect()))
    }
}

fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}

/// Agrees with the other ranks on a plan for the steps after `step`, and follows it. It may be the
/// plan that they have. It is settled then. `known` are the costs that this rank knows; those of
/// rank 0 count.
pub(crate) fn agree_anew<M>(
    collectives: &mut dyn Collectives<M>,
    step: u64,
    times: StepTimes,
    before: &Agreed,
    ready_order: &[Range<usize>],
    known: Option<Costs>,
) -> Result<Agreed, CollectiveError> {
    let (ready, took) = times.together(collectives, step)?;
    let present = before.plan.proposed();
    // This process made the record, so it can read it.
    let mut recorded: Recorded = serde_json::from_str(&before.record).unwrap_or_else(|error| unreachable!("{error}"));
    let named_size = recorded.communication.bucket_bytes.is_some();
    let mut propose = || better(present, named_size, ready_order, &before.ready, &ready, &took, known);
    let plan = collectives.agree(&mut propose)?;
    let buckets = u32::try_from(plan.buckets().len()).unwrap_or(u32::MAX);
    let report = before.report.map(|report| lockstep_launch::CommunicationReport { buckets, ..report });
    (recorded.words, recorded.settled) = (plan.to_words(), true);
    let record = serde_json::to_string(&recorded).unwrap_or_default();
    info!(step, buckets, stays = plan == before.plan, "communication settled");
    Ok(Agreed { plan, record, report, measures: false, is_open: false, ..before.clone() })
}

/// Returns the plan that ends soonest. Under the `present` plan, buckets were ready after the
/// seconds in `ready`, and their sums took the seconds in `took`. In a step of one rank by itself,
/// the ranges of `ready_order` were ready after the seconds in `alone`. `known` are the costs of
/// messages by themselves, if they were not derived from `present`. Buckets of a size that
/// the job names stay.
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

/// Returns the seconds after which the ranges are ready beside sums. They are those of `alone`,
/// shifted and stretched so that the first and the last bucket are ready when they were seen to be.
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

    use lockstep_collective::{
        Abort, Communicator, Group, Hosts, JobId, Limits, Listener, RankId, Wire, algorithm::Algorithm,
    };
    use lockstep_launch::Communication;

    use super::*;
    use crate::communication::{Baseline, Found, Placement, agree, replayed};

    const READY_ORDER: [Range<usize>; 3] = [0..1000, 1000..300_000, 300_000..301_000];
    const WHOLE: Range<usize> = 0..301_000;
    /// Backward takes 3 ms; a range is ready after each.
    const ALONE: [f64; 3] = [1e-3, 2e-3, 3e-3];
    const COSTS: Costs = Costs { message: 8e-4, wire_byte: 1e-8, reduced_byte: 0.0 };

    fn plan(buckets: &[Range<usize>], costs: Costs) -> BucketPlan {
        let choice = Choice::Cheapest(costs);
        BucketPlan { buckets: buckets.to_vec(), choice, wire: Wire::F32, hosts: Hosts::apart(4) }
    }

    /// Returns the seconds that the sums of a plan take at the costs `truth`.
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
    fn a_plan_without_costs_does_not_stay_if_messages_were_measured_too_dear() {
        let present = plan(&[0..1000, 1000..300_000, 300_000..301_000], Costs::default());
        let truth = Costs { message: 1e-2, ..COSTS };
        let measured = Costs { message: 1.5 * truth.message, ..truth };
        let ready = ALONE;
        let found = better(&present, false, &READY_ORDER, &ALONE, &ready, &took(&present, truth), Some(measured));
        assert_eq!(found.buckets, [WHOLE], "{found:?}");
    }

    #[test]
    fn sums_begin_sooner_on_a_link_that_carries_less_than_was_thought() {
        // At a thousandth of the price the large gradient would not be worth a message of its own.
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
        assert_eq!(found(None), present, "the costs are unknown");
    }

    #[test]
    fn buckets_of_a_named_size_stay_and_follow_the_measured_costs() {
        // The costs of a link were unknown, and its messages cost more than all their bytes.
        let present = plan(&[0..1000, 1000..301_000], Costs::default());
        let truth = Costs { message: 1.0, wire_byte: 1e-12, reduced_byte: 0.0 };
        let ready = [ALONE[0], ALONE[2]];
        let found = better(&present, true, &READY_ORDER, &ALONE, &ready, &took(&present, truth), Some(truth));
        assert_eq!(found.buckets, present.buckets);
        let algorithm = |plan: &BucketPlan| plan.choice.algorithm(&plan.hosts, 300_000 * size_of::<f32>());
        assert_eq!([&present, &found].map(algorithm), [Algorithm::HalvingDoubling, Algorithm::RecursiveDoubling]);
    }

    #[test]
    fn all_ranks_agree_on_the_plan_that_rank_0_makes_from_the_times_of_all() {
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
                let placement = Placement::of(&peers);
                let before =
                    agree(&mut group, &settings, &READY_ORDER, &own, None, placement, Some(thought)).expect("a plan");
                let mut communicator = Communicator::<Vec<f32>>::over(group).expect("a thread");
                let mut seen = StepTimes::of(before.plan.buckets().len(), false);
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
            let placement = circumstances.placement;
            let found = Found { plan: anew.plan.proposed().clone(), settled: true, placement };
            assert_eq!(replayed(&anew.record, &circumstances, 301_000), Some(found));
        }
    }

    #[test]
    fn ranges_are_ready_as_much_later_as_their_buckets_are() {
        // The bucket of 1 ms was ready after 5 ms, that of 3 ms after 11 ms: a stretch by 3.
        let seen = as_seen(&READY_ORDER, &ALONE, &[0..1000, 1000..301_000], &[5e-3, 11e-3]);
        let expected = [5e-3, 8e-3, 11e-3];
        assert!(seen.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 1e-9), "{seen:?}");
        // One bucket shows the shift only.
        let seen = as_seen(&READY_ORDER, &ALONE, &[WHOLE], &[4e-3]);
        assert!(seen.iter().zip([2e-3, 3e-3, 4e-3]).all(|(seen, expected)| (seen - expected).abs() < 1e-9), "{seen:?}");
    }

    #[test]
    fn the_median_of_the_steps_after_the_warm_up_counts() {
        for (measures, warm_up) in [(false, WARM_UP), (true, LENGTHS as u32)] {
            let mut seen = StepTimes::of(1, measures);
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
