//! LeNet-5 (LeCun et al. 1998) as it is trained today, with ReLU and max pooling.

use crate::{
    error::Error,
    graph::{Graph, Network, Value},
    layers::{Activation, Conv2d, Flatten, Linear, MaxPool, SoftmaxCrossEntropy},
    shape::Shape,
};

/// On 28×28 digits: 61,706 weights.
pub fn lenet5() -> Network {
    lenet5_on(Shape::image(1, 28, 28), 10).unwrap_or_else(|error| panic!("LeNet-5 is a network: {error}"))
}

/// On other images and classes.
///
/// # Errors
/// The images are too small.
pub fn lenet5_on(input: Shape, classes: usize) -> Result<Network, Error> {
    let mut graph = Graph::new();
    let x = graph.input(input);
    let x = convolution(&mut graph, "conv1", Conv2d::new(6, 5).padding(2), x)?;
    let x = convolution(&mut graph, "conv2", Conv2d::new(16, 5), x)?;
    let mut x = graph.then(Flatten, x)?;
    for (name, outputs) in [("fc1", 120), ("fc2", 84)] {
        x = graph.add(name, Linear::new(outputs), &[x])?;
        x = graph.then(Activation::relu(), x)?;
    }
    let x = graph.add("fc3", Linear::new(classes), &[x])?;
    graph.loss(SoftmaxCrossEntropy::default(), x)?;
    graph.build()
}

fn convolution(graph: &mut Graph, name: &str, layer: Conv2d, x: Value) -> Result<Value, Error> {
    let x = graph.add(name, layer, &[x])?;
    let x = graph.then(Activation::relu(), x)?;
    graph.then(MaxPool::new(2), x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_61706_weights() {
        assert_eq!(lenet5().table().weights(), 61_706);
    }

    #[test]
    fn it_takes_other_images_and_says_where_they_are_too_small() {
        let network = lenet5_on(Shape::image(3, 32, 32), 100).expect("images are large enough");
        assert_eq!((network.input().channels, network.classes()), (3, 100));
        let error = lenet5_on(Shape::image(1, 8, 8), 10).expect_err("the image is too small");
        assert!(error.to_string().starts_with("conv2 (conv2d) expects an image that the window fits"), "{error}");
    }
}
