//! What happens after the all-reduce: updates and norms. Their bits are the same on every instruction set, so that
//! workers on different machines stay equal: elementwise fused multiply-adds, and sums in a fixed number of lanes.

#![allow(unsafe_code, reason = "functions compiled for instructions that are detected at run time")]

use super::Instructions;

/// Running sums of a norm, on every machine.
const NORM_LANES: usize = 16;

/// Hyperparameters of one SGD update of one range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SgdStep {
    pub(crate) momentum: f32,
    pub(crate) decay: f32,
    pub(crate) rate: f32,
}

/// `v ← m·v + (g + λ·w)`, then `w ← w − rate·v`, each product fused with its sum.
pub(crate) fn sgd(
    instructions: Instructions,
    step: SgdStep,
    weights: &mut [f32],
    gradients: &[f32],
    velocity: &mut [f32],
) {
    assert_eq!((weights.len(), velocity.len()), (gradients.len(), gradients.len()), "weights, velocity and gradients");
    match instructions {
        Instructions::Baseline => sgd_body(step, weights, gradients, velocity),
        // SAFETY: a device only carries instructions that its core has.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { sgd_avx2(step, weights, gradients, velocity) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { sgd_avx512(step, weights, gradients, velocity) },
        #[cfg(not(target_arch = "x86_64"))]
        Instructions::Avx2 | Instructions::Avx512 => sgd_body(step, weights, gradients, velocity),
    }
}

/// `√Σx²`: squares added in double precision by fused multiply-add into 16 lanes, lanes added from the first.
pub(crate) fn norm(instructions: Instructions, values: &[f32]) -> f32 {
    let lanes = match instructions {
        Instructions::Baseline => squares_body(values),
        // SAFETY: a device only carries instructions that its core has.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { squares_avx2(values) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { squares_avx512(values) },
        #[cfg(not(target_arch = "x86_64"))]
        Instructions::Avx2 | Instructions::Avx512 => squares_body(values),
    };
    lanes.iter().sum::<f64>().sqrt() as f32
}

#[inline(always)]
fn sgd_body(step: SgdStep, weights: &mut [f32], gradients: &[f32], velocity: &mut [f32]) {
    let SgdStep { momentum, decay, rate } = step;
    for ((w, g), v) in weights.iter_mut().zip(gradients).zip(velocity) {
        *v = momentum.mul_add(*v, decay.mul_add(*w, *g));
        *w = (-rate).mul_add(*v, *w);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn sgd_avx2(step: SgdStep, weights: &mut [f32], gradients: &[f32], velocity: &mut [f32]) {
    sgd_body(step, weights, gradients, velocity);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn sgd_avx512(step: SgdStep, weights: &mut [f32], gradients: &[f32], velocity: &mut [f32]) {
    sgd_body(step, weights, gradients, velocity);
}

#[inline(always)]
fn squares_body(values: &[f32]) -> [f64; NORM_LANES] {
    let mut sums = [0.0; NORM_LANES];
    let (whole, rest) = values.as_chunks::<NORM_LANES>();
    for lanes in whole {
        for (sum, value) in sums.iter_mut().zip(lanes) {
            let value = f64::from(*value);
            *sum = value.mul_add(value, *sum);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        let value = f64::from(*value);
        *sum = value.mul_add(value, *sum);
    }
    sums
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn squares_avx2(values: &[f32]) -> [f64; NORM_LANES] {
    squares_body(values)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn squares_avx512(values: &[f32]) -> [f64; NORM_LANES] {
    squares_body(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, salt: u32) -> Vec<f32> {
        let word = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503));
        (0..count).map(|index| (word(index) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn wide() -> impl Iterator<Item = Instructions> {
        [Instructions::Avx2, Instructions::Avx512].into_iter().filter(|instructions| instructions.available())
    }

    #[test]
    fn every_instruction_set_updates_to_the_same_bits() {
        let step = SgdStep { momentum: 0.9, decay: 1e-4, rate: 0.037 };
        for count in (0..70).chain([127, 128, 129, 1000, 4099]) {
            let updated = |instructions| {
                let (mut weights, mut velocity) = (values(count, 1), values(count, 2));
                sgd(instructions, step, &mut weights, &values(count, 3), &mut velocity);
                weights.iter().chain(&velocity).map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let reference = updated(Instructions::Baseline);
            wide().for_each(|wide| assert_eq!(updated(wide), reference, "{wide:?}, {count} elements"));
        }
    }

    #[test]
    fn every_instruction_set_has_the_same_norm() {
        for count in (0..70).chain([127, 128, 129, 1000, 4099]) {
            let values = values(count, 4);
            let reference = norm(Instructions::Baseline, &values).to_bits();
            wide().for_each(|wide| assert_eq!(norm(wide, &values).to_bits(), reference, "{wide:?}, {count} elements"));
        }
    }

    #[test]
    fn the_norm_of_3_and_4_is_5() {
        assert_eq!(norm(Instructions::detect(), &[3.0, 4.0]), 5.0);
    }

    /// m = 0.5, λ = 0.25, rate = 0.5; every intermediate is a dyadic fraction, so the numbers are exact:
    /// g + λw = (0.5 + 0.25, −1 − 0.5); v = itself at first; w = (1, −2) − 0.5·v.
    #[test]
    fn two_updates_are_the_ones_derived_by_hand() {
        let step = SgdStep { momentum: 0.5, decay: 0.25, rate: 0.5 };
        let (mut weights, mut velocity) = ([1.0, -2.0], [0.0, 0.0]);
        sgd(Instructions::detect(), step, &mut weights, &[0.5, -1.0], &mut velocity);
        assert_eq!((weights, velocity), ([0.625, -1.25], [0.75, -1.5]));
        // v = 0.5·(0.75, −1.5) + (0.5 + 0.15625, −1 − 0.3125) = (1.03125, −2.0625); w = w − 0.5·v.
        sgd(Instructions::detect(), step, &mut weights, &[0.5, -1.0], &mut velocity);
        assert_eq!((weights, velocity), ([0.109375, -0.21875], [1.03125, -2.0625]));
    }
}
