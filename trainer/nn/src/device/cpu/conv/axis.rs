//! One axis, rows or columns, of a correlation:
//! `target[j] = Σₜ source[offset + stride·j + dilation·t] · w[t]`.
//!
//! Both directions are such correlations. Forward has `offset = −padding` and reads the kernel from
//! its first tap. The input's gradient splits into `stride` phases: input positions `q + stride·j`
//! meet only the taps `k` with `q + padding − k·dilation` divisible by the stride, from the last to
//! the first, and step through the output's gradient one by one (Dumoulin and Visin 2016, §4.5,
//! without the zeros in between).

use std::ops::Range;

/// Positions along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    /// Source positions that exist; taps outside read zero.
    pub(super) size: usize,
    /// Target positions.
    pub(super) targets: usize,
    pub(super) taps: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// Source position of the first tap of target 0.
    pub(super) offset: isize,
    /// Kernel position of the first tap, and the step to the next.
    pub(super) kernel_first: usize,
    pub(super) kernel_step: isize,
    /// The target's position in its tensor is `place + spacing · j`.
    pub(super) place: usize,
    pub(super) spacing: usize,
}

impl Axis {
    /// The output from the input.
    pub(super) fn forward(input: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> Option<Axis> {
        let targets = (input + 2 * padding).checked_sub(dilation * (kernel - 1) + 1)? / stride + 1;
        Some(Axis {
            size: input,
            targets,
            taps: kernel,
            stride,
            dilation,
            offset: -(padding as isize),
            kernel_first: 0,
            kernel_step: 1,
            place: 0,
            spacing: 1,
        })
    }

    /// The input's gradient from the output's: one axis for each phase that has positions.
    pub(super) fn backward(forward: Axis) -> Vec<Axis> {
        let Axis { size: input, targets: output, taps: kernel, stride, dilation, offset, .. } = forward;
        let step = stride / greatest_common_divisor(stride, dilation);
        let phase = |place: usize| {
            let from_first_tap = |tap: usize| place as isize - offset - (tap * dilation) as isize;
            let least = (0..step.min(kernel)).find(|tap| from_first_tap(*tap).rem_euclid(stride as isize) == 0);
            let taps = least.map_or(0, |least| (kernel - least).div_ceil(step));
            let least = least.unwrap_or(0);
            let between = dilation * step / stride;
            let span = (taps.max(1) - 1) * between;
            Axis {
                size: output,
                targets: (input - place).div_ceil(stride),
                taps,
                stride: 1,
                dilation: between,
                offset: from_first_tap(least).div_euclid(stride as isize) - span as isize,
                kernel_first: least + (taps.max(1) - 1) * step,
                kernel_step: -(step as isize),
                place,
                spacing: stride,
            }
        };
        (0..stride.min(input)).map(phase).collect()
    }

    /// Distance of the source positions that are read at all.
    pub(super) fn step(&self) -> usize {
        if self.taps == 1 { self.stride } else { greatest_common_divisor(self.stride, self.dilation) }
    }

    /// Distance of neighbouring targets, counted in positions that are read.
    pub(super) fn read_stride(&self) -> usize {
        self.stride / self.step()
    }

    /// Distance of neighbouring taps, counted in positions that are read.
    pub(super) fn read_dilation(&self) -> usize {
        if self.taps == 1 { 0 } else { self.dilation / self.step() }
    }

    /// Positions that `targets` neighbouring targets read, those outside included.
    pub(super) fn read_by(&self, targets: usize) -> usize {
        (targets - 1) * self.read_stride() + (self.taps - 1) * self.read_dilation() + 1
    }

    /// True if no tap lies outside.
    pub(super) fn stays_inside(&self) -> bool {
        let last = self.offset + ((self.targets - 1) * self.stride + (self.taps - 1) * self.dilation) as isize;
        self.offset >= 0 && last < self.size as isize
    }

    /// Taps of a target that do not lie outside.
    pub(super) fn taps_inside(&self, target: usize) -> Range<usize> {
        let first = self.offset + (target * self.stride) as isize;
        inside(first, self.dilation, self.size, 0..self.taps)
    }

    /// Those of some targets for which a tap does not lie outside.
    pub(super) fn targets_inside(&self, tap: usize, targets: Range<usize>) -> Range<usize> {
        let first = self.offset + (tap * self.dilation) as isize;
        inside(first, self.stride, self.size, targets)
    }

    /// The kernel position of a tap.
    pub(super) fn kernel(&self, tap: usize) -> usize {
        self.kernel_first.wrapping_add_signed(self.kernel_step * tap as isize)
    }
}

/// Those of `all` with `first + step · index` in `0..size`; if there are none, an empty range at
/// the start.
fn inside(first: isize, step: usize, size: usize, all: Range<usize>) -> Range<usize> {
    let least = |bound: isize| (bound - first).max(0) as usize;
    let (start, end) = (least(0).div_ceil(step), least(size as isize).div_ceil(step));
    let (start, end) = (start.max(all.start), end.min(all.end));
    if start < end { start..end } else { all.start..all.start }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every (input, output, tap) of an axis, in order.
    fn meetings(axis: Axis, backward: bool) -> Vec<(usize, usize, usize)> {
        let mut all = Vec::new();
        for target in 0..axis.targets {
            for tap in 0..axis.taps {
                let source = axis.offset + (axis.stride * target + axis.dilation * tap) as isize;
                if (0..axis.size as isize).contains(&source) {
                    let place = axis.place + axis.spacing * target;
                    let (input, output) = if backward { (place, source as usize) } else { (source as usize, place) };
                    all.push((input, output, axis.kernel(tap)));
                }
            }
        }
        all
    }

    #[test]
    fn the_phases_meet_exactly_what_forward_meets() {
        for input in 1..9 {
            for kernel in 1..5 {
                for stride in 1..5 {
                    for padding in 0..4 {
                        for dilation in 1..5 {
                            let Some(axis) = Axis::forward(input, kernel, stride, padding, dilation) else { continue };
                            let mut forward = meetings(axis, false);
                            let mut backward: Vec<_> =
                                Axis::backward(axis).into_iter().flat_map(|phase| meetings(phase, true)).collect();
                            forward.sort_unstable();
                            backward.sort_unstable();
                            assert_eq!(forward, backward, "{axis:?}");
                        }
                    }
                }
            }
        }
    }
}
