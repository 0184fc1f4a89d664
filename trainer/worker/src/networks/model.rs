//! The network that a workload names.

use lockstep_data::Dataset;
use lockstep_launch::{self as spec, ModelName, ModelSpec, Training, Workload};
use lockstep_nn::{
    Description, LayerSpec, LossSpec, Network, Precision, Role, Shape, layers::SoftmaxCrossEntropy, models,
};

use super::dataset::NOT_BROUGHT;
use crate::failure::Failure;

/// The kinds of layers that have no settings.
const WITHOUT_SETTINGS: [&str; 7] = ["globalAveragePool", "relu", "gelu", "silu", "tanh", "sigmoid", "flatten"];

/// Returns the network of a workload, for the samples and the classes of its data set.
pub(crate) fn network(workload: &Workload, dataset: &Dataset) -> Result<Network, Failure> {
    let train = &dataset.train;
    let (shape, classes) = (train.shape(), train.classes());
    let input = Shape::image(shape.channels, shape.height, shape.width);
    let Workload { model, training, .. } = workload;
    let mut network = network_on(model, input, classes).map_err(Failure::fatal)?;
    let output = network.shape(network.output());
    let per_pixel = train.has_masks();
    if !per_pixel && !output.is_flat() {
        return Err(Failure::fatal(format!(
            "spec.model: an output of {output} needs a label for each pixel, and the data set has one for each sample"
        )));
    }
    if per_pixel && output != Shape::image(classes, shape.height, shape.width) {
        let Shape { height, width, .. } = input;
        return Err(Failure::fatal(format!(
            "spec.model: an output of {output} is not {classes}×{height}×{width}, \
             and the data set has a label for each pixel: take unet, or end the layers with a convolution"
        )));
    }
    if per_pixel || training.label_smoothing > 0.0 || !training.class_weights.is_empty() {
        let (class_weights, ignored) = (training.class_weights.clone(), train.ignored());
        let loss = SoftmaxCrossEntropy { smoothing: training.label_smoothing, class_weights, ignored, per_pixel };
        network.set_loss(loss).map_err(Failure::fatal)?;
    }
    Ok(network)
}

/// Returns the precision of a training.
pub(crate) const fn precision(training: &Training) -> Precision {
    match training.precision {
        spec::Precision::F32 => Precision::F32,
        spec::Precision::Bf16 => Precision::Bf16,
        spec::Precision::F16 => Precision::F16,
    }
}

/// Returns the network of a model for samples of this shape. The error names the field.
pub(crate) fn network_on(model: &ModelSpec, input: Shape, classes: usize) -> Result<Network, String> {
    let Some(name) = model.name else { return own_network(&model.layers, input, classes) };
    let network = match models::named(name.as_str()) {
        _ if name == ModelName::Own => {
            return Err(format!("spec.model.name: own: {NOT_BROUGHT}"));
        }
        // Other models take an empty list too, which changes nothing.
        _ if let (ModelName::Mlp, Some(hidden)) = (name, &model.hidden) => {
            let hidden: Vec<usize> = hidden.iter().map(|width| *width as usize).collect();
            models::mlp_on(input, &hidden, classes)
        }
        Some(_) if let Some(width) = model.width => models::unet_on(input, classes, width as usize),
        Some(named) => (named.build)(input, classes),
        None => return Err(format!("spec.model.name: {}: the trainer has no such model", name.as_str())),
    };
    network.map_err(|error| {
        let name = name.as_str();
        format!("spec.model.name: {name} does not fit samples of {input} in {classes} classes: {error}")
    })
}

/// Returns the network of layers that a job lists.
fn own_network(layers: &[serde_json::Value], input: Shape, classes: usize) -> Result<Network, String> {
    let layer = |(number, layer): (usize, &serde_json::Value)| {
        let read = serde_json::from_value::<LayerSpec>(without_empty_settings(layer.clone()));
        read.map_err(|error| format!("spec.model.layers.{number}: {error}"))
    };
    let layers = layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
    let description = Description { layers, loss: LossSpec::default() };
    description.network(input, classes).map_err(|error| format!("spec.model.{error}"))
}

