//! Layers that one operation computes together: a pass over the graph, before memory is planned.

use crate::device::Form;
use crate::graph::{Network, Node, Value};
use crate::layers::{Conv2d, Layer, MaxPool};
use crate::op::Function;

/// The fusions, by node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fusions {
    /// True if the node applies the `max(0, ·)` of the node that follows.
    pub(crate) takes_relu: Vec<bool>,
    /// True if another node computes what the node would.
    pub(crate) is_absorbed: Vec<bool>,
    /// For each value the one whose memory it has.
    pub(crate) memory_of: Vec<Value>,
    /// True if the node, a convolution, pools its output, too: a block of samples side by side.
    pub(crate) is_block: Vec<bool>,
    /// How the samples of each value lie.
    pub(crate) forms: Vec<Form>,
    /// For a convolution the batch norm behind it, which evaluation computes with it.
    pub(crate) norm_behind: Vec<Option<usize>>,
}

impl Fusions {
    /// None but views: every layer has operations of its own.
    pub(crate) fn none(network: &Network) -> Fusions {
        let nodes = network.nodes().len();
        let memory_of = (0..network.values()).map(Value).collect();
        let mut fusions = Fusions {
            takes_relu: vec![false; nodes],
            is_absorbed: vec![false; nodes],
            memory_of,
            is_block: vec![false; nodes],
            forms: vec![Form::Samples; network.values()],
            norm_behind: vec![None; nodes],
        };
        for (number, node) in network.nodes().iter().enumerate() {
            if node.layer.rule().is_view(&network.input_shapes(node)) {
                fusions.is_absorbed[number] = true;
                // A view's output has the memory of its input, which may have that of another's.
                fusions.memory_of[node.output.0] = fusions.memory_of[node.inputs[0].0];
            }
        }
        fusions
    }

    /// A `max(0, ·)` joins the layer before it, where nothing else reads that layer's output; on
    /// devices that have them, small convolutions become blocks with their pooling.
    pub(crate) fn of(network: &Network, blocks: bool) -> Fusions {
        let mut fusions = Fusions::none(network);
        let readers = readers(network);
        for (number, node) in network.nodes().iter().enumerate() {
            let Layer::Activation(activation) = &node.layer else { continue };
            let before = node.inputs[0];
            let producer = network.nodes().iter().position(|producer| producer.output == before);
            let Some(producer) = producer.filter(|_| activation.function == Function::Relu && readers[before.0] == 1)
            else {
                continue;
            };
            if network.nodes()[producer].layer.rule().takes_relu() && !fusions.is_absorbed[producer] {
                fusions.takes_relu[producer] = true;
                fusions.is_absorbed[number] = true;
                fusions.memory_of[node.output.0] = before;
            }
        }
        if blocks {
            fusions.join_blocks(network, &readers);
        }
        fusions.fold_norms(network, &readers);
        // Views were resolved before their inputs were fused.
        for value in 0..fusions.memory_of.len() {
            let mut root = Value(value);
            while fusions.memory_of[root.0] != root {
                root = fusions.memory_of[root.0];
            }
            fusions.memory_of[value] = root;
        }
        fusions
    }

    /// True if evaluation computes the node with another.
    pub(crate) fn is_folded(&self, number: usize) -> bool {
        self.norm_behind.contains(&Some(number))
    }

    /// Running statistics make a batch norm a factor and an addend for each channel.
    fn fold_norms(&mut self, network: &Network, readers: &[usize]) {
        for (number, node) in network.nodes().iter().enumerate() {
            let is_alone = readers[node.output.0] == 1 && !self.takes_relu[number] && !self.is_block[number];
            if !matches!(node.layer, Layer::Conv2d(_)) || !is_alone {
                continue;
            }
            let is_norm = |reader: &Node| matches!(reader.layer, Layer::BatchNorm(_)) && reader.inputs == [node.output];
            self.norm_behind[number] = network.nodes().iter().position(is_norm);
        }
    }

    /// The value that a node's operations make: that of its pooling for a block.
    pub(crate) fn made_by(&self, number: usize, node: &Node) -> Value {
        if self.is_block[number] { self.memory_of[node.output.0] } else { node.output }
    }

    /// Convolutions of few channels with the pooling behind them. Samples lie side by side from the
    /// input over the blocks to the flattening behind the last, so every value between them has one
    /// reader, which knows that form.
    fn join_blocks(&mut self, network: &Network, readers: &[usize]) {
        let mut chains: Vec<Chain> =
            (0..network.nodes().len()).filter_map(|number| self.chain(network, number, readers)).collect();
        loop {
            let fits = |chain: &Chain| {
                let begins =
                    network.inputs().contains(&chain.input) || chains.iter().any(|other| other.output == chain.input);
                let ends =
                    |node: &Node| matches!(node.layer, Layer::Flatten(_)) && !network.shape(chain.output).is_flat();
                let reader = network.nodes().iter().find(|node| node.inputs.contains(&chain.output));
                let goes_on = chains.iter().any(|other| other.input == chain.output) || reader.is_some_and(ends);
                begins && goes_on && network.shape(chain.output).channels > 1
            };
            let left: Vec<Chain> = chains.iter().filter(|chain| fits(chain)).copied().collect();
            if left.len() == chains.len() {
                break;
            }
            chains = left;
        }
        for Chain { convolution, pooling, input, output, padding } in chains {
            self.is_block[convolution] = true;
            self.is_absorbed[pooling] = true;
            self.memory_of[network.nodes()[convolution].output.0] = output;
            self.forms[input.0] = Form::Lanes { halo: padding };
            if self.forms[output.0] == Form::Samples {
                self.forms[output.0] = Form::Lanes { halo: 0 };
            }
        }
    }

