//! Operations that go on while their caller does something else.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread::ThreadId;

use half::{bf16, f16};
use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{
    Background, CollectiveError, Completed, Element, Failed, Group, Handle, Limits, MAX_PENDING, Reduction, Tag,
    Transferred, Wire,
};

use crate::group::{PATIENT, bare_group, ends};

const TAG: Tag = Tag { step: 3, bucket: 1 };

/// As [`bare_group`], in the background.
fn background<T: Send>(world: usize, work: impl Fn(Background) -> T + Send + Sync) -> Vec<T> {
    bare_group(world, PATIENT, |group| work(Background::over(group).unwrap()))
}

/// A sum in the background.
fn sum<M: AsMut<[f32]> + Send + 'static>(background: &mut Background, bucket: u32, memory: M) -> Handle<M> {
    background.all_reduce(Algorithm::Ring, Tag { step: 3, bucket }, memory, Reduction::Sum)
}

fn memory<M>(outcome: Result<Completed<M>, Failed<M>>) -> M {
    outcome.unwrap().memory
}

type Operation<T> = fn(&mut Group, &mut [T]) -> Result<Transferred, CollectiveError>;

/// Each that [`in_the_background`] starts, with the last rank as its root or receiver.
fn operations<T: Element>() -> [(&'static str, Operation<T>); 9] {
    [
        ("all_reduce", |group, data| group.all_reduce(Algorithm::Ring, TAG, data, Reduction::Mean)),
        ("reduce_scatter", |group, data| group.reduce_scatter(TAG, data, Reduction::Sum)),
        ("all_gather", |group, data| group.all_gather(TAG, data)),
        ("broadcast", |group, data| group.broadcast(group.world() - 1, TAG, data)),
        ("reduce", |group, data| group.reduce(group.world() - 1, TAG, data, Reduction::Max)),
        ("gather", |group, data| group.gather(group.world() - 1, TAG, data)),
        ("scatter", |group, data| group.scatter(group.world() - 1, TAG, data)),
        ("all_to_all", |group, data| group.all_to_all(TAG, data)),
        ("send and receive", |group, data| match (group.seat().rank, group.world() - 1) {
            (0, 1..) => group.send(group.world() - 1, TAG, data),
            (rank, last @ 1..) if rank == last => group.receive(0, TAG, data),
            _ => Ok(Transferred::default()),
        }),
    ]
}

/// Does every operation on `data` while it waits; what then is in it.
fn blocking<T: Element>(group: &mut Group, data: &[T]) -> Vec<(&'static str, Vec<T>)> {
    let done = |(name, operation): (&'static str, Operation<T>)| {
        let mut data = data.to_vec();
        operation(group, &mut data).unwrap();
        (name, data)
    };
    operations().into_iter().map(done).collect()
}

/// As [`blocking`], all of them under way before the first is waited for.
fn in_the_background<T: Element>(background: &mut Background, data: &[T]) -> Vec<(&'static str, Vec<T>)> {
    let (rank, last) = (background.rank(), background.world() - 1);
    let data = || data.to_vec();
    let mut handles = vec![
        ("all_reduce", background.all_reduce(Algorithm::Ring, TAG, data(), Reduction::Mean)),
        ("reduce_scatter", background.reduce_scatter(TAG, data(), Reduction::Sum)),
        ("all_gather", background.all_gather(TAG, data())),
        ("broadcast", background.broadcast(last, TAG, data())),
        ("reduce", background.reduce(last, TAG, data(), Reduction::Max)),
        ("gather", background.gather(last, TAG, data())),
        ("scatter", background.scatter(last, TAG, data())),
        ("all_to_all", background.all_to_all(TAG, data())),
    ];
    let exchanged = "send and receive";
    let mut bystander = None;
    match (rank, last) {
        (0, 1..) => handles.push((exchanged, background.send(last, TAG, data()))),
        (rank, 1..) if rank == last => handles.push((exchanged, background.receive(0, TAG, data()))),
        _ => bystander = Some((exchanged, data())),
    }
    background.barrier(TAG).wait().unwrap();
    handles.into_iter().map(|(name, handle)| (name, memory(handle.wait()))).chain(bystander).collect()
}

fn alike<T: Element + PartialEq + fmt::Debug>(number: fn(u8) -> T) {
    for world in 1..=4 {
        ends(move || {
            bare_group(world, PATIENT, |mut group| {
                let rank = group.seat().rank;
                for length in [0, 1, 7, 1000] {
                    // Small enough for a sum in u8.
                    let data: Vec<T> = (0..length).map(|index| number(((rank * 31 + index * 7) % 61) as u8)).collect();
                    let expected = blocking(&mut group, &data);
                    let mut background = Background::over(group).unwrap();
                    let held = in_the_background(&mut background, &data);
                    assert_eq!(held, expected, "rank {rank} of {world}, length {length}, {:?}", T::TYPE);
                    group = background.into_group().unwrap();
                }
            })
        });
    }
}

#[test]
fn every_operation_on_every_type_has_the_result_of_the_blocking_one() {
    alike(f32::from);
    alike(f64::from);
    alike(bf16::from);
    alike(f16::from);
    alike(i32::from);
    alike(i64::from);
    alike(|number| number);
}

#[test]
fn a_sum_in_fewer_bits_has_the_result_of_the_blocking_one() {
    ends(|| {
        bare_group(3, PATIENT, |mut group| {
            let data: Vec<f32> = (0..1000).map(|index| 1.0 / (group.seat().rank * 7 + index + 1) as f32).collect();
            let mut expected = data.clone();
            group.sum(Wire::Bf16, Algorithm::Direct, TAG, &mut expected).unwrap();
            let mut background = Background::over(group).unwrap();
            assert_eq!(memory(background.sum(Wire::Bf16, Algorithm::Direct, TAG, data).wait()), expected);
        })
    });
}

#[test]
fn memory_of_any_kind_is_given_back() {
    ends(|| {
        bare_group(2, Limits { shares_memory: true, ..PATIENT }, |mut group| {
            let mut arena = group.shared_arena(100).unwrap().expect("two ranks of one process share memory");
            arena.as_mut().fill(2.0);
            let mut background = Background::over(group).unwrap();
            let shared = background.all_reduce_in_memory(TAG, arena, Reduction::Sum);
            let boxed = background.all_reduce(Algorithm::Ring, TAG, vec![3_i64; 5].into_boxed_slice(), Reduction::Sum);
            let array = background.all_reduce(Algorithm::Ring, TAG, [4_u8; 3], Reduction::Sum);
            assert_eq!(memory(shared.wait()).as_mut(), [4.0; 100]);
            assert_eq!(*memory(boxed.wait()), [6; 5]);
            assert_eq!(memory(array.wait()), [8; 3]);
        })
    });
}

#[test]
fn operations_may_be_waited_for_in_the_reverse_order() {
    ends(|| {
        background(3, |mut background| {
            let handles: Vec<_> =
                (0..50).map(|bucket| sum(&mut background, bucket, vec![bucket as f32; 100])).collect();
            for (bucket, handle) in (0..50).zip(handles).rev() {
                let completed = handle.wait().unwrap();
                assert_eq!((completed.step, completed.bucket), (3, bucket));
                assert_eq!(completed.memory, [3.0 * bucket as f32; 100]);
            }
        })
    });
}

#[test]
fn a_handle_may_be_waited_for_on_another_thread() {
    ends(|| {
        background(2, |mut background| {
            let handle = sum(&mut background, 0, [1.0]);
            assert_eq!(std::thread::spawn(|| memory(handle.wait())).join().unwrap(), [2.0]);
        })
    });
}

#[test]
fn an_operation_whose_handle_is_dropped_is_done_all_the_same() {
    ends(|| {
        background(2, |mut background| {
            let handles = [1.0, 2.0].map(|value| sum(&mut background, 0, vec![value; 1000]));
            if background.rank() == 0 {
                drop(handles);
            } else {
                assert_eq!(handles.map(|handle| memory(handle.wait())), [vec![2.0; 1000], vec![4.0; 1000]]);
            }
            background.into_group().unwrap();
        })
    });
}

#[test]
fn as_many_as_may_be_pending_are_started_before_the_peer_has_begun() {
    ends(|| {
        let started = Barrier::new(2);
        background(2, |mut background| {
            if background.rank() == 1 {
                started.wait();
            }
            let handles: Vec<_> = (0..MAX_PENDING).map(|_| sum(&mut background, 0, [1.0])).collect();
            if background.rank() == 0 {
                assert_eq!(background.pending(), MAX_PENDING);
                assert!(!handles.iter().any(Handle::is_done), "nothing is summed without the peer");
                started.wait();
            }
            assert!(handles.into_iter().all(|handle| memory(handle.wait()) == [2.0]));
            assert_eq!(background.pending(), 0);
        })
    });
}

#[test]
fn what_is_started_beyond_the_limit_waits_for_room_and_is_done_in_its_turn() {
    ends(|| {
        background(2, |mut background| {
            let ahead = background.rank() == 0;
            let mut handles = Vec::new();
            for index in 0..3 * MAX_PENDING {
                let handle = sum(&mut background, 0, [index as f32]);
                // Besides those that wait for their turn, one is at it.
                assert!(background.pending() <= MAX_PENDING + 1);
                if ahead {
                    handles.push(handle);
                } else {
                    assert_eq!(memory(handle.wait()), [2.0 * index as f32]);
                }
            }
            for (index, handle) in handles.into_iter().enumerate() {
                assert_eq!(memory(handle.wait()), [2.0 * index as f32]);
            }
        })
    });
}

#[test]
fn an_operation_is_done_without_being_waited_for() {
    ends(|| {
        background(2, |mut background| {
            let handle = sum(&mut background, 0, vec![1.0; 1000]);
            while !handle.is_done() {
                std::thread::yield_now();
            }
            assert!(handle.is_done(), "once done, always done");
            assert_eq!(memory(handle.wait()), [2.0; 1000]);
        })
    });
}

#[test]
fn an_abort_from_another_thread_fails_all_that_is_pending_with_its_reason_and_memory() {
    ends(|| {
        let failed = Barrier::new(2);
        background(2, |mut background| {
            if background.rank() == 1 {
                failed.wait();
                return;
            }
            let (first, second) = (sum(&mut background, 0, vec![1.0; 1000]), background.all_gather(TAG, [1_i64; 7]));
            let abort = background.abort_handle();
            let (first, second) = std::thread::scope(|scope| {
                scope.spawn(|| abort.abort("rank 1 is leaving"));
                (first.wait().unwrap_err(), second.wait().unwrap_err())
            });
            let later = background.barrier(TAG).wait().unwrap_err();
            for error in [&first.error, &second.error, &later.error] {
                // The first may have been under way, and then tells where it was.
                let error = error.to_string();
                assert!(error.contains("aborted") && error.ends_with(": rank 1 is leaving"), "{error}");
            }
            assert_eq!((first.memory.len(), second.memory.len()), (1000, 7));
            failed.wait();
        })
    });
}

#[test]
fn a_peer_that_closes_is_named_by_all_that_is_pending() {
    ends(|| {
        let started = Barrier::new(2);
        background(3, |mut background| {
            if background.rank() == 2 {
                started.wait();
                return;
            }
            let first = background.broadcast(2, TAG, vec![1.0_f64; 1000]);
            let second = background.all_reduce(Algorithm::Ring, TAG, [1_u8; 7], Reduction::Max);
            let third = background.barrier(TAG);
            if background.rank() == 0 {
                started.wait();
                let errors = [
                    third.wait().unwrap_err().error,
                    second.wait().unwrap_err().error,
                    first.wait().unwrap_err().error,
                ];
                for error in errors {
                    assert!(matches!(error, CollectiveError::PeerClosed { rank: 2, .. }), "{error}");
                }
                let error = background.into_group().unwrap_err();
                assert!(matches!(error, CollectiveError::PeerClosed { rank: 2, .. }), "{error}");
            } else {
                assert!(third.wait().unwrap_err().error.peer().is_some());
            }
        })
    });
}

#[test]
fn a_panic_is_passed_on_to_whoever_waits_and_ends_the_group() {
    ends(|| {
        background(2, |mut background| {
            if background.rank() == 1 {
                let error = background.barrier(TAG).wait().unwrap_err().error;
                assert!(matches!(error, CollectiveError::PeerClosed { rank: 0, .. }), "{error}");
                return;
            }
            let (broken, later) = (background.broadcast(9, TAG, [1_i32]), sum(&mut background, 0, [1.0]));
            let error = later.wait().unwrap_err().error;
            assert_eq!(error.to_string(), "aborted: the operation on bucket 1 of step 3 panicked");
            let panic = catch_unwind(AssertUnwindSafe(|| broken.wait())).unwrap_err();
            let message = panic.downcast_ref::<String>().expect("a message with values");
            assert!(message.contains('9'), "{message}");
            let error = background.into_group().unwrap_err();
            assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
        })
    });
}

/// Memory that panics when it is dropped.
struct Cursed;

impl AsMut<[f32]> for Cursed {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut []
    }
}

