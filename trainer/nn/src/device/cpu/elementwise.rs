//! Loops over elements.

use super::{Cpu, staging::all_bf16};
use crate::{
    kernels::{
        stored::{Bf16, Stored},
        vectorised,
    },
    op::{Accumulate, Accumulation, Add, CutOff, MicroBatch},
};

pub(super) fn add(cpu: &Cpu, operation: &Add, batch: &MicroBatch) {
    let Add { inputs: [one, other], y, .. } = operation;
    if let Some([one, other, y]) = all_bf16(batch.samples, [one, other, y]) {
        return add_of::<Bf16>(cpu, operation, [&cpu.view(one), &cpu.view(other)], &mut cpu.lease(y));
    }
    let (one, other) = (cpu.read(*one, batch.samples), cpu.read(*other, batch.samples));
    let mut y = cpu.write_all(*y, batch.samples, Accumulation::Replace);
    add_of::<f32>(cpu, operation, [&one, &other], &mut y);
}

fn add_of<T: Stored>(cpu: &Cpu, operation: &Add, [one, other]: [&[T]; 2], y: &mut [T]) {
    if operation.relu {
        sum_cut(cpu.instructions, y, one, other);
    } else {
        sum(cpu.instructions, y, one, other);
    }
}

vectorised! {
    fn sum<T: Stored>(y: &mut [T], one: &[T], other: &[T]) {
        y.iter_mut().zip(one).zip(other).for_each(|((y, one), other)| *y = T::of(one.get() + other.get()));
    }
}

vectorised! {
    /// A value that is not a number stays one.
    fn sum_cut<T: Stored>(y: &mut [T], one: &[T], other: &[T]) {
        y.iter_mut().zip(one).zip(other).for_each(|((y, one), other)| {
            let sum = one.get() + other.get();
            *y = T::of(if sum <= 0.0 { 0.0 } else { sum });
        });
    }
}

pub(super) fn accumulate(cpu: &Cpu, operation: &Accumulate, batch: &MicroBatch) {
    let Accumulate { from, into } = operation;
    if let Some([from, to]) = all_bf16(batch.samples, [from, &into.into]) {
        let (source, mut target) = (cpu.view::<Bf16>(from), cpu.lease::<Bf16>(to));
        return match into.now(batch) {
            Accumulation::Replace => target.copy_from_slice(&source),
            Accumulation::Add => plus(cpu.instructions, &mut target, &source),
        };
    }
    let source = cpu.read(*from, batch.samples);
    let mut target = cpu.write_all(into.into, batch.samples, into.now(batch));
    match into.now(batch) {
        Accumulation::Replace => target.copy_from_slice(&source),
        Accumulation::Add => plus(cpu.instructions, &mut target, &source),
    }
}

vectorised! {
    fn plus<T: Stored>(to: &mut [T], from: &[T]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::of(to.get() + from.get()));
    }
}

pub(super) fn cut_off(cpu: &Cpu, operation: &CutOff, batch: &MicroBatch) {
    let CutOff { y, dy } = operation;
    if let Some([y, dy]) = all_bf16(batch.samples, [y, dy]) {
        return cut(cpu.instructions, &mut cpu.lease::<Bf16>(dy), &cpu.view::<Bf16>(y));
    }
    let (y, mut dy) = (cpu.read(*y, batch.samples), cpu.write(*dy, batch.samples));
    cut(cpu.instructions, &mut dy, &y);
}

vectorised! {
    fn cut<T: Stored>(dy: &mut [T], y: &[T]) {
        dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = if y.get() > 0.0 { *dy } else { T::of(0.0) });
    }
}
