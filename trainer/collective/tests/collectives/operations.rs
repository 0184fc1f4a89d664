//! Every operation, algorithm, type and reduction over real sockets.

use half::{bf16, f16};
use lockstep_collective::algorithm::{Algorithm, MAX_FRAME, block, part};
use lockstep_collective::{
    Abort, BucketPlan, Choice, CollectiveError, Element, Group, Hosts, LENGTHS, Limits, Reduction, Tag, Transferred,
    Waiting, Wire,
};

use crate::group::{PATIENT, bare_group, ends, group, id, listener, ranks_at};

const TAG: Tag = Tag { step: 2, bucket: 1 };

fn algorithms(world: usize) -> Vec<Algorithm> {
    let rows = (1..=world).filter(|columns| world.is_multiple_of(*columns));
    Algorithm::PLAIN.into_iter().chain(rows.map(|columns| Algorithm::Torus { columns })).collect()
}

/// Returns small integers that differ by rank and place.
fn given(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((rank * 31 + index * 7) % 101) as f32).collect()
}

fn sum(world: usize, length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    for rank in 0..world {
        sum.iter_mut().zip(given(rank, length)).for_each(|(sum, term)| *sum += term);
    }
    sum
}

#[test]
fn every_algorithm_sums_over_sockets() {
    for world in 1..=5 {
        ends(move || {
            bare_group(world, PATIENT, |mut group| {
                let rank = group.id().rank;
                for length in [0, 1, world, 999, world * MAX_FRAME + 1] {
                    let expected = sum(world, length);
                    for algorithm in algorithms(world) {
                        let mut data = given(rank, length);
                        group.all_reduce(algorithm, TAG, &mut data, Reduction::Sum).unwrap();
                        assert!(data == expected, "{algorithm:?}, {world} ranks, length {length}");
                    }
                }
            })
        });
    }
}

