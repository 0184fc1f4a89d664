//! A network as a list of layers, checked once, and the blocks that a device computes as whole operations.

use std::collections::HashSet;
use std::fmt;

use crate::error::Error;
use crate::parameters::{DType, Layout, ParamMeta, ParamTable, Role};

/// Shape of one sample: `channels × height × width`; features are `n × 1 × 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Channels, or the number of features.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Shape {
    /// Elements of one sample.
    pub fn elements(self) -> usize {
        self.channels * self.height * self.width
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.channels, self.height, self.width)
    }
}

/// One layer as a user thinks of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// Square convolution of stride 1 with a bias.
    Conv2d {
        /// Prefix of its parameters' names.
        name: String,
        /// Output channels.
        outputs: usize,
        /// Height and width of the kernel.
        kernel: usize,
        /// Zeros on each side of the input.
        padding: usize,
    },
    /// `max(0, x)`.
    Relu,
    /// Maximum of each 2×2 window, stride 2; an odd last row or column is dropped.
    MaxPool2,
    /// Images become features, channel by channel, row by row.
    Flatten,
    /// Matrix product with a bias.
    Linear {
        /// Prefix of its parameters' names.
        name: String,
        /// Output features.
        outputs: usize,
    },
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Conv2d { name, kernel, .. } => write!(f, "{name}, a {kernel}x{kernel} convolution"),
            Layer::Relu => f.write_str("relu"),
            Layer::MaxPool2 => f.write_str("2x2 max pooling"),
            Layer::Flatten => f.write_str("flatten"),
            Layer::Linear { name, .. } => write!(f, "{name}, a linear layer"),
        }
    }
}

/// What one fused operation computes: a product with its bias, activation and pooling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Prefix of the parameters' names.
    pub name: String,
    /// The product.
    pub kind: BlockKind,
    /// Shape of an input sample.
    pub input: Shape,
    /// Shape of an output sample.
    pub output: Shape,
    /// Whether `max(0, x)` follows the product.
    pub relu: bool,
    /// Whether 2×2 max pooling follows.
    pub pooled: bool,
}

/// The product of a [`Block`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Square convolution of stride 1.
    Convolution {
        /// Height and width of the kernel.
        kernel: usize,
        /// Zeros on each side of the input.
        padding: usize,
    },
    /// Matrix product.
    Linear,
}

impl Block {
    /// Inputs that feed one output.
    pub fn fan_in(&self) -> usize {
        match self.kind {
            BlockKind::Convolution { kernel, .. } => self.input.channels * kernel * kernel,
            BlockKind::Linear => self.input.elements(),
        }
    }

    /// Shape of the product, before pooling.
    pub fn product(&self) -> Shape {
        match self.kind {
            BlockKind::Convolution { kernel, padding } => Shape {
                channels: self.output.channels,
                height: self.input.height + 2 * padding + 1 - kernel,
                width: self.input.width + 2 * padding + 1 - kernel,
            },
            BlockKind::Linear => self.output,
        }
    }

    fn parameters(&self) -> Vec<ParamMeta> {
        let shape = match self.kind {
            BlockKind::Convolution { kernel, .. } => vec![self.output.channels, self.input.channels, kernel, kernel],
            BlockKind::Linear => vec![self.output.elements(), self.input.elements()],
        };
        let bias = vec![shape[0]];
        let meta = |role: &str, shape: Vec<usize>, kind| ParamMeta {
            name: format!("{}.{role}", self.name),
            shape,
            dtype: DType::F32,
            layout: Layout::RowMajor,
            range: 0..0,
            role: kind,
            frozen: false,
            tied_to: None,
            fan_in: self.fan_in(),
        };
        vec![meta("weight", shape, Role::Weight), meta("bias", bias, Role::Bias)]
    }
}

/// A checked network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    input: Shape,
    layers: Vec<Layer>,
    blocks: Vec<Block>,
}

impl Network {
    /// A network on images of `channels × height × width`, to be filled with layers.
    pub fn on_images(channels: usize, height: usize, width: usize) -> NetworkBuilder {
        NetworkBuilder { input: Shape { channels, height, width }, layers: Vec::new() }
    }

    /// A network on vectors of `features`, to be filled with layers.
    pub fn on_features(features: usize) -> NetworkBuilder {
        Network::on_images(features, 1, 1)
    }

    /// Shape of an input sample.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// Number of classes, the outputs of the last layer.
    pub fn classes(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.output.elements())
    }

    /// The layers in forward order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The fused operations in forward order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Where every parameter lies.
    pub fn table(&self) -> ParamTable {
        ParamTable::lay_out(self.blocks.iter().rev().map(Block::parameters).collect())
    }
}

/// Layers so far; [`NetworkBuilder::build`] checks them.
#[derive(Debug, Clone)]
pub struct NetworkBuilder {
    input: Shape,
    layers: Vec<Layer>,
}

impl NetworkBuilder {
    /// Adds a square convolution of stride 1 with a bias.
    pub fn conv2d(self, name: &str, outputs: usize, kernel: usize, padding: usize) -> Self {
        self.layer(Layer::Conv2d { name: name.to_owned(), outputs, kernel, padding })
    }

    /// Adds `max(0, x)` after a product.
    pub fn relu(self) -> Self {
        self.layer(Layer::Relu)
    }

    /// Adds 2×2 max pooling after a convolution.
    pub fn max_pool2(self) -> Self {
        self.layer(Layer::MaxPool2)
    }

    /// Turns images into features.
    pub fn flatten(self) -> Self {
        self.layer(Layer::Flatten)
    }

    /// Adds a matrix product with a bias.
    pub fn linear(self, name: &str, outputs: usize) -> Self {
        self.layer(Layer::Linear { name: name.to_owned(), outputs })
    }

