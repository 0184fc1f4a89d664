//! Poolings: the window's pixels in turn, all channels of one at once.

use super::Cpu;
use crate::{
    kernels::vectorised,
    op::{Accumulation, AveragePool, AveragePoolBackward, MaxPool, MaxPoolBackward, MicroBatch, Window},
    shape::Shape,
};

/// Calls with each pixel of the input under a place of the window, row by row.
#[inline(always)]
fn under(window: Window, input: Shape, [row, column]: [usize; 2], mut each: impl FnMut(usize)) {
    let Window { kernel, stride, padding, dilation } = window;
    for i in 0..kernel[0] {
        // Beyond the first edge the difference wraps to a number beyond the second.
        let y = (row * stride[0] + i * dilation[0]).wrapping_sub(padding[0]);
        if y >= input.height {
            continue;
        }
        for j in 0..kernel[1] {
            let x = (column * stride[1] + j * dilation[1]).wrapping_sub(padding[1]);
            if x < input.width {
                each(y * input.width + x);
            }
        }
    }
}

pub(super) fn maximum(cpu: &Cpu, operation: &MaxPool, batch: &MicroBatch) {
    let MaxPool { x, y, window, switches } = operation;
    let elements = batch.samples * y.shape.elements();
    let (source, mut target) = (cpu.read(*x, batch.samples), cpu.write(*y, batch.samples));
    let mut switches = cpu.lease::<u32>(switches.part(0..elements));
    let samples = source.chunks_exact(x.shape.elements()).zip(target.chunks_exact_mut(y.shape.elements()));
    for ((x_sample, y_sample), switches) in samples.zip(switches.chunks_exact_mut(y.shape.elements())) {
        maximum_of_sample(cpu.instructions, x_sample, y_sample, switches, x.shape, y.shape, *window);
    }
}

vectorised! {
    fn maximum_of_sample(
        x: &[f32],
        y: &mut [f32],
        switches: &mut [u32],
        input: Shape,
        output: Shape,
        window: Window,
    ) {
        let channels = input.channels;
        let places = y.chunks_exact_mut(channels).zip(switches.chunks_exact_mut(channels)).enumerate();
        for (place, (best, switches)) in places {
            best.fill(f32::NEG_INFINITY);
            switches.fill(u32::MAX);
            under(window, input, [place / output.width, place % output.width], |pixel| {
                let values = &x[pixel * channels..][..channels];
                for ((best, switch), value) in best.iter_mut().zip(switches.iter_mut()).zip(values) {
                    // Not a number wins over all, and stays.
                    let wins = *value > *best || value.is_nan();
                    *switch = if wins { pixel as u32 } else { *switch };
                    *best = if wins { *value } else { *best };
                }
            });
        }
    }
}

pub(super) fn maximum_backward(cpu: &Cpu, operation: &MaxPoolBackward, batch: &MicroBatch) {
    let MaxPoolBackward { dy, switches, dx } = operation;
    let (shape, channels) = (dx.into.shape, dy.shape.channels);
    let elements = batch.samples * dy.shape.elements();
    let (source, mut target) = (cpu.read(*dy, batch.samples), cpu.write(dx.into, batch.samples));
    let switches = cpu.view::<u32>(switches.part(0..elements));
    if dx.now(batch) == Accumulation::Replace {
        target.fill(0.0);
    }
    let samples = target.chunks_exact_mut(shape.elements()).zip(source.chunks_exact(dy.shape.elements()));
    for ((dx, dy), switches) in samples.zip(switches.chunks_exact(dy.shape.elements())) {
        for (dy, switches) in dy.chunks_exact(channels).zip(switches.chunks_exact(channels)) {
            for (channel, (dy, pixel)) in dy.iter().zip(switches).enumerate() {
                // All of a window may be −∞: then no pixel gets its gradient.
                if let Some(dx) = dx.get_mut(*pixel as usize * channels + channel) {
                    *dx += dy;
                }
            }
        }
    }
}

pub(super) fn average(cpu: &Cpu, operation: &AveragePool, batch: &MicroBatch) {
    let AveragePool { x, y, window } = operation;
    let (source, mut target) = (cpu.read(*x, batch.samples), cpu.write(*y, batch.samples));
    let samples = source.chunks_exact(x.shape.elements()).zip(target.chunks_exact_mut(y.shape.elements()));
    samples.for_each(|(x_sample, y_sample)| {
        average_of_sample(cpu.instructions, x_sample, y_sample, x.shape, y.shape, *window);
    });
}

vectorised! {
    fn average_of_sample(x: &[f32], y: &mut [f32], input: Shape, output: Shape, window: Window) {
        let (channels, share) = (input.channels, 1.0 / (window.kernel[0] * window.kernel[1]) as f32);
        for (place, sums) in y.chunks_exact_mut(channels).enumerate() {
            sums.fill(0.0);
            under(window, input, [place / output.width, place % output.width], |pixel| {
                sums.iter_mut().zip(&x[pixel * channels..]).for_each(|(sum, value)| *sum += value);
            });
            sums.iter_mut().for_each(|sum| *sum *= share);
        }
    }
}

pub(super) fn average_backward(cpu: &Cpu, operation: &AveragePoolBackward, batch: &MicroBatch) {
    let AveragePoolBackward { dy, window, dx } = operation;
    let (source, mut target) = (cpu.read(*dy, batch.samples), cpu.write(dx.into, batch.samples));
    if dx.now(batch) == Accumulation::Replace {
        target.fill(0.0);
    }
    let shape = dx.into.shape;
    let samples = target.chunks_exact_mut(shape.elements()).zip(source.chunks_exact(dy.shape.elements()));
    samples.for_each(|(dx, gradient)| {
        share_of_sample(cpu.instructions, dx, gradient, shape, dy.shape, *window);
    });
}

vectorised! {
    fn share_of_sample(dx: &mut [f32], dy: &[f32], input: Shape, output: Shape, window: Window) {
        let (channels, share) = (input.channels, 1.0 / (window.kernel[0] * window.kernel[1]) as f32);
        for (place, dy) in dy.chunks_exact(channels).enumerate() {
            under(window, input, [place / output.width, place % output.width], |pixel| {
                dx[pixel * channels..].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += share * dy);
            });
        }
    }
}
