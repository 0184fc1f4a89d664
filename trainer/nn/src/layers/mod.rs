//! The layers: each file has one, with its formula and source, shapes, parameters, cost,
//! operations, and a test against finite differences.

mod activation;
mod add;
mod average_pool;
mod batch_norm;
mod concatenate;
mod conv2d;
mod dropout;
mod flatten;
mod group_norm;
mod hinge;
mod layer_norm;
mod linear;
mod max_pool;
mod mean_squared_error;
mod operands;
#[cfg(test)]
mod recorded;
mod shortcut;
mod softmax_cross_entropy;
#[cfg(test)]
mod testing;
mod up_convolution;
mod window;

pub use activation::Activation;
pub use add::Add;
pub use average_pool::{AveragePool, GlobalAveragePool};
pub use batch_norm::BatchNorm;
pub use concatenate::Concatenate;
pub use conv2d::{ChannelGroups, Conv2d};
pub use dropout::Dropout;
pub use flatten::Flatten;
pub use group_norm::GroupNorm;
pub use hinge::Hinge;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use max_pool::MaxPool;
pub use mean_squared_error::MeanSquaredError;
pub use shortcut::Shortcut;
pub use softmax_cross_entropy::SoftmaxCrossEntropy;
pub use up_convolution::UpConvolution;

pub(crate) use operands::{Folded, Gradients, Kept, Mode, Operands};

use crate::{device::Tensor, dtype::DType, op::Op, parameters::ParamSpec, shape::Shape};

/// The kind of a layer and its computation.
pub(crate) trait Rule {
    /// Shape of the output.
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit>;

    /// Its parameters; the one that multiplies the inputs comes first.
    fn parameters(&self, _inputs: &[Shape]) -> Vec<ParamSpec> {
        Vec::new()
    }

    /// Multiply-accumulates of one sample's forward pass, of products only.
    fn macs(&self, _inputs: &[Shape], _output: Shape) -> usize {
        0
    }

    /// What is kept from forward to backward beside inputs and output.
    fn kept(&self, _inputs: &[Shape], _output: Shape) -> Vec<Kept> {
        Vec::new()
    }

    /// True if it can apply `max(0, ·)` to its output at once, and undo it in backward by looking
    /// at the output.
    fn takes_relu(&self) -> bool {
        false
    }

    /// True if the output has the elements of the input in the same order, so that it need not be
    /// written.
    fn is_view(&self, _inputs: &[Shape]) -> bool {
        false
    }

    /// Which values backward reads beside the output's gradient.
    fn reads(&self) -> Reads;

    /// The operations that write the output.
    fn forward(&self, at: &Operands, mode: Mode, ops: &mut Vec<Op>);

    /// The operations that write the gradients of parameters, then those of inputs, from the
    /// output's.
    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>);
}

/// What a layer's backward reads of its forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reads {
    pub(crate) inputs: bool,
    /// The output is read in any case where the layer took a `max(0, ·)`.
    pub(crate) output: bool,
}

impl Reads {
    pub(crate) const NOTHING: Reads = Reads { inputs: false, output: false };
    pub(crate) const INPUTS: Reads = Reads { inputs: true, output: false };
}

/// Why a layer cannot compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) expected: String,
    pub(crate) got: String,
}

impl Misfit {
    pub(crate) fn new(expected: impl Into<String>, got: impl ToString) -> Misfit {
        Misfit { expected: expected.into(), got: got.to_string() }
    }
}

/// The only input of a layer.
pub(crate) fn single(inputs: &[Shape]) -> Result<Shape, Misfit> {
    match inputs {
        [input] if input.elements() > 0 => Ok(*input),
        [_] => Err(Misfit::new("an input with elements", "an empty one")),
        _ => Err(Misfit::new("one input", format_args!("{}", inputs.len()))),
    }
}

macro_rules! list {
    ($list:ident of $rule:ident: $($layer:ident = $name:literal),* $(,)?) => {
        impl $list {
            /// Its kind, as manifests and messages spell it.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $($list::$layer(_) => $name),* }
            }

            pub(crate) fn rule(&self) -> &dyn $rule {
                match self { $($list::$layer(layer) => layer),* }
            }
        }

        $(impl From<$layer> for $list {
            fn from(layer: $layer) -> $list {
                $list::$layer(layer)
            }
        })*
    };
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each is described where it is")]
pub enum Layer {
    Linear(Linear),
    Conv2d(Conv2d),
    UpConvolution(UpConvolution),
    BatchNorm(BatchNorm),
    LayerNorm(LayerNorm),
    GroupNorm(GroupNorm),
    MaxPool(MaxPool),
    AveragePool(AveragePool),
    GlobalAveragePool(GlobalAveragePool),
    Activation(Activation),
    Dropout(Dropout),
    Add(Add),
    Concatenate(Concatenate),
    Shortcut(Shortcut),
    Flatten(Flatten),
}

list! {
    Layer of Rule:
    Linear = "linear",
    Conv2d = "conv2d",
    UpConvolution = "up_convolution",
    BatchNorm = "batch_norm",
    LayerNorm = "layer_norm",
    GroupNorm = "group_norm",
    MaxPool = "max_pool",
    AveragePool = "average_pool",
    GlobalAveragePool = "global_average_pool",
    Activation = "activation",
    Dropout = "dropout",
    Add = "add",
    Concatenate = "concatenate",
    Shortcut = "shortcut",
    Flatten = "flatten",
}

/// What a prediction is compared with a target by.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each is described where it is")]
pub enum Loss {
    SoftmaxCrossEntropy(SoftmaxCrossEntropy),
    MeanSquaredError(MeanSquaredError),
    Hinge(Hinge),
}

list! {
    Loss of Judge:
    SoftmaxCrossEntropy = "softmax_cross_entropy",
    MeanSquaredError = "mean_squared_error",
    Hinge = "hinge",
}

/// The kind of a loss and its computation.
pub(crate) trait Judge {
    /// True if it can read such a prediction.
    fn check(&self, prediction: Shape) -> Result<(), Misfit>;

    /// Type and elements of one sample's target.
    fn target(&self, prediction: Shape) -> (DType, Shape);

    /// The label that does not count.
    fn ignored(&self) -> Option<u32> {
        None
    }

    /// Constants that it reads on the device.
    fn constants(&self) -> &[f32] {
        &[]
    }

    /// The operation that adds the loss to the tally and, where asked for, writes the prediction's
    /// gradient.
    fn operation(&self, at: &Judged) -> Op;
}

/// The operands of a loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judged {
    pub(crate) prediction: Tensor,
    pub(crate) gradient: Option<crate::op::Sum<Tensor>>,
    pub(crate) target: Tensor,
    pub(crate) constants: Option<crate::device::Region>,
    pub(crate) tally: crate::device::Tally,
    pub(crate) weight: f32,
}

impl Loss {
    pub(crate) fn check(&self, prediction: Shape) -> Result<(), Misfit> {
        self.rule().check(prediction)
    }

    /// True if targets are labels below the number of classes.
    #[must_use]
    pub fn takes_labels(&self) -> bool {
        self.rule().target(Shape::features(1)).0 == DType::U32
    }
}