impl Drop for Cursed {
    fn drop(&mut self) {
        panic!("cursed memory")
    }
}

#[test]
fn memory_that_panics_when_nobody_takes_it_leaves_nobody_waiting() {
    ends(|| {
        let dropped = Barrier::new(2);
        background(2, |mut background| {
            if background.rank() == 1 {
                dropped.wait();
                assert_eq!(memory(sum(&mut background, 0, [1.0]).wait()), [2.0]);
                return;
            }
            let first = sum(&mut background, 0, [1.0]);
            drop(sum(&mut background, 1, Cursed));
            let later = sum(&mut background, 2, [1.0]);
            dropped.wait();
            assert_eq!(memory(first.wait()), [2.0]);
            let panic = catch_unwind(AssertUnwindSafe(|| later.wait())).unwrap_err();
            let message = panic.downcast_ref::<String>().expect("a message");
            assert!(message.contains("dropping the memory of another"), "{message}");
            let panic = catch_unwind(AssertUnwindSafe(|| background.into_group())).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"cursed memory"));
        })
    });
}

#[test]
fn a_group_is_given_back_once_everything_in_its_background_is_done() {
    ends(|| {
        background(2, |mut background| {
            let handle = sum(&mut background, 0, vec![1.0; 100_000]);
            let mut group = background.into_group().unwrap();
            assert!(handle.is_done());
            let mut data = [1.0_f32];
            group.all_reduce(Algorithm::Ring, TAG, &mut data, Reduction::Sum).unwrap();
            assert_eq!((data, memory(handle.wait())), ([2.0], vec![2.0; 100_000]));
        })
    });
}

