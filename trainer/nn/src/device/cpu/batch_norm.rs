//! Batch norm over groups of samples; see [`crate::layers::BatchNorm`] for the formulas.
//!
//! One pass sums `x − s` and its square for each channel, where `s` is the group's first pixel:
//! close enough to the mean that little is lost by `σ² = mean((x − s)²) − mean(x − s)²`. The next
//! computes `y = a·x + b`. Backward sums `dy` and `dy·(x − μ)` in one pass and writes
//! `dx = p·dy + q·x + r` in the next. Where a ReLU follows, its sign is that of `a·x + b`, computed
//! as forward did.

use std::ops::Range;

use super::{
    Cpu,
    channels::{RUN, folded, spread, width},
    put,
    staging::all_bf16,
};
use crate::{
    device::Region,
    kernels::{
        stored::{Bf16, Stored},
        vectorised,
    },
    op::{Accumulation, BatchNorm, BatchNormBackward, BatchNormFixed, MicroBatch},
};

/// Rows of scratch memory: coefficients, and sums of two levels.
const ROWS: usize = 9;

pub(super) fn scratch_elements(channels: usize) -> usize {
    ROWS * width(channels)
}

/// The elements of each group's samples.
fn groups(cpu: &Cpu, ends: Region, batch: &MicroBatch, sample: usize) -> impl Iterator<Item = Range<usize>> {
    let ends = cpu.view::<u32>(ends);
    (0..batch.groups).map(move |group| {
        let start = if group == 0 { 0 } else { ends[group - 1] as usize };
        start * sample..ends[group] as usize * sample
    })
}

/// `a` and `b` of `y = a·x + b`.
fn coefficients(mean: f32, variance: f32, epsilon: f32, weight: f32, bias: f32) -> (f32, f32) {
    let a = weight / (variance + epsilon).sqrt();
    (a, bias - mean * a)
}

pub(super) fn forward(cpu: &Cpu, operation: &BatchNorm, batch: &MicroBatch) {
    let BatchNorm { x, y, .. } = operation;
    if let Some([x, y]) = all_bf16(batch.samples, [x, y]) {
        return forward_of::<Bf16>(cpu, operation, batch, &cpu.view(x), &mut cpu.lease(y));
    }
    let (x, mut y) = (cpu.read(*x, batch.samples), cpu.write_all(*y, batch.samples, Accumulation::Replace));
    forward_of::<f32>(cpu, operation, batch, &x, &mut y);
}

fn forward_of<T: Stored>(cpu: &Cpu, operation: &BatchNorm, batch: &MicroBatch, values: &[T], target: &mut [T]) {
    let BatchNorm { x, weight, bias, kept, ends, epsilon, relu, .. } = operation;
    let (channels, wide) = (x.shape.channels, width(x.shape.channels));
    let (weight, bias) = (cpu.view::<f32>(*weight), cpu.view::<f32>(*bias));
    let (mut kept, mut scratch) = (cpu.lease::<f32>(*kept), cpu.scratch(scratch_elements(channels)));
    let ranges = groups(cpu, *ends, batch, x.shape.elements());
    for (range, kept) in ranges.zip(kept.chunks_exact_mut(2 * channels)) {
        let values = &values[range.clone()];
        let [shift, first, second, first_run, second_run, ..] = rows(&mut scratch, wide);
        let first_pixel = values[..channels].iter().copied().map(Stored::get);
        shift.iter_mut().zip(first_pixel).for_each(|(shift, value)| *shift = value);
        repeat(shift, channels);
        moments(cpu.instructions, values, shift, [&mut *first, &mut *second], [first_run, second_run]);
        let count = (values.len() / channels) as f32;
        let (mean, variance) = kept.split_at_mut(channels);
        for channel in 0..channels {
            let from_shift = folded(first, channels, channel) / count;
            let square = folded(second, channels, channel) / count;
            mean[channel] = shift[channel] + from_shift;
            // Rounding may leave a little less than nothing.
            variance[channel] = square - from_shift * from_shift;
            if variance[channel] < 0.0 {
                variance[channel] = 0.0;
            }
        }
        let [a, b, ..] = rows(&mut scratch, wide);
        for channel in 0..channels {
            let (mean, variance) = (mean[channel], variance[channel]);
            (a[channel], b[channel]) = coefficients(mean, variance, *epsilon, weight[channel], bias[channel]);
        }
        repeat(a, channels);
        repeat(b, channels);
        scale(cpu.instructions, &mut target[range], values, a, b, *relu);
    }
}

