//! A model: a graph of layers over values, checked while it is built.
//!
//! A value has a shape; a layer reads one or more values and makes one. A value may have several
//! readers, and layers may share their parameters. Losses compare values with targets.

use std::collections::HashSet;

use crate::error::Error;
use crate::layers::{Layer, Loss};
use crate::parameters::{ParamSpec, ParamTable};
use crate::shape::Shape;

/// A value of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(pub(crate) usize);

/// A layer in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name, the prefix of its parameters' names.
    pub name: String,
    /// Its computation.
    pub layer: Layer,
    /// The values that it reads.
    pub inputs: Vec<Value>,
    /// The value that it makes.
    pub output: Value,
    /// The node whose parameters it uses, where they are not its own.
    pub shares: Option<usize>,
}

/// A loss in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Criterion {
    /// Its computation.
    pub loss: Loss,
    /// The values that it reads.
    pub prediction: Value,
    /// Which of a sample's targets it compares with.
    pub target: usize,
    /// Its weight beside others.
    pub weight: f32,
    /// True if it counts in training only, and not in evaluation.
    pub is_auxiliary: bool,
}

/// A checked model.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    shapes: Vec<Shape>,
    inputs: Vec<Value>,
    nodes: Vec<Node>,
    criteria: Vec<Criterion>,
    table: ParamTable,
}

impl Network {
    /// Shape of an input sample: of the first input, where there are several.
    pub fn input(&self) -> Shape {
        self.shape(self.inputs[0])
    }

    /// All inputs.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// Number of classes: the channels of what the first loss reads.
    pub fn classes(&self) -> usize {
        self.shape(self.criteria[0].prediction).channels
    }

    /// The value that the first loss reads.
    pub fn output(&self) -> Value {
        self.criteria[0].prediction
    }

    /// The layers in forward order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The losses.
    pub fn criteria(&self) -> &[Criterion] {
        &self.criteria
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> Shape {
        self.shapes[value.0]
    }

    /// Number of values.
    pub fn values(&self) -> usize {
        self.shapes.len()
    }

    /// Shapes of what a node reads.
    pub fn input_shapes(&self, node: &Node) -> Vec<Shape> {
        node.inputs.iter().map(|value| self.shape(*value)).collect()
    }

    /// The parameters that a node brings; none where it shares another's.
    pub fn parameters_of(&self, node: &Node) -> Vec<ParamSpec> {
        if node.shares.is_some() { Vec::new() } else { node.layer.rule().parameters(&self.input_shapes(node)) }
    }

    /// The name under which a node's parameters are in the table.
    pub fn owner<'a>(&'a self, node: &'a Node) -> &'a str {
        node.shares.map_or(&node.name, |owner| &self.nodes[owner].name)
    }

    /// The place of every parameter.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Another first loss, such as one with label smoothing.
    ///
    /// # Errors
    /// The layer cannot read the output of the one before it.
    pub fn set_loss(&mut self, loss: impl Into<Loss>) -> Result<(), Error> {
        let loss = loss.into();
        checked(&loss, self.shape(self.output()), 0)?;
        self.criteria[0].loss = loss;
        Ok(())
    }

    /// Leaves some parameters as they are; gives their number.
    pub fn freeze(&mut self, is_frozen: impl Fn(&str) -> bool) -> usize {
        self.table.freeze(is_frozen)
    }
}

/// A graph that is being built.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    shapes: Vec<Shape>,
    inputs: Vec<Value>,
    nodes: Vec<Node>,
    criteria: Vec<Criterion>,
    names: HashSet<String>,
}

impl Graph {
    /// One without layers.
    #[must_use]
    pub fn new() -> Graph {
        Graph::default()
    }

    /// A value that comes with each sample.
    pub fn input(&mut self, shape: Shape) -> Value {
        let value = self.value(shape);
        self.inputs.push(value);
        value
    }

    /// Adds a layer with a name of its own.
    ///
    /// # Errors
    /// The layer cannot compute on these inputs, or another has its name.
    pub fn add(&mut self, name: &str, layer: impl Into<Layer>, inputs: &[Value]) -> Result<Value, Error> {
        self.place(name.to_owned(), layer.into(), inputs, None)
    }

