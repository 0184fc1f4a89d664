//! Updates of arenas in plain memory, for models that something else than a
//! [`Replica`](crate::Replica) computes.

use super::{MAX_SLOTS, Optimizer, Tensor};
use crate::{
    kernels::{Instructions, norm},
    parameters::{ParamMeta, ParamTable},
};

/// Updates all trained parameters of `table` that are not frozen, as a replica does: step number
/// `step`, from 1. Gradients of a longer norm than `clip_norm`, all together, are scaled down to
/// it. All arenas have the table's elements; `slots` are those of the optimiser, in its order.
///
/// # Panics
/// When an arena is too short, or a slot is missing.
pub fn update_arenas(
    optimizer: &Optimizer,
    clip_norm: Option<f32>,
    table: &ParamTable,
    weights: &mut [f32],
    gradients: &[f32],
    slots: &mut [&mut [f32]],
    (step, rate): (u64, f32),
) {
    assert_eq!(slots.len(), optimizer.slots().len(), "slots of {}", optimizer.name());
    let instructions = Instructions::detect();
    let updated = || table.parameters().iter().filter(|parameter| parameter.role.is_trained() && !parameter.frozen);
    let squares = |parameter: &ParamMeta| norm::squares(instructions, &gradients[parameter.range.clone()]);
    let scale = clip_norm.map_or(1.0, |longest| {
        let norm = updated().map(squares).sum::<f64>().sqrt();
        if norm > f64::from(longest) { (f64::from(longest) / norm) as f32 } else { 1.0 }
    });
    for ParamMeta { range, role, .. } in updated() {
        let mut rest = slots.iter_mut();
        let of_slots: [&mut [f32]; MAX_SLOTS] =
            std::array::from_fn(|_| rest.next().map(|slot| &mut slot[range.clone()]).unwrap_or_default());
        let tensor = Tensor {
            role: *role,
            weights: &mut weights[range.clone()],
            gradients: &gradients[range.clone()],
            slots: of_slots,
            scale,
            rate,
            step,
        };
        optimizer.update(instructions, tensor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cpu, Replica, models,
        optimizers::{AdamW, Sgd},
    };

    #[test]
    fn arenas_are_updated_to_the_bits_of_a_replica() {
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: true });
        let adamw = Optimizer::AdamW(AdamW { betas: [0.9, 0.999], weight_decay: 0.1, epsilon: 1e-8 });
        for (optimizer, clip_norm) in [(sgd, None), (adamw, Some(0.5))] {
            let network = models::mlp(6, &[5], 3);
            let table = network.table().clone();
            let mut replica =
                Replica::new(Cpu::new(), network, optimizer, 1, table.ready_order()).expect("ranges that tile it");
            replica.clip_gradients(clip_norm);
            replica.initialise(3);
            let elements = table.elements();
            let mut state = vec![0.0; replica.state_elements()];
            replica.copy_state(0..state.len(), &mut state);
            let mut gradients = vec![0.0; elements];
            for ParamMeta { range, .. } in table.parameters() {
                range.clone().for_each(|element| gradients[element] = (element as f32 * 0.7).sin());
            }
            for step in 1..=3 {
                replica.take_gradients(&gradients);
                replica.update(step, 0.1);
                replica.finish_step();
                let (weights, rest) = state.split_at_mut(elements);
                let mut slots: Vec<&mut [f32]> = rest.chunks_mut(elements).collect();
                update_arenas(&optimizer, clip_norm, &table, weights, &gradients, &mut slots, (step, 0.1));
            }
            let mut expected = vec![0.0; state.len()];
            replica.copy_state(0..expected.len(), &mut expected);
            assert_eq!(state, expected, "{}", optimizer.name());
        }
    }
}
