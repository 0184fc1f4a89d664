//! Copies of blocks: their rows with zeros left and right, and of one group's channels only.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use super::correlation::{Block, Correlation, Strides};
use super::tile::unrolled;
use crate::kernels::simd::Simd;

impl Correlation {
    /// Copies channels `channel..channel + depth` of what a block reads, with zeros left and right
    /// where nothing is. Rows above and below stay as they are: no tap reads them.
    ///
    /// # Safety
    /// The core has the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn copy<S: Simd>(
        &self,
        source: &[f32],
        block: Block,
        channel: usize,
        depth: usize,
        copy: &mut [f32],
    ) -> Strides {
        let Correlation { y, x, .. } = self;
        let channels = self.groups * self.depth;
        let strides = self.copied(depth, block.rows);
        let columns = x.read_by(x.targets);
        let step = x.step() as isize;
        // Columns from `left` to `right` exist.
        let left = ((-x.offset).max(0) + step - 1) / step;
        let right = (x.size as isize - x.offset + step - 1).div_euclid(step);
        let left = (left as usize).min(columns);
        let right = (right.max(0) as usize).clamp(left, columns);
        let first = (x.offset + left as isize * step).max(0) as usize;
        for image in 0..block.images {
            for row in 0..y.read_by(block.rows) {
                let line = &mut copy[image * strides.image + row * strides.row..][..strides.row];
                let from = y.offset + (block.row * y.stride + row * y.step()) as isize;
                if !(0..y.size as isize).contains(&from) {
                    continue;
                }
                line[..left * strides.pixel].fill(0.0);
                line[right * strides.pixel..].fill(0.0);
                let line = &mut line[left * strides.pixel..right * strides.pixel];
                if line.is_empty() {
                    continue;
                }
                let from = (((block.image + image) * y.size + from as usize) * x.size + first) * channels + channel;
                let source = &source[from..];
                let pixels = right - left;
                assert!(source.len() >= (pixels - 1) * x.step() * channels + depth, "{pixels} pixels from {from}");
                // SAFETY: the line holds whole pixels of at least `depth` channels; the source was
                // just measured.
                unsafe {
                    if strides.pixel == channels && x.step() == 1 {
                        copy_line::<S>(source.as_ptr(), line.as_mut_ptr(), pixels * depth);
                        continue;
                    }
                    for pixel in 0..pixels {
                        let source = source.as_ptr().add(pixel * x.step() * channels);
                        copy_line::<S>(source, line.as_mut_ptr().add(pixel * strides.pixel), depth);
                    }
                }
            }
        }
        strides
    }
}

/// Copies `count` elements; for lines of a few kilobytes, in vectors, this is faster than the
/// library's copy.
///
/// # Safety
/// The core has the instructions of `S`; both sides hold the elements and do not overlap.
#[inline(always)]
unsafe fn copy_line<S: Simd>(from: *const f32, to: *mut f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut done = 0;
        // Four at a time, which the compiler does not take for a call of the library.
        while done + 4 * S::LANES <= count {
            let values: [S; 4] = std::array::from_fn(|v| S::load(from.add(done + v * S::LANES)));
            unrolled::<4>(|v| values[v].store(to.add(done + v * S::LANES)));
            done += 4 * S::LANES;
        }
        while done + S::LANES <= count {
            S::load(from.add(done)).store(to.add(done));
            done += S::LANES;
        }
        for index in done..count {
            *to.add(index) = *from.add(index);
        }
    }
}
