//! Updates: leases each parameter's ranges and applies the rule to them.

use super::Cpu;
use crate::{
    kernels::{narrow::narrow, norm, vectorised},
    op::{Cast, Update, UpdateRange},
    optimizers::{MAX_SLOTS, Tensor},
    parameters::Role,
};

pub(super) fn update(cpu: &Cpu, operation: &Update) {
    let Update { optimizer, weights, gradients, slots, ranges, clip_norm, loss_scale, rate, step } = operation;
    let scale = clip_norm.map_or(1.0, |longest| clip(cpu, operation, longest)) / loss_scale;
    for UpdateRange { range, role } in ranges.iter() {
        let mut weights = cpu.lease::<f32>(weights.region(range.clone()));
        let gradients = cpu.view::<f32>(gradients.region(range.clone()));
        if let Role::Statistic { momentum } = role {
            approach(cpu.instructions, &mut weights, &gradients, *momentum);
            continue;
        }
        let mut leases: [_; MAX_SLOTS] =
            std::array::from_fn(|slot| slots.get(slot).map(|memory| cpu.lease::<f32>(memory.region(range.clone()))));
        let slots = leases.each_mut().map(|lease| lease.as_deref_mut().unwrap_or_default());
        optimizer.update(
            cpu.instructions,
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

vectorised! {
    /// `s ← s + momentum·(g − s)`, the same bits on every instruction set.
    fn approach(statistics: &mut [f32], own: &[f32], momentum: f32) {
        for (statistic, own) in statistics.iter_mut().zip(own) {
            *statistic = momentum.mul_add(own - *statistic, *statistic);
        }
    }
}

/// Rounds the masters of weights.
pub(super) fn cast(cpu: &Cpu, operation: &Cast) {
    let Cast { from, into, ranges } = operation;
    for range in ranges.iter() {
        let from = cpu.view::<f32>(from.region(range.clone()));
        narrow(cpu.instructions, into.dtype, &from, &mut cpu.lease::<u16>(into.region(range.clone())));
    }
}

/// The factor by which all gradients are scaled so that their norm is at most `longest`, as those
/// of a loss that is not scaled.
fn clip(cpu: &Cpu, operation: &Update, longest: f32) -> f32 {
    let Update { gradients, ranges, loss_scale, .. } = operation;
    let squares =
        |range: &UpdateRange| norm::squares(cpu.instructions, &cpu.view(gradients.region(range.range.clone())));
    let trained = ranges.iter().filter(|range| range.role.is_trained());
    let norm = trained.map(squares).sum::<f64>().sqrt() / f64::from(*loss_scale);
    if norm > f64::from(longest) { (f64::from(longest) / norm) as f32 } else { 1.0 }
}