#[test]
fn ranks_of_mixed_hosts_know_the_hosts_and_sum_over_them() {
    for names in [&[1, 2, 1][..], &[5, 5, 9, 9], &[1, 2, 2, 0, 0, 2]] {
        let listeners = names.iter().map(|name| listener().on_host(*name)).collect();
        let sums = ranks_at(listeners, |listener, rank, peers| {
            let mut group = Group::form(listener, id(rank), peers, PATIENT, &Abort::new()).unwrap();
            assert!(group.hosts().are_mixed(), "{:?}", group.hosts());
            let mut narrow: Vec<f32> = (0..999).map(|index| 1.0 / (rank * 7 + index + 1) as f32).collect();
            group.sum(Wire::Bf16, Algorithm::Hierarchical, TAG, &mut narrow).unwrap();
            for length in [0, 1, 7, 999, 4 * MAX_FRAME + 1] {
                let mut data = given(rank, length);
                group.all_reduce(Algorithm::Hierarchical, TAG, &mut data, Reduction::Sum).unwrap();
                assert_eq!(data, sum(names.len(), length));
            }
            // The hosts of a replay hold wherever it runs.
            let hosts = Hosts::apart(names.len());
            let plan = || BucketPlan {
                buckets: vec![0..7, 7..9],
                choice: Choice::default(),
                wire: Wire::F32,
                hosts: hosts.clone(),
            };
            group.agree(plan).unwrap();
            assert_eq!(group.hosts(), &hosts);
            let mut data = given(rank, 999);
            group.all_reduce(Algorithm::Hierarchical, TAG, &mut data, Reduction::Sum).unwrap();
            assert_eq!(data, sum(names.len(), 999));
            narrow
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "other bits on other ranks of {names:?}");
    }
}

/// Both partners send far more than the sockets hold before either has taken anything in.
#[test]
fn partners_that_exchange_all_their_elements_do_not_wait_for_each_other() {
    for waiting in [Waiting::Block, Waiting::SpinThenBlock] {
        ends(move || {
            bare_group(4, Limits { waiting, ..PATIENT }, |mut group| {
                let (rank, length) = (group.id().rank, 6 << 20);
                let expected = sum(4, length);
                for algorithm in algorithms(4) {
                    let mut data = given(rank, length);
                    group.all_reduce(algorithm, TAG, &mut data, Reduction::Sum).unwrap();
                    assert!(data == expected, "{algorithm:?}");
                }
            })
        });
    }
}

#[test]
fn the_longest_frames_of_the_widest_elements_arrive() {
    ends(|| {
        bare_group(2, PATIENT, |mut group| {
            let mut data = vec![1.0_f64; 2 * MAX_FRAME];
            group.all_reduce(Algorithm::Ring, TAG, &mut data, Reduction::Sum).unwrap();
            assert!(data.iter().all(|value| *value == 2.0));
        })
    });
}

fn reduced<T: Element>(reduction: Reduction, values: fn(usize) -> T) -> Vec<T> {
    ends(move || {
        bare_group(3, PATIENT, |mut group| {
            let mut data = [values(group.id().rank)];
            group.all_reduce(Algorithm::Ring, TAG, &mut data, reduction).unwrap();
            data[0]
        })
    })
}

#[test]
fn every_type_is_reduced_in_every_way() {
    use Reduction::{Max, Mean, Min, Product, Sum};
    // Reductions of 2, 3 and 7.
    let ways = [(Sum, 12.0), (Mean, 4.0), (Min, 2.0), (Max, 7.0), (Product, 42.0)];
    for (way, result) in ways {
        assert_eq!(reduced(way, |rank| [2.0_f32, 3.0, 7.0][rank]), [result as f32; 3], "{way:?}");
        assert_eq!(reduced(way, |rank| [2.0_f64, 3.0, 7.0][rank]), [result; 3], "{way:?}");
        let half = |rank: usize| bf16::from_f32([2.0, 3.0, 7.0][rank]);
        assert_eq!(reduced(way, half), [bf16::from_f64(result); 3], "{way:?}");
        let half = |rank: usize| f16::from_f32([2.0, 3.0, 7.0][rank]);
        assert_eq!(reduced(way, half), [f16::from_f64(result); 3], "{way:?}");
        assert_eq!(reduced(way, |rank| [2_i32, 3, 7][rank]), [result as i32; 3], "{way:?}");
        assert_eq!(reduced(way, |rank| [2_i64, 3, 7][rank]), [result as i64; 3], "{way:?}");
        assert_eq!(reduced(way, |rank| [2_u8, 3, 7][rank]), [result as u8; 3], "{way:?}");
    }
}

/// Runs `operation` in a group of three. Returns the data of each rank.
fn held(
    given: fn(usize) -> Vec<f32>,
    operation: fn(&mut Group, &mut [f32]) -> Result<Transferred, CollectiveError>,
) -> Vec<Vec<f32>> {
    ends(move || {
        bare_group(3, PATIENT, |mut group| {
            let mut data = given(group.id().rank);
            operation(&mut group, &mut data).unwrap();
            data
        })
    })
}

#[test]
fn the_other_operations_put_every_element_in_its_place() {
    let own = |rank: usize| part(&(0..10), 3, rank);
    let given = |rank: usize| given(rank, 10);
    let only_own = |rank: usize| {
        let mut data = vec![-1.0; 10];
        let own = part(&(0..10), 3, rank);
        data[own.clone()].copy_from_slice(&self::given(7, 10)[own]);
        data
    };

    let after = held(given, |group, data| group.broadcast(1, TAG, data));
    assert_eq!(after, [given(1), given(1), given(1)]);
    let after = held(given, |group, data| group.reduce(2, TAG, data, Reduction::Mean));
    assert_eq!(after[2], sum(3, 10).iter().map(|sum| sum / 3.0).collect::<Vec<_>>());
    let after = held(given, |group, data| group.reduce_scatter(TAG, data, Reduction::Sum));
    for (rank, data) in after.iter().enumerate() {
        assert_eq!(data[own(rank)], sum(3, 10)[own(rank)]);
    }
    let after = held(only_own, |group, data| group.all_gather(TAG, data));
    assert_eq!(after, [given(7), given(7), given(7)]);
    let after = held(only_own, |group, data| group.gather(0, TAG, data));
    assert_eq!(after[0], given(7));
    let after = held(given, |group, data| group.scatter(1, TAG, data));
    for (rank, data) in after.iter().enumerate() {
        assert_eq!(data[own(rank)], given(1)[own(rank)]);
    }
}

#[test]
fn all_to_all_transposes() {
    let after = held(
        |rank| (0..3).map(|to| (10 * rank + to) as f32).chain([-1.0; 3]).collect(),
        |group, data| group.all_to_all(TAG, data),
    );
    for (rank, data) in after.iter().enumerate() {
        assert_eq!(data[3..], [rank as f32, (10 + rank) as f32, (20 + rank) as f32]);
    }
}

#[test]
fn all_to_all_takes_any_length() {
    for world in 1..=5 {
        for length in [0, 1, 2, 3, 7, 2 * world - 1, 2 * world + 1, 999, 70_001] {
            let given = move |rank: usize| (0..length).map(|index| (rank * 100_000 + index) as f64).collect::<Vec<_>>();
            let after = ends(move || {
                bare_group(world, PATIENT, |mut group| {
                    let mut data = given(group.id().rank);
                    group.all_to_all(TAG, &mut data).unwrap();
                    data
                })
            });
            let half = length / 2;
            for (rank, data) in after.iter().enumerate() {
                let mut expected = given(rank);
                for from in 0..world {
                    let taken = block(half, world, rank, from);
                    let theirs = &given(from)[block(half, world, from, rank)];
                    expected[half + taken.start..half + taken.end].copy_from_slice(theirs);
                }
                assert!(*data == expected, "rank {rank} of {world}, length {length}");
            }
        }
    }
}

#[test]
fn one_rank_sends_to_another() {
    const LENGTH: usize = MAX_FRAME + 7;
    let after = held(
        |rank| given(rank, LENGTH),
        |group, data| match group.id().rank {
            0 => group.send(2, TAG, data),
            2 => group.receive(0, TAG, data),
            _ => Ok(Transferred::default()),
        },
    );
    assert!(after[2] == given(0, LENGTH));
}

#[test]
fn no_rank_passes_a_barrier_before_all_have_arrived() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    ends(|| {
        let come = AtomicUsize::new(0);
        bare_group(5, PATIENT, |mut group| {
            for round in 1..=20 {
                come.fetch_add(1, Ordering::SeqCst);
                group.barrier(Tag { step: round, bucket: 0 }).unwrap();
                assert!(come.load(Ordering::SeqCst) >= 5 * round as usize, "round {round}");
            }
        });
    });
}