pub(super) fn forward_fixed(cpu: &Cpu, operation: &BatchNormFixed, batch: &MicroBatch) {
    let BatchNormFixed { x, y, weight, bias, mean, variance, epsilon, relu } = operation;
    let (channels, wide) = (x.shape.channels, width(x.shape.channels));
    let [weight, bias, mean, variance] = [weight, bias, mean, variance].map(|region| cpu.view::<f32>(*region));
    let mut scratch = cpu.scratch(scratch_elements(channels));
    let [a, b, ..] = rows(&mut scratch, wide);
    for channel in 0..channels {
        let (mean, variance) = (mean[channel], variance[channel]);
        (a[channel], b[channel]) = coefficients(mean, variance, *epsilon, weight[channel], bias[channel]);
    }
    repeat(a, channels);
    repeat(b, channels);
    let (values, mut target) = (cpu.read(*x, batch.samples), cpu.write_all(*y, batch.samples, Accumulation::Replace));
    scale(cpu.instructions, &mut target, &values, a, b, *relu);
}

pub(super) fn backward(cpu: &Cpu, operation: &BatchNormBackward, batch: &MicroBatch) {
    let BatchNormBackward { x, dy, dx, .. } = operation;
    let into = dx.as_ref().map_or(x, |dx| &dx.into);
    if let Some([x, dy, into]) = all_bf16(batch.samples, [x, dy, into]) {
        let mut target = dx.as_ref().map(|_| cpu.lease(into));
        return backward_of::<Bf16>(cpu, operation, batch, [&cpu.view(x), &cpu.view(dy)], target.as_deref_mut());
    }
    let (values, gradients) = (cpu.read(*x, batch.samples), cpu.read(*dy, batch.samples));
    let mut target = dx.as_ref().map(|dx| cpu.write_all(dx.into, batch.samples, dx.now(batch)));
    backward_of::<f32>(cpu, operation, batch, [&values, &gradients], target.as_deref_mut());
}

fn backward_of<T: Stored>(
    cpu: &Cpu,
    operation: &BatchNormBackward,
    batch: &MicroBatch,
    [values, gradients]: [&[T]; 2],
    mut target: Option<&mut [T]>,
) {
    let BatchNormBackward { x, weight, bias, kept, ends, epsilon, relu, dx, .. } = operation;
    let (channels, wide) = (x.shape.channels, width(x.shape.channels));
    let (weights, biases, kept) = (cpu.view::<f32>(*weight), cpu.view::<f32>(*bias), cpu.view::<f32>(*kept));
    let accumulation = dx.as_ref().map_or(Accumulation::Replace, |dx| dx.now(batch));
    let mut scratch = cpu.scratch(scratch_elements(channels));
    let mut sums = Sums::new(cpu, operation, batch);
    let ranges = groups(cpu, *ends, batch, x.shape.elements());
    for (range, kept) in ranges.zip(kept.chunks_exact(2 * channels)) {
        let (values, gradients) = (&values[range.clone()], &gradients[range.clone()]);
        let (mean, variance) = kept.split_at(channels);
        let count = values.len() / channels;
        let [a, b, means, first, second, first_run, second_run, q, r] = rows(&mut scratch, wide);
        for channel in 0..channels {
            let (mean, variance) = (mean[channel], variance[channel]);
            (a[channel], b[channel]) = coefficients(mean, variance, *epsilon, weights[channel], biases[channel]);
        }
        repeat(a, channels);
        repeat(b, channels);
        spread(mean, means);
        let shape = Shape { a, b, means, relu: *relu };
        products(cpu.instructions, values, gradients, shape, [&mut *first, &mut *second], [first_run, second_run]);
        for channel in 0..channels {
            let inverse = 1.0 / (variance[channel] + epsilon).sqrt();
            let total = folded(first, channels, channel);
            let along = folded(second, channels, channel) * inverse;
            sums.add(channel, along, total, mean[channel], variance[channel], count);
            // x̂ = (x − μ)·inverse, so q takes −p·inverse·mean(dy·x̂) for each x and r what is left
            // of it.
            let (p, count) = (weights[channel] * inverse, count as f32);
            q[channel] = -p * inverse * along / count;
            r[channel] = -p * total / count - q[channel] * mean[channel];
        }
        repeat(q, channels);
        repeat(r, channels);
        if let Some(target) = &mut target {
            let shape = Shape { a, b, means, relu: *relu };
            spread_back(cpu.instructions, &mut target[range], values, gradients, shape, [&*q, &*r], accumulation);
        }
    }
}

