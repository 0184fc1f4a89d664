//! GoogLeNet (Szegedy et al., arXiv 1409.4842), without the local response norms and the two
//! auxiliary classifiers: about 7 million weights and 1.6 billion multiply-accumulates for 1000
//! classes of 224×224 images.

use super::build::Chain;
use crate::{
    error::Error,
    graph::Network,
    layers::{Concatenate, Conv2d, Dropout, GlobalAveragePool, Linear, MaxPool},
    shape::Shape,
};

/// Channels of an inception module: 1×1; reduced and 3×3; reduced and 5×5; behind the pooling.
type Channels = [usize; 6];

const MODULES: [(&str, Channels); 9] = [
    ("inception3a", [64, 96, 128, 16, 32, 32]),
    ("inception3b", [128, 128, 192, 32, 96, 64]),
    ("inception4a", [192, 96, 208, 16, 48, 64]),
    ("inception4b", [160, 112, 224, 24, 64, 64]),
    ("inception4c", [128, 128, 256, 24, 64, 64]),
    ("inception4d", [112, 144, 288, 32, 64, 64]),
    ("inception4e", [256, 160, 320, 32, 128, 128]),
    ("inception5a", [256, 160, 320, 32, 128, 128]),
    ("inception5b", [384, 192, 384, 48, 128, 128]),
];

/// GoogLeNet.
///
/// # Errors
/// The images are too small.
pub fn googlenet(input: Shape, classes: usize) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    let pool = MaxPool::new(3).stride(2).ceil();
    chain.with_relu("conv1", Conv2d::new(64, 7).stride(2).padding(3))?;
    chain.then(pool)?;
    chain.with_relu("conv2", Conv2d::new(64, 1))?;
    chain.with_relu("conv3", Conv2d::new(192, 3).padding(1))?;
    chain.then(pool)?;
    for (name, channels) in MODULES {
        inception(&mut chain, name, channels)?;
        if matches!(name, "inception3b" | "inception4e") {
            chain.then(pool)?;
        }
    }
    chain.then(GlobalAveragePool)?;
    chain.then(Dropout::new(0.4))?;
    chain.named("fc", Linear::new(classes))?;
    chain.classifier()
}

fn inception(chain: &mut Chain, name: &str, channels: Channels) -> Result<(), Error> {
    let [ones, reduced3, threes, reduced5, fives, pooled] = channels;
    let before = chain.at;
    let mut branches = Vec::new();
    let mut add = |chain: &mut Chain, branch: usize, layers: [(usize, usize); 2]| {
        for (index, (width, kernel)) in layers.into_iter().filter(|(width, _)| *width > 0).enumerate() {
            let layer = Conv2d::new(width, kernel).padding(kernel / 2);
            chain.with_relu(&format!("{name}.branch{branch}.{index}"), layer)?;
        }
        branches.push(chain.at);
        chain.at = before;
        Ok::<(), Error>(())
    };
    add(chain, 1, [(ones, 1), (0, 0)])?;
    add(chain, 2, [(reduced3, 1), (threes, 3)])?;
    add(chain, 3, [(reduced5, 1), (fives, 5)])?;
    chain.then(MaxPool::new(3).stride(1).padding(1))?;
    add(chain, 4, [(pooled, 1), (0, 0)])?;
    chain.at = chain.graph.join(Concatenate, &branches)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_weights_as_published() {
        let network = googlenet(Shape::image(3, 224, 224), 1000).expect("a network");
        let summary = network.summary();
        assert_eq!(summary.parameters(), 6_998_552);
        // The paper: 1.5 billion.
        assert!((1_500_000_000..1_620_000_000).contains(&summary.macs()), "{}", summary.macs());
    }
}
