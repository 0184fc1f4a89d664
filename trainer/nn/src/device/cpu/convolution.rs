//! Convolutions: the kernels of [`super::conv`], planned once for each shape and number of samples.

use std::collections::HashMap;
use std::sync::Arc;

use super::{
    Cpu,
    conv::{self, Convolution as Kernel, Geometry},
};
use crate::{
    op::{Convolution, ConvolutionInput, ConvolutionWeight, MicroBatch, Window},
    shape::Shape,
};

/// Geometries that are kept planned: beyond them, all are planned anew.
const MAX_PLANS: usize = 4096;

/// Geometries that were met, planned.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<Geometry, Arc<Kernel>>);

impl Plans {
    pub(super) fn plan(&mut self, geometry: &Geometry) -> &Arc<Kernel> {
        if self.0.len() >= MAX_PLANS && !self.0.contains_key(geometry) {
            self.0.clear();
        }
        self.0.entry(*geometry).or_insert_with(|| {
            let kernel = Kernel::new(*geometry);
            Arc::new(kernel.unwrap_or_else(|error| panic!("a checked layer is no convolution: {error}")))
        })
    }
}

impl Kernel {
    pub(super) fn forward_scratch(&self) -> usize {
        self.packed_forward_elements() + self.forward_workspace_elements()
    }

    pub(super) fn weight_scratch(&self) -> usize {
        self.backward_weights_workspace_elements()
    }

    pub(super) fn input_scratch(&self) -> usize {
        self.packed_backward_elements() + self.backward_input_workspace_elements()
    }
}

pub(super) fn forward_geometry(operation: &Convolution, samples: usize) -> Geometry {
    geometry(operation.x.shape, operation.y.into.shape, operation.window, operation.groups, samples)
}

pub(super) fn weight_geometry(operation: &ConvolutionWeight, samples: usize) -> Geometry {
    geometry(operation.x.shape, operation.dy.shape, operation.window, operation.groups, samples)
}

pub(super) fn input_geometry(operation: &ConvolutionInput, samples: usize) -> Geometry {
    geometry(operation.dx.into.shape, operation.dy.shape, operation.window, operation.groups, samples)
}

fn geometry(input: Shape, output: Shape, window: Window, groups: usize, batch: usize) -> Geometry {
    let Window { kernel, stride, padding, dilation } = window;
    let size = [input.height, input.width];
    let (inputs, outputs) = (input.channels, output.channels);
    Geometry { batch, size, inputs, outputs, kernel, stride, padding, dilation, groups }
}

pub(super) fn forward(cpu: &Cpu, plan: &Kernel, operation: &Convolution, batch: &MicroBatch) {
    let Convolution { x, y, weight, bias, relu, .. } = operation;
    let mut scratch = cpu.scratch(plan.forward_scratch());
    let (packed, workspace) = scratch.split_at_mut(plan.packed_forward_elements());
    plan.pack_forward(&cpu.view::<f32>(*weight), packed);
    let bias = bias.map(|bias| cpu.view::<f32>(bias));
    conv::forward(
        cpu.instructions,
        plan,
        conv::Forward {
            input: &cpu.read(*x, batch.samples),
            weights: packed,
            finish: conv::Finish { scale: None, shift: bias.as_deref(), relu: *relu },
            accumulation: y.now(batch),
            output: &mut cpu.write(y.into, batch.samples),
            workspace,
        },
    );
}

pub(super) fn weight_gradient(cpu: &Cpu, plan: &Kernel, operation: &ConvolutionWeight, batch: &MicroBatch) {
    let ConvolutionWeight { x, dy, weight, bias, .. } = operation;
    let mut bias = bias.map(|bias| cpu.lease::<f32>(bias));
    conv::backward_weights(
        cpu.instructions,
        plan,
        conv::BackwardWeights {
            input: &cpu.read(*x, batch.samples),
            output_gradient: &cpu.read(*dy, batch.samples),
            accumulation: weight.now(batch),
            weight_gradient: &mut cpu.lease::<f32>(weight.into),
            bias_gradient: bias.as_deref_mut(),
            workspace: &mut cpu.scratch(plan.weight_scratch()),
        },
    );
}

pub(super) fn input_gradient(cpu: &Cpu, plan: &Kernel, operation: &ConvolutionInput, batch: &MicroBatch) {
    let ConvolutionInput { dy, weight, dx, .. } = operation;
    let mut scratch = cpu.scratch(plan.input_scratch());
    let (packed, workspace) = scratch.split_at_mut(plan.packed_backward_elements());
    plan.pack_backward(&cpu.view::<f32>(*weight), packed);
    conv::backward_input(
        cpu.instructions,
        plan,
        conv::BackwardInput {
            output_gradient: &cpu.read(*dy, batch.samples),
            weights: packed,
            accumulation: dx.now(batch),
            input_gradient: &mut cpu.write(dx.into, batch.samples),
            workspace,
        },
    );
}
