use std::{io::Write, thread, time::Duration};

use lockstep_collective::{
    CollectiveError, FrameError, FrameKind, HEADER_BYTES, Header, JobId, Limits, OperationCode, Tag, Waiting,
};
use proptest::prelude::*;

use crate::group::{IMPATIENT, PATIENT, bare_group, ends, group};
use crate::impostor::{Impostor, LENGTH, expected_frame, met, until_closed};

#[test]
fn a_peer_that_closes_before_the_bucket_is_named() {
    let error = met(PATIENT, LENGTH, |_| ());
    assert!(matches!(error, CollectiveError::PeerClosed { rank: 0, .. }), "{error}");
}

#[test]
fn a_peer_that_closes_within_a_frame_is_named() {
    let error = met(PATIENT, LENGTH, |impostor| {
        let (header, payload) = expected_frame();
        impostor.send(header, &payload[..payload.len() / 2]);
    });
    assert!(matches!(error, CollectiveError::PeerClosed { rank: 0, .. }), "{error}");
}

#[test]
fn a_peer_that_closes_within_a_header_is_named() {
    let error = met(PATIENT, LENGTH, |impostor| {
        impostor.stream.write_all(&expected_frame().0.encode()[..30]).unwrap();
    });
    assert!(matches!(error, CollectiveError::PeerClosed { rank: 0, .. }), "{error}");
}

#[test]
fn garbage_is_refused_and_its_sender_is_named() {
    let error = met(PATIENT, LENGTH, |impostor| {
        impostor.stream.write_all(&[0xa5; 4096]).unwrap();
        until_closed(&mut impostor.stream);
    });
    let CollectiveError::BadFrame { rank: 0, source, .. } = error else { panic!("{error}") };
    assert_eq!(source, FrameError::Magic { found: [0xa5; 4] });
}

#[test]
fn a_frame_that_belongs_elsewhere_is_refused_with_the_expected_value() {
    let (right, _) = expected_frame();
    let cases = [
        ("generation", "7", "6", Header { generation: 6, ..right }),
        ("step", "3", "4", Header { step: 4, ..right }),
        ("bucket", "5", "0", Header { bucket: 0, ..right }),
        ("chunk", "0", "1", Header { chunk: 1, ..right }),
        ("length", "4000", "3996", Header { length: 3996, ..right }),
        ("sender", "0", "2", Header { sender: 2, ..right }),
        (
            "operation",
            "recursive doubling all-reduce (0) of f32 by sum",
            "broadcast (3) of f64 by none",
            Header { operation: OperationCode([3, 2, 3]), ..right },
        ),
        ("kind", "Data", "Hello", Header { kind: FrameKind::Hello, ..right }),
        ("job", &"42".repeat(16), &"00".repeat(16), Header { job: JobId([0; 16]), ..right }),
    ];
    for (field, expected, found, header) in cases {
        let error = met(PATIENT, LENGTH, move |impostor| {
            impostor.send(header, &[]);
            until_closed(&mut impostor.stream);
        });
        let site = "in hop 2 of 2 of bucket 5 of step 3";
        assert_eq!(error.to_string(), format!("{site}: rank 0 sent a frame with {field} {found}, expected {expected}"));
    }
}

