//! The last frame of a rank that gives its group up: it tells what broke it, so that nobody takes the rank itself for what did. Its payload,
//! little endian:
//! ```text
//! 0 operation u64 · 8 step u64 · 16 bucket u32 · 20 hop u32 · 24 from u32 · 28 to u32 · 32 hops u32 · 36 rank u32 · 40 loss u32
//! ```
//! It waits for nothing: where there is no room for it, or half a frame is out, the peer sees no more than that the connection closes.

use crate::CollectiveError;
use crate::call::Call;
use crate::crc32c::crc32c;
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::mesh::Mesh;
use crate::position::{Loss, Origin, Position};
use crate::seat::Seat;

const PAYLOAD_BYTES: usize = 44;
/// All of it.
pub(crate) const FAREWELL_BYTES: usize = HEADER_BYTES + PAYLOAD_BYTES;

/// Tells the other ranks what broke the group; but not the one, if any, that has half a frame of this one.
pub(crate) fn say(mesh: &mut Mesh, seat: Seat, origin: Origin, halfway: Option<usize>) {
    let frame = encode(seat, origin);
    let (header, payload) = frame.split_at(HEADER_BYTES);
    (0..mesh.world()).filter(|rank| halfway != Some(*rank)).for_each(|rank| mesh.say(rank, header, payload));
}

/// What an error means where a peer has closed that has said why; `heard` was received from it already.
pub(crate) fn explained(mesh: &mut Mesh, seat: Seat, error: CollectiveError, heard: &[u8]) -> CollectiveError {
    let CollectiveError::PeerClosed { rank, .. } = error else { return error };
    let bytes = [heard, &mesh.last_bytes(rank, FAREWELL_BYTES)].concat();
    match bytes.last_chunk().and_then(|frame| decode(frame, seat, rank, mesh.world())) {
        Some(origin) => CollectiveError::PeerGaveUp { rank, origin },
        None => error,
    }
}

/// What the header of one says that `seat` sends.
fn header(seat: Seat, payload: &[u8]) -> Header {
    Header {
        kind: Kind::Farewell,
        call: Call::default(),
        job: seat.job,
        generation: seat.generation,
        step: 0,
        bucket: 0,
        chunk: 0,
        sender: seat.rank as u32,
        length: PAYLOAD_BYTES as u32,
        payload_crc32c: crc32c(payload),
    }
}

fn encode(seat: Seat, origin: Origin) -> [u8; FAREWELL_BYTES] {
    let Origin { position: Position { operation, step, bucket, hop, from, to, hops }, rank, loss } = origin;
    let mut frame = [0; FAREWELL_BYTES];
    let (head, payload) = frame.split_at_mut(HEADER_BYTES);
    payload[..8].copy_from_slice(&operation.to_le_bytes());
    payload[8..16].copy_from_slice(&step.to_le_bytes());
    let words = [bucket, hop, from, to, hops, rank as u32, loss.code()];
    payload[16..].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    head.copy_from_slice(&header(seat, payload).encode());
    frame
}

/// What `sender`, a rank of the same group as `seat`, has told. Never panics, whatever the bytes.
fn decode(frame: &[u8; FAREWELL_BYTES], seat: Seat, sender: usize, world: usize) -> Option<Origin> {
    let (head, payload) = frame.split_first_chunk()?;
    let head = Header::decode(head).ok()?;
    if head != header(Seat { rank: sender, ..seat }, payload) {
        return None;
    }
    let word = |at: usize| payload[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = |at: usize| payload[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let position = Position {
        operation: number(0)?,
        step: number(8)?,
        bucket: word(16)?,
        hop: word(20)?,
        from: word(24)?,
        to: word(28)?,
        hops: word(32)?,
    };
    let rank = word(36)?;
    let is_among_them = [position.from, position.to, rank].into_iter().all(|rank| (rank as usize) < world);
    let loss = Loss::from_code(word(40)?).filter(|_| is_among_them)?;
    Some(Origin { position, rank: rank as usize, loss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobId;
    use proptest::prelude::*;

    const WORLD: usize = 5;
    const SEAT: Seat = Seat { job: JobId([7; 16]), generation: 3, rank: 4 };
    const SENDER: usize = 2;

    fn any_origin() -> impl Strategy<Value = Origin> {
        let numbers = (any::<(u64, u64)>(), any::<[u32; 3]>(), [0..WORLD as u32, 0..WORLD as u32], 0..WORLD);
        (numbers, prop::sample::select(Loss::ALL.to_vec())).prop_map(
            |(((operation, step), [bucket, hop, hops], [from, to], rank), loss)| Origin {
                position: Position { operation, step, bucket, hop, from, to, hops },
                rank,
                loss,
            },
        )
    }

    fn told(frame: &[u8; FAREWELL_BYTES]) -> Option<Origin> {
        decode(frame, SEAT, SENDER, WORLD)
    }

    proptest! {
        #[test]
        fn a_farewell_reads_back_as_it_was_said_and_not_from_another_rank_or_generation(origin in any_origin()) {
            let sender = Seat { rank: SENDER, ..SEAT };
            prop_assert_eq!(told(&encode(sender, origin)), Some(origin));
            prop_assert_eq!(told(&encode(Seat { rank: 1, ..sender }, origin)), None);
            prop_assert_eq!(told(&encode(Seat { generation: 2, ..sender }, origin)), None);
            prop_assert_eq!(told(&encode(Seat { job: JobId([8; 16]), ..sender }, origin)), None);
        }

        #[test]
        fn a_farewell_with_one_damaged_byte_tells_nothing(
            origin in any_origin(), at in 0..FAREWELL_BYTES, damage in 1u8..,
        ) {
            let mut frame = encode(Seat { rank: SENDER, ..SEAT }, origin);
            frame[at] ^= damage;
            prop_assert_eq!(told(&frame), None);
        }

        #[test]
        fn any_payload_names_ranks_of_the_group_or_tells_nothing(mut payload in any::<[[u8; 4]; PAYLOAD_BYTES / 4]>()) {
            // Some small numbers, so that the ranks may be some.
            payload.iter_mut().filter(|word| word[1] < 128).for_each(|word| *word = [word[0] % 8, 0, 0, 0]);
            let payload = payload.as_flattened();
            let head = header(Seat { rank: SENDER, ..SEAT }, payload).encode();
            let frame = [&head[..], payload].concat();
            if let Some(Origin { position, rank, .. }) = told(frame.as_array().unwrap()) {
                prop_assert!(rank.max(position.from as usize).max(position.to as usize) < WORLD);
            }
        }
    }
}
