//! Ranks that share memory. Here they share a process too, which makes no difference to them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{CollectiveError, Group, Limits, Reduction, Tag, Waiting};

use crate::group::{IMPATIENT, PATIENT, bare_group, ends, group};

const SHARING: Limits = Limits { shares_memory: true, ..PATIENT };
/// Longer than a few chunks, and a multiple of nothing.
const LENGTHS: [usize; 7] = [0, 1, 7, 256, 1000, 32 * 1024, 200_003];

fn uneven(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| 1.0 / (rank * 1000 + index % 977 + 3) as f32).collect()
}

/// Sums in rank order, as each part is reduced.
fn summed(world: usize, length: usize) -> Vec<f32> {
    let mut sum = uneven(0, length);
    for rank in 1..world {
        sum.iter_mut().zip(uneven(rank, length)).for_each(|(sum, term)| *sum += term);
    }
    sum
}

#[test]
fn every_rank_holds_the_sum_in_rank_order() {
    for waiting in [Waiting::Block, Waiting::SpinThenBlock] {
        for world in 2..=5 {
            ends(move || {
                bare_group(world, Limits { waiting, ..SHARING }, |mut group| {
                    assert!(group.shares_memory());
                    for (step, length) in (0..).zip(LENGTHS.repeat(3)) {
                        let mut data = uneven(group.id().rank, length);
                        group.all_reduce_in_memory(Tag { step, bucket: 0 }, &mut data, Reduction::Sum).unwrap();
                        assert!(data == summed(world, length), "{world} ranks, length {length}");
                    }
                })
            });
        }
    }
}

#[test]
fn slices_of_the_arenas_are_summed_in_place_and_nothing_else_is_touched() {
    for waiting in [Waiting::Block, Waiting::SpinThenBlock] {
        for world in 2..=5 {
            ends(move || {
                bare_group(world, Limits { waiting, ..SHARING }, |mut group| {
                    let rank = group.id().rank;
                    let mut arena = group.shared_arena(300_000).unwrap().expect("shared");
                    let arena = arena.as_mut();
                    assert!(arena.len() == 300_000 && arena.iter().all(|value| *value == 0.0));
                    for (step, length) in (0..).zip(LENGTHS.repeat(3)) {
                        let start = 17 * step as usize;
                        arena.fill(-1.0);
                        let data = &mut arena[start..start + length];
                        data.copy_from_slice(&uneven(rank, length));
                        group.all_reduce_in_memory(Tag { step, bucket: 0 }, data, Reduction::Sum).unwrap();
                        assert!(data == summed(world, length), "{world} ranks, length {length}");
                        // The others no longer write into this arena once the operation is over.
                        assert!(arena[..start].iter().chain(&arena[start + length..]).all(|value| *value == -1.0));
                    }
                })
            });
        }
    }
}

#[test]
fn two_arenas_the_staging_areas_and_connections_take_turns() {
    ends(|| {
        bare_group(3, SHARING, |mut group| {
            let (first, second) = (group.shared_arena(70_000).unwrap(), group.shared_arena(100).unwrap());
            let (mut first, mut second) = (first.expect("shared"), second.expect("shared"));
            let mut staged = vec![0.0; 70_000];
            for step in 0..30 {
                for (bucket, data) in (0..).zip([first.as_mut(), &mut staged[..], second.as_mut()]) {
                    data.copy_from_slice(&uneven(group.id().rank, data.len()));
                    group.all_reduce_in_memory(Tag { step, bucket }, data, Reduction::Sum).unwrap();
                    assert!(data == summed(3, data.len()));
                }
                let mut ones = [1_i64; 100];
                group.all_reduce(Algorithm::Ring, Tag { step, bucket: 3 }, &mut ones, Reduction::Mean).unwrap();
                assert_eq!(ones, [1; 100]);
            }
        })
    });
}

