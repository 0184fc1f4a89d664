//! The costs of a network, layer by layer, before any machine runs it.

use std::fmt;

use serde::Serialize;

use crate::graph::Network;
use crate::layers::Layer;
use crate::optimizers::Optimizer;
use crate::shape::Shape;

/// Parameters, multiply-accumulates and bytes of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// One entry per layer, in forward order.
    pub layers: Vec<LayerSummary>,
}

/// Cost of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerSummary {
    /// Name of the layer.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Shape of one output sample.
    pub output: Shape,
    /// Trained values.
    pub parameters: usize,
    /// Multiply-accumulates of one sample's forward pass, of products only: one multiplication with
    /// one addition counts as one.
    pub macs: usize,
    /// Bytes of the weights in fp32.
    pub weight_bytes: usize,
    /// Bytes of one sample's output in fp32.
    pub activation_bytes: usize,
}

impl Network {
    /// Parameters, multiply-accumulates and bytes by layer.
    pub fn summary(&self) -> Summary {
        let layers = self.nodes().iter().map(|node| {
            let (inputs, output) = (self.input_shapes(node), self.shape(node.output));
            let trained = self.parameters_of(node).into_iter().filter(|spec| spec.role.is_trained());
            let parameters = trained.map(|spec| spec.shape.iter().product::<usize>()).sum::<usize>();
            LayerSummary {
                name: node.name.clone(),
                kind: kind(&node.layer),
                output,
                parameters,
                macs: node.layer.rule().macs(&inputs, output),
                weight_bytes: parameters * 4,
                activation_bytes: output.elements() * 4,
            }
        });
        Summary { layers: layers.collect() }
    }
}

fn kind(layer: &Layer) -> String {
    let name = layer.name();
    match layer {
        Layer::Conv2d(layer) => {
            let [rows, columns] = layer.window.kernel;
            format!("{name} {rows}x{columns} /{}", layer.window.stride[0])
        }
        Layer::UpConvolution(layer) => format!("{name} {0}x{0} x{1}", layer.window.kernel[0], layer.window.stride[0]),
        Layer::MaxPool(layer) => format!("{name} {0}x{0} /{1}", layer.window.kernel[0], layer.window.stride[0]),
        Layer::AveragePool(layer) => format!("{name} {0}x{0} /{1}", layer.window.kernel[0], layer.window.stride[0]),
        Layer::Activation(layer) => format!("{:?}", layer.function).to_lowercase(),
        Layer::Linear(_)
        | Layer::BatchNorm(_)
        | Layer::LayerNorm(_)
        | Layer::GroupNorm(_)
        | Layer::GlobalAveragePool(_)
        | Layer::Dropout(_)
        | Layer::Add(_)
        | Layer::Concatenate(_)
        | Layer::Shortcut(_)
        | Layer::Flatten(_) => name.to_owned(),
    }
}

impl Summary {
    /// Trained values.
    pub fn parameters(&self) -> usize {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// Multiply-accumulates of one sample's forward pass.
    pub fn macs(&self) -> usize {
        self.layers.iter().map(|layer| layer.macs).sum()
    }

    /// Bytes of the weights in fp32.
    pub fn weight_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.weight_bytes).sum()
    }

    /// Bytes of the optimiser's slots in fp32.
    pub fn optimizer_bytes(&self, optimizer: &Optimizer) -> usize {
        self.weight_bytes() * optimizer.slots().len()
    }

    /// Bytes of all layers' outputs for so many samples in fp32.
    pub fn activation_bytes(&self, samples: usize) -> usize {
        self.layers.iter().map(|layer| layer.activation_bytes * samples).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.layers.iter().map(|layer| layer.name.len()).max().unwrap_or(0).max(10);
        writeln!(
            f,
            "{:<widest$} {:<22} {:>12} {:>12} {:>14} {:>12}",
            "layer", "kind", "output", "parameters", "MACs", "bytes"
        )?;
        for layer in &self.layers {
            let LayerSummary { name, kind, output, parameters, macs, weight_bytes, activation_bytes: _ } = layer;
            let output = output.to_string();
            writeln!(f, "{name:<widest$} {kind:<22} {output:>12} {parameters:>12} {macs:>14} {weight_bytes:>12}")?;
        }
        let (parameters, macs, bytes) = (self.parameters(), self.macs(), self.weight_bytes());
        write!(f, "{:<widest$} {:<22} {:>12} {parameters:>12} {macs:>14} {bytes:>12}", "total", "", "")
    }
}

#[cfg(test)]
mod tests {
    use crate::models;

    #[test]
    fn lenet5_costs_what_its_layers_cost() {
        let summary = models::lenet5().summary();
        let macs: Vec<usize> = summary.layers.iter().map(|layer| layer.macs).filter(|macs| *macs > 0).collect();
        assert_eq!(macs, [6 * 25 * 784, 16 * 150 * 100, 400 * 120, 120 * 84, 84 * 10]);
        assert_eq!((summary.parameters(), summary.weight_bytes()), (61_706, 246_824));
    }

    #[test]
    fn the_printed_summary_ends_with_the_totals() {
        let text = models::lenet5().summary().to_string();
        let last = text.lines().last().expect("the text has lines");
        assert!(last.starts_with("total") && last.contains("61706") && last.contains("416520"), "{last}");
    }
}
