//! Number types that ranks exchange, and their reductions.

use half::{bf16, f16};

/// Bytes of the widest type.
pub(crate) const MAX_ELEMENT_BYTES: usize = size_of::<f64>();

/// A type of numbers that ranks exchange: `f32`, `f64`, [`bf16`](half::bf16), [`f16`](half::f16),
/// `i32`, `i64` or `u8`.
pub trait Element: bytemuck::Pod + Send + sealed::Arithmetic {
    /// The type as a value.
    const TYPE: ElementType;
}

/// The types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the type of its name")]
pub enum ElementType {
    F32,
    F64,
    Bf16,
    F16,
    I32,
    I64,
    U8,
}

/// A reduction of numbers of several ranks to one.
///
/// It gives the same bits in either order of two numbers. A NaN makes the result the one NaN of its
/// type, and −0 is less than 0. `bf16` and `f16` are reduced in `f32` and rounded after each term.
/// Sums and products of integers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks; integers round towards zero. The sum is formed in
    /// the same type and must fit it: an integer sum that wraps around is divided as it is. So the
    /// mean of 200 and 100 in `u8` is 22.
    Mean,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The product.
    Product,
}

impl ElementType {
    const NAMES: [&str; 10] = ["none", "f32", "f64", "bf16", "f16", "i32", "i64", "u8", "f32 in bf16", "f32 in f16"];
    /// The codes of `f32` that travels in a narrower format.
    pub(crate) const F32_IN_BF16: u8 = 8;
    pub(crate) const F32_IN_F16: u8 = 9;

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::F32 => 1,
            Self::F64 => 2,
            Self::Bf16 => 3,
            Self::F16 => 4,
            Self::I32 => 5,
            Self::I64 => 6,
            Self::U8 => 7,
        }
    }

    pub(crate) fn name_of(code: u8) -> &'static str {
        Self::NAMES.get(usize::from(code)).unwrap_or(&"unknown elements")
    }
}

impl Reduction {
    const NAMES: [&str; 6] = ["none", "sum", "mean", "min", "max", "product"];

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Mean => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::Product => 5,
        }
    }

    pub(crate) fn name_of(code: u8) -> &'static str {
        Self::NAMES.get(usize::from(code)).unwrap_or(&"unknown reduction")
    }
}

/// Turns sums over `count` ranks into means.
pub(crate) fn divide<T: Element>(sums: &mut [T], count: usize) {
    for sum in sums {
        *sum = sum.divided(count);
    }
}

mod sealed {
    pub trait Arithmetic: Copy {
        fn sum(self, other: Self) -> Self;
        fn product(self, other: Self) -> Self;
        fn least(self, other: Self) -> Self;
        fn greatest(self, other: Self) -> Self;
        fn divided(self, count: usize) -> Self;
    }
}

/// Takes a type, its name, the type in which it is reduced, and the conversion back.
macro_rules! floats {
    ($($float:ty, $type:ident, $wide:ty, $narrow:expr;)*) => {$(
        impl Element for $float {
            const TYPE: ElementType = ElementType::$type;
        }
        impl sealed::Arithmetic for $float {
            #[inline]
            fn sum(self, other: Self) -> Self {
                let sum = <$wide>::from(self) + <$wide>::from(other);
                if sum.is_nan() { Self::NAN } else { $narrow(sum) }
            }
            #[inline]
            fn product(self, other: Self) -> Self {
                let product = <$wide>::from(self) * <$wide>::from(other);
                if product.is_nan() { Self::NAN } else { $narrow(product) }
            }
            #[inline]
            fn least(self, other: Self) -> Self {
                let least = if self.total_cmp(&other).is_le() { self } else { other };
                if self.is_nan() || other.is_nan() { Self::NAN } else { least }
            }
            #[inline]
            fn greatest(self, other: Self) -> Self {
                let greatest = if self.total_cmp(&other).is_ge() { self } else { other };
                if self.is_nan() || other.is_nan() { Self::NAN } else { greatest }
            }
            #[inline]
            fn divided(self, count: usize) -> Self {
                $narrow(<$wide>::from(self) / count as $wide)
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty, $type:ident;)*) => {$(
        impl Element for $integer {
            const TYPE: ElementType = ElementType::$type;
        }
        impl sealed::Arithmetic for $integer {
            #[inline]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline]
            fn divided(self, count: usize) -> Self {
                (i128::from(self) / count as i128) as $integer
            }
        }
    )*};
}

floats! {
    f32, F32, f32, f32::from;
    f64, F64, f64, f64::from;
    bf16, Bf16, f32, bf16::from_f32;
    f16, F16, f32, f16::from_f32;
}
integers! { i32, I32; i64, I64; u8, U8; }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reducer::reducer;

    /// Returns all reductions of two numbers in both orders, as bits.
    fn both_ways<T: Element>(one: T, other: T) -> Vec<[Vec<u8>; 2]> {
        [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Product]
            .map(|reduction| {
                [(one, other), (other, one)].map(|(mut into, term)| {
                    reducer::<T>(reduction)(bytemuck::bytes_of_mut(&mut into), bytemuck::bytes_of(&term));
                    bytemuck::bytes_of(&into).to_vec()
                })
            })
            .into()
    }

    #[test]
    fn both_orders_of_two_numbers_give_the_same_bits() {
        for one in [0, 0x8000_0000, 0x7fc0_0001, 0xffc0_0002, 0x7f80_0000, 0xff80_0000, 0x3f80_0000_u32] {
            for other in [0, 0x8000_0000, 0x7fc0_0001, 0xffc0_0002, 0x7f80_0000, 0xff80_0000, 0xc000_0000_u32] {
                let ways = both_ways(f32::from_bits(one), f32::from_bits(other));
                assert!(ways.iter().all(|[this, that]| this == that), "{one:x} and {other:x}: {ways:x?}");
                let half = |bits: u32| bf16::from_bits((bits >> 16) as u16 | (bits & 3) as u16);
                let ways = both_ways(half(one), half(other));
                assert!(ways.iter().all(|[this, that]| this == that), "{one:x} and {other:x} in bf16: {ways:x?}");
                let half = |bits: u32| f16::from_bits((bits >> 16) as u16 | (bits & 3) as u16);
                let ways = both_ways(half(one), half(other));
                assert!(ways.iter().all(|[this, that]| this == that), "{one:x} and {other:x} in f16: {ways:x?}");
            }
        }
    }

    #[test]
    fn a_mean_of_integers_divides_the_sum_in_their_type() {
        fn mean<T: Element>(one: T, other: T) -> T {
            let mut sum = [one];
            reducer::<T>(Reduction::Mean)(bytemuck::bytes_of_mut(&mut sum), bytemuck::bytes_of(&other));
            divide(&mut sum, 2);
            sum[0]
        }
        assert_eq!(mean(-3_i32, -4), -3);
        assert_eq!(mean(7_u8, 8), 7);
        // Modulo 2⁸, 2³² and 2⁶⁴.
        assert_eq!(mean(200_u8, 100), 22);
        assert_eq!(mean(i32::MAX, 1), i32::MIN / 2);
        assert_eq!(mean(i64::MIN, -2), i64::MAX / 2);
    }
}