#[test]
fn ranks_with_data_in_different_places_get_an_error() {
    for elsewhere in ["another place of the arena", "no arena"] {
        let errors = ends(move || {
            bare_group(2, SHARING, move |mut group| {
                let mut arena = group.shared_arena(1000).unwrap().expect("shared");
                let mut own = [1.0; 10];
                let data = match (group.id().rank, elsewhere) {
                    (0, _) => &mut arena.as_mut()[..10],
                    (_, "no arena") => &mut own[..],
                    _ => &mut arena.as_mut()[16..26],
                };
                group.all_reduce_in_memory(Tag::default(), data, Reduction::Sum).unwrap_err()
            })
        });
        // The first rank to see the difference closes its connections and says why. The other may
        // see that first.
        let told = |error: &CollectiveError| matches!(error, CollectiveError::WrongFrame { field: "place", .. });
        let closed = |error: &CollectiveError| matches!(error, CollectiveError::PeerGaveUp { .. });
        assert!(errors.iter().any(told) && errors.iter().all(|error| told(error) || closed(error)), "{errors:?}");
    }
}

#[test]
fn ranks_that_share_no_memory_or_want_different_arenas_get_none() {
    ends(|| {
        bare_group(2, PATIENT, |mut group| assert!(group.shared_arena(10).unwrap().is_none()));
        bare_group(2, SHARING, |mut group| {
            assert!(group.shared_arena(10_000 * (group.id().rank + 1)).unwrap().is_none());
            let mut data = [1.0_f32; 10];
            group.all_reduce_in_memory(Tag::default(), &mut data, Reduction::Sum).unwrap();
            assert_eq!(data, [2.0; 10]);
        });
    });
}

#[test]
fn a_communicator_takes_the_memory_by_itself() {
    let sums = ends(|| {
        group(2, SHARING, |mut communicator| {
            communicator.submit(1, 0, uneven(communicator.rank(), 100_000));
            communicator.wait().unwrap().memory
        })
    });
    assert!(sums.iter().all(|sum| *sum == summed(2, 100_000)));
}

#[test]
fn a_rank_that_leaves_is_named_by_the_ranks_that_wait_for_it() {
    let errors = ends(|| {
        bare_group(3, SHARING, |mut group| {
            if group.id().rank == 1 {
                return None;
            }
            group.all_reduce_in_memory(Tag::default(), &mut [1.0_f32; 10], Reduction::Sum).err()
        })
    });
    // One of the two ranks may see the other go first, which has seen rank 1 go.
    let named: Vec<_> = errors.iter().flatten().map(CollectiveError::peer).collect();
    assert_eq!(named, [Some(1); 2], "{errors:?}");
}

#[test]
fn a_rank_that_stays_away_is_named_after_the_silence_limit() {
    let errors = ends(|| {
        let (limits, failed) = (Limits { shares_memory: true, ..IMPATIENT }, Barrier::new(2));
        bare_group(2, limits, |mut group| {
            if group.id().rank == 1 {
                failed.wait();
                return None;
            }
            let error = group.all_reduce_in_memory(Tag::default(), &mut [1.0_f32; 10], Reduction::Sum).err();
            failed.wait();
            error
        })
    });
    assert!(matches!(errors[0], Some(CollectiveError::PeerSilent { rank: 1, .. })), "{errors:?}");
}

#[test]
fn an_abort_ends_the_wait_long_before_the_silence_limit() {
    let waits = ends(|| {
        bare_group(2, SHARING, |mut group: Group| {
            if group.id().rank == 1 {
                // The other rank's end ends it.
                group.barrier(Tag::default()).unwrap_err();
                return Duration::ZERO;
            }
            let abort = group.abort_handle();
            std::thread::scope(|scope| {
                let aborted = scope.spawn(move || {
                    // By then it waits.
                    std::thread::sleep(Duration::from_millis(500));
                    let now = Instant::now();
                    abort.abort("a test");
                    now
                });
                let error = group.all_reduce_in_memory(Tag::default(), &mut [1.0_f32; 10], Reduction::Sum).unwrap_err();
                let ended = Instant::now();
                assert_eq!((error.waited_for(), error.peer()), (Some(1), None), "{error}");
                let words = error.to_string();
                let ends = "of bucket 0 of step 0: aborted while it waited for rank 1: a test";
                assert!(words.starts_with("in hop 1 of ") && words.ends_with(ends), "{words}");
                ended.duration_since(aborted.join().unwrap())
            })
        })
    });
    // The bound is generous: it only shows that the rank does not wait for the silence limit.
    assert!(waits[0] < SHARING.silence / 10, "{:?}", waits[0]);
}