    /// Adds a layer that has no parameters: its name is its kind with a number.
    ///
    /// # Errors
    /// The layer cannot compute on these inputs.
    pub fn then(&mut self, layer: impl Into<Layer>, input: Value) -> Result<Value, Error> {
        self.join(layer, &[input])
    }

    /// The same with several inputs.
    ///
    /// # Errors
    /// The layer cannot compute on these inputs.
    pub fn join(&mut self, layer: impl Into<Layer>, inputs: &[Value]) -> Result<Value, Error> {
        let layer = layer.into();
        let name = format!("{}_{}", layer.name(), self.nodes.len());
        self.place(name, layer, inputs, None)
    }

    /// Adds a layer that uses the parameters of an earlier one of the same kind and shapes.
    ///
    /// # Errors
    /// The layer cannot compute on these inputs, or has other parameters.
    pub fn add_sharing(
        &mut self,
        name: &str,
        layer: impl Into<Layer>,
        inputs: &[Value],
        owner: &str,
    ) -> Result<Value, Error> {
        let layer = layer.into();
        let expected = self.parameter_shapes(&layer, inputs);
        let found = self.nodes.iter().enumerate().rev().find(|(_, node)| node.name == owner && node.shares.is_none());
        let got = found.map(|(_, node)| self.parameter_shapes(&node.layer, &node.inputs));
        match found {
            Some((owner, _)) if got.as_ref() == Some(&expected) => {
                self.place(name.to_owned(), layer, inputs, Some(owner))
            }
            _ => Err(Error::Misfit {
                layer: name.to_owned(),
                kind: layer.name().to_owned(),
                expected: format!("an earlier layer {owner} with parameters {expected:?}"),
                got: got.map_or_else(|| "none of that name".to_owned(), |got| format!("{got:?}")),
            }),
        }
    }

    /// Trains so that `prediction` meets the first target of each sample by this loss.
    ///
    /// # Errors
    /// The loss cannot read the value.
    pub fn loss(&mut self, loss: impl Into<Loss>, prediction: Value) -> Result<(), Error> {
        self.criterion(Criterion { loss: loss.into(), prediction, target: 0, weight: 1.0, is_auxiliary: false })
    }

    /// Adds a loss beside others.
    ///
    /// # Errors
    /// The loss cannot read the value.
    pub fn criterion(&mut self, criterion: Criterion) -> Result<(), Error> {
        checked(&criterion.loss, self.shapes[criterion.prediction.0], self.criteria.len())?;
        self.criteria.push(criterion);
        Ok(())
    }

