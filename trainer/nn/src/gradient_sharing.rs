//! Gradients that lie in the memory of another: a sum passes its output's gradient on to both
//! inputs as it is, so nothing needs to be copied.
//!
//! An input that nothing else reads has the very gradient of the sum: whoever made it reads that
//! memory. An input that earlier layers read, too, such as the value around a residual block, takes
//! the memory over: their contributions are added to what is there, once the maker of the other
//! input has read it.

use crate::fusion::Fusions;
use crate::graph::{Network, Value};
use crate::layers::Layer;

/// Who shares whose gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedGradients {
    /// For each value with memory of its own the one whose gradient's memory its gradient has.
    pub(crate) memory_of: Vec<Value>,
    /// For each node and each of its inputs whether the gradient is there without an operation.
    passed_on: Vec<[bool; 2]>,
}

impl SharedGradients {
    /// Every gradient has memory of its own.
    pub(crate) fn none(network: &Network) -> SharedGradients {
        let memory_of = (0..network.values()).map(Value).collect();
        SharedGradients { memory_of, passed_on: vec![[false; 2]; network.nodes().len()] }
    }

    /// Those of sums.
    pub(crate) fn of(network: &Network, fusions: &Fusions, keep_all: bool) -> SharedGradients {
        let mut shared = SharedGradients::none(network);
        let trained = needing_gradients(network, keep_all);
        let graph = Roots::of(network, fusions);
        // Whether a value's gradient is only read where it lies.
        let mut is_borrowed = vec![false; network.values()];
        for (number, node) in network.nodes().iter().enumerate().rev() {
            let output = graph.root(node.output);
            if !matches!(node.layer, Layer::Add(_)) || is_borrowed[output.0] {
                continue;
            }
            let inputs = [0, 1].map(|input| graph.root(node.inputs[input]));
            if inputs[0] == inputs[1] {
                continue;
            }
            let borrows =
                inputs.map(|value| graph.is_read_by(value, &[number]) && graph.maker_only_reads(value, fusions));
            let mut is_taken = false;
            for (input, value) in inputs.into_iter().enumerate() {
                if !trained[node.inputs[input].0] {
                    continue;
                }
                // The other input's maker reads the gradient before a layer ahead of it adds to it.
                let ahead = |maker: usize| graph.all_readers_but(value, number).all(|reader| reader < maker);
                let other = inputs[1 - input];
                let is_read_before = !borrows[1 - input] || graph.makers[other.0].is_some_and(ahead);
                let takes_over = graph.takes_over(value, number) && is_read_before && !is_taken;
                if borrows[input] || takes_over {
                    shared.memory_of[value.0] = shared.memory_of[output.0];
                    shared.passed_on[number][input] = true;
                    is_borrowed[value.0] = borrows[input];
                    is_taken |= !borrows[input];
                }
            }
        }
        shared
    }

    /// True if a node's input has its gradient without an operation.
    pub(crate) fn is_passed_on(&self, node: usize, input: usize) -> bool {
        self.passed_on[node].get(input).is_some_and(|passed| *passed)
    }
}

/// The graph over values that have memory of their own, without the layers that others compute.
struct Roots<'a> {
    fusions: &'a Fusions,
    /// By value: the node that makes it.
    makers: Vec<Option<usize>>,
    /// By value: the nodes that read it, in order.
    readers: Vec<Vec<usize>>,
    is_judged: Vec<bool>,
}

impl Roots<'_> {
    fn of<'a>(network: &Network, fusions: &'a Fusions) -> Roots<'a> {
        let values = network.values();
        let (makers, readers, is_judged) = (vec![None; values], vec![Vec::new(); values], vec![false; values]);
        let mut roots = Roots { fusions, makers, readers, is_judged };
        for (number, node) in network.nodes().iter().enumerate() {
            if !fusions.is_absorbed[number] {
                let made = roots.root(node.output);
                roots.makers[made.0] = Some(number);
                node.inputs.iter().for_each(|input| {
                    let read = roots.root(*input);
                    roots.readers[read.0].push(number);
                });
            }
        }
        for criterion in network.criteria() {
            let judged = roots.root(criterion.prediction);
            roots.is_judged[judged.0] = true;
        }
        roots
    }

    fn root(&self, value: Value) -> Value {
        self.fusions.memory_of[value.0]
    }

    fn is_read_by(&self, value: Value, readers: &[usize]) -> bool {
        self.readers[value.0] == readers && !self.is_judged[value.0]
    }

    /// True if backward of the layer that makes a value leaves the value's gradient as it is.
    fn maker_only_reads(&self, value: Value, fusions: &Fusions) -> bool {
        self.makers[value.0].is_none_or(|maker| !fusions.takes_relu[maker])
    }

    fn all_readers_but(&self, value: Value, node: usize) -> impl Iterator<Item = usize> {
        self.readers[value.0].iter().copied().filter(move |reader| *reader != node)
    }

    /// True if a node is the last to read a value, once, so that it is the first to contribute to
    /// its gradient.
    fn takes_over(&self, value: Value, node: usize) -> bool {
        let readers = &self.readers[value.0];
        let times = readers.iter().filter(|reader| **reader == node).count();
        times == 1 && readers.last() == Some(&node) && !self.is_judged[value.0]
    }
}

