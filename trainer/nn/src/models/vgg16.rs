//! VGG-16 (Simonyan and Zisserman, arXiv 1409.1556, configuration D) with the names of torchvision:
//! 138,357,544 weights for 1000 classes of 224×224 images.

use super::build::Chain;
use crate::{
    error::Error,
    graph::Network,
    layers::{Conv2d, Dropout, Flatten, Linear, MaxPool},
    parameters::Initial,
    shape::Shape,
};

/// VGG-16.
///
/// # Errors
/// The images are too small.
pub fn vgg16(input: Shape, classes: usize) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    // torchvision counts a ReLU and a pooling as layers, too.
    let mut number = 0;
    for (width, convolutions) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)] {
        for _ in 0..convolutions {
            let layer = Conv2d::new(width, 3).padding(1).initial(Initial::he(width * 9));
            chain.with_relu(&format!("features.{number}"), layer)?;
            number += 2;
        }
        chain.then(MaxPool::new(2))?;
        number += 1;
    }
    chain.then(Flatten)?;
    for name in ["classifier.0", "classifier.3"] {
        chain.with_relu(name, Linear::new(4096).initial(Initial::Normal { deviation: 0.01 }))?;
        chain.then(Dropout::new(0.5))?;
    }
    chain.named("classifier.6", Linear::new(classes).initial(Initial::Normal { deviation: 0.01 }))?;
    chain.classifier()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_weights_and_multiply_accumulates_as_published() {
        let network = vgg16(Shape::image(3, 224, 224), 1000).expect("a network");
        let summary = network.summary();
        assert_eq!((summary.parameters(), summary.macs()), (138_357_544, 15_470_264_320));
        assert!(network.table().get("features.28.weight").is_some());
    }
}
