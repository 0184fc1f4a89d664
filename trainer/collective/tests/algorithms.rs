//! Compares every schedule with a sequential reference, for 1 to 33 ranks, in random orders of
//! ranks and links.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use lockstep_collective::Hosts;
use lockstep_collective::algorithm::{
    Algorithm, Arrival, MAX_FRAME, Schedule, all_gather, all_reduce, all_to_all, block, broadcast, gather, part,
    reduce, reduce_scatter, scatter,
};

const MOST_RANKS: usize = 33;
/// Elements of a frame. They are so few that each rank sends more frames than are under way at
/// once.
const FRAME: usize = 5;
/// No elements, fewer than ranks, more than a frame for each rank, and a multiple of nothing.
const LENGTHS: [usize; 4] = [0, 1, 20, 1009];

/// Returns the ranks' memories after all schedules were carried out over links that hold `room`
/// frames each. Ranks take turns at random.
fn carried_out(schedules: &[Schedule], mut memories: Vec<Vec<f64>>, room: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut lines: BTreeMap<(usize, usize), VecDeque<Vec<f64>>> = BTreeMap::new();
    let mut done = vec![(0, 0); schedules.len()];
    let mut random = seed | 1;
    let mut idle = 0;
    while done.iter().zip(schedules).any(|(done, all)| *done != (all.sends.len(), all.receives.len())) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Random at first, then in turn once little is left, so that a deadlock shows.
        let turn = if idle < 1000 { random as usize >> 8 } else { idle };
        let (rank, sending) = (turn / 2 % schedules.len(), turn.is_multiple_of(2));
        idle += 1;
        assert!(idle < 1000 + 4 * schedules.len(), "deadlock: {done:?}");
        let (sent, received) = done[rank];
        if sending {
            let Some(send) = schedules[rank].sends.get(sent) else { continue };
            let line = lines.entry((rank, send.to)).or_default();
            if send.after <= received && line.len() < room {
                line.push_back(memories[rank][send.elements.clone()].to_vec());
                done[rank].0 += 1;
                idle = 0;
            }
        } else {
            let Some(receive) = schedules[rank].receives.get(received) else { continue };
            if receive.after > sent {
                continue;
            }
            let Some(frame) = lines.entry((receive.from, rank)).or_default().pop_front() else { continue };
            let place = &mut memories[rank][receive.elements.clone()];
            assert_eq!(frame.len(), place.len(), "rank {rank} expects a frame of another length");
            for (mine, theirs) in place.iter_mut().zip(frame) {
                *mine = if receive.arrival == Arrival::Reduce { *mine + theirs } else { theirs };
            }
            done[rank].1 += 1;
            idle = 0;
        }
    }
    assert!(lines.values().all(VecDeque::is_empty), "some frames were never received");
    memories
}

/// Returns rank r's first numbers, whose sum is exact.
fn given(rank: usize, length: usize) -> Vec<f64> {
    (0..length).map(|index| ((rank + 1) * (index % 97 + 1)) as f64).collect()
}

fn summed(world: usize, length: usize) -> Vec<f64> {
    let mut sum = vec![0.0; length];
    for rank in 0..world {
        sum.iter_mut().zip(given(rank, length)).for_each(|(sum, term)| *sum += term);
    }
    sum
}

/// Runs an operation for every group and length. Compares each rank's memory, or the part of it
/// that counts.
fn check(
    schedule: impl Fn(usize, usize, usize) -> Schedule,
    memory: impl Fn(usize, usize, usize) -> Vec<f64>,
    expected: impl Fn(usize, usize, usize) -> (Range<usize>, Vec<f64>),
) {
    for world in 1..=MOST_RANKS {
        for length in LENGTHS {
            let schedules: Vec<Schedule> = (0..world).map(|rank| schedule(rank, world, length)).collect();
            let memories = (0..world).map(|rank| memory(rank, world, length)).collect();
            let room = 1 + world % 3;
            for (rank, memory) in
                carried_out(&schedules, memories, room, (world * 31 + length) as u64).iter().enumerate()
            {
                let (range, values) = expected(rank, world, length);
                assert!(memory[range] == values, "rank {rank} of {world}, {length} elements");
            }
        }
    }
}

