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
    use lockstep_nn::{Cpu, Optimizer, Replica, models, optimizers::Sgd};

    use super::*;

    #[test]
    fn the_digest_of_any_number_of_parts_is_that_of_the_whole_state() {
        let network = models::lenet5();
        let buckets = network.table().ready_order();
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });
        let mut replica = Replica::new(Cpu::new(), network, sgd, 1, buckets).expect("buckets that tile it");
        replica.initialise(7);
        let values: Vec<f32> = replica.tensors().into_iter().flat_map(|tensor| tensor.values).collect();
        for cuts in [&[][..], &[0], &[1], &[2, 2, 5]] {
            let ends = cuts.iter().map(|block| block * BLOCK_VALUES).chain([values.len()]);
            let mut start = 0;
            let parts: Vec<String> =
                ends.map(|end| written_digests(&values[std::mem::replace(&mut start, end)..end])).collect();
            assert_eq!(of_parts(replica.begin_digest(), &parts), Some(replica.digest()), "{cuts:?}");
        }
        assert_eq!(of_parts(replica.begin_digest(), &["no digest".to_owned()]), None);
    }
}
