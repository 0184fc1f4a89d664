//! Perceptrons: layers of features with ReLU between them.

use crate::{
    error::Error,
    graph::{Graph, Network},
    layers::{Activation, Flatten, Linear, SoftmaxCrossEntropy},
    shape::Shape,
};

/// A perceptron of `inputs` features, ReLU layers of the `hidden` widths, and `classes` outputs;
/// its layers are `fc1`, `fc2` and so on.
///
/// # Panics
/// If a width is zero.
pub fn mlp(inputs: usize, hidden: &[usize], classes: usize) -> Network {
    mlp_on(Shape::features(inputs), hidden, classes).unwrap_or_else(|error| panic!("no perceptron: {error}"))
}

/// The same on samples of any shape.
///
/// # Errors
/// A width is zero.
pub fn mlp_on(input: Shape, hidden: &[usize], classes: usize) -> Result<Network, Error> {
    let mut graph = Graph::new();
    let x = graph.input(input);
    let mut x = graph.then(Flatten, x)?;
    for (index, width) in hidden.iter().enumerate() {
        x = graph.add(&format!("fc{}", index + 1), Linear::new(*width), &[x])?;
        x = graph.then(Activation::relu(), x)?;
    }
    let x = graph.add(&format!("fc{}", hidden.len() + 1), Linear::new(classes), &[x])?;
    graph.loss(SoftmaxCrossEntropy::default(), x)?;
    graph.build()
}

/// A perceptron of 24.9 million weights on 28×28 images, about ResNet-50's size: for benchmarks of
/// communication.
pub fn mlp25m() -> Network {
    mlp(784, &[4096, 4096, 1200], 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_one_has_about_25_million_weights() {
        assert_eq!(mlp25m().table().weights(), 24_925_082);
    }

    #[test]
    fn without_hidden_layers_it_is_one_linear_layer() {
        assert_eq!(mlp(3, &[], 2).table().weights(), 8);
    }
}
