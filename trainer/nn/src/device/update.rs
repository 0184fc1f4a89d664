//! Updates on the CPU: leases each parameter's ranges and applies the rule to them.

use super::cpu::Cpu;
use super::operations::{Update, UpdateRange};
use crate::kernels::norm;
use crate::optimizers::{MAX_SLOTS, Tensor};

pub(super) fn update(cpu: &Cpu, operation: &Update) {
    let Update { optimizer, weights, gradients, slots, ranges, clip_norm, rate, step } = operation;
    let scale = clip_norm.map_or(1.0, |longest| clip(cpu, operation, longest));
    for UpdateRange { range, role } in ranges.iter() {
        let mut weights = cpu.lease(weights.region(range.clone()));
        let gradients = cpu.lease(gradients.region(range.clone()));
        let mut leases: [_; MAX_SLOTS] =
            std::array::from_fn(|slot| slots.get(slot).map(|memory| cpu.lease(memory.region(range.clone()))));
        let slots = leases.each_mut().map(|lease| lease.as_deref_mut().unwrap_or_default());
        optimizer.update(
            cpu.instructions(),
            Tensor {
                role: *role,
                weights: &mut weights,
                gradients: &gradients,
                slots,
                scale,
                rate: *rate,
                step: *step,
            },
        );
    }
}

/// The factor by which all gradients are scaled so that their norm is at most `longest`.
fn clip(cpu: &Cpu, operation: &Update, longest: f32) -> f32 {
    let Update { gradients, ranges, .. } = operation;
    let squares =
        |range: &UpdateRange| norm::squares(cpu.instructions(), &cpu.lease(gradients.region(range.range.clone())));
    let norm = ranges.iter().map(squares).sum::<f64>().sqrt();
    if norm > f64::from(longest) { (f64::from(longest) / norm) as f32 } else { 1.0 }
}
