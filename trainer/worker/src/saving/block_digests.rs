//! The digests of a state's blocks. Each rank writes those of its part; together they make the
//! digest of the state.

use lockstep_checkpoint::BLOCK_VALUES;
use lockstep_elastic::Digest;
use lockstep_nn::{DIGEST_BLOCK, StateDigest, digest_blocks};

/// The hexadecimal digits of a block's digest in a note.
const DIGITS: usize = 64;

const _: () = assert!(BLOCK_VALUES == DIGEST_BLOCK, "each block lies in one part");

/// Returns the digests of a part's blocks, as its note spells them.
pub(crate) fn written_digests(values: &[f32]) -> String {
    digest_blocks(values).into_iter().map(|block| Digest::from_bytes(block).to_string()).collect()
}

/// Returns the digest of a state from the digests of its parts, in order.
pub(crate) fn of_parts(mut digest: StateDigest, parts: &[String]) -> Option<[u8; 32]> {
    for block in parts.iter().flat_map(|part| part.as_bytes().chunks(DIGITS)) {
        let block: Digest = str::from_utf8(block).ok()?.parse().ok()?;
        digest.add(&[*block.as_bytes()]);
    }
    Some(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compute::state_digest::{begin_digest, whole_digest},
        trainee::StateRange,
    };

    #[test]
    fn the_digest_of_any_number_of_parts_is_that_of_the_whole_state() {
        let lengths = [BLOCK_VALUES + 7, 16, 3 * BLOCK_VALUES + 100, BLOCK_VALUES];
        // Tensors do not begin where the one before ends.
        let tensor = |number: usize| {
            let start = lengths[..number].iter().map(|length| length.next_multiple_of(16)).sum();
            let (name, elements) = (format!("t{number}"), start..start + lengths[number]);
            StateRange { name, shape: vec![lengths[number]], elements, is_slot: number > 1 }
        };
        let tensors: Vec<StateRange> = (0..lengths.len()).map(tensor).collect();
        let values: Vec<f32> =
            tensors.iter().flat_map(|tensor| tensor.elements.clone()).map(|value| value as f32).collect();
        let whole = whole_digest(&tensors, |elements, into| {
            into.iter_mut().zip(elements).for_each(|(into, value)| *into = value as f32);
        });
        for cuts in [&[][..], &[0], &[1], &[2, 2, 5]] {
            let ends = cuts.iter().map(|block| block * BLOCK_VALUES).chain([values.len()]);
            let mut start = 0;
            let parts: Vec<String> =
                ends.map(|end| written_digests(&values[std::mem::replace(&mut start, end)..end])).collect();
            assert_eq!(of_parts(begin_digest(&tensors), &parts), Some(whole), "{cuts:?}");
        }
        assert_eq!(of_parts(begin_digest(&tensors), &["no digest".to_owned()]), None);
    }
}
