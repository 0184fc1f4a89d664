//! The models: each file has one, or a family. [`named`] is the list of them.

mod alexnet;
mod build;
mod googlenet;
mod lenet5;
mod mlp;
mod resnet;
mod resnet_cifar;
mod unet;
mod vgg16;

pub use alexnet::alexnet;
pub use googlenet::googlenet;
pub use lenet5::{lenet5, lenet5_on};
pub use mlp::{mlp, mlp_on, mlp25m};
pub use resnet::{resnet18, resnet34, resnet50};
pub use resnet_cifar::{resnet20, resnet32, resnet56};
pub use unet::{unet, unet_of, unet_on};
pub use vgg16::vgg16;

use crate::{error::Error, graph::Network, shape::Shape};

/// A model that manifests can name.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// The samples for which its figures are published.
    pub input: Shape,
    /// The classes for which they are.
    pub classes: usize,
    /// Builds it for samples and classes.
    pub build: fn(Shape, usize) -> Result<Network, Error>,
}

/// Figures that others count for a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// Weights.
    pub parameters: f64,
    /// Multiply-accumulates of one sample's forward pass.
    pub macs: f64,
}

/// Sze et al., "Efficient Processing of Deep Neural Networks" (arXiv 1703.09039), table II. Their
/// LeNet-5 is the one of 1998, on 32×32 pixels and with gaps between its convolutions; their
/// ResNet-50 has the stride in the 1×1 convolutions.
const PUBLISHED: [(&str, Published); 5] = [
    ("lenet5", Published { parameters: 60e3, macs: 341e3 }),
    ("alexnet", Published { parameters: 61e6, macs: 724e6 }),
    ("vgg16", Published { parameters: 138e6, macs: 15.5e9 }),
    ("googlenet", Published { parameters: 7e6, macs: 1.43e9 }),
    ("resnet50", Published { parameters: 25.5e6, macs: 3.9e9 }),
];

impl Model {
    /// What others count, for the samples and classes of the model.
    #[must_use]
    pub fn published(&self) -> Option<Published> {
        PUBLISHED.into_iter().find(|(name, _)| *name == self.name).map(|(_, figures)| figures)
    }
}

const DIGITS: Shape = Shape::image(1, 28, 28);
const CIFAR: Shape = Shape::image(3, 32, 32);
const IMAGENET: Shape = Shape::image(3, 224, 224);

/// All models that manifests can name.
pub const MODELS: [Model; 14] = [
    Model { name: "perceptron", input: DIGITS, classes: 10, build: |input, classes| mlp_on(input, &[], classes) },
    Model { name: "mlp", input: DIGITS, classes: 10, build: |input, classes| mlp_on(input, &[128], classes) },
    Model {
        name: "mlp25m",
        input: DIGITS,
        classes: 10,
        build: |input, classes| mlp_on(input, &[4096, 4096, 1200], classes),
    },
    Model { name: "lenet5", input: DIGITS, classes: 10, build: lenet5_on },
    Model { name: "alexnet", input: IMAGENET, classes: 1000, build: alexnet },
    Model { name: "vgg16", input: IMAGENET, classes: 1000, build: vgg16 },
    Model { name: "googlenet", input: IMAGENET, classes: 1000, build: googlenet },
    Model { name: "resnet20", input: CIFAR, classes: 10, build: resnet20 },
    Model { name: "resnet32", input: CIFAR, classes: 10, build: resnet32 },
    Model { name: "resnet56", input: CIFAR, classes: 10, build: resnet56 },
    Model { name: "resnet18", input: IMAGENET, classes: 1000, build: resnet18 },
    Model { name: "resnet34", input: IMAGENET, classes: 1000, build: resnet34 },
    Model { name: "resnet50", input: IMAGENET, classes: 1000, build: resnet50 },
    Model { name: "unet", input: Shape::image(1, 256, 256), classes: 2, build: unet },
];

/// The model of that name.
#[must_use]
pub fn named(name: &str) -> Option<Model> {
    MODELS.into_iter().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_a_network_for_the_samples_of_its_figures() {
        for Model { name, input, classes, build } in MODELS {
            let network = build(input, classes).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((network.input(), network.classes()), (input, classes), "{name}");
        }
    }

    #[test]
    fn models_are_found_by_their_names() {
        assert!(MODELS.iter().all(|model| named(model.name).is_some_and(|found| found.name == model.name)));
        assert!(named("resnet21").is_none());
    }

    #[test]
    fn summaries_are_near_the_published_figures() {
        let models = MODELS.into_iter().filter_map(|model| Some((model, model.published()?)));
        for (model, Published { parameters, macs }) in models {
            let summary = (model.build)(model.input, model.classes).expect("a network").summary();
            let (weights, own) = (summary.parameters() as f64, summary.macs() as f64);
            assert!((weights / parameters - 1.0).abs() < 0.03, "{}: {weights} weights", model.name);
            let tolerance = if model.name == "lenet5" { 0.25 } else { 0.12 };
            assert!((own / macs - 1.0).abs() < tolerance, "{}: {own} multiply-accumulates", model.name);
        }
    }
}