/// Layers without settings are objects in a manifest, as all others: `relu: {}`.
fn without_empty_settings(layer: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match layer {
        Value::Object(fields) => {
            if let Some((kind, Value::Object(settings))) = fields.iter().next()
                && (settings.is_empty() && fields.len() == 1 && WITHOUT_SETTINGS.contains(&&**kind))
            {
                return Value::String(kind.clone());
            }
            Value::Object(fields.into_iter().map(|(name, value)| (name, without_empty_settings(value))).collect())
        }
        Value::Array(layers) => Value::Array(layers.into_iter().map(without_empty_settings).collect()),
        other => other,
    }
}

/// Returns true if a layer keeps statistics of the batch: it computes them over each virtual shard.
pub(crate) fn computes_over_shards(network: &Network) -> bool {
    network.table().parameters().iter().any(|parameter| !parameter.role.is_trained())
}

/// Returns true if the network has norm layers.
pub(crate) fn has_norms(network: &Network) -> bool {
    network.table().parameters().iter().any(|parameter| parameter.role == Role::Norm)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DIGITS: Shape = Shape::image(1, 28, 28);

    fn network_of(model: serde_json::Value) -> Result<Network, String> {
        network_on(&serde_json::from_value(model).expect("a model"), DIGITS, 10)
    }

    #[test]
    fn every_model_that_a_manifest_can_name_is_one_of_the_trainer() {
        for model in models::MODELS {
            let spec: ModelSpec = serde_json::from_value(json!({"name": model.name})).expect(model.name);
            let network = network_on(&spec, model.input, model.classes).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(network.classes(), model.classes, "{}", model.name);
            assert_eq!(computes_over_shards(&network), spec.computes_over_the_batch(), "{}", model.name);
        }
    }

    #[test]
    fn hidden_widths_are_those_of_the_manifest() {
        let network = network_of(json!({"name": "mlp", "hidden": [3, 4]})).expect("a network");
        assert_eq!(network.table().weights(), 784 * 3 + 3 + 3 * 4 + 4 + 4 * 10 + 10);
    }

    #[test]
    fn an_empty_list_of_hidden_layers_stays_empty() {
        let given: ModelSpec = serde_json::from_value(json!({"name": "mlp", "hidden": []})).expect("a model");
        let passed_on = serde_json::to_value(&given).expect("JSON");
        assert_eq!(passed_on, json!({"name": "mlp", "hidden": []}));
        assert_eq!(network_of(passed_on).expect("a network").table().weights(), 784 * 10 + 10);
        assert_eq!(
            network_of(json!({"name": "lenet5", "hidden": []})).expect("a network").table().weights(),
            network_of(json!({"name": "lenet5"})).expect("a network").table().weights(),
        );
    }

    #[test]
    fn own_layers_form_a_network_for_the_classes_of_the_data_set() {
        let block =
            json!({"residual": {"layers": [{"conv2d": {"outputs": 4, "kernel": 3, "padding": 1}}, {"relu": {}}]}});
        let first = json!({"conv2d": {"outputs": 4, "kernel": 3, "padding": 1}});
        let layers =
            json!([first, {"batchNorm": {}}, block, {"globalAveragePool": {}}, {"flatten": {}}, {"linear": {}}]);
        let network = network_of(json!({"layers": layers})).expect("a network");
        assert_eq!(network.classes(), 10);
    }

    #[test]
    fn only_networks_with_batch_norms_compute_over_shards() {
        let resnet = network_of(json!({"name": "resnet20"})).expect("a network");
        let lenet = network_of(json!({"name": "lenet5"})).expect("a network");
        assert_eq!([&resnet, &lenet].map(computes_over_shards), [true, false]);
        assert_eq!([&resnet, &lenet].map(has_norms), [true, false]);
    }

    #[test]
    fn the_error_names_the_wrong_layer() {
        let error = |layers| network_of(json!({"layers": layers})).expect_err("a wrong layer");
        let unknown = error(json!([{"flatten": {}}, {"lineer": {}}]));
        assert!(unknown.starts_with("spec.model.layers.1: unknown variant `lineer`"), "{unknown}");
        let misfit = error(json!([{"conv2d": {"outputs": 4, "kernel": 99}}, {"flatten": {}}, {"linear": {}}]));
        assert!(misfit.starts_with("spec.model.layers.0 "), "{misfit}");
    }
}
