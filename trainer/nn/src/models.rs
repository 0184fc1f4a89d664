//! The models: functions that return a [`Network`].

use crate::network::{Network, NetworkBuilder};

/// LeNet-5 as it is trained on 28×28 digits today (LeCun et al. 1998, with ReLU and max pooling): 61,706 weights.
pub fn lenet5() -> Network {
    built(
        Network::on_images(1, 28, 28)
            .conv2d("conv1", 6, 5, 2)
            .relu()
            .max_pool2()
            .conv2d("conv2", 16, 5, 0)
            .relu()
            .max_pool2()
            .flatten()
            .linear("fc1", 120)
            .relu()
            .linear("fc2", 84)
            .relu()
            .linear("fc3", 10),
    )
}

/// A perceptron of `inputs` features, ReLU layers of the `hidden` widths, and `classes` outputs; its layers are `fc1`,
/// `fc2` and so on.
///
/// # Panics
/// If a width is zero.
pub fn mlp(inputs: usize, hidden: &[usize], classes: usize) -> Network {
    let mut builder = Network::on_features(inputs);
    for (index, width) in hidden.iter().enumerate() {
        builder = builder.linear(&format!("fc{}", index + 1), *width).relu();
    }
    built(builder.linear(&format!("fc{}", hidden.len() + 1), classes))
}

/// A perceptron of 24.9 million weights on 28×28 images, about ResNet-50's size: for benchmarks of communication.
pub fn mlp25m() -> Network {
    mlp(784, &[4096, 4096, 1200], 10)
}

fn built(builder: NetworkBuilder) -> Network {
    builder.build().unwrap_or_else(|error| panic!("a model of this module is not a network: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lenet5_has_61706_weights() {
        assert_eq!(lenet5().table().weights(), 61_706);
    }

    #[test]
    fn mlp25m_has_about_25_million_weights() {
        assert_eq!(mlp25m().table().weights(), 24_925_082);
    }

    #[test]
    fn a_perceptron_without_hidden_layers_is_one_linear_layer() {
        assert_eq!(mlp(3, &[], 2).table().weights(), 8);
    }
}
