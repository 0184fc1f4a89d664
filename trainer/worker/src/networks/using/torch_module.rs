//! A network as a Python module of plain PyTorch. Its parameters have the names and the layouts of
//! the exported weights, so `load_state_dict` takes them as they are.
//!
//! A value is a tensor of samples × channels × rows × columns, or of samples × features where a
//! layer makes features. The network's shapes do not tell a picture of one pixel from features, so
//! the module's own dimensions are followed here.

use std::collections::HashMap;

use lockstep_nn::{
    Network, Node, Shape, Value,
    layers::{AveragePool, ChannelGroups, Conv2d, Layer, MaxPool, UpConvolution},
    op::{Function, Window},
};

use crate::networks::description::ModelDescription;

/// Four dimensions, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Picture,
    Features,
}

/// Returns the text of a Python file with the class `Model`.
pub(super) fn python(network: &Network, description: &ModelDescription) -> String {
    let Shape { channels, height, width } = network.input();
    let mut module = Module { network, modules: Vec::new(), lines: Vec::new(), values: HashMap::new() };
    module.values.insert(network.inputs()[0], ("x".to_owned(), Kind::Picture));
    network.nodes().iter().enumerate().for_each(|(number, node)| module.add(number, node));
    let output = module.values[&network.output()].0.clone();
    let (modules, lines) = (module.modules.join("\n"), module.lines.join("\n"));
    let ModelDescription { class_names, mean, std, .. } = description;
    // JSON spells lists of texts and numbers as Python does.
    let listed = |value: serde_json::Value| value.to_string();
    let (classes, mean, std) = (listed(class_names.clone().into()), listed(floats(mean)), listed(floats(std)));
    let name = description.name();
    format!(
        r#"# Written by `lockstep export`: {name} in plain PyTorch.
#
#   from safetensors.torch import load_file
#   from FILE import CLASSES, Model, prepare        # FILE: the name of this file without .py
#
#   model = Model()
#   model.load_state_dict(load_file("model.safetensors"))
#   model.eval()
#   probabilities = model(prepare(pixels)).softmax(1)
#
# `pixels` are bytes: samples x {channels} x {height} x {width}. The model gives logits.

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = {classes}
MEAN = {mean}
STD = {std}


def prepare(pixels):
    """Normalises bytes of 0 to 255 as the training did."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{modules}

    def _put(self, name, module):
        """Gives a module its name. Each dot leads into another module."""
        place = self
        *outer, last = name.split(".")
        for part in outer:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place._modules[part]
        place.add_module(last, module)

    def forward(self, x):
        of = self.get_submodule
{lines}
        return {output}
"#
    )
}

/// Python reads a text as JSON spells it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The shortest decimals of numbers, not those of the next `f64`.
fn floats(values: &[f32]) -> serde_json::Value {
    values.iter().map(|value| value.to_string().parse::<f64>().unwrap_or(f64::from(*value))).collect()
}

/// A module that is being written.
struct Module<'a> {
    network: &'a Network,
    /// Lines that make the modules with parameters.
    modules: Vec<String>,
    /// Lines of the forward pass.
    lines: Vec<String>,
    /// The variable of each value, and its dimensions.
    values: HashMap<Value, (String, Kind)>,
}

impl Module<'_> {
    fn add(&mut self, number: usize, node: &Node) {
        let shapes = self.network.input_shapes(node);
        if let Some(module) = parameters_of(&node.layer, &shapes, self.kind(node.inputs[0]))
            && node.shares.is_none()
        {
            self.modules.push(format!("        self._put({}, nn.{module})", quoted(&node.name)));
        }
        let (call, kind) = self.call(node, &shapes);
        let variable = format!("x{}", number + 1);
        self.lines.push(format!("        {variable} = {call}"));
        self.values.insert(node.output, (variable, kind));
    }

    fn kind(&self, value: Value) -> Kind {
        self.values[&value].1
    }

    /// Returns a value as a picture.
    fn picture(&self, value: Value) -> String {
        match &self.values[&value] {
            (variable, Kind::Picture) => variable.clone(),
            (variable, Kind::Features) => format!("{variable}[:, :, None, None]"),
        }
    }

    /// Returns a value as features.
    fn features(&self, value: Value) -> String {
        match &self.values[&value] {
            (variable, Kind::Picture) => format!("{variable}.flatten(1)"),
            (variable, Kind::Features) => variable.clone(),
        }
    }

    /// Returns the values of several inputs, all of the same dimensions.
    fn alike(&self, inputs: &[Value]) -> (Vec<String>, Kind) {
        match inputs.iter().all(|value| self.kind(*value) == Kind::Features) {
            true => (inputs.iter().map(|value| self.features(*value)).collect(), Kind::Features),
            false => (inputs.iter().map(|value| self.picture(*value)).collect(), Kind::Picture),
        }
    }

    /// Returns what computes a layer, and the dimensions of its output.
    fn call(&self, node: &Node, shapes: &[Shape]) -> (String, Kind) {
        let first = node.inputs[0];
        let (any, kind) = self.values[&first].clone();
        let of = format!("of({})", quoted(self.network.owner(node)));
        match &node.layer {
            Layer::Linear(_) => (format!("{of}({})", self.features(first)), Kind::Features),
            Layer::Conv2d(_) | Layer::UpConvolution(_) => (format!("{of}({})", self.picture(first)), Kind::Picture),
            Layer::BatchNorm(_) | Layer::GroupNorm(_) => (format!("{of}({any})"), kind),
            Layer::LayerNorm(_) => match kind {
                Kind::Picture => (format!("{of}({any}.movedim(1, -1)).movedim(-1, 1)"), kind),
                Kind::Features => (format!("{of}({any})"), kind),
            },
            Layer::MaxPool(MaxPool { window, ceil }) => {
                let ceil = if *ceil { ", ceil_mode=True" } else { "" };
                let Window { kernel, stride, padding, dilation: _ } = window;
                let (kernel, stride, padding) = (pair(*kernel), pair(*stride), pair(*padding));
                let picture = self.picture(first);
                (format!("F.max_pool2d({picture}, {kernel}, {stride}, {padding}{ceil})"), Kind::Picture)
            }
            Layer::AveragePool(AveragePool { window: Window { kernel, stride, padding, .. } }) => {
                let (kernel, stride, padding) = (pair(*kernel), pair(*stride), pair(*padding));
                (format!("F.avg_pool2d({}, {kernel}, {stride}, {padding})", self.picture(first)), Kind::Picture)
            }
            Layer::GlobalAveragePool(_) => (format!("{}.mean((2, 3))", self.picture(first)), Kind::Features),
            Layer::Activation(activation) => (format!("{}({any})", function(activation.function)), kind),
            Layer::Dropout(dropout) => (format!("F.dropout({any}, {}, self.training)", dropout.probability), kind),
            Layer::Add(_) => {
                let (values, kind) = self.alike(&node.inputs);
                (values.join(" + "), kind)
            }
            Layer::Concatenate(_) => {
                let (values, kind) = self.alike(&node.inputs);
                (format!("torch.cat([{}], 1)", values.join(", ")), kind)
            }
            Layer::Shortcut(shortcut) => {
                let (stride, inputs) = (shortcut.stride, shapes[0].channels);
                let before = (shortcut.outputs - inputs) / 2;
                let after = shortcut.outputs - inputs - before;
                let picture = self.picture(first);
                let padded = format!("F.pad({picture}[:, :, ::{stride}, ::{stride}], (0, 0, 0, 0, {before}, {after}))");
                (padded, Kind::Picture)
            }
            Layer::Flatten(_) => (self.features(first), Kind::Features),
        }
    }
}

fn function(function: Function) -> &'static str {
    match function {
        Function::Relu => "F.relu",
        Function::Gelu => "F.gelu",
        Function::Silu => "F.silu",
        Function::Tanh => "torch.tanh",
        Function::Sigmoid => "torch.sigmoid",
    }
}

/// Returns PyTorch's module for a layer with parameters.
fn parameters_of(layer: &Layer, shapes: &[Shape], kind: Kind) -> Option<String> {
    let inputs = shapes.first().map_or(0, |shape| shape.channels);
    match layer {
        Layer::Linear(linear) => Some(format!("Linear({inputs}, {}, bias={})", linear.outputs, truth(linear.bias))),
        Layer::Conv2d(Conv2d { outputs, window, groups, bias, initial: _ }) => {
            let (groups, outputs) = match groups {
                ChannelGroups::Count(groups) => (*groups, *outputs),
                ChannelGroups::Each => (inputs, outputs * inputs),
            };
            let window = sliding(window);
            Some(format!("Conv2d({inputs}, {outputs}, {window}, groups={groups}, bias={})", truth(*bias)))
        }
        Layer::UpConvolution(UpConvolution { outputs, window, bias, initial: _ }) => {
            Some(format!("ConvTranspose2d({inputs}, {outputs}, {}, bias={})", sliding(window), truth(*bias)))
        }
        Layer::BatchNorm(norm) => {
            let dimensions = if kind == Kind::Picture { 2 } else { 1 };
            Some(format!("BatchNorm{dimensions}d({inputs}, eps={}, momentum={})", norm.epsilon, norm.momentum))
        }
        Layer::LayerNorm(norm) => Some(format!("LayerNorm({inputs}, eps={})", norm.epsilon)),
        Layer::GroupNorm(norm) => Some(format!("GroupNorm({}, {inputs}, eps={})", norm.groups, norm.epsilon)),
        Layer::MaxPool(_)
        | Layer::AveragePool(_)
        | Layer::GlobalAveragePool(_)
        | Layer::Activation(_)
        | Layer::Dropout(_)
        | Layer::Add(_)
        | Layer::Concatenate(_)
        | Layer::Shortcut(_)
        | Layer::Flatten(_) => None,
    }
}

fn sliding(window: &Window) -> String {
    let Window { kernel, stride, padding, dilation } = window;
    let (kernel, stride) = (pair(*kernel), pair(*stride));
    format!("{kernel}, stride={stride}, padding={}, dilation={}", pair(*padding), pair(*dilation))
}

/// Returns one number where both sides have it.
fn pair([rows, columns]: [usize; 2]) -> String {
    if rows == columns { rows.to_string() } else { format!("({rows}, {columns})") }
}

const fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