    /// The checked network.
    ///
    /// # Errors
    /// Without an input, a loss or a parameter.
    pub fn build(self) -> Result<Network, Error> {
        let Graph { shapes, inputs, nodes, criteria, names: _ } = self;
        if inputs.is_empty() || criteria.is_empty() {
            return Err(Error::NoLoss);
        }
        let mut network = Network { shapes, inputs, nodes, criteria, table: ParamTable::lay_out([]) };
        let layers = network.nodes.iter().rev().map(|node| (node.name.clone(), network.parameters_of(node)));
        network.table = ParamTable::lay_out(layers.collect::<Vec<_>>());
        if network.table.weights() == 0 {
            return Err(Error::NoParameters);
        }
        Ok(network)
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> Shape {
        self.shapes[value.0]
    }

    fn parameter_shapes(&self, layer: &Layer, inputs: &[Value]) -> Vec<(&'static str, Vec<usize>)> {
        let inputs: Vec<Shape> = inputs.iter().map(|value| self.shape(*value)).collect();
        let Ok(_) = layer.rule().output(&inputs) else { return Vec::new() };
        layer.rule().parameters(&inputs).into_iter().map(|spec| (spec.name, spec.shape)).collect()
    }

    fn place(&mut self, name: String, layer: Layer, inputs: &[Value], shares: Option<usize>) -> Result<Value, Error> {
        let shapes: Vec<Shape> = inputs.iter().map(|value| self.shape(*value)).collect();
        let output = layer.rule().output(&shapes).map_err(|misfit| Error::Misfit {
            layer: name.clone(),
            kind: layer.name().to_owned(),
            expected: misfit.expected,
            got: misfit.got,
        })?;
        if !self.names.insert(name.clone()) {
            return Err(Error::DuplicateName { name });
        }
        let output = self.value(output);
        self.nodes.push(Node { name, layer, inputs: inputs.to_vec(), output, shares });
        Ok(output)
    }

    fn value(&mut self, shape: Shape) -> Value {
        self.shapes.push(shape);
        Value(self.shapes.len() - 1)
    }
}

/// True if a loss can read a prediction of this shape.
fn checked(loss: &Loss, prediction: Shape, number: usize) -> Result<(), Error> {
    loss.check(prediction).map_err(|misfit| Error::Misfit {
        layer: format!("loss {number}"),
        kind: loss.name().to_owned(),
        expected: misfit.expected,
        got: misfit.got,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Activation, Conv2d, Flatten, Linear, MaxPool, SoftmaxCrossEntropy};

    type Building = fn(&mut Graph, Value) -> Result<Value, Error>;

    fn refusal(build: Building) -> String {
        let mut graph = Graph::new();
        let x = graph.input(Shape::image(1, 8, 8));
        let built = build(&mut graph, x).and_then(|y| graph.loss(SoftmaxCrossEntropy::default(), y));
        let built = built.and_then(|()| graph.build());
        built.expect_err("the network must be refused").to_string()
    }

    #[test]
    fn each_impossible_network_is_refused_with_the_layer_and_what_it_expects() {
        let cases: [(Building, &str); 7] = [
            (|graph, x| graph.add("fc", Linear::new(3), &[x]), "fc (linear) expects features"),
            (|graph, x| graph.add("c", Conv2d::new(2, 9), &[x]), "c (conv2d) expects an image that the window fits"),
            (|graph, x| graph.add("c", Conv2d::new(0, 3), &[x]), "at least one output"),
            (
                |graph, x| {
                    let x = graph.add("c", Conv2d::new(2, 8), &[x])?;
                    graph.then(MaxPool::new(2), x)
                },
                "max_pool_1 (max_pool) expects an image that the window fits",
            ),
            (
                |graph, x| {
                    let x = graph.then(Flatten, x)?;
                    let x = graph.add("fc", Linear::new(2), &[x])?;
                    graph.add("fc", Linear::new(2), &[x])
                },
                "two layers are named fc",
            ),
            (|graph, x| graph.then(Activation::relu(), x), "loss 0 (softmax_cross_entropy)"),
            (|graph, x| graph.then(Flatten, x), "no layer with parameters"),
        ];
        for (build, expected) in cases {
            let message = refusal(build);
            assert!(message.contains(expected), "{message} does not say {expected}");
        }
    }

    #[test]
    fn shared_parameters_are_in_the_table_once() {
        let mut graph = Graph::new();
        let x = graph.input(Shape::features(4));
        let y = graph.add("one", Linear::new(4), &[x]).expect("it fits");
        let y = graph.add_sharing("two", Linear::new(4), &[y], "one").expect("it fits");
        assert!(graph.add_sharing("three", Linear::new(5), &[y], "one").is_err());
        graph.loss(SoftmaxCrossEntropy::default(), y).expect("it fits");
        assert_eq!(graph.build().expect("a network").table().weights(), 20);
    }

    #[test]
    fn a_model_takes_another_loss_that_fits_its_classes() {
        let mut network = crate::models::lenet5();
        let smoothed = SoftmaxCrossEntropy { smoothing: 0.1, ..SoftmaxCrossEntropy::default() };
        network.set_loss(smoothed.clone()).expect("it fits");
        assert_eq!(network.criteria()[0].loss, smoothed.into());
        let weighted = SoftmaxCrossEntropy { class_weights: vec![1.0; 9], ..SoftmaxCrossEntropy::default() };
        let error = network.set_loss(weighted).expect_err("ten classes").to_string();
        assert!(error.contains("expects 10 class weights, but gets 9"), "{error}");
    }
}
