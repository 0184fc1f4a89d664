//! The last operations on sums before they are written.

#![allow(unsafe_code, reason = "vector loads and stores through pointers")]

use super::tile::{PANEL, unrolled};
use crate::device::Accumulation;
use crate::kernels::simd::Simd;
use crate::kernels::stored::Stored;

/// What happens to a sum before it is written: `relu(scale · sum + shift (+ what was there))`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finish<'a> {
    /// One factor for each output channel, or 1.
    pub scale: Option<&'a [f32]>,
    /// One addend for each output channel, or 0: a bias, for example.
    pub shift: Option<&'a [f32]>,
    /// True if `max(0, x)` comes last.
    pub relu: bool,
}

impl Finish<'_> {
    fn is_none(&self) -> bool {
        let Finish { scale, shift, relu } = self;
        scale.is_none() && shift.is_none() && !relu
    }

    /// A vector of sums from `channel` on; `add` comes before the ReLU.
    ///
    /// # Safety
    /// The core has the instructions of `S`; factors and addends hold the channels.
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, channel: usize, sums: S, add: impl Fn(S) -> S) -> S {
        // SAFETY: the caller's promise.
        unsafe {
            let shift = self.shift.map_or(S::splat(0.0), |shift| S::load(shift[channel..].as_ptr()));
            let value = match self.scale {
                None => sums.add(shift),
                Some(scale) => sums.mul_add(S::load(scale[channel..].as_ptr()), shift),
            };
            let value = add(value);
            if self.relu { value.relu() } else { value }
        }
    }

    /// One pixel's channels from `channel` on.
    #[inline(always)]
    pub(super) fn write<T: Stored>(
        &self,
        accumulation: Accumulation,
        channel: usize,
        sum: impl Fn(usize) -> f32,
        target: &mut [T],
    ) {
        for (lane, target) in target.iter_mut().enumerate() {
            let scale = self.scale.map_or(1.0, |scale| scale[channel + lane]);
            let shift = self.shift.map_or(0.0, |shift| shift[channel + lane]);
            let mut value = sum(lane) * scale + shift;
            if accumulation == Accumulation::Add {
                value += target.get();
            }
            *target = T::of(if self.relu && value <= 0.0 { 0.0 } else { value });
        }
    }
}

/// The memory for the sums of a tile.
pub(super) struct Written<'a> {
    pub(super) finish: Finish<'a>,
    pub(super) accumulation: Accumulation,
    /// The first channel, and how many from there exist.
    pub(super) channel: usize,
    pub(super) channels: usize,
    /// Distance of neighbouring pixels.
    pub(super) pixel: usize,
}

impl Written<'_> {
    /// Fetches the lines of some pixels before they are written.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the target holds the pixels.
    #[inline(always)]
    pub(super) unsafe fn fetch<S: Simd, T: Stored, const V: usize>(&self, target: *const T, pixels: usize) {
        for pixel in 0..pixels {
            for first in (0..V).map(|v| v * S::LANES) {
                if first.is_multiple_of(PANEL) && first < self.channels {
                    // SAFETY: the caller's promise.
                    unsafe { S::prefetch_to_write(target.add(pixel * self.pixel + first).cast()) };
                }
            }
        }
    }

    /// Writes the sums of a tile.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the target holds `R` pixels, and `finish` the
    /// channels.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd, T: Stored, const V: usize, const R: usize>(
        &self,
        sums: [[S; V]; R],
        target: *mut T,
    ) {
        let Written { finish, accumulation, channel, channels, pixel } = self;
        let plain = finish.is_none() && *accumulation == Accumulation::Replace;
        // SAFETY: the caller's promise.
        unsafe {
            if plain && *channels == V * S::LANES {
                unrolled::<R>(|r| (0..V).for_each(|v| T::store(sums[r][v], target.add(r * pixel + v * S::LANES))));
                return;
            }
            let mut lines = [[0.0; 2 * PANEL]; R];
            unrolled::<R>(|r| (0..V).for_each(|v| sums[r][v].store(lines[r].as_mut_ptr().add(v * S::LANES))));
            for (r, line) in lines.iter().enumerate() {
                let target = target.add(r * pixel);
                let mut first = 0;
                while first + S::LANES <= *channels {
                    let value =
                        finish.apply(*channel + first, S::load(line.as_ptr().add(first)), |value| match accumulation {
                            Accumulation::Replace => value,
                            Accumulation::Add => value.add(T::load(target.add(first))),
                        });
                    T::store(value, target.add(first));
                    first += S::LANES;
                }
                let target = std::slice::from_raw_parts_mut(target.add(first), channels - first);
                finish.write(*accumulation, channel + first, |lane| line[first + lane], target);
            }
        }
    }
}
