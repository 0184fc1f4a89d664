use std::sync::Barrier;
use std::time::Duration;

use lockstep_collective::{Abort, CollectiveError, Communicator};

use crate::group::{PATIENT, ends, group};

#[test]
fn an_abort_fails_the_pending_operations_with_its_reason_and_closes_towards_the_peers() {
    let outcomes = ends(|| {
        let submitted = Barrier::new(2);
        group(2, PATIENT, |mut communicator| {
            if communicator.rank() == 1 {
                submitted.wait();
                // Rank 1 joins the operation only after the other rank has left it.
                communicator.submit(1, 0, vec![1.0; 1 << 20]);
                return vec![communicator.wait().unwrap_err().error];
            }
            communicator.submit(1, 0, vec![1.0; 1 << 20]);
            communicator.submit(1, 1, vec![1.0; 10]);
            let abort = communicator.abort_handle();
            let errors = std::thread::scope(|scope| {
                scope.spawn(|| {
                    // By then the first operation is under way and lacks rank 1's elements.
                    std::thread::sleep(Duration::from_millis(500));
                    abort.abort("rank 1 is leaving");
                });
                communicator.wait_all().map(|outcome| outcome.unwrap_err().error).collect()
            });
            submitted.wait();
            errors
        })
    });
    assert_eq!(outcomes[0].len(), 2);
    for error in &outcomes[0] {
        assert_eq!((error.waited_for(), error.peer()), (Some(1), None), "{error}");
        let words = error.to_string();
        let ends = "of bucket 0 of step 1: aborted while it waited for rank 1: rank 1 is leaving";
        assert!(words.starts_with("in hop ") && words.ends_with(ends), "the first error: {words}");
    }
    assert!(matches!(outcomes[1][0], CollectiveError::PeerClosed { rank: 0, .. }), "{outcomes:?}");
}

#[test]
fn an_abort_between_operations_fails_the_next_one() {
    ends(|| {
        group(2, PATIENT, |mut communicator| {
            communicator.all_reduce_now(1, &mut [1.0]).unwrap();
            communicator.abort_handle().abort("enough");
            communicator.abort_handle().abort("a later reason does not replace the first");
            communicator.submit(2, 0, vec![1.0; 10]);
            assert_eq!(communicator.wait().unwrap_err().error.to_string(), "aborted: enough");
            assert!(matches!(communicator.all_reduce_now(2, &mut [1.0]), Err(CollectiveError::Aborted { .. })));
        })
    });
}

#[test]
fn a_group_of_one_is_aborted_too() {
    let mut communicator = Communicator::alone(Abort::new());
    communicator.abort_handle().abort("enough");
    communicator.submit(1, 0, vec![1.0; 10]);
    assert!(matches!(communicator.wait().unwrap_err().error, CollectiveError::Aborted { .. }));
}

#[test]
fn a_communicator_dropped_during_an_operation_ends_its_thread() {
    ends(|| {
        group(2, PATIENT, |mut communicator| {
            if communicator.rank() == 0 {
                communicator.submit(1, 0, vec![1.0; 1 << 20]);
            } else {
                communicator.all_reduce_now(1, &mut [1.0]).unwrap_err();
            }
        })
    });
}