/// For each value whether a parameter, or for tests an input, has a part in it.
pub(crate) fn needing_gradients(network: &Network, inputs: bool) -> Vec<bool> {
    let mut trained = vec![false; network.values()];
    network.inputs().iter().for_each(|input| trained[input.0] = inputs);
    for node in network.nodes() {
        let has_parameters = !node.layer.rule().parameters(&network.input_shapes(node)).is_empty();
        trained[node.output.0] = has_parameters || node.inputs.iter().any(|input| trained[input.0]);
    }
    trained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::Cpu,
        graph::Graph,
        layers::{Add, Linear, SoftmaxCrossEntropy},
        models,
        optimizers::{Optimizer, Sgd},
        planner::Options,
        replica::Replica,
        shape::Shape,
    };

    fn shared(network: &Network) -> SharedGradients {
        SharedGradients::of(network, &Fusions::of(network, false), false)
    }

    #[test]
    fn no_residual_block_copies_a_gradient() {
        let network = models::resnet20(Shape::image(3, 8, 8), 10).expect("a network");
        let shared = shared(&network);
        let sums = network.nodes().iter().enumerate().filter(|(_, node)| matches!(node.layer, Layer::Add(_)));
        for (number, node) in sums {
            assert!([0, 1].iter().all(|input| shared.is_passed_on(number, *input)), "{}", node.name);
        }
    }

    #[test]
    fn a_value_that_a_later_layer_reads_does_not_take_a_gradient_over() {
        let mut graph = Graph::new();
        let x = graph.input(Shape::features(4));
        let built = (|| {
            let a = graph.add("a", Linear::new(4), &[x])?;
            let b = graph.add("b", Linear::new(4), &[a])?;
            let sum = graph.join(Add, &[a, b])?;
            // `a` is read once more, behind the sum.
            let c = graph.join(Add, &[sum, a])?;
            graph.loss(SoftmaxCrossEntropy::default(), c)
        })();
        built.expect("the layers fit");
        let network = graph.build().expect("a network");
        let shared = shared(&network);
        // The last sum: `sum` borrows; `a` would take over, but the maker of `sum` adds to it while
        // it reads.
        assert_eq!([0, 1].map(|input| shared.is_passed_on(3, input)), [true, false]);
        assert_eq!([0, 1].map(|input| shared.is_passed_on(2, input)), [false, false]);
    }

    /// All gradients of a step.
    fn gradients(network: &Network, fuse: bool) -> Vec<f32> {
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });
        let options = Options {
            slots: 1,
            max_micro_batch: 4,
            fuse,
            keep_all: false,
            precision: crate::precision::Precision::F32,
        };
        let everything = std::iter::once(0..network.table().elements()).collect();
        let mut replica =
            Replica::with_options(Cpu::new(), network.clone(), sgd, everything, options).expect("one bucket");
        replica.initialise(3);
        // The last norm of a block begins with 0, which would hide what lies before it.
        let mut weights = replica.weights();
        for tensor in weights.iter_mut().filter(|tensor| tensor.shape.len() == 1) {
            tensor.values.iter_mut().for_each(|value| *value += 0.3);
        }
        replica.load_tensors(&weights).expect("the same network");
        let images: Vec<f32> = (0..4 * network.input().elements()).map(|index| (index as f32 * 0.37).sin()).collect();
        let mut gradients = Vec::new();
        replica.begin_step();
        replica.micro_batch(&images, &[0, 1, 2, 3], 0.25, true, &mut |_, mut bucket| {
            gradients.extend_from_slice(bucket.as_mut());
        });
        replica.finish_step();
        gradients
    }

    #[test]
    fn fusions_and_shared_memory_change_no_gradient_of_a_residual_network() {
        for build in [models::resnet20, models::resnet18] {
            let network = build(Shape::image(3, 32, 32), 10).expect("a network");
            let (fused, plain) = (gradients(&network, true), gradients(&network, false));
            let largest = plain.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let furthest = fused.iter().zip(&plain).map(|(fused, plain)| (fused - plain).abs()).fold(0.0, f32::max);
            assert!(furthest <= 1e-5 * largest, "{furthest} of {largest}");
        }
    }
}