/// What the groups of a micro-batch add to gradients and statistics.
struct Sums {
    places: [crate::arena::Lease; 4],
    accumulations: [Accumulation; 4],
    /// Samples of the group, as a share of the global batch, for each pixel.
    share_of_a_pixel: f32,
}

impl Sums {
    fn new(cpu: &Cpu, operation: &BatchNormBackward, batch: &MicroBatch) -> Sums {
        let BatchNormBackward { x, weight_gradient, bias_gradient, mean, variance, .. } = operation;
        let sums = [weight_gradient, bias_gradient, mean, variance];
        let places = sums.map(|sum| cpu.lease::<f32>(sum.into));
        let accumulations = sums.map(|sum| sum.now(batch));
        Sums { places, accumulations, share_of_a_pixel: batch.scale / x.shape.pixels() as f32 }.begun()
    }

    /// The first group replaces what is there.
    fn begun(mut self) -> Sums {
        for (place, accumulation) in self.places.iter_mut().zip(&mut self.accumulations) {
            if std::mem::replace(accumulation, Accumulation::Add) == Accumulation::Replace {
                place.fill(0.0);
            }
        }
        self
    }

    fn add(&mut self, channel: usize, weight: f32, bias: f32, mean: f32, variance: f32, count: usize) {
        let share = self.share_of_a_pixel * count as f32;
        let unbiased = variance * (count as f32 / (count.max(2) - 1) as f32);
        let terms = [weight, bias, share * mean, share * unbiased];
        for ((place, accumulation), term) in self.places.iter_mut().zip(self.accumulations).zip(terms) {
            put(accumulation, &mut place[channel], term);
        }
    }
}

/// Scratch memory in rows.
fn rows(scratch: &mut [f32], wide: usize) -> [&mut [f32]; ROWS] {
    let mut rest = scratch;
    [(); ROWS].map(|()| {
        let (row, further) = std::mem::take(&mut rest).split_at_mut(wide);
        rest = further;
        row
    })
}

/// Copies the first channels over the whole row.
fn repeat(row: &mut [f32], channels: usize) {
    let (first, rest) = row.split_at_mut(channels);
    spread(first, rest);
}

vectorised! {
    /// `Σ (x − s)` and `Σ (x − s)²` over rows.
    fn moments<T: Stored>(values: &[T], shift: &[f32], totals: [&mut [f32]; 2], runs: [&mut [f32]; 2]) {
        let ([first, second], [first_run, second_run]) = (totals, runs);
        first.fill(0.0);
        second.fill(0.0);
        for rows in values.chunks(shift.len() * RUN) {
            first_run.fill(0.0);
            second_run.fill(0.0);
            for row in rows.chunks(shift.len()) {
                let sums = first_run.iter_mut().zip(second_run.iter_mut());
                for (((first, second), value), shift) in sums.zip(row).zip(shift) {
                    let value = value.get() - shift;
                    *first += value;
                    *second += value * value;
                }
            }
            first.iter_mut().zip(first_run.iter()).for_each(|(total, sum)| *total += sum);
            second.iter_mut().zip(second_run.iter()).for_each(|(total, sum)| *total += sum);
        }
    }
}

vectorised! {
    /// `y = a·x + b`, cut off below 0 where asked for.
    fn scale<T: Stored>(y: &mut [T], x: &[T], a: &[f32], b: &[f32], relu: bool) {
        for (y, x) in y.chunks_mut(a.len()).zip(x.chunks(a.len())) {
            let elements = y.iter_mut().zip(x).zip(a.iter().zip(b));
            if relu {
                elements.for_each(|((y, x), (a, b))| {
                    let value = x.get() * a + b;
                    *y = T::of(if value <= 0.0 { 0.0 } else { value });
                });
            } else {
                elements.for_each(|((y, x), (a, b))| *y = T::of(x.get() * a + b));
            }
        }
    }
}

