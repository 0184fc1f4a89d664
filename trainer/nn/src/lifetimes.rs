//! When values and their gradients are needed.

use std::ops::RangeInclusive;

use crate::fusion::Fusions;
use crate::gradient_sharing::{SharedGradients, needing_gradients};
use crate::graph::{Network, Value};

/// When values and their gradients are needed: node `i` of `n` runs forward at `i + 1`, losses at
/// `n + 1`, and backward of node `i` at `2n + 1 − i`.
pub(crate) struct Lifetimes {
    pub(crate) values: Vec<Option<RangeInclusive<usize>>>,
    pub(crate) gradients: Vec<Option<RangeInclusive<usize>>>,
}

impl Lifetimes {
    pub(crate) fn of(network: &Network, fusions: &Fusions, shared: &SharedGradients, keep_all: bool) -> Lifetimes {
        let nodes = network.nodes().len();
        let (forward, losses, backward) = (|node: usize| node + 1, nodes + 1, |node: usize| 2 * nodes + 1 - node);
        let root = |value: Value| fusions.memory_of[value.0].0;
        let gradient = |value: Value| shared.memory_of[root(value)].0;
        let mut times = Lifetimes { values: vec![None; network.values()], gradients: vec![None; network.values()] };
        let touch = |slot: &mut Option<RangeInclusive<usize>>, time: usize| {
            *slot = Some(match slot.take() {
                None => time..=time,
                Some(when) => *when.start().min(&time)..=*when.end().max(&time),
            });
        };
        network.inputs().iter().for_each(|input| touch(&mut times.values[root(*input)], 0));
        let trained = needing_gradients(network, keep_all);
        for (number, node) in network.nodes().iter().enumerate() {
            touch(&mut times.values[root(node.output)], forward(number));
            let reads = node.layer.rule().reads();
            for input in &node.inputs {
                let value = &mut times.values[root(*input)];
                touch(value, forward(number));
                if reads.inputs && !fusions.is_absorbed[number] {
                    touch(value, backward(number));
                }
                if trained[input.0] && trained[node.output.0] {
                    touch(&mut times.gradients[gradient(*input)], backward(number));
                }
            }
            let is_read = reads.output && !fusions.is_absorbed[number] || fusions.takes_relu[number];
            if is_read {
                touch(&mut times.values[root(node.output)], backward(number));
            }
            if trained[node.output.0] {
                touch(&mut times.gradients[gradient(node.output)], backward(number));
            }
        }
        for criterion in network.criteria() {
            touch(&mut times.values[root(criterion.prediction)], losses);
            if trained[criterion.prediction.0] {
                touch(&mut times.gradients[gradient(criterion.prediction)], losses);
            }
        }
        // The output is read when the pass is over.
        touch(&mut times.values[root(network.output())], losses);
        if keep_all {
            let all = || Some(0..=2 * nodes + 1);
            times.values.iter_mut().for_each(|when| *when = all());
            times
                .gradients
                .iter_mut()
                .zip(&trained)
                .filter(|(_, trained)| **trained)
                .for_each(|(when, _)| *when = all());
        }
        times
    }
}
