//! The plan by which a group sums its gradients. All ranks measure, rank 0 decides, and checkpoints
//! keep the plan so that a resumed run repeats it.

mod alone;
mod placement;
mod retune;

use std::ops::Range;

use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{
    AgreedPlan, BucketPlan, Choice, CollectiveError, Costs, FIRST_BUCKET_BYTES, Group, Hosts, ReadyGradient, Reduction,
    Tag, Wire, last_end, merge, plan_buckets,
};
use lockstep_launch::{Communication, CommunicationAlgorithm, CommunicationReport, Encryption, LinkKind, WireFormat};
use serde::{Deserialize, Serialize};
use tracing::info;

pub(crate) use self::alone::{Alone, agree_alone};
pub(crate) use self::placement::{KnownCosts, Placement};
pub(crate) use self::retune::{StepTimes, agree_anew};

/// The bytes of a bucket until measurements propose a better size.
const BUCKET_BYTES: usize = 1 << 20;

/// A rank's forward and backward passes on its share, without communication.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Baseline {
    /// `None` if the rank has fewer samples than a micro-batch.
    pub samples_per_second: Option<f64>,
    /// The seconds from the beginning of a step until the gradients of each range of the ready
    /// order were complete.
    pub ready: Vec<f64>,
}

/// A plan, and the circumstances under which it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    world: usize,
    over_memory: bool,
    communication: Communication,
    /// The placement of the ranks, if the costs of messages between them matter.
    #[serde(rename = "places", default, skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    words: Vec<u64>,
    /// True if the plan was judged by the steps of a group, and stays.
    #[serde(default)]
    settled: bool,
}

/// A plan from a record that fits the present circumstances.
#[derive(Debug, PartialEq)]
struct Found {
    plan: BucketPlan,
    settled: bool,
    placement: Option<Placement>,
}

/// The record of an earlier plan.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<'a> {
    /// The plan of the last group, or of the checkpoint.
    Kept(&'a str),
    /// The plan of the run that is replayed, on any hosts.
    Repeated(&'a str),
}

/// The plan on which the group agreed, and what it knew.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    pub plan: AgreedPlan,
    /// The plan as checkpoints keep it.
    pub record: String,
    /// The part of the plan that users see. `None` in a group of one.
    pub report: Option<CommunicationReport>,
    /// The mean speed of a rank's forward and backward passes, in samples per second.
    pub baseline: Option<f64>,
    /// The seconds after which each range of the ready order was complete in a step of one rank by
    /// itself. Means of all ranks.
    pub ready: Vec<f64>,
    /// True if all ranks measure the costs of messages during the first steps.
    pub measures: bool,
    /// True if all ranks agree again, by these costs and the times of the first steps.
    pub is_open: bool,
}

/// Agrees on a plan with the other ranks, which have this `placement`. `own` times the ranges
/// `ready_order` of the gradient arena. `before` and `known` come from an earlier group; the costs
/// are those of messages in the same placement. Rank 0's knowledge counts: either all ranks measure
/// or none. They do so during the first steps, which sum by a plan that needs no costs.
pub(crate) fn agree(
    group: &mut Group,
    settings: &Communication,
    ready_order: &[Range<usize>],
    own: &Baseline,
    before: Option<Before<'_>>,
    placement: Placement,
    known: Option<Costs>,
) -> Result<Agreed, CollectiveError> {
    let world = group.world();
    let over_memory = group.shares_memory() && settings.algorithm == CommunicationAlgorithm::Auto;
    let algorithm = if over_memory { settings.algorithm } else { by_messages(settings) };
    let means = means(group, own)?;
    let communication = settings.clone();
    let open = settings.bucket_bytes.is_none() || algorithm == CommunicationAlgorithm::Auto;
    let useful = open && settings.algorithm != CommunicationAlgorithm::CanonicalTree;
    let costs_matter = world > 1 && !over_memory && useful;
    let placement = costs_matter.then_some(placement);
    let circumstances = Recorded { world, over_memory, communication, placement, words: Vec::new(), settled: false };
    let elements = ready_order.iter().map(|range| range.end).max().unwrap_or_default();
    let is_repeated = matches!(before, Some(Before::Repeated(_)));
    let found = before.and_then(|before| match before {
        Before::Repeated(record) => replayed(record, &circumstances, elements),
        Before::Kept(record) => kept(record, &circumstances, group.hosts(), elements),
    });
    // An open plan is of no use once the costs are known.
    let found = found.filter(|found| is_repeated || found.settled || known.is_none());
    let settles = found.as_ref().is_some_and(|found| is_repeated || found.settled);
    let measures = costs_matter && !settles && known.is_none();
    let (recorded, settled, placement) = match found {
        Some(Found { plan, settled, placement }) => (Some(plan), settled, placement),
        None => (None, false, placement),
    };
    let mut told = [u8::from(measures), u8::from(settled)];
    group.broadcast(0, tag(1), &mut told)?;
    let [measures, settled] = told.map(|told| told == 1);
    let costs = known.filter(|_| costs_matter);
    let hosts = group.hosts().clone();
    let plan = group
        .agree(|| recorded.unwrap_or_else(|| proposed(settings, algorithm, hosts, ready_order, &means.ready, costs)))?;
    let first_ready_ms = means.ready.first().copied().unwrap_or_default() * 1e3;
    let report = CommunicationReport {
        link: if over_memory { LinkKind::Memory } else { LinkKind::Tcp },
        algorithm,
        wire: if over_memory { WireFormat::F32 } else { settings.wire },
        encryption: if over_memory { Encryption::None } else { settings.encryption },
        buckets: u32::try_from(plan.buckets().len()).unwrap_or(u32::MAX),
    };
    info!(
        buckets = report.buckets, first_ready_ms, link = %report.link, wire = %report.wire,
        encryption = %report.encryption, "communication agreed"
    );
    let words = plan.to_words();
    // Numbers and names always become JSON.
    let record = serde_json::to_string(&Recorded { words, settled, placement, ..circumstances }).unwrap_or_default();
    // A group of one sends nothing.
    let report = (world > 1).then_some(report);
    let Baseline { samples_per_second: baseline, ready } = means;
    let is_open = costs_matter && (settings.bucket_bytes.is_none() || measures) && !settled && !is_repeated;
    Ok(Agreed { plan, record, report, baseline, ready, measures, is_open })
}