#[test]
fn a_damaged_payload_is_never_added() {
    let error = met(PATIENT, LENGTH, |impostor| {
        let (header, mut payload) = expected_frame();
        payload[77] ^= 1;
        impostor.send(header, &payload);
        until_closed(&mut impostor.stream);
    });
    assert!(matches!(error, CollectiveError::WrongFrame { rank: 0, field: "payload checksum", .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn one_damaged_byte_anywhere_in_a_frame_is_an_error_that_names_its_sender(
        at in prop_oneof![0..HEADER_BYTES, HEADER_BYTES..HEADER_BYTES + 4000], damage in 1u8..,
    ) {
        let error = met(PATIENT, LENGTH, move |impostor| {
            let (header, payload) = expected_frame();
            let mut frame = [&header.encode()[..], &payload].concat();
            frame[at] ^= damage;
            impostor.stream.write_all(&frame).unwrap();
            until_closed(&mut impostor.stream);
        });
        let named = matches!(error, CollectiveError::BadFrame { rank: 0, .. } | CollectiveError::WrongFrame { rank: 0, .. });
        prop_assert!(named, "{}", error);
    }
}

#[test]
fn a_peer_that_stalls_within_a_frame_is_named_after_the_silence_limit() {
    let error = met(IMPATIENT, LENGTH, |impostor| {
        let (header, payload) = expected_frame();
        impostor.send(header, &payload[..100]);
        until_closed(&mut impostor.stream);
    });
    let CollectiveError::PeerSilent { rank: 0, waited, .. } = error else { panic!("{error}") };
    assert!(waited >= IMPATIENT.silence);
}

/// Sends the expected frame, with a pause after each byte, as long as the peer takes it.
fn sends_byte_by_byte(impostor: &mut Impostor, pause: Duration) {
    let (header, payload) = expected_frame();
    for byte in [&header.encode()[..], &payload].concat().chunks(1) {
        if impostor.stream.write_all(byte).is_err() {
            break;
        }
        thread::sleep(pause);
    }
}

#[test]
fn a_peer_that_sends_a_byte_now_and_then_is_named_after_the_silence_limit() {
    // All bytes together would take a thousand times the limit.
    let error = met(IMPATIENT, LENGTH, |impostor| sends_byte_by_byte(impostor, IMPATIENT.silence / 4));
    let CollectiveError::PeerSilent { rank: 0, waited, .. } = error else { panic!("{error}") };
    assert!(waited >= IMPATIENT.silence);
}

#[test]
fn a_peer_that_sends_a_byte_before_the_others_block_is_named_after_the_silence_limit() {
    let limits = Limits { silence: Duration::from_millis(200), waiting: Waiting::SpinThenBlock, ..PATIENT };
    // All bytes together would take more than four times the limit.
    let error = met(limits, LENGTH, move |impostor| sends_byte_by_byte(impostor, limits.silence / 1000));
    assert!(matches!(error, CollectiveError::PeerSilent { rank: 0, .. }), "{error}");
}

#[test]
fn a_peer_that_neither_sends_nor_reads_is_named_after_the_silence_limit() {
    let error = met(IMPATIENT, 16 << 20, |impostor| until_closed(&mut impostor.stream));
    assert!(matches!(error, CollectiveError::PeerSilent { rank: 0, .. }), "{error}");
}

#[test]
fn ranks_that_submit_in_different_orders_get_an_error() {
    let errors = ends(|| {
        group(2, PATIENT, |mut communicator| {
            let first = communicator.rank() as u32;
            communicator.submit(1, first, vec![1.0; 100]);
            communicator.submit(1, 1 - first, vec![1.0; 100]);
            let outcomes: Vec<_> = communicator.wait_all().collect();
            outcomes.into_iter().map(|outcome| outcome.unwrap_err().error).collect::<Vec<_>>()
        })
    });
    let wrong = |error: &&CollectiveError| matches!(error, CollectiveError::WrongFrame { field: "bucket", .. });
    assert!(errors.iter().flatten().any(|error| wrong(&error)), "{errors:?}");
}

#[test]
fn ranks_with_slices_of_different_lengths_get_an_error() {
    let errors = ends(|| {
        group(2, PATIENT, |mut communicator| {
            communicator.submit(1, 0, vec![1.0; 100 + communicator.rank()]);
            communicator.wait().unwrap_err().error
        })
    });
    let wrong = |error: &CollectiveError| matches!(error, CollectiveError::WrongFrame { field: "length", .. });
    assert!(errors.iter().any(wrong), "{errors:?}");
}

#[test]
fn after_a_failure_every_operation_fails_for_its_cause() {
    let errors = ends(|| {
        group(2, PATIENT, |mut communicator| {
            if communicator.rank() == 1 {
                return Vec::new();
            }
            communicator.submit(1, 0, vec![1.0; 100]);
            communicator.submit(1, 1, vec![1.0; 100]);
            let mut errors: Vec<_> = communicator.wait_all().map(|outcome| outcome.unwrap_err().error).collect();
            errors.push(communicator.all_reduce_now(1, &mut [1.0]).unwrap_err());
            errors
        })
    });
    assert_eq!(errors[0].len(), 3);
    assert!(errors[0].iter().all(|error| matches!(error, CollectiveError::PeerClosed { rank: 1, .. })), "{errors:?}");
}

#[test]
fn ranks_with_different_roots_get_an_error_in_the_next_operation() {
    let errors = ends(|| {
        bare_group(2, PATIENT, |mut group| {
            let (own, mut data) = (group.id().rank, [1.0_f32; 4]);
            group.broadcast(own, Tag::default(), &mut data).and_then(|_| group.barrier(Tag::default())).unwrap_err()
        })
    });
    let wrong = |error: &CollectiveError| matches!(error, CollectiveError::WrongFrame { field: "operation", .. });
    assert!(errors.iter().any(wrong), "{errors:?}");
}
