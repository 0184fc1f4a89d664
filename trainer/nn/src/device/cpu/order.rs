//! The host has the channels of a sample one after another, this device those of a pixel.

use super::{Cpu, put};
use crate::{
    device::{Form, LANES, Tensor, Values},
    dtype::DType,
    op::{Accumulation, Flatten, MicroBatch},
    shape::Shape,
};

/// Copies samples of the host.
pub(super) fn upload(cpu: &Cpu, into: &Tensor, values: Values<'_>) {
    let samples = values.len() / into.shape.elements();
    let region = into.of(samples);
    if let (Form::Lanes { halo }, Values::F32(values)) = (into.form, values) {
        return into_lanes(into.shape, halo, values, &mut cpu.write(*into, samples));
    }
    match (values, into.region.memory.dtype) {
        (Values::F32(values), DType::F32 | DType::Bf16 | DType::F16) => {
            reorder(into.shape, values, &mut cpu.write_all(*into, samples, Accumulation::Replace));
        }
        (Values::U32(values), DType::U32) => reorder(into.shape, values, &mut cpu.lease(region)),
        (Values::U8(values), DType::U8) => reorder(into.shape, values, &mut cpu.lease(region)),
        (values, dtype) => panic!("values of {:?} for an input of {dtype:?}", values.dtype()),
    }
}

fn reorder<T: Copy>(shape: Shape, from: &[T], into: &mut [T]) {
    if shape.channels == 1 || shape.is_flat() {
        return into.copy_from_slice(from);
    }
    for (from, into) in from.chunks_exact(shape.elements()).zip(into.chunks_exact_mut(shape.elements())) {
        for (channel, plane) in from.chunks_exact(shape.pixels()).enumerate() {
            into[channel..].iter_mut().step_by(shape.channels).zip(plane).for_each(|(to, from)| *to = *from);
        }
    }
}

/// `[sample][channel][row][column]` to samples side by side; those that are not there are zeros.
fn into_lanes(shape: Shape, halo: usize, from: &[f32], into: &mut [f32]) {
    let Shape { channels, height, width } = shape;
    let (elements, stored) = (shape.elements(), width + 2 * halo);
    let block_elements = Form::Lanes { halo }.elements(shape, LANES);
    for (from, into) in from.chunks(LANES * elements).zip(into.chunks_exact_mut(block_elements)) {
        for line in 0..channels * height {
            let (channel, row) = (line / height, line % height);
            let first = (channel * (height + 2 * halo) + row + halo) * stored + halo;
            let pixels = into[first * LANES..][..width * LANES].chunks_exact_mut(LANES);
            for (column, lanes) in pixels.enumerate() {
                let values = from[line * width + column..].iter().step_by(elements);
                let filled = from.len() / elements;
                lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane = *value);
                lanes[filled..].fill(0.0);
            }
        }
    }
}

/// The reverse, without halo.
fn out_of_lanes(elements: usize, from: &[f32], into: &mut [f32]) {
    for (from, into) in from.chunks_exact(elements * LANES).zip(into.chunks_mut(elements * LANES)) {
        for (lane, sample) in into.chunks_exact_mut(elements).enumerate() {
            sample.iter_mut().zip(from[lane..].iter().step_by(LANES)).for_each(|(to, from)| *to = *from);
        }
    }
}

/// Copies samples to the host.
pub(super) fn download(cpu: &Cpu, from: &Tensor, values: &mut [f32]) {
    let samples = values.len() / from.shape.elements();
    planes(from.shape, &cpu.read(*from, samples), values, Accumulation::Replace);
}

/// `[row][column][channel]` to `[channel][row][column]`.
fn planes(shape: Shape, from: &[f32], into: &mut [f32], accumulation: Accumulation) {
    for (from, into) in from.chunks_exact(shape.elements()).zip(into.chunks_exact_mut(shape.elements())) {
        for (channel, plane) in into.chunks_exact_mut(shape.pixels()).enumerate() {
            let values = from[channel..].iter().step_by(shape.channels);
            plane.iter_mut().zip(values).for_each(|(to, from)| put(accumulation, to, *from));
        }
    }
}

pub(super) fn flatten(cpu: &Cpu, operation: &Flatten, batch: &MicroBatch) {
    let Flatten { from, into } = operation;
    let (source, mut target) = (cpu.read(*from, batch.samples), cpu.write(into.into, batch.samples));
    if matches!(from.form, Form::Lanes { .. }) {
        return out_of_lanes(from.shape.elements(), &source, &mut target);
    }
    planes(from.shape, &source, &mut target, into.now(batch));
}

pub(super) fn unflatten(cpu: &Cpu, operation: &Flatten, batch: &MicroBatch) {
    let Flatten { from, into } = operation;
    let (source, mut target) = (cpu.read(*from, batch.samples), cpu.write(into.into, batch.samples));
    let (shape, accumulation) = (into.into.shape, into.now(batch));
    if matches!(into.into.form, Form::Lanes { .. }) {
        return into_lanes(shape, 0, &source, &mut target);
    }
    for (from, into) in source.chunks_exact(shape.elements()).zip(target.chunks_exact_mut(shape.elements())) {
        for (channel, plane) in from.chunks_exact(shape.pixels()).enumerate() {
            let places = into[channel..].iter_mut().step_by(shape.channels);
            places.zip(plane).for_each(|(to, from)| put(accumulation, to, *from));
        }
    }
}