/// Returns the mean of all ranks that measured something.
fn means(group: &mut Group, own: &Baseline) -> Result<Baseline, CollectiveError> {
    let measured = own.samples_per_second.is_some();
    let mut sums = vec![f64::from(u8::from(measured)), own.samples_per_second.unwrap_or_default()];
    sums.extend(own.ready.iter().map(|seconds| if measured { *seconds } else { 0.0 }));
    group.all_reduce(Algorithm::RecursiveDoubling, tag(0), &mut sums, Reduction::Sum)?;
    let ranks = sums[0];
    let mean = |sum: &f64| if ranks > 0.0 { sum / ranks } else { 0.0 };
    let samples_per_second = Some(mean(&sums[1])).filter(|rate| *rate > 0.0);
    Ok(Baseline { samples_per_second, ready: sums[2..].iter().map(mean).collect() })
}

/// Returns true if both are records of the same plan.
pub(crate) fn record_the_same(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|record| serde_json::from_str::<Recorded>(record).ok());
    one.is_some() && one == other
}

/// Returns the plan of a record that was made under the same circumstances. The placement must be
/// the same if the costs of messages matter. The hosts must be the same if it matters which ranks
/// share one.
fn kept(record: &str, circumstances: &Recorded, hosts: &Hosts, elements: usize) -> Option<Found> {
    let found = replayed(record, circumstances, elements).filter(|found| found.placement == circumstances.placement)?;
    let matters = found.plan.hosts.are_mixed() || hosts.are_mixed();
    (!matters || found.plan.hosts == *hosts).then_some(found)
}

/// Returns the plan of a record that was made under the same circumstances, in any placement.
fn replayed(record: &str, circumstances: &Recorded, elements: usize) -> Option<Found> {
    let recorded: Recorded = serde_json::from_str(record).ok()?;
    let plan = BucketPlan::from_words(&recorded.words)?;
    let tiles = plan.buckets.last().map(|bucket| bucket.end) == Some(elements);
    let fits = tiles && plan.hosts.world() == circumstances.world;
    let (settled, placement) = (recorded.settled, recorded.placement);
    let made = Recorded { words: Vec::new(), settled: false, placement: circumstances.placement, ..recorded };
    (fits && made == *circumstances).then_some(Found { plan, settled, placement })
}