    /// What could be a block that begins with this node.
    fn chain(&self, network: &Network, number: usize, readers: &[usize]) -> Option<Chain> {
        let node = &network.nodes()[number];
        let Layer::Conv2d(layer) = &node.layer else { return None };
        let input = node.inputs[0];
        let next = |value: Value| {
            let reader = network.nodes().iter().position(|reader| reader.inputs.contains(&value));
            reader.filter(|_| readers[value.0] == 1)
        };
        let mut pooling = next(node.output)?;
        if self.takes_relu[number] {
            pooling = next(network.nodes()[pooling].output)?;
        }
        let pool = &network.nodes()[pooling];
        let is_two_by_two = matches!(&pool.layer, Layer::MaxPool(pool) if *pool == MaxPool::new(2));
        let is_read_once = readers[input.0] == 1 && readers[pool.output.0] == 1;
        let suits = Conv2d::suits_a_block(layer, network.shape(input)) && is_two_by_two && is_read_once;
        suits.then_some(Chain {
            convolution: number,
            pooling,
            input,
            output: pool.output,
            padding: layer.window.padding[0],
        })
    }
}

/// A block.
#[derive(Debug, Clone, Copy)]
struct Chain {
    convolution: usize,
    pooling: usize,
    input: Value,
    output: Value,
    padding: usize,
}

/// How many layers and losses read each value.
fn readers(network: &Network) -> Vec<usize> {
    let mut readers = vec![0; network.values()];
    let read = network.nodes().iter().flat_map(|node| &node.inputs);
    read.chain(network.criteria().iter().map(|criterion| &criterion.prediction))
        .for_each(|value| readers[value.0] += 1);
    readers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        graph::Graph,
        layers::{Activation, Add, Conv2d, Flatten, Linear, MaxPool, SoftmaxCrossEntropy},
        shape::Shape,
    };

    fn fused(build: impl Fn(&mut Graph, Value) -> Result<Value, crate::Error>) -> Fusions {
        let mut graph = Graph::new();
        let x = graph.input(Shape::image(1, 4, 4));
        let y = build(&mut graph, x).expect("it fits");
        let y = graph.then(Flatten, y).and_then(|y| graph.add("fc", Linear::new(2), &[y])).expect("it fits");
        graph.loss(SoftmaxCrossEntropy::default(), y).expect("it fits");
        Fusions::of(&graph.build().expect("a network"), false)
    }

    #[test]
    fn a_relu_joins_the_layer_before_it() {
        let fusions = fused(|graph, x| {
            let y = graph.add("c", Conv2d::new(2, 3), &[x])?;
            graph.then(Activation::relu(), y)
        });
        assert_eq!((fusions.takes_relu[0], fusions.is_absorbed[1], fusions.memory_of[2]), (true, true, Value(1)));
    }

    #[test]
    fn a_relu_does_not_join_a_layer_that_another_reads_or_that_cannot_take_it() {
        let fusions = fused(|graph, x| {
            let y = graph.add("c", Conv2d::new(2, 3), &[x])?;
            let z = graph.then(Activation::relu(), y)?;
            let pooled = graph.join(Add, &[y, z]).and_then(|y| graph.then(MaxPool::new(2), y))?;
            graph.then(Activation::relu(), pooled)
        });
        assert_eq!(fusions.takes_relu, [false; 7]);
    }

    #[test]
    fn flattened_features_have_the_memory_of_what_was_flat() {
        let fusions = fused(|graph, x| graph.add("c", Conv2d::new(3, 4), &[x]));
        assert_eq!((fusions.is_absorbed[1], fusions.memory_of[2]), (true, Value(1)));
    }

    #[test]
    fn every_norm_of_a_residual_network_is_folded_in_evaluation() {
        let network = crate::models::resnet20(Shape::image(3, 8, 8), 10).expect("a network");
        let fusions = Fusions::of(&network, true);
        let norms = network.nodes().iter().filter(|node| matches!(node.layer, Layer::BatchNorm(_))).count();
        assert_eq!((norms, fusions.norm_behind.iter().flatten().count()), (19, 19));
        let folded = |(number, node): (usize, &Node)| fusions.is_folded(number).then(|| node.name.clone());
        let names: Vec<String> = network.nodes().iter().enumerate().filter_map(folded).collect();
        assert_eq!(names[..3], ["bn1", "layer1.0.bn1", "layer1.0.bn2"]);
    }

    #[test]
    fn lenet5_is_two_blocks_of_samples_side_by_side() {
        let network = crate::models::lenet5();
        let fusions = Fusions::of(&network, true);
        let blocks: Vec<&str> =
            network.nodes().iter().zip(&fusions.is_block).filter(|(_, is)| **is).map(|(node, _)| &*node.name).collect();
        assert_eq!(blocks, ["conv1", "conv2"]);
        let lanes = fusions.forms.iter().filter(|form| **form != Form::Samples).count();
        assert_eq!((fusions.forms[0], lanes), (Form::Lanes { halo: 2 }, 3));
        assert!(!Fusions::of(&network, false).is_block.contains(&true));
    }
}
