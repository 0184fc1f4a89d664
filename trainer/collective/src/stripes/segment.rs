//! A segment of the stream, which travels on one of several connections.

use crate::crc32c::crc32c;
use crate::frame::HEADER_BYTES;
use crate::link_error::WrongSegment;

/// The longest payload of a segment. It holds a part of a frame, so that the connections share the
/// frame, and the frame's header.
pub(super) const MAX_SEGMENT_BYTES: usize = (64 << 10) + HEADER_BYTES;
pub(super) const SEGMENT_HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) sequence: u64,
    pub(super) length: usize,
}

impl Segment {
    pub(super) fn encode(self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.length as u32).to_le_bytes());
        let checksum = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header. All segments before `next` have been read. Never panics, whatever the bytes.
    pub(super) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES], next: u64) -> Result<Self, WrongSegment> {
        let word = |at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (expected, found) = (crc32c(&bytes[..12]), word(12));
        if found != expected {
            return Err(WrongSegment::of("segment checksum", format!("{expected:08x}"), format!("{found:08x}")));
        }
        let (sequence, length) = (u64::from_le_bytes(std::array::from_fn(|i| bytes[i])), word(8) as usize);
        if sequence < next {
            return Err(WrongSegment::of("segment", format!("{next} or a later one"), sequence));
        }
        if !(1..=MAX_SEGMENT_BYTES).contains(&length) {
            return Err(WrongSegment::of("segment length", format!("1 to {MAX_SEGMENT_BYTES}"), length));
        }
        Ok(Self { sequence, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a header with a correct checksum.
    fn header(sequence: u64, length: u32) -> [u8; SEGMENT_HEADER_BYTES] {
        Segment { sequence, length: length as usize }.encode()
    }

    proptest! {
        #[test]
        fn a_segment_reads_back_as_it_was_written(next in any::<u64>(), ahead in any::<u32>(), length in 1..=MAX_SEGMENT_BYTES) {
            let segment = Segment { sequence: next.saturating_add(ahead.into()), length };
            prop_assert_eq!(Segment::decode(&segment.encode(), next), Ok(segment));
        }

        #[test]
        fn a_segment_with_one_damaged_byte_is_refused(
            sequence in any::<u64>(), length in 1..=MAX_SEGMENT_BYTES, at in 0..SEGMENT_HEADER_BYTES, damage in 1u8..,
        ) {
            let mut bytes = Segment { sequence, length }.encode();
            bytes[at] ^= damage;
            prop_assert_eq!(Segment::decode(&bytes, 0).unwrap_err().field, "segment checksum");
        }

        #[test]
        fn any_bytes_are_a_bounded_segment_or_an_error(sequence in any::<u64>(), length in any::<u32>(), next in any::<u64>()) {
            if let Ok(segment) = Segment::decode(&header(sequence, length), next) {
                prop_assert!(segment.sequence >= next && (1..=MAX_SEGMENT_BYTES).contains(&segment.length));
            }
        }
    }

    #[test]
    fn a_wrong_segment_is_refused_for_its_wrong_field() {
        let longest = MAX_SEGMENT_BYTES as u32;
        for (sequence, length, field) in [
            (6, 1, "segment"),
            (0, 1, "segment"),
            (7, 0, "segment length"),
            (7, longest + 1, "segment length"),
            (7, u32::MAX, "segment length"),
        ] {
            assert_eq!(Segment::decode(&header(sequence, length), 7).unwrap_err().field, field);
        }
        for (sequence, length) in [(7, 1), (7, longest), (8, 1), (u64::MAX, longest)] {
            Segment::decode(&header(sequence, length), 7).unwrap();
        }
    }

    #[test]
    fn the_wire_format_is_pinned() {
        let bytes = header(0x0102_0304_0506_0708, 0x1_0040);
        assert_eq!(&bytes[..12], b"\x08\x07\x06\x05\x04\x03\x02\x01\x40\0\x01\0");
        assert_eq!(bytes[12..], crc32c(&bytes[..12]).to_le_bytes());
    }
}
