//! The mathematics once more, in double precision, as plainly as it can be written.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;

use lockstep_nn::layers::{Activation, Conv2d, Flatten, Layer, Linear, MaxPool, SoftmaxCrossEntropy};
use lockstep_nn::{Graph, Network, Node, Shape, StateTensor};

/// A chain of layers that ends with a loss; layers without a name have no parameters.
pub(crate) fn chain(input: Shape, layers: &[(&str, Layer)]) -> Network {
    let mut graph = Graph::new();
    let mut x = graph.input(input);
    for (name, layer) in layers {
        let added = if name.is_empty() { graph.then(layer.clone(), x) } else { graph.add(name, layer.clone(), &[x]) };
        x = added.expect("the layers of a test fit");
    }
    graph.loss(SoftmaxCrossEntropy::default(), x).expect("features");
    graph.build().expect("the network of a test is a network")
}

pub(crate) fn conv(outputs: usize, kernel: usize, padding: usize) -> Layer {
    Conv2d::new(outputs, kernel).padding(padding).into()
}

pub(crate) fn relu() -> (&'static str, Layer) {
    ("", Activation::relu().into())
}

pub(crate) fn pool() -> (&'static str, Layer) {
    ("", MaxPool::new(2).into())
}

pub(crate) fn flatten() -> (&'static str, Layer) {
    ("", Flatten.into())
}

pub(crate) fn linear(outputs: usize) -> Layer {
    Linear::new(outputs).into()
}

pub(crate) struct Reference<'a> {
    network: &'a Network,
    weights: HashMap<String, Vec<f64>>,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(network: &'a Network, weights: &[StateTensor]) -> Reference<'a> {
        let wide = |tensor: &StateTensor| tensor.values.iter().map(|value| f64::from(*value)).collect();
        Reference { network, weights: weights.iter().map(|tensor| (tensor.name.clone(), wide(tensor))).collect() }
    }

    pub(crate) fn nudge(&mut self, name: &str, place: usize, offset: f64) {
        self.weights.get_mut(name).expect("the network has the parameter")[place] += offset;
    }

    /// Sum of the samples' losses, and the number of correct predictions.
    pub(crate) fn loss(&self, images: &[f32], labels: &[u32]) -> (f64, u64) {
        let samples = images.chunks(self.network.input().elements()).zip(labels);
        samples.fold((0.0, 0), |(loss, correct), (image, label)| {
            let logits = self.logits(image);
            let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - highest).exp()).sum();
            let own = logits[*label as usize];
            (loss + sum.ln() + highest - own, correct + u64::from(own == highest))
        })
    }

    fn logits(&self, image: &[f32]) -> Vec<f64> {
        let mut values: Vec<f64> = image.iter().map(|value| f64::from(*value)).collect();
        for node in self.network.nodes() {
            let (input, output) = (self.network.shape(node.inputs[0]), self.network.shape(node.output));
            values = match &node.layer {
                Layer::Linear(_) => self.linear(node, &values, output),
                Layer::Conv2d(layer) => self.convolution(node, layer, &values, input, output),
                Layer::Activation(_) => values.into_iter().map(|value| value.max(0.0)).collect(),
                Layer::MaxPool(layer) => maxima(layer.window.stride[0], &values, input, output),
                Layer::Flatten(_) => values,
                other => panic!("the reference has no {other:?}"),
            };
        }
        values
    }

    fn parameters(&self, node: &Node) -> [&[f64]; 2] {
        ["weight", "bias"].map(|role| &self.weights[&format!("{}.{role}", node.name)][..])
    }

    fn linear(&self, node: &Node, values: &[f64], output: Shape) -> Vec<f64> {
        let [weight, bias] = self.parameters(node);
        let product =
            |output: usize| values.iter().zip(&weight[output * values.len()..]).map(|(v, w)| v * w).sum::<f64>();
        (0..output.channels).map(|output| product(output) + bias[output]).collect()
    }

    fn convolution(&self, node: &Node, layer: &Conv2d, values: &[f64], input: Shape, output: Shape) -> Vec<f64> {
        let [weight, bias] = self.parameters(node);
        let [rows, columns] = layer.window.kernel;
        let padding = layer.window.padding[0];
        let sum = |o: usize, y: usize, x: usize| {
            let mut sum = bias[o];
            for channel in 0..input.channels {
                for i in 0..rows {
                    for j in 0..columns {
                        let (y, x) = ((y + i).wrapping_sub(padding), (x + j).wrapping_sub(padding));
                        if y < input.height && x < input.width {
                            let tap = ((o * input.channels + channel) * rows + i) * columns + j;
                            sum += weight[tap] * values[(channel * input.height + y) * input.width + x];
                        }
                    }
                }
            }
            sum
        };
        places(output).map(|(channel, y, x)| sum(channel, y, x)).collect()
    }
}

fn maxima(side: usize, values: &[f64], input: Shape, output: Shape) -> Vec<f64> {
    let at = |channel: usize, y: usize, x: usize| values[(channel * input.height + y) * input.width + x];
    let maximum = |(channel, y, x): (usize, usize, usize)| {
        let window = (0..side * side).map(|tap| at(channel, side * y + tap / side, side * x + tap % side));
        window.fold(f64::NEG_INFINITY, f64::max)
    };
    places(output).map(maximum).collect()
}

fn places(shape: Shape) -> impl Iterator<Item = (usize, usize, usize)> {
    let pixels = shape.pixels();
    (0..shape.elements()).map(move |index| (index / pixels, index % pixels / shape.width, index % shape.width))
}

/// A small generator: the tests need variety, not quality.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// In −1..1.
    pub(crate) fn centred(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 33) as u32 % limit
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
