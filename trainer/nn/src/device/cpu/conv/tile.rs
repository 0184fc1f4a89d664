//! Register tiles: sums of `R` pixels (or taps) × `V` vectors of output channels, held over a whole
//! walk.

#![allow(unsafe_code, reason = "vector loads through pointers; the callers checked what the strides reach")]

use std::ops::Range;

use crate::kernels::simd::Simd;

/// Output channels of one packed panel.
pub(super) const PANEL: usize = 16;

/// `total` in as few parts of at most `most` as possible, of nearly equal size: first index and
/// size.
#[inline(always)]
pub(super) fn spread(total: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = total.div_ceil(most);
    (0..parts).map(move |part| {
        let (first, end) = (total * part / parts, total * (part + 1) / parts);
        (first, end - first)
    })
}

/// Runs the expression with the constant equal to the count, which is at most 16.
macro_rules! with_constant {
    ($count:expr, $name:ident, $body:expr) => {
        with_constant!(@arms $count, $name, $body, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    };
    (@arms $count:expr, $name:ident, $body:expr, $($value:literal)*) => {
        match $count {
            $($value => { const $name: usize = $value; $body })*
            count => unreachable!("a tile of {count}"),
        }
    };
}
pub(super) use with_constant;

/// Calls with 0 to `R` − 1. Unlike a loop, it is always unrolled, so that arrays indexed by it stay
/// in registers.
#[inline(always)]
pub(super) fn unrolled<const R: usize>(mut body: impl FnMut(usize)) {
    macro_rules! calls {
        ($($r:literal)*) => { $( if $r < R { body($r); } )* };
    }
    const { assert!(R <= 16) };
    calls!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// Offset of vector `v` in panels `panel` elements apart.
#[inline(always)]
pub(super) fn vector<S: Simd>(v: usize, panel: usize) -> usize {
    v * S::LANES / PANEL * panel + v * S::LANES % PANEL
}

/// The taps that every pixel of a tile walks through: `rows × segments` runs of `depth` adjacent
/// elements, and as many lines of packed weights, one after another.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) rows: usize,
    pub(super) row_step: usize,
    pub(super) segments: usize,
    pub(super) segment_step: usize,
    pub(super) depth: usize,
    /// Distance of neighbouring pixels.
    pub(super) pixel: usize,
    /// Elements of a packed panel.
    pub(super) panel: usize,
}

impl Walk {
    /// `Σ source · weights` for `R` neighbouring pixels.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the steps stay inside source and weights.
    #[inline(always)]
    pub(super) unsafe fn sums<S: Simd, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        weights: *const f32,
    ) -> [[S; V]; R] {
        let Walk { rows, row_step, segments, segment_step, depth, .. } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            let mut line = weights;
            for row in 0..rows {
                for segment in 0..segments {
                    let first = source.add(row * row_step + segment * segment_step);
                    self.run::<S, V, R>(first, line, 0..R, &mut sums);
                    line = line.add(depth * PANEL);
                }
            }
            sums
        }
    }

    /// The same where the first pixel finds zeros in the segments before `left`, and the last from
    /// `right` on: there these pixels are left out.
    ///
    /// # Safety
    /// As for [`Walk::sums`].
    #[inline(always)]
    pub(super) unsafe fn sums_inside<S: Simd, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        weights: *const f32,
        left: usize,
        right: usize,
    ) -> [[S; V]; R] {
        let Walk { rows, row_step, segments, segment_step, depth, .. } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            let mut line = weights;
            for row in 0..rows {
                for segment in 0..segments {
                    let first = source.add(row * row_step + segment * segment_step);
                    if segment < left {
                        self.run::<S, V, R>(first, line, 1..R, &mut sums);
                    } else if segment >= right {
                        self.run::<S, V, R>(first, line, 0..R - 1, &mut sums);
                    } else {
                        self.run::<S, V, R>(first, line, 0..R, &mut sums);
                    }
                    line = line.add(depth * PANEL);
                }
            }
            sums
        }
    }

    /// One run of adjacent elements, added to the sums of the pixels `which`, a constant range.
    ///
    /// # Safety
    /// As for [`Walk::sums`].
    #[inline(always)]
    unsafe fn run<S: Simd, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        weights: *const f32,
        which: Range<usize>,
        sums: &mut [[S; V]; R],
    ) {
        // A pointer for every five pixels: the rest are a few distances away.
        let starts: [*const f32; 4] = std::array::from_fn(|five| source.wrapping_add(five * 5 * self.pixel));
        let mut line = weights;
        // SAFETY: the caller's promise.
        unsafe {
            for k in 0..self.depth {
                let mut factors = [S::splat(0.0); V];
                for v in 0..V {
                    factors[v] = S::load(line.add(vector::<S>(v, self.panel)));
                }
                unrolled::<R>(|r| {
                    if which.contains(&r) {
                        let value = S::splat(*starts[r / 5].add(r % 5 * self.pixel + k));
                        for v in 0..V {
                            sums[r][v] = value.dot(factors[v], sums[r][v]);
                        }
                    }
                });
                line = line.add(PANEL);
            }
        }
    }
}