#[test]
fn what_is_pending_when_the_background_is_dropped_is_aborted_and_gives_its_memory_back() {
    ends(|| {
        let failed = Barrier::new(2);
        background(2, |mut background| {
            if background.rank() == 0 {
                let handles = [sum(&mut background, 0, vec![1.0; 1000]), sum(&mut background, 1, vec![1.0; 1000])];
                drop(background);
                for handle in handles {
                    let Failed { memory, error, .. } = handle.wait().unwrap_err();
                    assert_eq!(memory.len(), 1000);
                    assert_eq!(
                        error.to_string(),
                        "aborted: the group's background was dropped with operations pending"
                    );
                }
            }
            failed.wait();
        })
    });
}

#[test]
fn a_background_dropped_with_nothing_pending_aborts_nothing() {
    ends(|| {
        background(2, |mut background| {
            let abort = background.abort_handle();
            background.barrier(TAG).wait().unwrap();
            drop(background);
            assert_eq!(abort.reason(), None);
        })
    });
}

/// Memory that notes which thread reduces it.
#[derive(Debug)]
struct Noted(Option<ThreadId>);

impl AsMut<[f32]> for Noted {
    fn as_mut(&mut self) -> &mut [f32] {
        self.0 = Some(std::thread::current().id());
        &mut []
    }
}

#[test]
fn a_group_of_one_needs_no_thread() {
    for (world, is_the_callers) in [(1, true), (2, false)] {
        background(world, |mut background| {
            let Noted(thread) = memory(sum(&mut background, 0, Noted(None)).wait());
            assert_eq!(thread == Some(std::thread::current().id()), is_the_callers, "{world} ranks");
        });
    }
}

#[test]
fn a_panic_in_a_group_of_one_waits_for_whoever_waits_too() {
    background(1, |mut background| {
        let broken = background.send(1, TAG, [1_u8]);
        assert!(broken.is_done());
        assert!(catch_unwind(AssertUnwindSafe(|| broken.wait())).is_err());
    });
}

#[test]
fn a_group_of_one_is_aborted_in_the_background_too() {
    background(1, |mut background| {
        background.abort_handle().abort("enough");
        assert_eq!(background.barrier(TAG).wait().unwrap_err().error.to_string(), "aborted: enough");
    });
}
