//! Norms whose bits are the same on every instruction set: sums in a fixed number of lanes.

use super::{Instructions, Vectorised};

/// Running sums of a norm, on every machine.
const LANES: usize = 16;

/// `√Σx²`: squares are added in double precision by fused multiply-add into 16 lanes, then the
/// lanes from the first.
pub(crate) fn norm(instructions: Instructions, values: &[f32]) -> f64 {
    squares(instructions, values).sqrt()
}

/// `Σx²`, in the order of [`norm`].
pub(crate) fn squares(instructions: Instructions, values: &[f32]) -> f64 {
    instructions.run(SquaresOf(values))
}

struct SquaresOf<'a>(&'a [f32]);

impl Vectorised for SquaresOf<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let values = self.0;
        squares_by(values.len(), |index| values[index])
    }
}

/// `Σ value(i)²` for `i` below `count`, in the order of [`norm`].
#[inline(always)]
pub(crate) fn squares_by(count: usize, value: impl Fn(usize) -> f32) -> f64 {
    let mut sums = [0.0; LANES];
    let mut add = |first: usize, lanes: usize| {
        for (lane, sum) in sums[..lanes].iter_mut().enumerate() {
            let value = f64::from(value(first + lane));
            *sum = value.mul_add(value, *sum);
        }
    };
    let whole = count / LANES * LANES;
    (0..whole).step_by(LANES).for_each(|first| add(first, LANES));
    add(whole, count - whole);
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_the_same_norm() {
        let wide = [Instructions::Avx2, Instructions::Avx512].into_iter().filter(|set| set.available());
        let wide: Vec<_> = wide.collect();
        for count in (0..70).chain([127, 128, 129, 1000, 4099]) {
            let values: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin()).collect();
            let reference = norm(Instructions::Baseline, &values).to_bits();
            for wide in &wide {
                assert_eq!(norm(*wide, &values).to_bits(), reference, "{wide:?}, {count} elements");
            }
        }
    }

    #[test]
    fn the_norm_of_3_and_4_is_5() {
        assert_eq!(norm(Instructions::detect(), &[3.0, 4.0]), 5.0);
    }
}
