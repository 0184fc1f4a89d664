//! Convolutions on the CPU: leases the operands, lays the weights out for the kernels, and calls them.

use crate::kernels::convolution as kernels;

use super::cpu::{Cpu, padded};
use super::memory::SAMPLE_LANES;
use super::operations::{Accumulation, Convolution};

/// Weights in the kernels' order, and the gradient of the product for one group of samples.
pub(super) fn workspace_elements(operation: &Convolution) -> usize {
    let (height, width) = operation.product_size();
    packed_elements(operation) + operation.output.channels * height * width * SAMPLE_LANES
}

pub(super) fn forward(cpu: &Cpu, operation: &Convolution, samples: usize) {
    let (input, weights) = (cpu.lease(operation.input.region), cpu.lease(operation.weight.values));
    let (bias, mut workspace) = (cpu.lease(operation.bias.values), cpu.lease(operation.workspace));
    let (mut output, mut switches) = (cpu.lease(operation.output.region), cpu.lease(operation.switches));
    let packed = &mut workspace[..packed_elements(operation)];
    kernels::pack_by_outputs(operation, &weights, packed);
    kernels::forward(
        cpu.instructions(),
        kernels::Forward {
            operation,
            blocks: padded(samples) / SAMPLE_LANES,
            input: &input,
            weights: packed,
            bias: &bias,
            output: &mut output,
            switches: &mut switches,
        },
    );
}

pub(super) fn backward(cpu: &Cpu, operation: &Convolution, accumulation: Accumulation, samples: usize) {
    let (input, switches) = (cpu.lease(operation.input.region), cpu.lease(operation.switches));
    let output_gradient = cpu.lease(operation.gradients.output.region);
    let mut weight_gradient = cpu.lease(operation.weight.gradient);
    let mut bias_gradient = cpu.lease(operation.bias.gradient);
    if accumulation == Accumulation::Replace {
        weight_gradient.fill(0.0);
        bias_gradient.fill(0.0);
    }
    let mut workspace = cpu.lease(operation.workspace);
    let (packed, product_gradient) = workspace.split_at_mut(packed_elements(operation));
    let mut input_gradient = operation.gradients.input.map(|gradient| {
        kernels::pack_by_inputs(operation, &cpu.lease(operation.weight.values), packed);
        cpu.lease(gradient.region)
    });
    kernels::backward(
        cpu.instructions(),
        kernels::Backward {
            operation,
            blocks: padded(samples) / SAMPLE_LANES,
            input: &input,
            weights: packed,
            switches: &switches,
            output_gradient: &output_gradient,
            product_gradient,
            weight_gradient: &mut weight_gradient,
            bias_gradient: &mut bias_gradient,
            input_gradient: input_gradient.as_deref_mut(),
        },
    );
}

fn packed_elements(operation: &Convolution) -> usize {
    operation.weight.values.len.next_multiple_of(SAMPLE_LANES)
}