fn check_all_reduce(algorithm: impl Fn(usize) -> Algorithm) {
    check(
        |rank, world, length| all_reduce(algorithm(world), rank, &Hosts::apart(world), length, FRAME),
        |rank, _, length| given(rank, length),
        |_, world, length| (0..length, summed(world, length)),
    );
}

#[test]
fn the_ring_sums() {
    check_all_reduce(|_| Algorithm::Ring);
}

#[test]
fn recursive_doubling_sums() {
    check_all_reduce(|_| Algorithm::RecursiveDoubling);
}

#[test]
fn halving_and_doubling_sums() {
    check_all_reduce(|_| Algorithm::HalvingDoubling);
}

#[test]
fn the_double_tree_sums() {
    check_all_reduce(|_| Algorithm::DoubleTree);
}

#[test]
fn the_direct_exchange_sums() {
    check_all_reduce(|_| Algorithm::Direct);
}

#[test]
fn every_torus_sums() {
    for nth in 0..3 {
        check_all_reduce(|world| Algorithm::Torus { columns: divisor(world, nth) });
    }
}

#[test]
fn hierarchies_of_hosts_sum() {
    for (seed, algorithm) in (0..4).flat_map(|seed| [(seed, Algorithm::Hierarchical), (seed, Algorithm::Direct)]) {
        check(
            |rank, world, length| all_reduce(algorithm, rank, &hosts(world, seed), length, FRAME),
            |rank, _, length| given(rank, length),
            |_, world, length| (0..length, summed(world, length)),
        );
    }
}

/// Returns all ranks on one host, each on its own, in turns on two, and unordered.
fn hosts(world: usize, seed: usize) -> Hosts {
    let mut next = 0;
    let numbers = (0..world).map(|rank| {
        let host = [0, rank, rank % 2, rank * rank % 7 % (next + 1)][seed].min(next);
        next = next.max(host + 1);
        host as u32
    });
    Hosts::counted(numbers.collect()).expect("counted in the order of first ranks")
}

/// Returns the divisor that is `nth` from the middle.
fn divisor(world: usize, nth: usize) -> usize {
    let divisors: Vec<usize> = (1..=world).filter(|columns| world.is_multiple_of(*columns)).collect();
    divisors[(divisors.len() / 2 + nth) % divisors.len()]
}

#[test]
fn the_other_operations_put_every_element_in_its_place() {
    let own = |rank: usize, world: usize, length: usize| part(&(0..length), world, rank);
    check(
        |rank, world, length| reduce_scatter(rank, world, length, FRAME),
        |rank, _, length| given(rank, length),
        |rank, world, length| (own(rank, world, length), summed(world, length)[own(rank, world, length)].to_vec()),
    );
    let only_own = |rank: usize, world: usize, length: usize| {
        let mut memory = vec![-1.0; length];
        memory[own(rank, world, length)].copy_from_slice(&given(7, length)[own(rank, world, length)]);
        memory
    };
    check(
        |rank, world, length| all_gather(rank, world, length, FRAME),
        only_own,
        |_, _, length| (0..length, given(7, length)),
    );
    let root = |world: usize| world / 3;
    check(
        |rank, world, length| gather(rank, world, root(world), length, FRAME),
        only_own,
        |rank, world, length| {
            let range = if rank == root(world) { 0..length } else { 0..0 };
            (range.clone(), given(7, length)[range].to_vec())
        },
    );
    check(
        |rank, world, length| scatter(rank, world, root(world), length, FRAME),
        |rank, _, length| given(rank, length),
        |rank, world, length| (own(rank, world, length), given(root(world), length)[own(rank, world, length)].to_vec()),
    );
    check(
        |rank, world, length| broadcast(rank, world, root(world), length, FRAME),
        |rank, _, length| given(rank, length),
        |_, world, length| (0..length, given(root(world), length)),
    );
    check(
        |rank, world, length| reduce(rank, world, root(world), length, FRAME),
        |rank, _, length| given(rank, length),
        |rank, world, length| {
            let range = if rank == root(world) { 0..length } else { 0..0 };
            (range.clone(), summed(world, length)[range].to_vec())
        },
    );
}

/// Returns the elements that `from` gives `to`, found by counting: its blocks lie one behind
/// another, each as long as a part.
fn given_to(to: usize, from: usize, world: usize, length: usize) -> Vec<f64> {
    let sizes: Vec<usize> = (0..world).map(|peer| part(&(0..length), world, (from + peer) % world).len()).collect();
    let start: usize = sizes[..to].iter().sum();
    given(from, length)[start..start + sizes[to]].to_vec()
}

