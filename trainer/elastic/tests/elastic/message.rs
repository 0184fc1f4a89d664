use lockstep_collective::{ErrorSite, Origin, PeerFault};
use lockstep_elastic::{
    Active, Break, CheckpointMark, Digest, FollowedGroup, Follower, HeldState, Message, PlanAgreement, RankedMember,
    SealReport,
    message::{Decoder, FrameError, MAX_MESSAGE_BYTES, MAX_REASON_BYTES, PROTOCOL_VERSION},
};
use proptest::prelude::*;

use crate::fixtures::{SAMPLER, hello};

fn one_of_each() -> Vec<Message> {
    let ranked = |rank: u32| {
        let hello = hello(rank as usize, 7);
        RankedMember { pod: hello.member.pod, incarnation: hello.member.incarnation, address: hello.address, rank }
    };
    let active = Active {
        generation: 3,
        attempt: 1,
        members: (0..5).map(ranked).collect(),
        base_step: 9,
        base_digest: Digest::of(b"state"),
        shards: 64,
        sampler: SAMPLER,
        sources: vec![0, 1],
        copiers: Vec::new(),
        rollback: true,
    };
    let state = HeldState { step: 9, digest: Digest::of(b"state"), sampler: SAMPLER };
    let report = SealReport { generation: 3, entered_generation: Some(2), followed: false, state: Some(state) };
    let text = || "because".to_owned();
    let site = ErrorSite { operation: 7, step: 3, bucket: 0, hop: 1, from: 0, to: 1, hops: 4 };
    let origin = Origin { site, rank: 0, fault: PeerFault::Silent };
    vec![
        Message::Hello(hello(1, 2)),
        Message::Refuse { reason: text(), may_retry: true },
        Message::Prepare { generation: 3, planned: true },
        Message::SealReport(report),
        Message::Broken { generation: 3, broken: Break { reason: text(), unreached: Some(2), origin: Some(origin) } },
        Message::Commit { rank: 1, active },
        Message::Seal { generation: 3 },
        Message::Follow(FollowedGroup { generation: 3, addresses: vec![hello(0, 7).address, hello(1, 7).address] }),
        Message::Feed(Follower { generation: 3, member: hello(2, 8).member, address: hello(2, 8).address }),
        Message::CaughtUp { generation: 3, unreached: Some(1) },
        Message::Agreed { generation: 3, summing: PlanAgreement { after: 9, plan: Digest::of(b"plan") } },
        Message::Heartbeat,
        Message::Progress { step: 9, payload: vec![1, 2, 3] },
        Message::Checkpoint(CheckpointMark { step: 9, manifest_digest: Digest::of(b"manifest") }),
        Message::Leave { reason: text() },
        Message::Stuck { reason: text() },
        Message::Drain { reason: text() },
        Message::Abort { reason: text() },
        Message::Fatal { message: text() },
        Message::Finished { generation: 3, step: 9, digest: Digest::of(b"state"), payload: vec![] },
        Message::Drained { generation: 3, step: 9 },
        Message::Release,
        Message::Diverged { message: text() },
    ]
}

/// Returns the position of a message's kind in `one_of_each`, so that no kind is forgotten there.
fn position_of_kind(message: &Message) -> usize {
    match message {
        Message::Hello(_) => 0,
        Message::Refuse { .. } => 1,
        Message::Prepare { .. } => 2,
        Message::SealReport(_) => 3,
        Message::Broken { .. } => 4,
        Message::Commit { .. } => 5,
        Message::Seal { .. } => 6,
        Message::Follow(_) => 7,
        Message::Feed(_) => 8,
        Message::CaughtUp { .. } => 9,
        Message::Agreed { .. } => 10,
        Message::Heartbeat => 11,
        Message::Progress { .. } => 12,
        Message::Checkpoint(_) => 13,
        Message::Leave { .. } => 14,
        Message::Stuck { .. } => 15,
        Message::Drain { .. } => 16,
        Message::Abort { .. } => 17,
        Message::Fatal { .. } => 18,
        Message::Finished { .. } => 19,
        Message::Drained { .. } => 20,
        Message::Release => 21,
        Message::Diverged { .. } => 22,
    }
}

fn decode(bytes: &[u8]) -> Result<Option<Message>, FrameError> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    decoder.next_message()
}

#[test]
fn every_message_arrives_unchanged_in_pieces_of_any_size() {
    let messages = one_of_each();
    assert_eq!(messages.iter().map(position_of_kind).collect::<Vec<_>>(), (0..23).collect::<Vec<_>>());
    let stream: Vec<u8> = messages.iter().flat_map(Message::to_frame).collect();
    for piece in [1, 7, stream.len()] {
        let mut decoder = Decoder::default();
        let mut arrived = Vec::new();
        for bytes in stream.chunks(piece) {
            decoder.push(bytes);
            while let Some(message) = decoder.next_message().expect("whole frames") {
                arrived.push(message);
            }
        }
        assert_eq!(arrived, messages, "in pieces of {piece}");
    }
}

#[test]
fn a_frame_with_a_flipped_bit_never_decodes() {
    let frame = Message::Prepare { generation: 1 << 40, planned: false }.to_frame();
    for bit in 0..frame.len() * 8 {
        let mut broken = frame.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        // A longer length waits for bytes that never come.
        assert!(!matches!(decode(&broken), Ok(Some(_))), "bit {bit}");
    }
}

#[test]
fn the_error_for_another_version_names_it() {
    let mut frame = Message::Heartbeat.to_frame();
    frame[4..6].copy_from_slice(&99_u16.to_le_bytes());
    assert_eq!(decode(&frame), Err(FrameError::Version { theirs: 99 }));
}

#[test]
fn a_message_beyond_the_limit_is_refused_before_it_arrives() {
    let mut header = vec![0; 10];
    header[..4].copy_from_slice(&(MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes());
    header[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    assert_eq!(decode(&header), Err(FrameError::TooLong { bytes: MAX_MESSAGE_BYTES + 1 }));
}

#[test]
fn a_long_text_is_cut_at_a_character() {
    let broken = |reason| Message::Broken { generation: 3, broken: Break::from(reason) };
    let (long, cut) = (|| "é".repeat(MAX_REASON_BYTES), || "é".repeat(MAX_REASON_BYTES / 2));
    for (said, heard) in [
        (Message::Fatal { message: long() }, Message::Fatal { message: cut() }),
        (Message::Diverged { message: long() }, Message::Diverged { message: cut() }),
        (broken(long()), broken(cut())),
        (Message::Leave { reason: long() }, Message::Leave { reason: cut() }),
        (Message::Stuck { reason: long() }, Message::Stuck { reason: cut() }),
    ] {
        assert_eq!(decode(&said.to_frame()), Ok(Some(heard)));
    }
}

/// Returns a frame with a valid checksum around any body, so that the fuzzer gets past the
/// checksum.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from((body.len() as u32).to_le_bytes());
    frame.extend(PROTOCOL_VERSION.to_le_bytes());
    frame.extend(crc_fast::crc32_iscsi(body).to_le_bytes());
    frame.extend(body);
    frame
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_decode_to_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode(&bytes);
        if let Ok(Some(message)) = decode(&framed(&bytes)) {
            prop_assert_eq!(decode(&message.to_frame()), Ok(Some(message)));
        }
    }

    #[test]
    fn changed_bytes_decode_to_a_message_or_an_error(
        which in any::<proptest::sample::Index>(), changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut body = which.get(&one_of_each()).to_frame().split_off(10);
        for (at, byte) in changes {
            let at = at % body.len();
            body[at] = byte;
        }
        let _ = decode(&framed(&body));
    }
}
