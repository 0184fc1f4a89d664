//! Convolutions: the kernels of [`super::conv`], planned once for each shape and number of samples.

use std::collections::HashMap;
use std::sync::Arc;

use super::{
    Cpu,
    conv::{self, Convolution as Kernel, Geometry},
    staging::{Reading, Writing},
};
use crate::{
    arena::{Lease, View},
    dtype::DType,
    memory::Tensor,
    op::{Accumulation, Convolution, ConvolutionInput, ConvolutionWeight, FoldedNorm, MicroBatch, Window},
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
    let in_pairs = plan.reads_pairs(cpu.instructions)[0] && is_bf16(x) && is_bf16(&y.into);
    if in_pairs {
        plan.pack_forward_pairs(&cpu.reading(*weight), packed);
    } else {
        plan.pack_forward(&cpu.reading(*weight), packed);
    }
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
            input: images(cpu, *x, batch, in_pairs).input(),
            weights: packed,
            finish,
            accumulation: y.now(batch),
            output: targets(cpu, y.into, batch, y.now(batch), in_pairs).output(),
            workspace,
        },
    );
}

fn is_bf16(tensor: &Tensor) -> bool {
    tensor.region.memory.dtype == DType::Bf16
}

/// Images as a kernel reads them.
enum Images {
    F32(Reading),
    Bf16(View<u16>),
}

impl Images {
    fn input(&self) -> conv::Input<'_> {
        match self {
            Images::F32(values) => conv::Input::F32(values),
            Images::Bf16(values) => conv::Input::Bf16(values),
        }
    }
}

fn images(cpu: &Cpu, tensor: Tensor, batch: &MicroBatch, in_pairs: bool) -> Images {
    if in_pairs {
        Images::Bf16(cpu.view(tensor.of(batch.samples)))
    } else {
        Images::F32(cpu.read(tensor, batch.samples))
    }
}

/// Images as a kernel writes them.
enum Targets {
    F32(Writing),
    Bf16(Lease<u16>),
}

impl Targets {
    fn output(&mut self) -> conv::Output<'_> {
        match self {
            Targets::F32(values) => conv::Output::F32(values),
            Targets::Bf16(values) => conv::Output::Bf16(values),
        }
    }
}

fn targets(cpu: &Cpu, tensor: Tensor, batch: &MicroBatch, accumulation: Accumulation, in_pairs: bool) -> Targets {
    if in_pairs {
        Targets::Bf16(cpu.lease(tensor.of(batch.samples)))
    } else {
        Targets::F32(cpu.write_all(tensor, batch.samples, accumulation))
    }
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
    let in_pairs = plan.reads_pairs(cpu.instructions)[2] && is_bf16(x) && is_bf16(dy);
    conv::backward_weights(
        cpu.instructions,
        plan,
        conv::BackwardWeights {
            input: images(cpu, *x, batch, in_pairs).input(),
            output_gradient: images(cpu, *dy, batch, in_pairs).input(),
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
    let in_pairs = plan.reads_pairs(cpu.instructions)[1] && is_bf16(dy) && is_bf16(&dx.into);
    if in_pairs {
        plan.pack_backward_pairs(&cpu.reading(*weight), packed);
    } else {
        plan.pack_backward(&cpu.reading(*weight), packed);
    }
    conv::backward_input(
        cpu.instructions,
        plan,
        conv::BackwardInput {
            output_gradient: images(cpu, *dy, batch, in_pairs).input(),
            weights: packed,
            accumulation: dx.now(batch),
            input_gradient: targets(cpu, dx.into, batch, dx.now(batch), in_pairs).output(),
            workspace,
        },
    );
}
