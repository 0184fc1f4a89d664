//! A model as data: a list of layers, as a manifest has it. Layers follow one another; a residual
//! block and branches hold lists of their own. A layer is called by its place, such as
//! `layers.2.layers.0`, unless it has a name.

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    graph::{Graph, Network, Value},
    layers::{
        Activation, Add, AveragePool, BatchNorm, Concatenate, Conv2d, Dropout, Flatten, GlobalAveragePool, GroupNorm,
        Hinge, Layer, LayerNorm, Linear, Loss, MaxPool, MeanSquaredError, SoftmaxCrossEntropy, UpConvolution,
    },
    op::Function,
    shape::Shape,
};

/// Layers within layers: a description with more is refused.
const MAX_DEPTH: usize = 16;

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Description {
    /// The layers, one after another.
    #[serde(deserialize_with = "listed::list")]
    pub layers: Vec<LayerSpec>,
    /// What predictions are compared with labels by; softmax and cross-entropy where nothing is
    /// said.
    #[serde(default)]
    pub loss: LossSpec,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum LayerSpec {
    /// A matrix product with a bias.
    Linear {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// Output features; as many as there are classes where nothing is said.
        #[serde(default)]
        outputs: Option<usize>,
        /// True if a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// A convolution.
    Conv2d {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// Output channels; as many as there are classes where nothing is said.
        #[serde(default)]
        outputs: Option<usize>,
        /// Rows and columns of the kernel.
        kernel: usize,
        /// Pixels from one place to the next.
        #[serde(default = "one")]
        stride: usize,
        /// Zeros around the image.
        #[serde(default)]
        padding: usize,
        /// Pixels from one tap to the next.
        #[serde(default = "one")]
        dilation: usize,
        /// Groups of channels that do not see each other.
        #[serde(default = "one")]
        groups: usize,
        /// True if a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// A convolution with a window for each channel.
    DepthwiseConv2d {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// Rows and columns of the kernel.
        kernel: usize,
        /// Pixels from one place to the next.
        #[serde(default = "one")]
        stride: usize,
        /// Zeros around the image.
        #[serde(default)]
        padding: usize,
        /// True if a bias is added.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// The reverse of a convolution's shape: it makes images larger.
    UpConvolution {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// Output channels; as many as there are classes where nothing is said.
        #[serde(default)]
        outputs: Option<usize>,
        /// Rows and columns of the kernel.
        kernel: usize,
        /// Times that the image becomes larger.
        stride: usize,
        /// Pixels that are cut off at each edge.
        #[serde(default)]
        padding: usize,
    },
    /// Normalises each channel over the samples of a virtual shard.
    BatchNorm {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// The first value of the scales.
        #[serde(default = "unit")]
        scale: f32,
    },
    /// Normalises the channels of each pixel.
    LayerNorm {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
    },
    /// Normalises groups of channels in each sample.
    GroupNorm {
        /// Its name.
        #[serde(default)]
        name: Option<String>,
        /// Groups of channels.
        groups: usize,
    },
    /// The maximum of each window.
    MaxPool {
        /// Rows and columns of the window.
        kernel: usize,
        /// Pixels from one place to the next; the kernel's where nothing is said.
        #[serde(default)]
        stride: Option<usize>,
        /// Pixels around the image.
        #[serde(default)]
        padding: usize,
    },
    /// The average of each window.
    AveragePool {
        /// Rows and columns of the window.
        kernel: usize,
        /// Pixels from one place to the next; the kernel's where nothing is said.
        #[serde(default)]
        stride: Option<usize>,
        /// Zeros around the image.
        #[serde(default)]
        padding: usize,
    },
    /// The average of each channel over the image.
    GlobalAveragePool,
    /// `max(0, x)`.
    Relu,
    /// `x·Φ(x)`.
    Gelu,
    /// `x·σ(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `σ(x)`.
    Sigmoid,
    /// Zeros at places drawn by dice, in training.
    Dropout {
        /// The share of zeros.
        probability: f32,
    },
    /// Images become features.
    Flatten,
    /// The sum of what two lists of layers make of one value.
    Residual {
        /// The block.
        #[serde(deserialize_with = "listed::list")]
        layers: Vec<LayerSpec>,
        /// The way around it: the value itself where nothing is said.
        #[serde(default, deserialize_with = "listed::list")]
        shortcut: Vec<LayerSpec>,
    },
    /// The channels of what several lists of layers make of one value, one after another.
    Branches {
        /// The lists.
        #[serde(deserialize_with = "listed::lists")]
        layers: Vec<Vec<LayerSpec>>,
    },
}

/// A loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum LossSpec {
    /// Softmax and cross-entropy.
    CrossEntropy {
        /// The share of the target that is spread over all classes.
        #[serde(default)]
        label_smoothing: f32,
        /// A weight for each class.
        #[serde(default)]
        class_weights: Vec<f32>,
        /// The label of pixels that do not count.
        #[serde(default)]
        ignore_index: Option<u32>,
    },
    /// Squared differences from targets.
    MeanSquaredError {},
    /// The margin by which wrong classes come close.
    Hinge {
        /// By how much the label's score is to exceed the others.
        #[serde(default = "unit")]
        margin: f32,
    },
}

impl Default for LossSpec {
    fn default() -> Self {
        LossSpec::CrossEntropy { label_smoothing: 0.0, class_weights: Vec::new(), ignore_index: None }
    }
}

/// Lists whose layers may be given by their names alone where nothing must be said of them.
mod listed {
    use std::fmt;

    use serde::{
        Deserialize, Deserializer,
        de::{Error, MapAccess, Visitor, value::MapAccessDeserializer, value::StrDeserializer},
    };

    use super::LayerSpec;

    struct Listed(LayerSpec);

    pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LayerSpec>, D::Error> {
        Vec::<Listed>::deserialize(deserializer).map(plain)
    }

    pub(super) fn lists<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<LayerSpec>>, D::Error> {
        let lists = Vec::<Vec<Listed>>::deserialize(deserializer)?;
        Ok(lists.into_iter().map(plain).collect())
    }

    fn plain(list: Vec<Listed>) -> Vec<LayerSpec> {
        list.into_iter().map(|Listed(layer)| layer).collect()
    }

    impl<'de> Deserialize<'de> for Listed {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listed, D::Error> {
            deserializer.deserialize_any(Layers)
        }
    }

    struct Layers;

    impl<'de> Visitor<'de> for Layers {
        type Value = Listed;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the name of a layer, or its name with its settings")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<Listed, E> {
            let layer = match name {
                "linear" => LayerSpec::Linear { name: None, outputs: None, bias: true },
                "batchNorm" => LayerSpec::BatchNorm { name: None, scale: 1.0 },
                "layerNorm" => LayerSpec::LayerNorm { name: None },
                other => LayerSpec::deserialize(StrDeserializer::new(other))?,
            };
            Ok(Listed(layer))
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Listed, M::Error> {
            LayerSpec::deserialize(MapAccessDeserializer::new(map)).map(Listed)
        }
    }
}

const fn yes() -> bool {
    true
}

const fn one() -> usize {
    1
}

const fn unit() -> f32 {
    1.0
}

impl Description {
    /// The network for samples of this shape in so many classes.
    ///
    /// # Errors
    /// The first layer that cannot compute what it is given, what it expects and what it gets.
    pub fn network(&self, input: Shape, classes: usize) -> Result<Network, Error> {
        let mut graph = Graph::new();
        let x = graph.input(input);
        let y = self.add_layers(&mut graph, x, classes)?;
        let shape = graph.shape(y);
        if shape.channels != classes {
            return Err(Error::Misfit {
                layer: "layers".to_owned(),
                kind: "the last one".to_owned(),
                expected: format!("{classes} outputs, one for each class of the data set"),
                got: shape.to_string(),
            });
        }
        graph.loss(self.loss.loss(shape), y)?;
        graph.build()
    }
}

impl Description {
    /// Adds the layers behind a value.
    pub(crate) fn add_layers(&self, graph: &mut Graph, x: Value, classes: usize) -> Result<Value, Error> {
        Reading { graph, classes }.list("layers", &self.layers, x, MAX_DEPTH)
    }
}

impl LossSpec {
    pub(crate) fn loss(&self, prediction: Shape) -> Loss {
        match self {
            LossSpec::CrossEntropy { label_smoothing, class_weights, ignore_index } => SoftmaxCrossEntropy {
                smoothing: *label_smoothing,
                class_weights: class_weights.clone(),
                ignored: *ignore_index,
                per_pixel: !prediction.is_flat(),
            }
            .into(),
            LossSpec::MeanSquaredError {} => MeanSquaredError.into(),
            LossSpec::Hinge { margin } => Hinge { margin: *margin }.into(),
        }
    }
}

struct Reading<'a> {
    graph: &'a mut Graph,
    classes: usize,
}

impl Reading<'_> {
    fn list(&mut self, place: &str, layers: &[LayerSpec], x: Value, depth: usize) -> Result<Value, Error> {
        let numbered = layers.iter().enumerate();
        numbered.into_iter().try_fold(x, |x, (number, layer)| self.layer(&format!("{place}.{number}"), layer, x, depth))
    }

    fn layer(&mut self, place: &str, layer: &LayerSpec, x: Value, depth: usize) -> Result<Value, Error> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::Misfit {
                layer: place.to_owned(),
                kind: "a layer".to_owned(),
                expected: format!("to be in at most {MAX_DEPTH} others"),
                got: "one more".to_owned(),
            });
        };
        match layer {
            LayerSpec::Residual { layers, shortcut } => {
                let y = self.list(&format!("{place}.layers"), layers, x, depth)?;
                let around = self.list(&format!("{place}.shortcut"), shortcut, x, depth)?;
                self.graph.add(place, Add, &[y, around])
            }
            LayerSpec::Branches { layers } => {
                let branches = layers.iter().enumerate();
                let branch = |(number, branch): (usize, &Vec<LayerSpec>)| {
                    self.list(&format!("{place}.layers.{number}"), branch, x, depth)
                };
                let branches = branches.map(branch).collect::<Result<Vec<_>, _>>()?;
                self.graph.add(place, Concatenate, &branches)
            }
            single => {
                let (name, layer) = self.single(single);
                self.graph.add(name.unwrap_or(place), layer, &[x])
            }
        }
    }

    /// The name and the layer of what is no list of others.
    fn single<'a>(&self, layer: &'a LayerSpec) -> (Option<&'a str>, Layer) {
        let outputs = |outputs: &Option<usize>| outputs.unwrap_or(self.classes);
        let unnamed = |layer: Layer| (None, layer);
        match layer {
            LayerSpec::Linear { name, outputs: width, bias } => {
                let layer = Linear { bias: *bias, ..Linear::new(outputs(width)) };
                (name.as_deref(), layer.into())
            }
            LayerSpec::Conv2d { name, outputs: width, kernel, stride, padding, dilation, groups, bias } => {
                let layer = Conv2d::new(outputs(width), *kernel).stride(*stride).padding(*padding);
                let layer = Conv2d { bias: *bias, ..layer.dilation(*dilation).groups(*groups) };
                (name.as_deref(), layer.into())
            }
            LayerSpec::DepthwiseConv2d { name, kernel, stride, padding, bias } => {
                let layer = Conv2d::depthwise(1, *kernel).stride(*stride).padding(*padding);
                (name.as_deref(), Conv2d { bias: *bias, ..layer }.into())
            }
            LayerSpec::UpConvolution { name, outputs: width, kernel, stride, padding } => {
                let layer = UpConvolution::new(outputs(width), *kernel, *stride).padding(*padding);
                (name.as_deref(), layer.into())
            }
            LayerSpec::BatchNorm { name, scale } => (name.as_deref(), BatchNorm::new().scale(*scale).into()),
            LayerSpec::LayerNorm { name } => (name.as_deref(), LayerNorm::new().into()),
            LayerSpec::GroupNorm { name, groups } => (name.as_deref(), GroupNorm::new(*groups).into()),
            LayerSpec::MaxPool { kernel, stride, padding } => {
                unnamed(MaxPool::new(*kernel).stride(stride.unwrap_or(*kernel)).padding(*padding).into())
            }
            LayerSpec::AveragePool { kernel, stride, padding } => {
                unnamed(AveragePool::new(*kernel).stride(stride.unwrap_or(*kernel)).padding(*padding).into())
            }
            LayerSpec::GlobalAveragePool => unnamed(GlobalAveragePool.into()),
            LayerSpec::Relu => unnamed(Activation::relu().into()),
            LayerSpec::Gelu => unnamed(Activation::of(Function::Gelu).into()),
            LayerSpec::Silu => unnamed(Activation::of(Function::Silu).into()),
            LayerSpec::Tanh => unnamed(Activation::of(Function::Tanh).into()),
            LayerSpec::Sigmoid => unnamed(Activation::of(Function::Sigmoid).into()),
            LayerSpec::Dropout { probability } => unnamed(Dropout::new(*probability).into()),
            LayerSpec::Flatten => unnamed(Flatten.into()),
            LayerSpec::Residual { .. } | LayerSpec::Branches { .. } => unreachable!("lists are read before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn network(layers: serde_json::Value) -> Result<Network, String> {
        let description: Description =
            serde_json::from_value(json!({ "layers": layers })).map_err(|error| error.to_string())?;
        description.network(Shape::image(3, 16, 16), 10).map_err(|error| error.to_string())
    }

    #[test]
    fn a_residual_network_is_a_list_of_layers() {
        let network = network(json!([
            { "conv2d": { "outputs": 8, "kernel": 3, "padding": 1, "bias": false } },
            "batchNorm",
            "relu",
            { "residual": {
                "layers": [
                    { "conv2d": { "outputs": 16, "kernel": 3, "padding": 1, "stride": 2 } },
                    { "batchNorm": { "scale": 0.0 } },
                ],
                "shortcut": [{ "conv2d": { "name": "short", "outputs": 16, "kernel": 1, "stride": 2 } }],
            } },
            "relu",
            { "maxPool": { "kernel": 2 } },
            { "branches": { "layers": [["relu"], [{ "conv2d": { "outputs": 4, "kernel": 1 } }]] } },
            "globalAveragePool",
            "linear",
        ]))
        .expect("the layers fit");
        let names: Vec<&str> = network.table().in_forward_order().map(|parameter| &*parameter.name).collect();
        for name in ["layers.0.weight", "layers.3.layers.1.running_var", "short.bias", "layers.8.weight"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert_eq!(network.classes(), 10);
    }

    #[test]
    fn each_wrong_list_is_refused_with_the_layer_and_what_it_expects() {
        for (layers, expected) in [
            (
                json!([{ "conv2d": { "outputs": 4, "kernel": 17 } }]),
                "layers.0 (conv2d) expects an image that the window",
            ),
            (json!(["relu", { "linear": {} }]), "layers.1 (linear) expects features"),
            (json!(["flatten", { "linear": { "outputs": 9 } }]), "layers (the last one) expects 10 outputs"),
            (
                json!([{ "residual": { "layers": [{ "conv2d": { "outputs": 4, "kernel": 1 } }] } }]),
                "layers.0 (add) expects two values of one shape, the first being 4x16x16, but gets 3x16x16",
            ),
            (json!([{ "conv2d": { "outputs": 4, "kernal": 3 } }]), "unknown field `kernal`"),
            (json!(["convolution"]), "unknown variant `convolution`"),
            (
                json!([{ "residual": { "layers": [{ "groupNorm": { "groups": 2 } }] } }]),
                "layers.0.layers.0 (group_norm) expects groups that divide 3 channels, but gets 2",
            ),
        ] {
            let message = network(layers).expect_err("the list must be refused");
            assert!(message.contains(expected), "{message} does not say {expected}");
        }
    }

    #[test]
    fn layers_too_deep_in_others_are_refused() {
        let deep = (0..20).fold(json!("relu"), |inner, _| json!({ "residual": { "layers": [inner] } }));
        let message = network(json!([deep])).expect_err("too deep");
        assert!(message.contains("at most 16 others"), "{message}");
    }
}
