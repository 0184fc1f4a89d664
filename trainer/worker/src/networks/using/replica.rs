//! A trained network, ready to compute.

use lockstep_checkpoint::OwnedTensor;
use lockstep_nn::{Cpu, Network, Optimizer, Replica, StateTensor, optimizers::Sgd};

use super::problem::Problem;

/// No step is ever done.
const NO_RULE: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });

/// Returns the network with these weights, for at most `samples` samples at once.
///
/// # Errors
/// They are the weights of another model. That is found before any memory is taken.
pub(super) fn replica(network: Network, tensors: Vec<OwnedTensor>, samples: usize) -> Result<Replica<Cpu>, Problem> {
    for parameter in network.table().parameters() {
        let (name, shape) = (&parameter.name, &parameter.shape);
        match tensors.iter().find(|tensor| tensor.name == *name) {
            Some(found) if found.shape == *shape => {}
            Some(found) => {
                return Err(Problem(format!(
                    "tensor {name} has the shape {:?}, the model's has {shape:?}",
                    found.shape
                )));
            }
            None => return Err(Problem(format!("tensor {name} {shape:?} of the model is missing"))),
        }
    }
    let buckets = network.table().ready_order();
    let mut replica = Replica::new(Cpu::new(), network, NO_RULE, samples, buckets).map_err(Problem::new)?;
    let tensor = |OwnedTensor { name, shape, values }: OwnedTensor| StateTensor { name, shape, values };
    replica.load_tensors(&tensors.into_iter().map(tensor).collect::<Vec<_>>()).map_err(Problem::new)?;
    Ok(replica)
}

/// Returns the probability of each class from their logits: `softmax(z) = exp(z − max z) / Σ`.
pub(super) fn probabilities(logits: &[f32]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Returns the classes by their logits, the greatest first; of equals the first class first.
pub(super) fn ranked(logits: &[f32]) -> Vec<usize> {
    let mut classes: Vec<usize> = (0..logits.len()).collect();
    classes.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    classes
}

#[cfg(test)]
mod tests {
    use lockstep_nn::models;

    use super::*;

    #[test]
    fn probabilities_add_up_to_one_however_great_the_logits_are() {
        let found = probabilities(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
        assert_eq!(ranked(&[0.5, 2.0, 2.0, -1.0]), [1, 2, 0, 3]);
    }

    #[test]
    fn weights_of_another_model_are_refused_by_the_name_of_a_tensor() {
        let refused = |tensors| replica(models::mlp(4, &[], 2), tensors, 1).err().map(|problem| problem.to_string());
        assert_eq!(refused(Vec::new()).as_deref(), Some("tensor fc1.weight [2, 4] of the model is missing"));
        let other = OwnedTensor { name: "fc1.weight".to_owned(), shape: vec![2, 3], values: vec![0.0; 6] };
        let problem = refused(vec![other]).expect("refused");
        assert_eq!(problem, "tensor fc1.weight has the shape [2, 3], the model's has [2, 4]");
    }
}
