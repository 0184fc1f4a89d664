//! The thread that forms a sum: the communication thread, or the thread of a waiting caller.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread::ThreadId;

use lockstep_collective::{Abort, Communicator, Listener};

use crate::group::{PATIENT, ends, group, id, listener};

#[test]
fn a_submitted_sum_is_formed_while_the_caller_computes() {
    ends(|| {
        let formed = Barrier::new(2);
        group(2, PATIENT, |mut communicator| {
            communicator.submit(1, 0, vec![1.0; 1000]);
            if communicator.rank() == 0 {
                formed.wait();
            }
            assert_eq!(communicator.wait().unwrap().memory, [2.0; 1000]);
            if communicator.rank() == 1 {
                formed.wait();
            }
        })
    });
}

#[test]
fn a_deferred_sum_runs_with_the_next_submission_in_order() {
    ends(|| {
        let formed = Barrier::new(2);
        group(2, PATIENT, |mut communicator| {
            communicator.defer(1, 0, vec![1.0; 10]);
            communicator.submit(1, 1, vec![2.0; 20]);
            if communicator.rank() == 0 {
                formed.wait();
            }
            let sums: Vec<_> = communicator.wait_all().map(|sum| sum.unwrap().memory).collect();
            assert_eq!(sums, [vec![2.0; 10], vec![4.0; 20]]);
            if communicator.rank() == 1 {
                formed.wait();
            }
        })
    });
}

/// Memory that notes which thread sums it.
struct Noted {
    values: Vec<f32>,
    by: Option<ThreadId>,
}

impl AsMut<[f32]> for Noted {
    fn as_mut(&mut self) -> &mut [f32] {
        self.by = Some(std::thread::current().id());
        &mut self.values
    }
}

#[test]
fn a_deferred_sum_is_formed_by_the_caller_that_waits_for_it() {
    ends(|| {
        both(|listener, rank, peers| {
            let mut communicator = Communicator::form(listener, id(rank), peers, PATIENT, &Abort::new()).unwrap();
            for step in 0..100 {
                communicator.defer(step, 0, Noted { values: vec![1.0; 10], by: None });
                let Noted { values, by } = communicator.wait().unwrap().memory;
                assert_eq!((values, by), (vec![2.0; 10], Some(std::thread::current().id())));
            }
        });
    });
}

/// Memory that panics when it is summed. It signals that just before.
struct Cursed(Option<Arc<Barrier>>);

impl AsMut<[f32]> for Cursed {
    fn as_mut(&mut self) -> &mut [f32] {
        if let Some(begun) = &self.0 {
            begun.wait();
        }
        panic!("cursed memory")
    }
}

#[test]
fn a_panic_of_the_callers_memory_reaches_the_caller_from_either_thread_and_ends_the_group() {
    for on_the_thread in [true, false] {
        ends(move || {
            both(move |listener, rank, peers| {
                let abort = Abort::new();
                if rank == 1 {
                    let mut other = Communicator::<Vec<f32>>::form(listener, id(1), peers, PATIENT, &abort).unwrap();
                    assert!(other.all_reduce_now(1, &mut [1.0]).is_err());
                    return;
                }
                let mut communicator = Communicator::form(listener, id(0), peers, PATIENT, &abort).unwrap();
                if on_the_thread {
                    let begun = Arc::new(Barrier::new(2));
                    communicator.submit(1, 0, Cursed(Some(Arc::clone(&begun))));
                    begun.wait();
                } else {
                    communicator.defer(1, 0, Cursed(None));
                }
                communicator.defer(1, 1, Cursed(None));
                let panic = catch_unwind(AssertUnwindSafe(|| drop(communicator.wait()))).unwrap_err();
                assert_eq!(panic.downcast_ref::<&str>(), Some(&"cursed memory"));
                assert!(catch_unwind(AssertUnwindSafe(|| drop(communicator.wait()))).is_err(), "no second sum");
            });
        });
    }
}

/// Runs `work` for both ranks of a group, each on a thread of its own.
fn both(work: impl Fn(&Listener, usize, &[SocketAddr]) + Send + Sync) {
    let listeners = [listener(), listener()];
    let peers = listeners.each_ref().map(Listener::address);
    std::thread::scope(|scope| {
        let (work, peers) = (&work, &peers);
        for (rank, listener) in listeners.iter().enumerate() {
            scope.spawn(move || work(listener, rank, peers));
        }
    });
}

#[test]
fn a_sum_is_given_back_before_a_later_one_is_formed() {
    ends(|| {
        let first_is_back = Barrier::new(2);
        group(2, PATIENT, |mut communicator| {
            communicator.submit(1, 0, vec![1.0; 100_000]);
            if communicator.rank() == 0 {
                communicator.defer(1, 1, vec![1.0; 10]);
                assert_eq!(communicator.wait().unwrap().bucket, 0);
                first_is_back.wait();
            } else {
                // It takes part in the second sum only once the other has the first.
                assert_eq!(communicator.wait().unwrap().bucket, 0);
                first_is_back.wait();
                communicator.defer(1, 1, vec![1.0; 10]);
            }
            assert_eq!(communicator.wait().unwrap().memory, [2.0; 10]);
        })
    });
}
