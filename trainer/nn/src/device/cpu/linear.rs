//! Linear layers: `Y = X·Wᵀ + b`, `dW = dYᵀ·X`, `dX = dY·W`, samples in rows.
//!
//! The weights are larger than the activations, so they are the operand that is read in place:
//! `Yᵀ = W·Xᵀ` and `dXᵀ = Wᵀ·dYᵀ` are what is computed, and written transposed.

use super::Cpu;
use crate::{
    kernels::{
        product::{self, Matrix, MatrixMut, Product, multiply},
        vectorised,
    },
    op::{Linear, LinearInput, LinearWeight, MicroBatch},
};

/// So many samples make a copy of the weights worth it.
const MANY_SAMPLES: usize = 32;

/// A block of one operand.
pub(super) fn scratch_elements() -> usize {
    product::WORKSPACE_ELEMENTS
}

pub(super) fn forward(cpu: &Cpu, operation: &Linear, batch: &MicroBatch) {
    let Linear { x, y, weight, bias, relu } = operation;
    let samples = batch.samples;
    let (inputs, outputs) = (x.shape.elements(), y.shape.elements());
    let (x, w, mut y) = (cpu.read(*x, samples), cpu.reading(*weight), cpu.write(*y, samples));
    multiply(
        cpu.instructions,
        Product {
            c: MatrixMut::new(&mut y, samples, outputs, outputs).transposed(),
            a: Matrix::new(&w, outputs, inputs, inputs),
            b: Matrix::new(&x, samples, inputs, inputs).transposed(),
            accumulation: crate::op::Accumulation::Replace,
            workspace: &mut cpu.scratch(scratch_elements()),
        },
    );
    let bias = bias.map(|bias| cpu.view::<f32>(bias));
    match (bias.as_deref(), relu) {
        (Some(bias), true) => add_and_cut(cpu.instructions, &mut y, bias),
        (Some(bias), false) => add(cpu.instructions, &mut y, bias),
        (None, true) => cut(cpu.instructions, &mut y),
        (None, false) => {}
    }
}

vectorised! {
    /// `y = y + b` for each row of channels.
    pub(super) fn add(y: &mut [f32], bias: &[f32]) {
        for row in y.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    }
}

vectorised! {
    /// `y = max(0, y + b)`; a value that is not a number stays one, so that a diverged run shows.
    pub(super) fn add_and_cut(y: &mut [f32], bias: &[f32]) {
        for row in y.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y = if *y + bias <= 0.0 { 0.0 } else { *y + bias });
        }
    }
}

vectorised! {
    /// `y = max(0, y)`.
    pub(super) fn cut(y: &mut [f32]) {
        y.iter_mut().for_each(|y| *y = if *y <= 0.0 { 0.0 } else { *y });
    }
}

pub(super) fn weight_gradient(cpu: &Cpu, operation: &LinearWeight, batch: &MicroBatch) {
    let LinearWeight { x, dy, first_row, weight } = operation;
    let samples = batch.samples;
    let (inputs, outputs) = (x.shape.elements(), dy.shape.elements());
    let rows = weight.into.len / inputs;
    let (x, dy, mut dw) = (cpu.read(*x, samples), cpu.read(*dy, samples), cpu.lease::<f32>(weight.into));
    multiply(
        cpu.instructions,
        Product {
            c: MatrixMut::new(&mut dw, rows, inputs, inputs),
            a: Matrix::columns(&dy, samples, *first_row, rows, outputs).transposed(),
            b: Matrix::new(&x, samples, inputs, inputs),
            accumulation: weight.now(batch),
            workspace: &mut cpu.scratch(scratch_elements()),
        },
    );
}

pub(super) fn input_gradient(cpu: &Cpu, operation: &LinearInput, batch: &MicroBatch) {
    let LinearInput { dy, weight, dx } = operation;
    let samples = batch.samples;
    let (inputs, outputs) = (dx.into.shape.elements(), dy.shape.elements());
    let (dy, w, mut target) = (cpu.read(*dy, samples), cpu.reading(*weight), cpu.write(dx.into, samples));
    let c = MatrixMut::new(&mut target, samples, inputs, inputs);
    let (w, dy) = (Matrix::new(&w, outputs, inputs, inputs), Matrix::new(&dy, samples, outputs, outputs));
    // Copying the weights is worth it where many samples read the copy.
    let (c, a, b) =
        if samples >= MANY_SAMPLES { (c, dy, w) } else { (c.transposed(), w.transposed(), dy.transposed()) };
    let (accumulation, workspace) = (dx.now(batch), &mut cpu.scratch(scratch_elements()));
    multiply(cpu.instructions, Product { c, a, b, accumulation, workspace });
}