fn proposed(
    settings: &Communication,
    algorithm: CommunicationAlgorithm,
    hosts: Hosts,
    ready_order: &[Range<usize>],
    ready: &[f64],
    costs: Option<Costs>,
) -> BucketPlan {
    let choice = named(algorithm, hosts.world()).unwrap_or(Choice::Cheapest(costs.unwrap_or_default()));
    let fixed = |bytes: usize| plan_buckets(ready_order, bytes, FIRST_BUCKET_BYTES.min(bytes));
    let open = BucketPlan { buckets: Vec::new(), choice, wire: wire(settings.wire), hosts };
    let buckets = match (settings.bucket_bytes, costs) {
        (Some(bytes), _) => fixed(usize::try_from(bytes.get()).unwrap_or(usize::MAX)),
        // No bucket is ready before the last part of the tree.
        (None, _) if algorithm == CommunicationAlgorithm::CanonicalTree => {
            plan_buckets(ready_order, usize::MAX, usize::MAX)
        }
        (None, None) => fixed(BUCKET_BYTES),
        (None, Some(costs)) => {
            let merged = merged(open.clone(), ready_order, ready, &costs);
            let exposed = ends(&merged, ready_order, ready, &costs) - ready.last().copied().unwrap_or_default();
            info!(
                buckets = merged.buckets.len(),
                latency_us = costs.message * 1e6,
                gigabytes_per_second = 1e-9 / costs.wire_byte,
                exposed_ms = exposed * 1e3,
                "communication planned"
            );
            return merged;
        }
    };
    BucketPlan { buckets, ..open }
}

/// Returns `plan` with the buckets whose last sum ends first. The ranges of `ready_order` are ready
/// after the seconds in `ready`.
fn merged(plan: BucketPlan, ready_order: &[Range<usize>], ready: &[f64], costs: &Costs) -> BucketPlan {
    let gradients: Vec<ReadyGradient> = ready_order
        .iter()
        .zip(ready)
        .map(|(range, seconds)| ReadyGradient { seconds: *seconds, bytes: range.len() * size_of::<f32>() })
        .collect();
    let ranges = merge(&gradients, |bytes| sum_seconds(&plan, costs, bytes));
    let buckets = ranges.iter().map(|range| ready_order[range.start].start..ready_order[range.end - 1].end).collect();
    BucketPlan { buckets, ..plan }
}

/// Returns the seconds from the beginning of a step until all sums of `plan` are formed.
fn ends(plan: &BucketPlan, ready_order: &[Range<usize>], ready: &[f64], costs: &Costs) -> f64 {
    let complete = |bucket: &Range<usize>| {
        let last = ready_order.iter().position(|range| range.end == bucket.end);
        ReadyGradient { seconds: last.map_or(0.0, |last| ready[last]), bytes: bucket.len() * size_of::<f32>() }
    };
    let buckets: Vec<ReadyGradient> = plan.buckets.iter().map(complete).collect();
    let each: Vec<Range<usize>> = (0..buckets.len()).map(|bucket| bucket..bucket + 1).collect();
    last_end(&buckets, &each, |bytes| sum_seconds(plan, costs, bytes))
}

/// Returns the seconds that a sum of `bytes` bytes of gradients takes.
fn sum_seconds(plan: &BucketPlan, costs: &Costs, bytes: usize) -> f64 {
    let sent = bytes_sent(plan, bytes);
    costs.seconds(plan.choice.algorithm(&plan.hosts, sent), &plan.hosts, sent)
}

/// Returns the bytes that a sum of `bytes` bytes of gradients sends.
fn bytes_sent(plan: &BucketPlan, bytes: usize) -> usize {
    bytes / size_of::<f32>() * plan.wire.bytes()
}

/// Returns the collectives' name of a wire format.
pub(crate) fn wire(format: WireFormat) -> Wire {
    match format {
        WireFormat::F32 => Wire::F32,
        WireFormat::Bf16 => Wire::Bf16,
        WireFormat::F16 => Wire::F16,
    }
}

/// Returns the algorithm of workers that share no memory. Narrow formats have only one.
pub(crate) fn by_messages(settings: &Communication) -> CommunicationAlgorithm {
    match (settings.algorithm, settings.wire) {
        (CommunicationAlgorithm::Auto, WireFormat::Bf16 | WireFormat::F16) => CommunicationAlgorithm::Direct,
        (algorithm, _) => algorithm,
    }
}

/// Returns the algorithm that the job names, if it names one.
pub(crate) fn named(algorithm: CommunicationAlgorithm, world: usize) -> Option<Choice> {
    let algorithm = match algorithm {
        CommunicationAlgorithm::Auto => return None,
        CommunicationAlgorithm::Ring => Algorithm::Ring,
        CommunicationAlgorithm::RecursiveDoubling => Algorithm::RecursiveDoubling,
        CommunicationAlgorithm::HalvingDoubling => Algorithm::HalvingDoubling,
        CommunicationAlgorithm::DoubleTree => Algorithm::DoubleTree,
        CommunicationAlgorithm::Torus => Algorithm::torus(world),
        CommunicationAlgorithm::Hierarchical => Algorithm::Hierarchical,
        CommunicationAlgorithm::Direct => Algorithm::Direct,
        CommunicationAlgorithm::CanonicalTree => Algorithm::HalvingDoubling,
    };
    Some(Choice::Always(algorithm))
}

