//! Linear layers on the CPU. Activations are `[feature][sample]`, so every product has the samples as columns:
//! `Y = W·X + b`, `dW = dY·Xᵀ`, `db = Σ dY`, `dX = Wᵀ·dY`, where `dY` is first cut off where the activation is zero.

use std::ops::Range;

use crate::kernels::product::{self, Matrix, MatrixMut, Product, multiply};

use super::cpu::{Cpu, padded};
use super::memory::SAMPLE_LANES;
use super::operations::{Accumulation, Linear};

/// A block of one operand.
pub(super) fn workspace_elements() -> usize {
    product::WORKSPACE_ELEMENTS
}

pub(super) fn forward(cpu: &Cpu, operation: &Linear, samples: usize) {
    let Linear { input, output, gradients: _, weight, bias, relu, workspace } = operation;
    let (columns, stride) = (padded(samples), output.capacity);
    let (x, w, b) = (cpu.lease(input.region), cpu.lease(weight.values), cpu.lease(bias.values));
    let mut y = cpu.lease(output.region);
    let (inputs, outputs) = (input.sample_elements(), output.sample_elements());
    multiply(
        cpu.instructions(),
        Product {
            c: MatrixMut { values: &mut y, rows: outputs, columns, stride },
            a: Matrix::new(&w, outputs, inputs, inputs),
            b: Matrix::new(&x, inputs, columns, stride),
            accumulation: Accumulation::Replace,
            workspace: &mut cpu.lease(*workspace),
        },
    );
    for (row, bias) in y.chunks_mut(stride).zip(b.iter()) {
        let row = &mut row[..columns];
        if *relu {
            // A value that is not a number stays one, so that a diverged run shows.
            row.iter_mut().for_each(|y| *y = if *y + bias <= 0.0 { 0.0 } else { *y + bias });
        } else {
            row.iter_mut().for_each(|y| *y += bias);
        }
    }
}

pub(super) fn parameter_gradients(
    cpu: &Cpu,
    operation: &Linear,
    rows: Range<usize>,
    accumulation: Accumulation,
    samples: usize,
) {
    let Linear { input, output, gradients, weight: _, bias: _, relu: _, workspace } = operation;
    let (columns, stride) = (padded(samples), output.capacity);
    let inputs = input.sample_elements();
    if rows.start == 0 {
        bias_gradient(cpu, operation, accumulation, samples);
    }
    let (x, dy) = (cpu.lease(input.region), cpu.lease(gradients.output.region));
    let mut dw = cpu.lease(operation.gradient_of(&rows));
    multiply(
        cpu.instructions(),
        Product {
            c: MatrixMut { values: &mut dw, rows: rows.len(), columns: inputs, stride: inputs },
            a: Matrix::new(&dy[rows.start * stride..], rows.len(), columns, stride),
            b: Matrix::new(&x, inputs, columns, stride).transposed(),
            accumulation,
            workspace: &mut cpu.lease(*workspace),
        },
    );
}

/// Cuts the output's gradient off, too.
fn bias_gradient(cpu: &Cpu, operation: &Linear, accumulation: Accumulation, samples: usize) {
    let Linear { output, gradients, bias, relu, .. } = operation;
    let (columns, stride) = (padded(samples), output.capacity);
    let mut dy = cpu.lease(gradients.output.region);
    if *relu {
        let y = cpu.lease(output.region);
        for (dy, y) in dy.chunks_mut(stride).zip(y.chunks(stride)) {
            dy[..columns].iter_mut().zip(&y[..columns]).for_each(|(dy, y)| *dy = if *y > 0.0 { *dy } else { 0.0 });
        }
    }
    let mut db = cpu.lease(bias.gradient);
    for (db, dy) in db.iter_mut().zip(dy.chunks(stride)) {
        let sum = lane_sum(&dy[..columns]);
        *db = match accumulation {
            Accumulation::Replace => sum,
            Accumulation::Add => *db + sum,
        };
    }
}

pub(super) fn input_gradient(cpu: &Cpu, operation: &Linear, samples: usize) {
    let Linear { input, output, gradients, weight, bias: _, relu: _, workspace } = operation;
    let Some(input_gradient) = gradients.input else { return };
    let (inputs, outputs) = (input.sample_elements(), output.sample_elements());
    let (columns, stride) = (padded(samples), output.capacity);
    let (w, dy) = (cpu.lease(weight.values), cpu.lease(gradients.output.region));
    let mut dx = cpu.lease(input_gradient.region);
    multiply(
        cpu.instructions(),
        Product {
            c: MatrixMut { values: &mut dx, rows: inputs, columns, stride },
            a: Matrix::new(&w, outputs, inputs, inputs).transposed(),
            b: Matrix::new(&dy, outputs, columns, stride),
            accumulation: Accumulation::Replace,
            workspace: &mut cpu.lease(*workspace),
        },
    );
}

/// Sum in a fixed order: sixteen running sums, then those from left to right.
fn lane_sum(values: &[f32]) -> f32 {
    let mut sums = [0.0; SAMPLE_LANES];
    for lanes in values.as_chunks::<SAMPLE_LANES>().0 {
        sums.iter_mut().zip(lanes).for_each(|(sum, value)| *sum += value);
    }
    sums.iter().sum()
}
