//! AlexNet (Krizhevsky, arXiv 1404.5997: the form for one GPU) with the names of torchvision:
//! 61,100,840 weights for 1000 classes of 224×224 images.

use super::build::Chain;
use crate::{
    error::Error,
    graph::Network,
    layers::{AveragePool, Conv2d, Dropout, Flatten, Linear, MaxPool},
    shape::Shape,
};

/// AlexNet.
///
/// # Errors
/// The images are too small.
pub fn alexnet(input: Shape, classes: usize) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    let pool = MaxPool::new(3).stride(2);
    chain.with_relu("features.0", Conv2d::new(64, 11).stride(4).padding(2))?;
    chain.then(pool)?;
    chain.with_relu("features.3", Conv2d::new(192, 5).padding(2))?;
    chain.then(pool)?;
    chain.with_relu("features.6", Conv2d::new(384, 3).padding(1))?;
    chain.with_relu("features.8", Conv2d::new(256, 3).padding(1))?;
    chain.with_relu("features.10", Conv2d::new(256, 3).padding(1))?;
    chain.then(pool)?;
    six_by_six(&mut chain)?;
    chain.then(Flatten)?;
    chain.then(Dropout::new(0.5))?;
    chain.with_relu("classifier.1", Linear::new(4096))?;
    chain.then(Dropout::new(0.5))?;
    chain.with_relu("classifier.4", Linear::new(4096))?;
    chain.named("classifier.6", Linear::new(classes))?;
    chain.classifier()
}

/// Larger images are averaged down where their side is a multiple of six; others keep their size.
fn six_by_six(chain: &mut Chain) -> Result<(), Error> {
    let Shape { height, width, .. } = chain.graph.shape(chain.at);
    if height == width && height > 6 && height.is_multiple_of(6) {
        chain.then(AveragePool::new(height / 6))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_weights_and_multiply_accumulates_as_torchvisions() {
        let summary = alexnet(Shape::image(3, 224, 224), 1000).expect("a network").summary();
        assert_eq!((summary.parameters(), summary.macs()), (61_100_840, 714_188_480));
    }
}
