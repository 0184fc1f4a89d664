//! A quick hash of what a sample holds as it reaches the model: not against forgery, but against
//! mistakes.

use crate::permutation::{GOLDEN, mix};

/// Words that are hashed side by side, so that the compiler takes vectors.
const LANES: usize = 16;
const PRIME: u32 = 0x9E37_79B1;

/// The hash of bytes in their order.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    let mut lanes: [u32; LANES] = std::array::from_fn(|lane| (lane as u32 + 1).wrapping_mul(0x85EB_CA6B));
    let (words, rest) = bytes.as_chunks::<4>();
    let (rows, last) = words.as_chunks::<LANES>();
    for row in rows {
        for (lane, word) in lanes.iter_mut().zip(row) {
            *lane = (lane.rotate_left(13) ^ u32::from_le_bytes(*word)).wrapping_mul(PRIME);
        }
    }
    let last = last.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let lanes = lanes.iter().map(|lane| u64::from(*lane));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    lanes.chain(last).chain(rest).fold(bytes.len() as u64, joined)
}

/// The hash of values in their order, by their bits.
pub(crate) fn of_values(values: &[f32]) -> u64 {
    of_bytes(&values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect::<Vec<u8>>())
}

/// The hash of labels in their order, behind that of something else.
pub(crate) fn with_labels(hash: u64, labels: &[u32]) -> u64 {
    labels.iter().map(|label| u64::from(*label)).fold(hash, joined)
}

const fn joined(hash: u64, value: u64) -> u64 {
    mix(hash.wrapping_mul(GOLDEN) ^ value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_changed_a_moved_or_a_missing_byte_is_noticed(
            bytes in proptest::collection::vec(any::<u8>(), 1..400), at: prop::sample::Index, other: prop::sample::Index, bit in 0_u32..8,
        ) {
            let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
            let mut changed = bytes.clone();
            changed[at] ^= 1_u8 << bit;
            prop_assert_ne!(of_bytes(&changed), of_bytes(&bytes));
            let mut moved = bytes.clone();
            moved.swap(at, other);
            prop_assert_eq!(of_bytes(&moved) == of_bytes(&bytes), moved == bytes);
            prop_assert_ne!(of_bytes(&bytes[1..]), of_bytes(&bytes));
        }
    }

    #[test]
    fn two_signs_that_change_in_one_lane_do_not_cancel() {
        let mut bytes = [0; 256];
        let zeros = of_bytes(&bytes);
        (bytes[3], bytes[3 + 4 * LANES]) = (0x80, 0x80);
        assert_ne!(of_bytes(&bytes), zeros);
        assert_ne!(with_labels(zeros, &[1, 2]), with_labels(zeros, &[2, 1]));
    }
}
