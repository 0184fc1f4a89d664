//! What a network costs, layer by layer, before any machine runs it.

use std::fmt;

use crate::network::{BlockKind, Network, Shape};

/// Parameters, multiply-accumulates and bytes of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// One entry per layer with parameters, in forward order.
    pub layers: Vec<LayerSummary>,
}

/// Cost of one layer with its activation and pooling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSummary {
    /// Name of the layer.
    pub name: String,
    /// What it is, with its kernel.
    pub kind: String,
    /// Shape of one output sample.
    pub output: Shape,
    /// Trained values.
    pub parameters: usize,
    /// Multiply-accumulates of one sample's forward pass.
    pub macs: usize,
    /// Bytes of the weights in fp32.
    pub weight_bytes: usize,
    /// Bytes of one sample's output in fp32.
    pub activation_bytes: usize,
}

impl Network {
    /// Parameters, multiply-accumulates and bytes by layer.
    pub fn summary(&self) -> Summary {
        let layers = self.blocks().iter().map(|block| {
            let weights = block.output.channels * block.fan_in();
            let parameters = weights + block.output.channels;
            let product = block.product();
            LayerSummary {
                name: block.name.clone(),
                kind: match block.kind {
                    BlockKind::Convolution { kernel, padding } => {
                        format!("convolution {kernel}x{kernel} pad {padding}")
                    }
                    BlockKind::Linear => "linear".to_owned(),
                },
                output: block.output,
                parameters,
                macs: weights * product.height * product.width,
                weight_bytes: parameters * 4,
                activation_bytes: block.output.elements() * 4,
            }
        });
        Summary { layers: layers.collect() }
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
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:<22} {:>12} {:>12} {:>14} {:>12}",
            "layer", "kind", "output", "parameters", "MACs", "bytes"
        )?;
        for layer in &self.layers {
            let LayerSummary { name, kind, output, parameters, macs, weight_bytes, activation_bytes: _ } = layer;
            let output = output.to_string();
            writeln!(f, "{name:<10} {kind:<22} {output:>12} {parameters:>12} {macs:>14} {weight_bytes:>12}")?;
        }
        let (parameters, macs, bytes) = (self.parameters(), self.macs(), self.weight_bytes());
        write!(f, "{:<10} {:<22} {:>12} {parameters:>12} {macs:>14} {bytes:>12}", "total", "", "")
    }
}

#[cfg(test)]
mod tests {
    use crate::models;

    #[test]
    fn lenet5_costs_what_its_layers_cost() {
        let summary = models::lenet5().summary();
        let macs: Vec<usize> = summary.layers.iter().map(|layer| layer.macs).collect();
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
