//! The last frame of a rank that leaves its group. It names the origin of the failure, so that no
//! peer blames the leaving rank. The payload is little endian:
//! ```text
//! 0 operation u64 · 8 step u64 · 16 bucket u32 · 20 hop u32 · 24 from u32 · 28 to u32
//! 32 hops u32 · 36 rank u32 · 40 fault u32
//! ```
//! Sending it never waits. If the socket has no room, or half of another frame was sent, the peer
//! only sees that the connection closes.

use crate::CollectiveError;
use crate::crc32c::crc32c;
use crate::error_site::{ErrorSite, Origin, PeerFault};
use crate::frame::{FrameKind, HEADER_BYTES, Header};
use crate::mesh::Mesh;
use crate::operation::OperationCode;
use crate::rank_id::RankId;

const PAYLOAD_BYTES: usize = 44;
/// Bytes of the whole frame.
pub(crate) const NOTICE_BYTES: usize = HEADER_BYTES + PAYLOAD_BYTES;

/// Sends the origin to the other ranks. A rank that has half a frame of this one gets none.
pub(crate) fn send(mesh: &mut Mesh, id: RankId, origin: Origin, halfway: Option<usize>) {
    let frame = encode(id, origin);
    let (header, payload) = frame.split_at(HEADER_BYTES);
    (0..mesh.world()).filter(|rank| halfway != Some(*rank)).for_each(|rank| mesh.send_last(rank, header, payload));
}

/// Explains that a peer has closed, if it sent a notice; `received` holds bytes that came from it
/// earlier.
pub(crate) fn explain(mesh: &mut Mesh, id: RankId, error: CollectiveError, received: &[u8]) -> CollectiveError {
    let CollectiveError::PeerClosed { rank, .. } = error else { return error };
    let bytes = [received, &mesh.last_bytes(rank, NOTICE_BYTES)].concat();
    match bytes.last_chunk().and_then(|frame| decode(frame, id, rank, mesh.world())) {
        Some(origin) => CollectiveError::PeerGaveUp { rank, origin },
        None => error,
    }
}

/// Returns the header of a notice that `id` sends.
fn header(id: RankId, payload: &[u8]) -> Header {
    Header {
        kind: FrameKind::FailureNotice,
        operation: OperationCode::default(),
        job: id.job,
        generation: id.generation,
        step: 0,
        bucket: 0,
        chunk: 0,
        sender: id.rank as u32,
        length: PAYLOAD_BYTES as u32,
        payload_crc32c: crc32c(payload),
    }
}

fn encode(id: RankId, origin: Origin) -> [u8; NOTICE_BYTES] {
    let Origin { site: ErrorSite { operation, step, bucket, hop, from, to, hops }, rank, fault } = origin;
    let mut frame = [0; NOTICE_BYTES];
    let (head, payload) = frame.split_at_mut(HEADER_BYTES);
    payload[..8].copy_from_slice(&operation.to_le_bytes());
    payload[8..16].copy_from_slice(&step.to_le_bytes());
    let words = [bucket, hop, from, to, hops, rank as u32, fault.code()];
    payload[16..].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    head.copy_from_slice(&header(id, payload).encode());
    frame
}

/// Reads the notice of `sender`, a rank of the same group as `id`. Never panics, whatever the
/// bytes.
fn decode(frame: &[u8; NOTICE_BYTES], id: RankId, sender: usize, world: usize) -> Option<Origin> {
    let (head, payload) = frame.split_first_chunk()?;
    let head = Header::decode(head).ok()?;
    if head != header(RankId { rank: sender, ..id }, payload) {
        return None;
    }
    let word = |at: usize| payload[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = |at: usize| payload[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let site = ErrorSite {
        operation: number(0)?,
        step: number(8)?,
        bucket: word(16)?,
        hop: word(20)?,
        from: word(24)?,
        to: word(28)?,
        hops: word(32)?,
    };
    let rank = word(36)?;
    let is_among_them = [site.from, site.to, rank].into_iter().all(|rank| (rank as usize) < world);
    let fault = PeerFault::from_code(word(40)?).filter(|_| is_among_them)?;
    Some(Origin { site, rank: rank as usize, fault })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobId;
    use proptest::prelude::*;

    const WORLD: usize = 5;
    const SEAT: RankId = RankId { job: JobId([7; 16]), generation: 3, rank: 4 };
    const SENDER: usize = 2;

    fn any_origin() -> impl Strategy<Value = Origin> {
        let numbers = (any::<(u64, u64)>(), any::<[u32; 3]>(), [0..WORLD as u32, 0..WORLD as u32], 0..WORLD);
        (numbers, prop::sample::select(PeerFault::ALL.to_vec())).prop_map(
            |(((operation, step), [bucket, hop, hops], [from, to], rank), fault)| Origin {
                site: ErrorSite { operation, step, bucket, hop, from, to, hops },
                rank,
                fault,
            },
        )
    }

    fn told(frame: &[u8; NOTICE_BYTES]) -> Option<Origin> {
        decode(frame, SEAT, SENDER, WORLD)
    }

    proptest! {
        #[test]
        fn a_notice_reads_back_and_not_as_one_of_another_rank_or_generation(origin in any_origin()) {
            let sender = RankId { rank: SENDER, ..SEAT };
            prop_assert_eq!(told(&encode(sender, origin)), Some(origin));
            prop_assert_eq!(told(&encode(RankId { rank: 1, ..sender }, origin)), None);
            prop_assert_eq!(told(&encode(RankId { generation: 2, ..sender }, origin)), None);
            prop_assert_eq!(told(&encode(RankId { job: JobId([8; 16]), ..sender }, origin)), None);
        }

        #[test]
        fn a_notice_with_one_damaged_byte_is_ignored(
            origin in any_origin(), at in 0..NOTICE_BYTES, damage in 1u8..,
        ) {
            let mut frame = encode(RankId { rank: SENDER, ..SEAT }, origin);
            frame[at] ^= damage;
            prop_assert_eq!(told(&frame), None);
        }

        #[test]
        fn any_payload_names_ranks_of_the_group_or_is_ignored(mut payload in any::<[[u8; 4]; PAYLOAD_BYTES / 4]>()) {
            // Small numbers are likely to be ranks.
            payload.iter_mut().filter(|word| word[1] < 128).for_each(|word| *word = [word[0] % 8, 0, 0, 0]);
            let payload = payload.as_flattened();
            let head = header(RankId { rank: SENDER, ..SEAT }, payload).encode();
            let frame = [&head[..], payload].concat();
            if let Some(Origin { site, rank, .. }) = told(frame.as_array().unwrap()) {
                prop_assert!(rank.max(site.from as usize).max(site.to as usize) < WORLD);
            }
        }
    }
}
