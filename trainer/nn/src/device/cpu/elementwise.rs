//! Loops over elements.

use super::Cpu;
use crate::{
    kernels::vectorised,
    op::{Accumulate, Accumulation, Add, CutOff, MicroBatch},
};

pub(super) fn add(cpu: &Cpu, operation: &Add, batch: &MicroBatch) {
    let Add { inputs: [one, other], y, relu } = operation;
    let (one, other) = (cpu.read(*one, batch.samples), cpu.read(*other, batch.samples));
    let mut y = cpu.write_all(*y, batch.samples, Accumulation::Replace);
    if *relu {
        sum_cut(cpu.instructions, &mut y, &one, &other);
    } else {
        sum(cpu.instructions, &mut y, &one, &other);
    }
}

vectorised! {
    fn sum(y: &mut [f32], one: &[f32], other: &[f32]) {
        y.iter_mut().zip(one).zip(other).for_each(|((y, one), other)| *y = one + other);
    }
}

vectorised! {
    /// A value that is not a number stays one.
    fn sum_cut(y: &mut [f32], one: &[f32], other: &[f32]) {
        let elements = y.iter_mut().zip(one).zip(other);
        elements.for_each(|((y, one), other)| *y = if one + other <= 0.0 { 0.0 } else { one + other });
    }
}

pub(super) fn accumulate(cpu: &Cpu, operation: &Accumulate, batch: &MicroBatch) {
    let Accumulate { from, into } = operation;
    let source = cpu.read(*from, batch.samples);
    let mut target = cpu.write_all(into.into, batch.samples, into.now(batch));
    match into.now(batch) {
        Accumulation::Replace => target.copy_from_slice(&source),
        Accumulation::Add => plus(cpu.instructions, &mut target, &source),
    }
}

vectorised! {
    fn plus(to: &mut [f32], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    }
}

pub(super) fn cut_off(cpu: &Cpu, operation: &CutOff, batch: &MicroBatch) {
    let CutOff { y, dy } = operation;
    let (y, mut dy) = (cpu.read(*y, batch.samples), cpu.write(*dy, batch.samples));
    cut(cpu.instructions, &mut dy, &y);
}

vectorised! {
    fn cut(dy: &mut [f32], y: &[f32]) {
        dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = if *y > 0.0 { *dy } else { 0.0 });
    }
}
