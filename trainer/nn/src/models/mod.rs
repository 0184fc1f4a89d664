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
pub use unet::{unet, unet_of};
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
}
