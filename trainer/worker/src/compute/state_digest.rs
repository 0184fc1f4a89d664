//! The digest of a state, from its tensors.

use std::ops::Range;

use lockstep_nn::{DIGEST_BLOCK, StateDigest, digest_blocks};

use crate::trainee::StateRange;

/// Returns the digest of a state to which no block was added yet.
pub(crate) fn begin_digest(tensors: &[StateRange]) -> StateDigest {
    StateDigest::of(tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..])))
}

/// Returns the digest of all tensors of a state, whose values `copy` copies. A block may hold the
/// end of one tensor and the beginning of the next.
pub(crate) fn whole_digest(tensors: &[StateRange], mut copy: impl FnMut(Range<usize>, &mut [f32])) -> [u8; 32] {
    let mut digest = begin_digest(tensors);
    let mut block = Vec::with_capacity(DIGEST_BLOCK);
    for StateRange { elements, .. } in tensors {
        let mut rest = elements.clone();
        while !rest.is_empty() {
            let (filled, next) = (block.len(), rest.start + rest.len().min(DIGEST_BLOCK - block.len()));
            block.resize(filled + next - rest.start, 0.0);
            copy(rest.start..next, &mut block[filled..]);
            rest.start = next;
            if block.len() == DIGEST_BLOCK {
                digest.add(&digest_blocks(&block));
                block.clear();
            }
        }
    }
    digest.add(&digest_blocks(&block));
    digest.finish()
}