/// Tags a message before the first step.
fn tag(bucket: u32) -> Tag {
    Tag { step: u64::MAX, bucket }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        thread,
    };

    use lockstep_collective::{Abort, JobId, Limits, Listener, RankId};
    use lockstep_launch::ByteSize;

    use super::*;

    const READY_ORDER: [Range<usize>; 3] = [0..1000, 1000..300_000, 300_000..301_000];
    /// Backward takes 3 ms; a range is ready after each.
    const READY: [f64; 3] = [1e-3, 2e-3, 3e-3];

    fn buckets(settings: &Communication, costs: Option<Costs>) -> Vec<Range<usize>> {
        proposed(settings, by_messages(settings), Hosts::apart(4), &READY_ORDER, &READY, costs).buckets
    }

    fn costs(message: f64, wire_byte: f64) -> Option<Costs> {
        Some(Costs { message, wire_byte, reduced_byte: 0.0 })
    }

    #[test]
    fn gradients_are_merged_by_what_was_measured() {
        let auto = Communication::default();
        // A long link: bytes cost nothing, each bucket costs milliseconds.
        assert_eq!(buckets(&auto, costs(5e-3, 1e-12)).len(), 1);
        // A thin link: the large gradient takes longer than the rest of backward. The last gradient
        // goes alone, unless a message costs nearly a millisecond.
        assert_eq!(buckets(&auto, costs(1e-6, 1e-8)), [0..1000, 1000..300_000, 300_000..301_000]);
        assert_eq!(buckets(&auto, costs(8e-4, 1e-8)), [0..1000, 1000..301_000]);
        assert_eq!(buckets(&auto, None), [0..1000, 1000..300_000, 300_000..301_000]);
    }

    #[test]
    fn a_named_size_and_a_named_algorithm_are_taken_as_they_are() {
        let algorithm = CommunicationAlgorithm::HalvingDoubling;
        let named = Communication { bucket_bytes: Some(ByteSize::mebibytes(8)), algorithm, ..Communication::default() };
        let plan = proposed(&named, algorithm, Hosts::apart(4), &READY_ORDER, &READY, costs(1e-6, 1e-8));
        assert_eq!(plan.choice, Choice::Always(Algorithm::HalvingDoubling));
        assert_eq!(plan.buckets, plan_buckets(&READY_ORDER, 8 << 20, FIRST_BUCKET_BYTES));
    }

    #[test]
    fn a_narrow_format_is_planned_for_the_one_algorithm_that_carries_it() {
        let narrow = Communication { wire: WireFormat::Bf16, ..Communication::default() };
        let plan = proposed(&narrow, by_messages(&narrow), Hosts::apart(8), &READY_ORDER, &READY, costs(1e-6, 1e-8));
        assert_eq!((plan.choice, plan.wire), (Choice::Always(Algorithm::Direct), Wire::Bf16));
    }

    #[test]
    fn a_canonical_tree_is_summed_at_once() {
        let tree = Communication { algorithm: CommunicationAlgorithm::CanonicalTree, ..Communication::default() };
        let plan = proposed(&tree, tree.algorithm, Hosts::apart(4), &READY_ORDER, &READY, None);
        assert_eq!(plan.choice, Choice::Always(Algorithm::HalvingDoubling));
        assert!(matches!(&plan.buckets[..], [whole] if *whole == (0..301_000)), "{:?}", plan.buckets);
    }

    #[test]
    fn a_record_is_replayed_under_the_same_circumstances_only() {
        let choice = Choice::Always(Algorithm::Ring);
        let [apart, together, mixed] =
            [vec![0, 1, 2], vec![0, 0, 0], vec![0, 1, 0]].map(Hosts::counted).map(Option::unwrap);
        let plan = BucketPlan { buckets: vec![0..5, 5..10], choice, wire: Wire::Bf16, hosts: apart.clone() };
        let [here, there] = ["10.0.0.1:1", "10.0.0.2:1"].map(|address| Placement::of(&[address.parse().expect("one")]));
        let made = || Recorded {
            world: 3,
            over_memory: false,
            communication: Communication::default(),
            placement: Some(here),
            words: Vec::new(),
            settled: false,
        };
        let words = vec![0x101, 0, 0, 0, 3, 0, 1, 2, 5, 10];
        let record = serde_json::to_string(&Recorded { words, settled: true, ..made() }).expect("serialises");
        let kept_on = |hosts: &Hosts| kept(&record, &made(), hosts, 10);
        let found = || Some(Found { plan: plan.clone(), settled: true, placement: Some(here) });
        assert_eq!([&apart, &together, &mixed].map(kept_on), [found(), found(), None]);
        let elsewhere = Recorded { placement: Some(there), ..made() };
        assert_eq!(kept(&record, &elsewhere, &apart, 10), None);
        // A replay may run on other hosts.
        assert_eq!(replayed(&record, &made(), 10), found());
        assert_eq!(replayed(&record, &elsewhere, 10), found());
        // A field that has its default may be missing.
        let older = record.replace("\"socketsPerPeer\":1,", "").replace(",\"socketsPerPeer\":1", "");
        assert!(older != record && record_the_same(&older, &record) && !record_the_same(&older, "{"));
        let fixed = Communication { bucket_bytes: Some(ByteSize::mebibytes(1)), ..Communication::default() };
        assert_eq!(replayed(&record, &Recorded { world: 4, ..made() }, 10), None);
        assert_eq!(replayed(&record, &Recorded { over_memory: true, ..made() }, 10), None);
        assert_eq!(replayed(&record, &Recorded { communication: fixed, ..made() }, 10), None);
        assert_eq!(replayed(&record, &made(), 11), None);
        assert_eq!(replayed("{", &made(), 10), None);
    }

    /// Forms a group of ranks that have the records `before` of an earlier group, in `placement`.
    /// Returns what each rank agreed on.
    fn agreed(settings: &Communication, before: [Option<&str>; 3], placement: Placement) -> Vec<Agreed> {
        let listeners = before.map(|_| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).expect("a listener"));
        let peers: Vec<_> = listeners.iter().map(Listener::address).collect();
        thread::scope(|scope| {
            let rank = |(rank, (listener, before)): (usize, (Listener, Option<&'_ str>))| {
                let (peers, before) = (peers.clone(), before.map(str::to_owned));
                scope.spawn(move || {
                    let seat = RankId { job: JobId([7; 16]), generation: 1, rank };
                    let limits = Limits { shares_memory: false, ..Limits::default() };
                    let mut group = Group::form(&listener, seat, &peers, limits, &Abort::new()).expect("a group");
                    let own = Baseline { samples_per_second: Some(1.0), ready: READY.to_vec() };
                    let before = before.as_deref().map(Before::Kept);
                    agree(&mut group, settings, &READY_ORDER, &own, before, placement, None).expect("a plan")
                })
            };
            let ranks: Vec<_> = listeners.into_iter().zip(before).enumerate().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        })
    }

    #[test]
    fn a_group_measures_anew_unless_rank_0_has_a_record_of_the_same_placement() {
        let [old, new] = [["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"], ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.4:1"]]
            .map(|group| Placement::of(&group.map(|address| address.parse::<SocketAddr>().expect("an address"))));
        let auto = Communication::default();
        let first = &agreed(&auto, [None; 3], old)[0].record;
        let settled = first.replace("\"settled\":false", "\"settled\":true");
        assert!(settled != *first && !record_the_same(&settled, first));
        let settled = Some(&settled[..]);
        for (situation, before, placement, anew) in [
            ("a rank that was restarted where it was", [settled, None, settled], old, false),
            ("the same of rank 0", [None, settled, settled], old, true),
            ("a rank that was replaced on another host", [settled, None, settled], new, true),
        ] {
            let ranks = agreed(&auto, before, placement);
            for rank in &ranks {
                assert_eq!((rank.measures, rank.is_open), (anew, anew), "{situation}");
                assert_eq!((&rank.plan, &rank.record), (&ranks[0].plan, &ranks[0].record), "{situation}");
            }
            assert_eq!(Some(&ranks[0].record[..]) == settled, !anew, "{situation}");
        }
    }

    #[test]
    fn nothing_is_measured_if_costs_choose_neither_buckets_nor_an_algorithm() {
        let placement = Placement::of(&[]);
        let sized = Communication { bucket_bytes: Some(ByteSize::mebibytes(1)), ..Communication::default() };
        let narrow = Communication { wire: WireFormat::Bf16, ..sized.clone() };
        let named = Communication { algorithm: CommunicationAlgorithm::Ring, ..sized.clone() };
        for (settings, measures) in [(sized, true), (narrow, false), (named, false)] {
            let ranks = agreed(&settings, [None; 3], placement);
            assert!(ranks.iter().all(|rank| (rank.measures, rank.is_open) == (measures, measures)), "{settings:?}");
        }
    }
}
