//! Loops over channels: of few channels, several pixels are taken side by side, so that vectors are
//! full.

use super::{Cpu, linear, put};
use crate::{
    kernels::vectorised,
    op::{Accumulation, AddBias, BiasGradient, Channels, MicroBatch, Subsample, SubsampleBackward},
};

/// Elements that a loop takes at once, at the least.
const WIDE: usize = 64;
/// Rows whose sum is formed before it is added to that of the others: errors grow with the root of
/// both numbers.
pub(super) const RUN: usize = 128;

/// Elements of so many whole pixels that they fill vectors.
pub(super) fn width(channels: usize) -> usize {
    if channels >= WIDE {
        return channels;
    }
    let full = (1..=16).map(|pixels| pixels * channels).find(|elements| elements.is_multiple_of(16));
    let full = full.unwrap_or(channels);
    full * WIDE.div_ceil(full)
}

/// Repeats the channels' values as often as they fit.
pub(super) fn spread(values: &[f32], into: &mut [f32]) {
    into.chunks_exact_mut(values.len()).for_each(|copy| copy.copy_from_slice(values));
}

/// Adds up what belongs to one channel.
pub(super) fn folded(sums: &[f32], channels: usize, channel: usize) -> f32 {
    sums.iter().skip(channel).step_by(channels).sum()
}

pub(super) fn scratch_elements(channels: usize) -> usize {
    2 * width(channels)
}

pub(super) fn add_bias(cpu: &Cpu, operation: &AddBias, batch: &MicroBatch) {
    let AddBias { y, bias, relu } = operation;
    let mut y = cpu.write(*y, batch.samples);
    let bias = bias.map(|bias| cpu.view::<f32>(bias));
    match (bias.as_deref(), relu) {
        (Some(bias), true) => linear::add_and_cut(cpu.instructions, &mut y, bias),
        (Some(bias), false) => linear::add(cpu.instructions, &mut y, bias),
        (None, true) => linear::cut(cpu.instructions, &mut y),
        (None, false) => {}
    }
}

pub(super) fn bias_gradient(cpu: &Cpu, operation: &BiasGradient, batch: &MicroBatch) {
    let BiasGradient { dy, bias } = operation;
    let channels = dy.shape.channels;
    let mut scratch = cpu.scratch(scratch_elements(channels));
    let (total, run) = scratch.split_at_mut(width(channels));
    sums(cpu.instructions, &cpu.read(*dy, batch.samples), total, run);
    for (channel, sum) in cpu.lease::<f32>(bias.into).iter_mut().enumerate() {
        put(bias.now(batch), sum, folded(total, channels, channel));
    }
}

vectorised! {
    /// The sums over rows of `total.len()` elements.
    fn sums(values: &[f32], total: &mut [f32], run: &mut [f32]) {
        total.fill(0.0);
        for rows in values.chunks(total.len() * RUN) {
            run.fill(0.0);
            for row in rows.chunks(total.len()) {
                run.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            total.iter_mut().zip(run.iter()).for_each(|(total, sum)| *total += sum);
        }
    }
}

pub(super) fn copy(cpu: &Cpu, operation: &Channels, batch: &MicroBatch) {
    let Channels { from, first_from, into, first_into, count } = operation;
    let source = cpu.read(*from, batch.samples);
    let mut target = cpu.write(into.into, batch.samples);
    let rows = target.chunks_exact_mut(into.into.shape.channels).zip(source.chunks_exact(from.shape.channels));
    let parts =
        rows.map(|(to, from)| (&mut to[*first_into..first_into + count], &from[*first_from..first_from + count]));
    match into.now(batch) {
        Accumulation::Replace => parts.for_each(|(to, from)| to.copy_from_slice(from)),
        Accumulation::Add => parts.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += from)),
    }
}

pub(super) fn subsample(cpu: &Cpu, operation: &Subsample, batch: &MicroBatch) {
    let Subsample { x, y, stride, first } = operation;
    let (source, mut target) = (cpu.read(*x, batch.samples), cpu.write(*y, batch.samples));
    let inputs = x.shape.channels;
    let samples = target.chunks_exact_mut(y.shape.elements()).zip(source.chunks_exact(x.shape.elements()));
    for (to, from) in samples {
        for (place, to) in to.chunks_exact_mut(y.shape.channels).enumerate() {
            let (row, column) = (place / y.shape.width * stride, place % y.shape.width * stride);
            to.fill(0.0);
            to[*first..first + inputs].copy_from_slice(&from[(row * x.shape.width + column) * inputs..][..inputs]);
        }
    }
}

pub(super) fn subsample_backward(cpu: &Cpu, operation: &SubsampleBackward, batch: &MicroBatch) {
    let SubsampleBackward { dy, dx, stride, first } = operation;
    let (source, mut target) = (cpu.read(*dy, batch.samples), cpu.write(dx.into, batch.samples));
    if dx.now(batch) == Accumulation::Replace {
        target.fill(0.0);
    }
    let shape = dx.into.shape;
    let inputs = shape.channels;
    for (to, from) in target.chunks_exact_mut(shape.elements()).zip(source.chunks_exact(dy.shape.elements())) {
        for (place, from) in from.chunks_exact(dy.shape.channels).enumerate() {
            let (row, column) = (place / dy.shape.width * stride, place % dy.shape.width * stride);
            let to = &mut to[(row * shape.width + column) * inputs..][..inputs];
            to.iter_mut().zip(&from[*first..first + inputs]).for_each(|(to, from)| *to += from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_take_whole_pixels_and_fill_vectors() {
        for channels in (1..70).chain([100, 512]) {
            let width = width(channels);
            assert!(width.is_multiple_of(channels) && width >= WIDE.min(channels), "{channels}: {width}");
            assert!(channels >= WIDE || width.is_multiple_of(16), "{channels}: {width}");
        }
    }
}