#[test]
fn ranks_that_reduce_different_data_get_an_error() {
    for (field, step, length) in [("step", 1, 10), ("length", 0, 11)] {
        let errors = ends(move || {
            bare_group(2, SHARING, move |mut group| {
                let differs = group.id().rank == 1;
                let tag = Tag { step: if differs { step } else { 0 }, bucket: 0 };
                let mut data = vec![1.0_f32; if differs { length } else { 10 }];
                group.all_reduce_in_memory(tag, &mut data, Reduction::Sum).err()
            })
        });
        let wrong = |error: &CollectiveError| matches!(error, CollectiveError::WrongFrame { field: found, .. } if *found == field);
        assert!(errors.iter().flatten().any(wrong), "{errors:?}");
    }
}

#[test]
fn after_a_failure_nothing_is_reduced_any_more() {
    let errors = ends(|| {
        let (limits, failed) = (Limits { shares_memory: true, ..IMPATIENT }, Barrier::new(2));
        bare_group(2, limits, |mut group| {
            let rank = group.id().rank;
            // The data is long enough that a rank waits for another's part. With less data the late
            // rank finds all that it needs.
            let mut data = vec![1.0_f32; 1000];
            let mut fails = || group.all_reduce_in_memory(Tag::default(), &mut data, Reduction::Sum).is_err();
            if rank == 1 {
                failed.wait();
            }
            let first = fails();
            if rank == 0 {
                failed.wait();
            }
            [first, fails()]
        })
    });
    assert_eq!(errors, [[true, true], [true, true]]);
}

#[test]
fn no_other_rank_writes_to_the_data_of_a_failed_operation() {
    ends(|| {
        let (limits, failed, written) = (Limits { shares_memory: true, ..IMPATIENT }, Barrier::new(2), Barrier::new(2));
        bare_group(2, limits, |mut group| {
            let (is_late, mut arena) = (group.id().rank == 1, group.shared_arena(10_000).unwrap().expect("shared"));
            let (before, data) = arena.as_mut().split_at_mut(100);
            let (data, after) = data.split_at_mut(9_800);
            data.fill(1.0);
            if is_late {
                failed.wait();
            }
            // The late rank finds that the other has arrived. It reduces its part of both arenas
            // before it misses the other.
            group.all_reduce_in_memory(Tag::default(), data, Reduction::Sum).unwrap_err();
            if is_late {
                assert!(data.contains(&2.0), "it has reduced");
                written.wait();
                return;
            }
            data.fill(7.0);
            failed.wait();
            written.wait();
            assert!(data.iter().all(|value| *value == 7.0), "another rank wrote to it");
            assert!(before.iter().chain(&*after).all(|value| *value == 0.0), "bytes outside the operation changed");
        })
    });
}

#[test]
fn a_rank_that_waits_for_one_peer_notices_that_another_has_gone() {
    let outcomes = ends(|| {
        let noticed = Barrier::new(2);
        bare_group(3, SHARING, |mut group| match group.id().rank {
            // Rank 0 is alive, but acts only after rank 2, which waits for it first, has noticed
            // that rank 1 has gone.
            0 => {
                noticed.wait();
                None
            }
            1 => None,
            _ => {
                let error = group.all_reduce_in_memory(Tag::default(), &mut [1.0_f32; 10], Reduction::Sum).unwrap_err();
                noticed.wait();
                error.peer()
            }
        })
    });
    assert_eq!(outcomes[2], Some(1));
}