/// Coefficients of each channel, repeated.
#[derive(Clone, Copy)]
struct Shape<'a> {
    a: &'a [f32],
    b: &'a [f32],
    means: &'a [f32],
    relu: bool,
}

vectorised! {
    /// `Σ dy` and `Σ dy·(x − μ)` over rows, `dy` cut off where `a·x + b` was.
    fn products<T: Stored>(x: &[T], dy: &[T], shape: Shape<'_>, totals: [&mut [f32]; 2], runs: [&mut [f32]; 2]) {
        let ([first, second], [first_run, second_run]) = (totals, runs);
        let Shape { a, b, means, relu } = shape;
        first.fill(0.0);
        second.fill(0.0);
        for (x, dy) in x.chunks(a.len() * RUN).zip(dy.chunks(a.len() * RUN)) {
            first_run.fill(0.0);
            second_run.fill(0.0);
            for (x, dy) in x.chunks(a.len()).zip(dy.chunks(a.len())) {
                let sums = first_run.iter_mut().zip(second_run.iter_mut());
                let elements = sums.zip(x.iter().zip(dy)).zip(a.iter().zip(b).zip(means));
                if relu {
                    for (((first, second), (x, dy)), ((a, b), mean)) in elements {
                        let (x, dy) = (x.get(), dy.get());
                        let dy = if x * a + b > 0.0 { dy } else { 0.0 };
                        *first += dy;
                        *second += dy * (x - mean);
                    }
                } else {
                    for (((first, second), (x, dy)), (_, mean)) in elements {
                        let (x, dy) = (x.get(), dy.get());
                        *first += dy;
                        *second += dy * (x - mean);
                    }
                }
            }
            first.iter_mut().zip(first_run.iter()).for_each(|(total, sum)| *total += sum);
            second.iter_mut().zip(second_run.iter()).for_each(|(total, sum)| *total += sum);
        }
    }
}

vectorised! {
    /// `dx = a·dy + q·x + r`, where `a = γ/√(σ² + ε)` is also forward's factor.
    fn spread_back<T: Stored>(
        dx: &mut [T],
        x: &[T],
        dy: &[T],
        shape: Shape<'_>,
        coefficients: [&[f32]; 2],
        accumulation: Accumulation,
    ) {
        let (Shape { a, b, relu, .. }, [q, r]) = (shape, coefficients);
        let wide = a.len();
        for ((dx, x), dy) in dx.chunks_mut(wide).zip(x.chunks(wide)).zip(dy.chunks(wide)) {
            let factors = a.iter().zip(b).zip(q.iter().zip(r));
            let elements = dx.iter_mut().zip(x.iter().zip(dy)).zip(factors);
            match (accumulation, relu) {
                (Accumulation::Replace, true) => {
                    for ((dx, (x, dy)), ((a, b), (q, r))) in elements {
                        let (x, dy) = (x.get(), dy.get());
                        let dy = if x * a + b > 0.0 { dy } else { 0.0 };
                        *dx = T::of(a * dy + (q * x + r));
                    }
                }
                (Accumulation::Replace, false) => {
                    elements.for_each(|((dx, (x, dy)), ((a, _), (q, r)))| *dx = T::of(a * dy.get() + (q * x.get() + r)));
                }
                (Accumulation::Add, true) => {
                    for ((dx, (x, dy)), ((a, b), (q, r))) in elements {
                        let (x, dy) = (x.get(), dy.get());
                        let dy = if x * a + b > 0.0 { dy } else { 0.0 };
                        *dx = T::of(dx.get() + (a * dy + (q * x + r)));
                    }
                }
                (Accumulation::Add, false) => {
                    elements.for_each(|((dx, (x, dy)), ((a, _), (q, r)))| {
                        *dx = T::of(dx.get() + (a * dy.get() + (q * x.get() + r)));
                    });
                }
            }
        }
    }
}
