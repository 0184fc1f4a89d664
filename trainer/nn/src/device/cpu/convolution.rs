//! Convolutions: the kernels of [`super::conv`], planned once for each shape and number of samples.

use std::collections::HashMap;
use std::sync::Arc;

use super::{
    Cpu,
    conv::{self, Convolution as Kernel, Geometry},
};
use crate::{
    op::{Convolution, ConvolutionInput, ConvolutionWeight, FoldedNorm, MicroBatch, Window},
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
        // With a factor and an addend for each channel.
        self.packed_forward_elements() + 2 * self.geometry().outputs + self.forward_workspace_elements()
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
    let Convolution { x, y, weight, bias, norm, relu, .. } = operation;
    let outputs = plan.geometry().outputs;
    let mut scratch = cpu.scratch(plan.forward_scratch());
    let (packed, rest) = scratch.split_at_mut(plan.packed_forward_elements());
    let (factors, rest) = rest.split_at_mut(outputs);
    let (addends, workspace) = rest.split_at_mut(outputs);
    plan.pack_forward(&cpu.view::<f32>(*weight), packed);
    let bias = bias.map(|bias| cpu.view::<f32>(bias));
    if let Some(norm) = norm {
        fold(cpu, norm, bias.as_deref(), factors, addends);
    }
    let finish = match norm {
        Some(_) => conv::Finish { scale: Some(factors), shift: Some(addends), relu: *relu },
        None => conv::Finish { scale: None, shift: bias.as_deref(), relu: *relu },
    };
    conv::forward(
        cpu.instructions,
        plan,
        conv::Forward {
            input: &cpu.read(*x, batch.samples),
            weights: packed,
            finish,
            accumulation: y.now(batch),
            output: &mut cpu.write(y.into, batch.samples),
            workspace,
        },
    );
}

/// `γ/√(σ² + ε)·(w ∗ x + b − μ) + β` as a factor and an addend for each channel.
fn fold(cpu: &Cpu, norm: &FoldedNorm, bias: Option<&[f32]>, factors: &mut [f32], addends: &mut [f32]) {
    let FoldedNorm { weight, bias: shift, mean, variance, epsilon } = norm;
    let [weight, shift, mean, variance] = [weight, shift, mean, variance].map(|region| cpu.view::<f32>(*region));
    for (channel, (factor, addend)) in factors.iter_mut().zip(addends).enumerate() {
        *factor = weight[channel] / (variance[channel] + epsilon).sqrt();
        *addend = shift[channel] + (bias.map_or(0.0, |bias| bias[channel]) - mean[channel]) * *factor;
    }
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
