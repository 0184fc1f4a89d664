//! U-Net (Ronneberger et al., arXiv 1505.04597), a class for each pixel: four times two 3×3
//! convolutions and a pooling, then four times an up-convolution, joined with what was there before
//! the pooling of the same size.
//!
//! Convolutions have padding, so the output is as large as the image, whose sides are multiples of
//! 16. With 64 channels at the top it has 31.03 million weights.

use super::build::Chain;
use crate::{
    error::Error,
    graph::Network,
    layers::{Concatenate, Conv2d, MaxPool, SoftmaxCrossEntropy, UpConvolution},
    parameters::Initial,
    shape::Shape,
};

/// Times that the image is halved.
const DEPTH: usize = 4;

/// With 64 channels at the top.
///
/// # Errors
/// The sides of the images are no multiples of 16.
pub fn unet(input: Shape, classes: usize) -> Result<Network, Error> {
    unet_on(input, classes, 64)
}

/// With other channels at the top.
///
/// # Errors
/// The sides of the images are no multiples of 16.
pub fn unet_on(input: Shape, classes: usize, width: usize) -> Result<Network, Error> {
    let loss = SoftmaxCrossEntropy { per_pixel: true, ..SoftmaxCrossEntropy::default() };
    unet_of(input, classes, width, loss)
}

/// With other channels at the top and another loss for each pixel.
///
/// # Errors
/// The sides of the images are no multiples of 16, or the loss has another number of classes.
pub fn unet_of(input: Shape, classes: usize, width: usize, loss: SoftmaxCrossEntropy) -> Result<Network, Error> {
    let mut chain = Chain::on(input);
    let mut skipped = Vec::new();
    for level in 0..DEPTH {
        double(&mut chain, &format!("down{}", level + 1), width << level)?;
        skipped.push(chain.at);
        chain.then(MaxPool::new(2))?;
    }
    double(&mut chain, "bottom", width << DEPTH)?;
    for (level, before) in skipped.into_iter().enumerate().rev() {
        let name = format!("up{}", level + 1);
        chain.named(&format!("{name}.up"), UpConvolution::new(width << level, 2, 2))?;
        chain.at = chain.graph.join(Concatenate, &[before, chain.at])?;
        double(&mut chain, &name, width << level)?;
    }
    chain.named("out", Conv2d::new(classes, 1))?;
    chain.with_loss(SoftmaxCrossEntropy { per_pixel: true, ..loss })
}

fn double(chain: &mut Chain, name: &str, width: usize) -> Result<(), Error> {
    for number in 1..=2 {
        let inputs = chain.graph.shape(chain.at).channels;
        let layer = Conv2d::new(width, 3).padding(1).initial(Initial::he(inputs * 9));
        chain.with_relu(&format!("{name}.conv{number}"), layer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_31_million_weights_and_a_class_for_each_pixel() {
        let network = unet(Shape::image(1, 64, 96), 2).expect("a network");
        assert_eq!(network.table().weights(), 31_030_658);
        assert_eq!(network.shape(network.output()), Shape::image(2, 64, 96));
    }

    #[test]
    fn images_that_are_not_halved_evenly_are_refused() {
        let error = unet(Shape::image(1, 40, 40), 2).expect_err("5 is odd");
        assert!(error.to_string().contains("values of one height and width"), "{error}");
    }
}