#[test]
fn all_ranks_find_the_same_costs() {
    let costs = ends(|| bare_group(3, PATIENT, |mut group| group.measure_costs().unwrap()));
    assert_eq!((costs[0], costs[0]), (costs[1], costs[2]));
    // On a busy machine the times may fit no costs.
    for costs in costs.into_iter().flatten() {
        assert!(costs.message > 0.0 && costs.wire_byte > 0.0 && costs.reduced_byte > 0.0, "{costs:?}");
    }
}

#[test]
fn a_communicator_finds_the_same_costs_on_all_ranks_beside_its_sums() {
    let found = ends(|| {
        group(3, PATIENT, |mut communicator| {
            for step in 0..LENGTHS as u64 {
                assert_eq!(communicator.costs(), None, "after {step} of {LENGTHS} lengths");
                communicator.measure();
                communicator.submit(step, 0, vec![1.0; 1000]);
                assert_eq!(communicator.wait().unwrap().memory, [3.0; 1000]);
            }
            communicator.costs()
        })
    });
    assert!(found.iter().all(|costs| *costs == found[0]), "{found:?}");
}

#[test]
fn the_next_operation_reports_a_failed_measurement() {
    ends(|| {
        group(2, PATIENT, |mut communicator| {
            if communicator.rank() == 1 {
                communicator.abort_handle().abort("rank 1 measures nothing");
            }
            communicator.measure();
            communicator.submit(1, 0, vec![1.0; 10]);
            assert!(communicator.wait().is_err());
            assert_eq!(communicator.costs(), None);
        })
    });
}

#[test]
fn all_ranks_get_the_plan_of_rank_0() {
    let choice = Choice::Always(Algorithm::Torus { columns: 3 });
    let plans = ends(move || {
        bare_group(3, PATIENT, |mut group| {
            let rank = group.id().rank;
            let propose = || {
                assert_eq!(rank, 0, "only rank 0 is asked");
                BucketPlan { buckets: vec![0..7, 7..100_000], choice, wire: Wire::F16, hosts: Hosts::apart(3) }
            };
            group.agree(propose).unwrap()
        })
    });
    let whole = BucketPlan { buckets: vec![0..7, 7..100_000], choice, wire: Wire::F16, hosts: Hosts::apart(3) };
    assert!(plans.iter().all(|plan| BucketPlan::from_words(&plan.to_words()).as_ref() == Some(&whole)), "{plans:?}");
}