#[test]
fn all_to_all_transposes_any_length() {
    for beyond in 0..4 {
        // A multiple of the number of ranks, and lengths slightly above it.
        let length = move |world: usize, length: usize| length / world * world + beyond;
        check(
            |rank, world, given| all_to_all(rank, world, length(world, given), FRAME),
            |rank, world, given| {
                let length = length(world, given);
                let mut memory = self::given(rank, length);
                memory.extend(vec![-1.0; length]);
                let own = block(length, world, rank, rank);
                memory.copy_within(own.clone(), length + own.start);
                memory
            },
            |rank, world, given| {
                let length = length(world, given);
                let taken: Vec<f64> = (0..world).flat_map(|from| given_to(rank, from, world, length)).collect();
                assert_eq!(taken.len(), length, "the taken blocks fill the second half");
                (length..2 * length, taken)
            },
        );
    }
}

#[test]
fn blocks_of_one_length_are_parts() {
    for world in 1..=MOST_RANKS {
        for (rank, peer) in (0..world).flat_map(|rank| (0..world).map(move |peer| (rank, peer))) {
            assert_eq!(block(5 * world, world, rank, peer), part(&(0..5 * world), world, peer));
        }
    }
}

/// The frames must not matter, because a replay with a later version may cut others.
#[test]
fn all_ranks_end_with_the_same_bits_however_the_elements_are_cut() {
    for world in [2, 3, 6, 7, 8, 13] {
        let torus = Algorithm::Torus { columns: divisor(world, 0) };
        for algorithm in Algorithm::PLAIN.into_iter().chain([torus]) {
            let hosts = hosts(world, 3);
            let uneven = |rank: usize| (0..1000).map(|index| 1.0 / (rank * 1000 + index + 3) as f64).collect();
            let run = |frame, room, seed| {
                let schedules: Vec<Schedule> =
                    (0..world).map(|rank| all_reduce(algorithm, rank, &hosts, 1000, frame)).collect();
                carried_out(&schedules, (0..world).map(uneven).collect(), room, seed)
            };
            let first = run(MAX_FRAME, 1, 5);
            assert!(first.iter().all(|memory| *memory == first[0]), "{algorithm:?} of {world}");
            assert!(first == run(MAX_FRAME, 3, 77), "{algorithm:?} of {world}: another order of arrivals, other bits");
            for frame in [1, 7, 100] {
                assert!(first == run(frame, 2, 9), "{algorithm:?} of {world}: frames of {frame}, other bits");
            }
        }
    }
}

/// Adds neighbours on each level, as a binary tree over uneven numbers.
fn canonical(mut terms: Vec<Vec<f64>>) -> Vec<f64> {
    while terms.len() > 1 {
        let pairs = terms.chunks(2);
        terms = pairs.map(|pair| pair[0].iter().zip(&pair[1]).map(|(left, right)| left + right).collect()).collect();
    }
    terms.remove(0)
}

/// Returns rank r's share of 64 parts of a tree: the same number for each rank, or half a part for
/// each of two ranks.
fn held_parts(rank: usize, world: usize) -> Range<usize> {
    let core = 1 << world.ilog2();
    let (halved, size) = (world - core, 64 / core);
    let start = if rank < 2 * halved { rank * size / 2 } else { (rank - halved) * size };
    start..start + if rank < 2 * halved { size / 2 } else { size }
}

#[test]
fn doubling_and_halving_add_as_one_binary_tree_over_the_ranks() {
    let part = |index: usize| (0..77).map(|place| 1.0 / (index * 100 + place + 3) as f64).collect();
    let whole = canonical((0..64).map(part).collect());
    for algorithm in [Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling] {
        for world in 1..=64 {
            let hosts = Hosts::apart(world);
            let schedules: Vec<Schedule> =
                (0..world).map(|rank| all_reduce(algorithm, rank, &hosts, 77, FRAME)).collect();
            let held = (0..world).map(|rank| canonical(held_parts(rank, world).map(part).collect())).collect();
            let sums = carried_out(&schedules, held, 1, world as u64);
            assert!(sums.iter().all(|sum| *sum == whole), "{algorithm:?} of {world}: other bits");
        }
    }
}