    /// Adds a layer.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// The network, if every layer can compute where it stands.
    pub fn build(self) -> Result<Network, Error> {
        let NetworkBuilder { input, layers } = self;
        let mut fusion = Fusion { shape: input, flat: input.height * input.width == 1, blocks: Vec::new() };
        for (position, layer) in layers.iter().enumerate() {
            let previous = position.checked_sub(1).map(|before| &layers[before]);
            fusion.add(layer).map_err(|refusal| match refusal {
                Refusal::Empty => empty_output(layer, fusion.shape),
                Refusal::Misplaced(remedy) => Error::Misplaced {
                    position,
                    layer: layer.to_string(),
                    previous: previous.map_or_else(|| "the input".to_owned(), Layer::to_string),
                    remedy,
                },
            })?;
        }
        let mut names = HashSet::new();
        if let Some(twin) = fusion.blocks.iter().find(|block| !names.insert(block.name.as_str())) {
            return Err(Error::DuplicateName { name: twin.name.clone() });
        }
        if fusion.blocks.is_empty() {
            return Err(Error::NoParameters);
        }
        Ok(Network { input, blocks: fusion.blocks, layers })
    }
}

fn empty_output(layer: &Layer, shape: Shape) -> Error {
    let Shape { channels, height, width } = shape;
    Error::EmptyOutput { layer: layer.to_string(), channels, height, width }
}

enum Refusal {
    Empty,
    Misplaced(&'static str),
}

/// Layers folded into blocks, so far.
struct Fusion {
    shape: Shape,
    flat: bool,
    blocks: Vec<Block>,
}

impl Fusion {
    fn add(&mut self, layer: &Layer) -> Result<(), Refusal> {
        match layer {
            Layer::Conv2d { name, outputs, kernel, padding } => {
                if self.flat && !self.blocks.is_empty() {
                    return Err(Refusal::Misplaced("put convolutions before flatten and linear layers"));
                }
                let side = |side: usize| (side + 2 * padding + 1).saturating_sub(*kernel);
                let output =
                    Shape { channels: *outputs, height: side(self.shape.height), width: side(self.shape.width) };
                self.push(name, BlockKind::Convolution { kernel: *kernel, padding: *padding }, output, *kernel > 0)
            }
            Layer::Linear { name, outputs } => {
                if !self.flat {
                    return Err(Refusal::Misplaced("put flatten between images and a linear layer"));
                }
                self.push(name, BlockKind::Linear, Shape { channels: *outputs, height: 1, width: 1 }, true)
            }
            Layer::Relu => match self.blocks.last_mut() {
                Some(block) if !block.relu && !block.pooled => {
                    block.relu = true;
                    Ok(())
                }
                _ => Err(Refusal::Misplaced("put relu directly after a convolution or a linear layer")),
            },
            Layer::MaxPool2 => match self.blocks.last_mut() {
                Some(block) if !self.flat && !block.pooled => {
                    let Shape { channels, height, width } = block.output;
                    if height < 2 || width < 2 {
                        return Err(Refusal::Empty);
                    }
                    block.pooled = true;
                    block.output = Shape { channels, height: height / 2, width: width / 2 };
                    self.shape = block.output;
                    Ok(())
                }
                _ => Err(Refusal::Misplaced("put pooling after a convolution or its relu")),
            },
            Layer::Flatten => {
                self.shape = Shape { channels: self.shape.elements(), height: 1, width: 1 };
                self.flat = true;
                Ok(())
            }
        }
    }

    fn push(&mut self, name: &str, kind: BlockKind, output: Shape, valid: bool) -> Result<(), Refusal> {
        if !valid || output.elements() == 0 || self.shape.elements() == 0 {
            return Err(Refusal::Empty);
        }
        self.flat = kind == BlockKind::Linear;
        self.blocks.push(Block { name: name.to_owned(), kind, input: self.shape, output, relu: false, pooled: false });
        self.shape = output;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(builder: NetworkBuilder) -> String {
        builder.build().expect_err("the network must be refused").to_string()
    }

    #[test]
    fn each_impossible_network_is_refused_with_its_remedy() {
        let images = || Network::on_images(1, 8, 8);
        for (builder, expected) in [
            (images().linear("fc", 3), "put flatten between"),
            (images().relu(), "put relu directly after"),
            (images().conv2d("c", 2, 3, 0).max_pool2().relu(), "put relu directly after"),
            (images().flatten().linear("fc", 4).max_pool2(), "put pooling after"),
            (images().flatten().linear("fc", 4).conv2d("c", 2, 3, 0), "put convolutions before"),
            (images().conv2d("c", 2, 9, 0), "empty output for an input of 1x8x8"),
            (images().conv2d("c", 2, 0, 0), "empty output"),
            (images().conv2d("c", 2, 8, 0).max_pool2(), "empty output for an input of 2x1x1"),
            (images().flatten().linear("fc", 0), "empty output"),
            (images().flatten().linear("fc", 2).linear("fc", 2), "two layers are named fc"),
            (images().flatten(), "no layer with parameters"),
        ] {
            let message = refusal(builder);
            assert!(message.contains(expected), "{message} does not say {expected}");
        }
    }

    #[test]
    fn lenet5_fuses_into_five_blocks() {
        let network = crate::models::lenet5();
        let outputs: Vec<String> =
            network.blocks().iter().map(|block| format!("{} {}", block.name, block.output)).collect();
        assert_eq!(outputs, ["conv1 6x14x14", "conv2 16x5x5", "fc1 120x1x1", "fc2 84x1x1", "fc3 10x1x1"]);
    }
}
