//! Conversions between f32 and 16 bits, rounded to nearest, ties to even. They give the same bits
//! on every instruction set: the instruction that rounds to bf16 takes subnormal numbers for zero,
//! so it is not used here.

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};

use super::{Instructions, vectorised};
use crate::dtype::DType;

/// `into = from`.
///
/// # Panics
/// If `dtype` has no 16 bits, or lengths differ.
pub(crate) fn widen(instructions: Instructions, dtype: DType, from: &[u16], into: &mut [f32]) {
    assert_eq!(from.len(), into.len(), "values to convert");
    match dtype {
        DType::Bf16 => widen_bf16(instructions, from, into),
        DType::F16 => from.reinterpret_cast::<half::f16>().convert_to_f32_slice(into),
        DType::F32 | DType::U8 | DType::I32 | DType::U32 => panic!("{dtype:?} is no 16-bit float"),
    }
}

/// `into = round(from)`.
///
/// # Panics
/// If `dtype` has no 16 bits, or lengths differ.
pub(crate) fn narrow(instructions: Instructions, dtype: DType, from: &[f32], into: &mut [u16]) {
    assert_eq!(from.len(), into.len(), "values to convert");
    match dtype {
        DType::Bf16 => narrow_bf16(instructions, from, into),
        DType::F16 => into.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(from),
        DType::F32 | DType::U8 | DType::I32 | DType::U32 => panic!("{dtype:?} is no 16-bit float"),
    }
}

vectorised! {
    fn widen_bf16(from: &[u16], into: &mut [f32]) {
        into.iter_mut().zip(from).for_each(|(into, from)| *into = f32::from_bits(u32::from(*from) << 16));
    }
}

vectorised! {
    fn narrow_bf16(from: &[f32], into: &mut [u16]) {
        into.iter_mut().zip(from).for_each(|(into, from)| *into = bf16(*from));
    }
}

/// The upper half, rounded; what is not a number stays so.
#[inline(always)]
pub(crate) fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let is_number = bits & 0x7fff_ffff <= 0x7f80_0000;
    ((if is_number { rounded } else { bits | 0x0040_0000 }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even_on_every_instruction_set() {
        let sets = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];
        let values: Vec<f32> = (0..1 << 16)
            .map(|word: u32| f32::from_bits(word.wrapping_mul(0x9e37_79b9)))
            .chain([1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), f32::MAX, f32::NAN, f32::INFINITY, 1e-40])
            .collect();
        let expected: Vec<u16> = values.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect();
        for set in sets.into_iter().filter(|set| set.available()) {
            let mut found = vec![0; values.len()];
            narrow(set, DType::Bf16, &values, &mut found);
            assert_eq!(found, expected, "{set:?}");
            let mut wide = vec![0.0; found.len()];
            widen(set, DType::Bf16, &found, &mut wide);
            let mut again = vec![0; found.len()];
            narrow(set, DType::Bf16, &wide, &mut again);
            assert_eq!(again, expected, "{set:?}: widened and rounded again");
        }
    }
}
