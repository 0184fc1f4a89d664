//! Reductions of many elements at a time: with AVX2 if the processor has it, with the same bits
//! without.

#![allow(unsafe_code, reason = "instructions that only some processors have")]

use crate::element::{Element, Reduction};

/// Reduces the bytes of arriving elements into local ones.
pub(crate) type Reducer = fn(&mut [u8], &[u8]);

/// Reduces the bytes of the elements in two places into both.
pub(crate) type MutualReducer = fn(&mut [u8], &mut [u8]);

/// Returns the reducer of a type. A mean is a sum first.
pub(crate) fn reducer<T: Element>(reduction: Reduction) -> Reducer {
    match reduction {
        Reduction::Sum | Reduction::Mean => |into, terms| reduce(into, terms, T::sum),
        Reduction::Min => |into, terms| reduce(into, terms, T::least),
        Reduction::Max => |into, terms| reduce(into, terms, T::greatest),
        Reduction::Product => |into, terms| reduce(into, terms, T::product),
    }
}

/// Returns the reducer of a type into both places.
pub(crate) fn mutual_reducer<T: Element>(reduction: Reduction) -> MutualReducer {
    match reduction {
        Reduction::Sum | Reduction::Mean => |one, other| reduce_both(one, other, T::sum),
        Reduction::Min => |one, other| reduce_both(one, other, T::least),
        Reduction::Max => |one, other| reduce_both(one, other, T::greatest),
        Reduction::Product => |one, other| reduce_both(one, other, T::product),
    }
}

#[inline]
fn reduce<T: Element>(into: &mut [u8], terms: &[u8], reduce: impl Fn(T, T) -> T) {
    let (into, terms) = (bytemuck::cast_slice_mut::<u8, T>(into), bytemuck::cast_slice::<u8, T>(terms));
    each(into.iter_mut().zip(terms), |(into, term)| *into = reduce(*into, *term));
}

#[inline]
fn reduce_both<T: Element>(one: &mut [u8], other: &mut [u8], reduce: impl Fn(T, T) -> T) {
    let (one, other) = (bytemuck::cast_slice_mut::<u8, T>(one), bytemuck::cast_slice_mut::<u8, T>(other));
    each(one.iter_mut().zip(other), |(one, other)| {
        let reduced = reduce(*one, *other);
        (*one, *other) = (reduced, reduced);
    });
}

/// Acts on all items. Vectors hold as many items as AVX2 allows if the processor has it, or else as
/// many as every processor of its kind allows.
#[inline]
pub(crate) fn each<I: Iterator>(items: I, act: impl Fn(I::Item)) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { each_avx2(items, act) };
    }
    items.for_each(act);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_avx2<I: Iterator>(items: I, act: impl Fn(I::Item)) {
    items.for_each(act);
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Compares all reductions of many elements at a time with those of single elements.
    fn check<T: Element>(one: &[u8], other: &[u8]) {
        for reduction in [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Product] {
            let reduce = match reduction {
                Reduction::Sum | Reduction::Mean => T::sum,
                Reduction::Min => T::least,
                Reduction::Max => T::greatest,
                Reduction::Product => T::product,
            };
            let (into, terms) = (&mut elements::<T>(one), &mut elements::<T>(other));
            let reduced: Vec<T> = into.iter().zip(&*terms).map(|(one, other)| reduce(*one, *other)).collect();
            let expected = bytemuck::cast_slice::<T, u8>(&reduced);
            reducer::<T>(reduction)(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(terms));
            assert_eq!(bytemuck::cast_slice::<T, u8>(into), expected, "{reduction:?} into {:?}", T::TYPE);
            *into = elements(one);
            mutual_reducer::<T>(reduction)(bytemuck::cast_slice_mut(into), bytemuck::cast_slice_mut(terms));
            for place in [into, terms] {
                assert_eq!(bytemuck::cast_slice::<T, u8>(place), expected, "{reduction:?} into both {:?}", T::TYPE);
            }
        }
    }

    proptest! {
        #[test]
        fn many_elements_at_a_time_reduce_like_single_ones(
            (one, other) in (0..40_usize).prop_flat_map(|words| {
                let bytes = || prop::collection::vec(any::<u8>(), 8 * words);
                (bytes(), bytes())
            }),
        ) {
            check::<f32>(&one, &other);
            check::<f64>(&one, &other);
            check::<bf16>(&one, &other);
            check::<f16>(&one, &other);
            check::<i32>(&one, &other);
            check::<i64>(&one, &other);
            check::<u8>(&one, &other);
        }
    }
}
