//! States that reveal their number. Equal numbers and steps give equal bits.

use super::dice::mixed;
use crate::{OwnedTensor, Position, tests::state::SampleState};

/// Returns the state of a number. One tensor changes with each step, one every few steps, one
/// never.
pub(super) fn state(position: Position, number: u64) -> SampleState {
    let bits = |seed: u64, i: usize| f32::from_bits(mixed(seed.wrapping_mul(31).wrapping_add(i as u64)) as u32);
    let tensor = |name: &str, shape: &[usize], seed: u64| {
        let values = (0..shape.iter().product()).map(|i| bits(seed, i)).collect();
        OwnedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
    };
    let still = OwnedTensor { name: "momentum.conv1.weight".to_owned(), shape: vec![64], values: vec![0.5; 64] };
    SampleState {
        position,
        digest: format!("{number:016x}"),
        tensors: [
            tensor("conv1.weight", &[6, 8], number),
            tensor("conv1.bias", &[40], position.step / 4),
            still,
            tensor("momentum.conv1.bias", &[], number ^ 1),
        ],
        ..SampleState::at(0)
    }
}
