//! Groups of some of a group's ranks, and operations other than sums beside the caller's work.

use lockstep_collective::algorithm::{Algorithm, part};
use lockstep_collective::{Abort, Collective, Communicator, Group, Reduction, Tag};

use crate::group::{PATIENT, ends, id, ranks};

const TAG: Tag = Tag { step: 1, bucket: 0 };

#[test]
fn ranks_of_a_colour_make_a_group_in_the_order_of_their_keys() {
    let found = ends(|| {
        ranks(7, |listener, rank, peers| {
            let mut whole = Group::form(listener, id(rank), peers, PATIENT, &Abort::new()).unwrap();
            // Ranks 0, 2 and 4 form a group in reverse, and 1 and 3 in order. Rank 5 is alone, and
            // 6 is in none.
            let (colour, key) = match rank {
                0 | 2 | 4 => (Some(3), 10 - rank as u32),
                1 | 3 => (Some(9), 7),
                5 => (Some(0), 0),
                _ => (None, 0),
            };
            let part = whole.split(listener, colour, key).unwrap();
            let of_part = part.map(|mut part| {
                let mut sum = [1_i64 << (8 * rank)];
                part.all_reduce(Algorithm::Ring, TAG, &mut sum, Reduction::Sum).unwrap();
                (part.id().rank, part.world(), sum[0])
            });
            // The whole group goes on.
            let mut sum = [1_i64];
            whole.all_reduce(Algorithm::Ring, TAG, &mut sum, Reduction::Sum).unwrap();
            assert_eq!(sum, [7]);
            of_part
        })
    });
    let (even, odd) = (0x1_0001_0001_i64, 0x100_0100_i64);
    let (first, second) = (Some((0, 2, odd)), Some((1, 2, odd)));
    let expected =
        [Some((2, 3, even)), first, Some((1, 3, even)), second, Some((0, 3, even)), Some((0, 1, 1 << 40)), None];
    assert_eq!(found, expected);
}

#[test]
fn parts_split_again_and_work_beside_the_whole() {
    ends(|| {
        ranks(4, |listener, rank, peers| {
            let mut whole = Group::form(listener, id(rank), peers, PATIENT, &Abort::new()).unwrap();
            for round in 0..10_u32 {
                let mut half = whole.split(listener, Some(rank as u32 / 2), 0).unwrap().unwrap();
                let mut again = half.split(listener, Some(rank as u32 / 2), round).unwrap().unwrap();
                assert_eq!((half.world(), again.world()), (2, 2));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut sum = [rank as f32; 50_000];
                        half.all_reduce(Algorithm::Ring, TAG, &mut sum, Reduction::Sum).unwrap();
                        assert!(sum.iter().all(|sum| *sum == [1.0, 5.0][rank / 2]));
                    });
                    let mut sum = [rank as f32; 50_000];
                    whole.all_reduce(Algorithm::Ring, TAG, &mut sum, Reduction::Sum).unwrap();
                    assert!(sum.iter().all(|sum| *sum == 6.0));
                });
                again.barrier(TAG).unwrap();
            }
        });
    });
}

/// Returns the data of rank r of three after a communicator's operation on `[r, 10 + r, 20 + r]`.
fn held(collective: Collective, rank: usize) -> Vec<f32> {
    let given = |rank: usize| [rank as f32, (10 + rank) as f32, (20 + rank) as f32];
    let own = part(&(0..3), 3, rank);
    let of = |ranks: [usize; 3]| -> [f32; 3] { std::array::from_fn(|index| given(ranks[index])[index]) };
    let with_own = |value: f32| {
        let mut held = given(rank);
        held[own.start] = value;
        held
    };
    match collective {
        Collective::AllReduce(_) => [2.0, 12.0, 22.0].to_vec(),
        Collective::ReduceScatter(_) => with_own([3.0, 33.0, 63.0][rank]).to_vec(),
        Collective::AllGather => of([0, 1, 2]).to_vec(),
        Collective::Broadcast { root } => given(root).to_vec(),
        Collective::Reduce { root, .. } if root == rank => [0.0, 1320.0, 9240.0].to_vec(),
        Collective::Gather { root } if root == rank => of([0, 1, 2]).to_vec(),
        Collective::Scatter { root } => with_own(given(root)[rank]).to_vec(),
        _ => given(rank).to_vec(),
    }
}

#[test]
fn a_communicator_does_every_operation_in_the_order_of_submission() {
    const OPERATIONS: [Collective; 8] = [
        Collective::AllReduce(Reduction::Max),
        Collective::Broadcast { root: 2 },
        Collective::AllGather,
        Collective::Barrier,
        Collective::Reduce { root: 1, reduction: Reduction::Product },
        Collective::Gather { root: 0 },
        Collective::Scatter { root: 1 },
        Collective::ReduceScatter(Reduction::Sum),
    ];
    ends(|| {
        crate::group::group(3, PATIENT, |mut communicator: Communicator<Vec<f32>>| {
            let rank = communicator.rank();
            let given = || vec![rank as f32, (10 + rank) as f32, (20 + rank) as f32];
            for (bucket, collective) in (0..).zip(OPERATIONS) {
                communicator.start(collective, 1, bucket, given());
            }
            communicator.submit(1, 8, given());
            let all: Vec<Vec<f32>> = communicator.wait_all().map(|ended| ended.unwrap().memory).collect();
            for (held, collective) in all.iter().zip(OPERATIONS) {
                let expected = self::held(collective, rank);
                // Outside its result, a reduction leaves undefined elements.
                let counts = |index: usize| match collective {
                    Collective::Reduce { root, .. } => root == rank,
                    Collective::ReduceScatter(_) => index == rank,
                    Collective::Scatter { .. } => index == rank,
                    _ => true,
                };
                let same = (0..3).filter(|index| counts(*index)).all(|index| held[index] == expected[index]);
                assert!(same, "rank {rank}, {collective:?}: {held:?}, expected {expected:?}");
            }
            assert_eq!(all[8], [3.0, 33.0, 63.0]);
        })
    });
}

#[test]
fn one_rank_alone_does_every_operation_too() {
    let mut alone = Communicator::alone(Abort::new());
    alone.start(Collective::AllToAll, 1, 0, vec![1.0, 2.0, -1.0, -1.0]);
    alone.start(Collective::AllToAll, 1, 1, vec![1.0, -1.0, 3.0]);
    alone.start(Collective::Broadcast { root: 0 }, 1, 2, vec![5.0]);
    let held: Vec<Vec<f32>> = alone.wait_all().map(|ended| ended.unwrap().memory).collect();
    assert_eq!(held, [vec![1.0, 2.0, 1.0, 2.0], vec![1.0, 1.0, 3.0], vec![5.0]]);
}
