//! Residual networks for small images (He et al., arXiv 1512.03385,  4.2): three stages of 16, 32
//! and 64 channels, with shortcuts that have no parameters (option A).

use super::build::Chain;
use crate::{
    error::Error,
    graph::Network,
    layers::{Activation, Add, BatchNorm, Conv2d, GlobalAveragePool, Linear, Shortcut},
    parameters::Initial,
    shape::Shape,
};

/// 20 layers: 0.27 million weights for 10 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet20(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet_cifar(3, input, classes)
}

/// 32 layers: 0.46 million weights for 10 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet32(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet_cifar(5, input, classes)
}

/// 56 layers: 0.85 million weights for 10 classes.
///
/// # Errors
/// The images are too small.
pub fn resnet56(input: Shape, classes: usize) -> Result<Network, Error> {
    resnet_cifar(9, input, classes)
}

/// `6n + 2` layers.
fn resnet_cifar(n: usize, input: Shape, classes: usize) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    chain.named("conv1", convolution(input.channels, 16))?;
    chain.with_relu("bn1", BatchNorm::new())?;
    for (stage, width) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..n {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            residual(&mut chain, &format!("layer{}.{block}", stage + 1), width, stride)?;
        }
    }
    chain.then(GlobalAveragePool)?;
    chain.named("fc", Linear::new(classes))?;
    chain.classifier()
}

fn convolution(inputs: usize, outputs: usize) -> Conv2d {
    Conv2d::new(outputs, 3).padding(1).without_bias().initial(Initial::he(inputs * 9))
}

fn residual(chain: &mut Chain, name: &str, width: usize, stride: usize) -> Result<(), Error> {
    let before = chain.at;
    let inputs = chain.graph.shape(before).channels;
    chain.named(&format!("{name}.conv1"), convolution(inputs, width).stride(stride))?;
    chain.with_relu(&format!("{name}.bn1"), BatchNorm::new())?;
    chain.named(&format!("{name}.conv2"), convolution(width, width))?;
    chain.named(&format!("{name}.bn2"), BatchNorm::new().scale(0.0))?;
    let shortcut = match stride {
        1 => before,
        _ => chain.graph.then(Shortcut { outputs: width, stride }, before)?,
    };
    let sum = chain.graph.join(Add, &[chain.at, shortcut])?;
    chain.at = chain.graph.then(Activation::relu(), sum)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_as_many_weights_as_published() {
        for (build, weights) in [
            (resnet20 as fn(Shape, usize) -> Result<Network, Error>, 269_722),
            (resnet32, 464_154),
            (resnet56, 853_018),
        ] {
            assert_eq!(build(Shape::image(3, 32, 32), 10).expect("a network").table().weights(), weights);
        }
    }

    #[test]
    fn resnet20_has_40_6_million_multiply_accumulates() {
        let macs = resnet20(Shape::image(3, 32, 32), 10).expect("a network").summary().macs();
        assert_eq!(macs, 40_551_040);
    }
}