#[test]
fn no_rank_sends_more_than_its_algorithm_promises() {
    let length = 1 << 20;
    for world in 2..=MOST_RANKS {
        let share = 2.0 * (world - 1) as f64 / world as f64;
        let (hops, folded) = (f64::from(world.ilog2()), if world.is_power_of_two() { 0.0 } else { 1.0 });
        let core = (1 << world.ilog2()) as f64;
        for (algorithm, most) in [
            (Algorithm::Ring, share),
            (Algorithm::RecursiveDoubling, hops + folded),
            (Algorithm::HalvingDoubling, 2.0 * (core - 1.0) / core + folded),
            // In the tree in which a rank has children, it sends one half up and two halves down.
            // In the other tree it sends one half up.
            (Algorithm::DoubleTree, 2.0),
            (Algorithm::Direct, share),
            (Algorithm::Torus { columns: divisor(world, 0) }, share),
            (Algorithm::Hierarchical, share),
        ] {
            let hosts = Hosts::apart(world);
            for rank in 0..world {
                let sends = all_reduce(algorithm, rank, &hosts, length, MAX_FRAME).sends;
                let sent: usize = sends.iter().map(|send| send.elements.len()).sum();
                assert!(
                    sent as f64 <= 1.01 * most * length as f64,
                    "{algorithm:?}: rank {rank} of {world} sends {sent}"
                );
                assert!(sends.iter().all(|send| send.elements.len() <= MAX_FRAME));
            }
        }
    }
}

/// Each element travels once to each rank that lacks it, and each term once from its rank.
#[test]
fn the_other_operations_send_nothing_twice() {
    const LENGTH: usize = 1 << 20;
    for world in 1..=MOST_RANKS {
        let (root, others) = (world / 3, (world - 1) * LENGTH);
        let most: usize = (0..world).map(|rank| part(&(0..LENGTH), world, rank).len()).max().unwrap_or_default();
        type Described = fn(usize, usize, usize) -> Schedule;
        let operations: [(&str, Described, usize); 7] = [
            ("broadcast", |rank, world, root| broadcast(rank, world, root, LENGTH, MAX_FRAME), others),
            ("reduce", |rank, world, root| reduce(rank, world, root, LENGTH, MAX_FRAME), others),
            ("all-gather", |rank, world, _| all_gather(rank, world, LENGTH, MAX_FRAME), others),
            ("reduce-scatter", |rank, world, _| reduce_scatter(rank, world, LENGTH, MAX_FRAME), others),
            ("all-to-all", |rank, world, _| all_to_all(rank, world, LENGTH, MAX_FRAME), (world - 1) * world * most),
            ("gather", |rank, world, root| gather(rank, world, root, LENGTH, MAX_FRAME), (world - 1) * most),
            ("scatter", |rank, world, root| scatter(rank, world, root, LENGTH, MAX_FRAME), (world - 1) * most),
        ];
        for (name, described, limit) in operations {
            let sends = (0..world).flat_map(|rank| described(rank, world, root).sends);
            let sent: usize = sends.map(|send| send.elements.len()).sum();
            assert!(sent <= limit, "{name}: {world} ranks send {sent} elements, {limit} are enough");
        }
    }
}

/// However many ranks a host has, each part of the elements crosses its line as often as in a ring
/// of the hosts.
#[test]
fn a_hierarchy_sends_as_much_between_hosts_as_a_ring_of_them() {
    let length = 1 << 20;
    for world in 2..=MOST_RANKS {
        for (seed, algorithm) in (1..4).flat_map(|seed| [(seed, Algorithm::Hierarchical), (seed, Algorithm::Direct)]) {
            let hosts = hosts(world, seed);
            let ranks = hosts.ranks();
            let count = ranks.len() as f64;
            for (host, row) in ranks.iter().enumerate() {
                let sends = row.iter().flat_map(|rank| all_reduce(algorithm, *rank, &hosts, length, MAX_FRAME).sends);
                let leaving = sends.filter(|send| hosts.numbers()[send.to] as usize != host);
                let sent: usize = leaving.map(|send| send.elements.len()).sum();
                let most = 2.0 * (count - 1.0) / count * length as f64;
                assert!(
                    (0.99 * most..=1.01 * most).contains(&(sent as f64)),
                    "{algorithm:?}: {sent} of {most}: {hosts:?}"
                );
            }
        }
    }
}
