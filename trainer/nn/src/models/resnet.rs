//! Residual networks (He et al., arXiv 1512.03385) for images of ImageNet's kind, with the names of
//! torchvision. In the bottleneck the 3×3 convolution has the stride, as torchvision and MLPerf
//! have it (version 1.5).
//!
//! Convolutions begin as He et al. (arXiv 1502.01852, by their outputs), the last layer as N(0,
//! 0.01²), and the scales of each block's last norm as 0 (Goyal et al., arXiv 1706.02677).

use super::build::Chain;
use crate::{
    error::Error,
    graph::{Network, Value},
    layers::{Activation, Add, BatchNorm, Conv2d, GlobalAveragePool, Linear, MaxPool},
    parameters::Initial,
    shape::Shape,
};

/// Two 3×3 convolutions, or three convolutions of which the outer ones are 1×1 and the last has
/// four times the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Basic,
    Bottleneck,
}

/// 18 layers: 11,689,512 weights for 1000 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet18(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet(Kind::Basic, [2, 2, 2, 2], input, classes)
}

/// 34 layers: 21,797,672 weights for 1000 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet34(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet(Kind::Basic, [3, 4, 6, 3], input, classes)
}

/// 50 layers: 25,557,032 weights for 1000 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet50(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet(Kind::Bottleneck, [3, 4, 6, 3], input, classes)
}

fn resnet(kind: Kind, blocks: [usize; 4], input: Shape, classes: usize) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    chain.named("conv1", convolution(64, 7).stride(2).padding(3))?;
    chain.with_relu("bn1", BatchNorm::new())?;
    chain.then(MaxPool::new(3).stride(2).padding(1))?;
    for (stage, blocks) in blocks.into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("layer{}.{block}", stage + 1);
            residual(&mut chain, &name, kind, 64 << stage, stride)?;
        }
    }
    chain.then(GlobalAveragePool)?;
    chain.named("fc", Linear::new(classes).initial(Initial::Normal { deviation: 0.01 }))?;
    chain.classifier()
}

/// A convolution without a bias: the norm behind it has one.
fn convolution(outputs: usize, kernel: usize) -> Conv2d {
    Conv2d::new(outputs, kernel).without_bias().initial(Initial::he(outputs * kernel * kernel))
}

fn residual(chain: &mut Chain, name: &str, kind: Kind, width: usize, stride: usize) -> Result<(), Error> {
    let before = chain.at;
    let sub = |part: &str| format!("{name}.{part}");
    let outputs = match kind {
        Kind::Basic => {
            chain.named(&sub("conv1"), convolution(width, 3).stride(stride).padding(1))?;
            chain.with_relu(&sub("bn1"), BatchNorm::new())?;
            chain.named(&sub("conv2"), convolution(width, 3).padding(1))?;
            chain.named(&sub("bn2"), BatchNorm::new().scale(0.0))?;
            width
        }
        Kind::Bottleneck => {
            chain.named(&sub("conv1"), convolution(width, 1))?;
            chain.with_relu(&sub("bn1"), BatchNorm::new())?;
            chain.named(&sub("conv2"), convolution(width, 3).stride(stride).padding(1))?;
            chain.with_relu(&sub("bn2"), BatchNorm::new())?;
            chain.named(&sub("conv3"), convolution(4 * width, 1))?;
            chain.named(&sub("bn3"), BatchNorm::new().scale(0.0))?;
            4 * width
        }
    };
    let shortcut = shortcut(chain, name, before, outputs, stride)?;
    let sum = chain.graph.join(Add, &[chain.at, shortcut])?;
    chain.at = chain.graph.then(Activation::relu(), sum)?;
    Ok(())
}

/// The value itself, or where its shape changes a 1×1 convolution with a norm (option B).
fn shortcut(chain: &mut Chain, name: &str, before: Value, outputs: usize, stride: usize) -> Result<Value, Error> {
    if stride == 1 && chain.graph.shape(before).channels == outputs {
        return Ok(before);
    }
    let reduced = convolution(outputs, 1).stride(stride);
    let value = chain.graph.add(&format!("{name}.downsample.0"), reduced, &[before])?;
    chain.graph.add(&format!("{name}.downsample.1"), BatchNorm::new(), &[value])
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: Shape = Shape::image(3, 224, 224);

    #[test]
    fn they_have_as_many_weights_as_torchvisions() {
        for (build, weights) in [
            (resnet18 as fn(Shape, usize) -> Result<Network, Error>, 11_689_512),
            (resnet34, 21_797_672),
            (resnet50, 25_557_032),
        ] {
            assert_eq!(build(IMAGES, 1000).expect("a network").table().weights(), weights);
        }
    }

    /// He et al. count 3.8·10⁹ for ResNet-50 with the stride in the 1×1 convolution; version 1.5
    /// has 4.1·10⁹.
    #[test]
    fn resnet50_has_4_1_billion_multiply_accumulates() {
        let macs = resnet50(IMAGES, 1000).expect("a network").summary().macs();
        assert_eq!(macs, 4_089_184_256);
    }

    #[test]
    fn parameters_have_the_names_of_torchvision() {
        let network = resnet18(IMAGES, 10).expect("a network");
        for name in
            ["layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var", "layer4.1.bn2.bias", "fc.bias"]
        {
            assert!(network.table().get(name).is_some(), "{name}");
        }
        assert!(network.table().get("layer1.0.downsample.0.weight").is_none());
    }
}
