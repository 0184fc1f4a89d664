//! Every operation that a device computes: whole operations that a GPU would fuse, as shapes and
//! handles over memory.
//!
//! `x` and `y` are what a layer reads and writes, `dx` and `dy` the gradients of the loss with
//! respect to them.

mod losses;
mod operands;
mod updates;

pub use losses::*;
pub use operands::*;
pub use updates::*;

pub use crate::memory::Accumulation;
use crate::memory::{Memory, Region, Tally};

/// The values that change from one micro-batch to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroBatch {
    /// Samples.
    pub samples: usize,
    /// Groups of samples that share a batch norm's statistics.
    pub groups: usize,
    /// Each sample's loss counts so much in the gradients: one over the global batch.
    pub scale: f32,
    /// The losses of labels that count by their class are multiplied by this.
    pub importance: f32,
    /// The loss counts so many times in the gradients, until the update divides by it.
    pub loss_scale: f32,
    /// True if it is the step's first.
    pub is_first: bool,
    /// The number of the step.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
}

impl MicroBatch {
    /// For operations that look at no sample.
    pub const NONE: MicroBatch = MicroBatch {
        samples: 0,
        groups: 0,
        scale: 0.0,
        importance: 1.0,
        loss_scale: 1.0,
        is_first: true,
        step: 0,
        seed: 0,
    };

    /// The gradient of each sample's loss counts so much.
    pub fn gradient_scale(&self) -> f32 {
        self.scale * self.loss_scale
    }
}

/// When a gradient is added to what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adding {
    /// It replaces it: the first contribution in a micro-batch.
    Never,
    /// Another contribution of the micro-batch is there.
    Always,
    /// Contributions of the step's earlier micro-batches may be there.
    AfterFirst,
}

/// A place that several operations may contribute to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum<T> {
    /// The place.
    pub into: T,
    /// When this contribution is added to what is there.
    pub adding: Adding,
}

impl<T> Sum<T> {
    /// A contribution that replaces what is there.
    pub const fn only(into: T) -> Sum<T> {
        Sum { into, adding: Adding::Never }
    }

    /// The work of this micro-batch.
    pub fn now(&self, batch: &MicroBatch) -> Accumulation {
        match self.adding {
            Adding::Never => Accumulation::Replace,
            Adding::Always => Accumulation::Add,
            Adding::AfterFirst if batch.is_first => Accumulation::Replace,
            Adding::AfterFirst => Accumulation::Add,
        }
    }
}

/// The window that a convolution or a pooling slides over an image: each field is vertical, then
/// horizontal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns.
    pub kernel: [usize; 2],
    /// Pixels from one place to the next.
    pub stride: [usize; 2],
    /// Pixels beyond each edge of the image.
    pub padding: [usize; 2],
    /// Pixels from one tap to the next.
    pub dilation: [usize; 2],
}

impl Window {
    /// Places along one side of so many pixels, if there is one.
    pub fn places(&self, axis: usize, side: usize) -> Option<usize> {
        let reach = self.dilation[axis] * self.kernel[axis].checked_sub(1)? + 1;
        let free = (side + 2 * self.padding[axis]).checked_sub(reach)?;
        Some(free.checked_div(self.stride[axis])? + 1)
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// `y = x·Wᵀ + b`, with `max(0, ·)` where asked for.
    Linear(Linear),
    /// `dW = dyᵀ·x`, some rows.
    LinearWeight(LinearWeight),
    /// `dx = dy·W`.
    LinearInput(LinearInput),
    /// `y = w ∗ x + b`, with a batch norm and `max(0, ·)` where asked for.
    Convolution(Convolution),
    /// A convolution's `dw` and `db`.
    ConvolutionWeight(ConvolutionWeight),
    /// A convolution's `dx`.
    ConvolutionInput(ConvolutionInput),
    /// `y = pool(w ∗ x + b)` on samples side by side, with `max(0, ·)` where asked for.
    Block(Block),
    /// Gradients of a block.
    BlockBackward(BlockBackward),
    /// `y = y + b`, with `max(0, ·)` where asked for.
    AddBias(AddBias),
    /// `db = Σ dy` for each channel.
    BiasGradient(BiasGradient),
    /// `dy = 0` where `y = 0`: the gradient of a fused `max(0, ·)`, in place.
    CutOff(CutOff),
    /// Batch norm by each group's statistics.
    BatchNorm(BatchNorm),
    /// Batch norm by the running statistics.
    BatchNormFixed(BatchNormFixed),
    /// Gradients of a batch norm, and its groups' statistics.
    BatchNormBackward(BatchNormBackward),
    /// Norm within each sample: layer norm and group norm.
    SampleNorm(SampleNorm),
    /// Gradients of a norm within each sample.
    SampleNormBackward(SampleNormBackward),
    /// The maximum of each window.
    MaxPool(MaxPool),
    /// Gradient of a maximum pooling.
    MaxPoolBackward(MaxPoolBackward),
    /// The average of each window, padding included.
    AveragePool(AveragePool),
    /// Gradient of an average pooling.
    AveragePoolBackward(AveragePoolBackward),
    /// `y = f(x)`.
    Activate(Activate),
    /// `dx = f′(x)·dy`.
    ActivateBackward(ActivateBackward),
    /// `y = x₁ + x₂`, with `max(0, ·)` where asked for.
    Add(Add),
    /// `y = x`, or `y = y + x`.
    Accumulate(Accumulate),
    /// Some channels of one value to some of another.
    Channels(Channels),
    /// Every `stride`-th pixel, and zeros for further channels.
    Subsample(Subsample),
    /// Gradient of a subsampling.
    SubsampleBackward(SubsampleBackward),
    /// Zeros at places drawn by dice, the others scaled up.
    Dropout(Dropout),
    /// The elements of a sample in the order `[channel][row][column]`.
    Flatten(Flatten),
    /// The reverse of [`Op::Flatten`].
    Unflatten(Flatten),
    /// Cross-entropy of softmax against labels.
    SoftmaxCrossEntropy(SoftmaxCrossEntropy),
    /// Squared differences from targets.
    MeanSquaredError(MeanSquaredError),
    /// The margin by which a wrong class comes close.
    Hinge(Hinge),
    /// Sets totals to zero.
    ClearTally(Tally),
    /// Writes the sum of losses into a region of one element.
    WriteLoss(Tally, Region),
    /// Sets a region to zero.
    Zero(Region),
    /// Weights rounded to another type.
    Cast(Cast),
    /// One update of all parameters.
    Update(Update),
    /// The L2 norm of each of several ranges.
    Norms(Norms),
}

/// The memory that an operation may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// A region of memory.
    Region(Region),
    /// Totals.
    Tally(Tally),
}

impl Op {
    /// Tells everything that the operation may write beside scratch memory.
    pub fn each_written(&self, tell: &mut dyn FnMut(Written)) {
        let mut region = |region: Region| tell(Written::Region(region));
        match self {
            Op::Linear(op) => region(op.y.region),
            Op::LinearWeight(op) => region(op.weight.into),
            Op::LinearInput(op) => region(op.dx.into.region),
            Op::Convolution(op) => region(op.y.into.region),
            Op::ConvolutionWeight(op) => std::iter::once(op.weight.into).chain(op.bias).for_each(region),
            Op::ConvolutionInput(op) => region(op.dx.into.region),
            Op::Block(op) => [op.y.region, op.switches].into_iter().for_each(region),
            Op::BlockBackward(op) => {
                let gradients = [op.weight_gradient.into, op.bias_gradient.into];
                gradients.into_iter().chain(op.dx.map(|dx| dx.region)).for_each(region);
            }
            Op::AddBias(op) => region(op.y.region),
            Op::BiasGradient(op) => region(op.bias.into),
            Op::CutOff(op) => region(op.dy.region),
            Op::BatchNorm(op) => [op.y.region, op.kept].into_iter().for_each(region),
            Op::BatchNormFixed(op) => region(op.y.region),
            Op::BatchNormBackward(op) => {
                let gradients = [op.weight_gradient.into, op.bias_gradient.into, op.mean.into, op.variance.into];
                gradients.into_iter().chain(op.dx.map(|dx| dx.into.region)).for_each(region);
            }
            Op::SampleNorm(op) => [op.y.region, op.kept].into_iter().for_each(region),
            Op::SampleNormBackward(op) => {
                let gradients = [op.weight_gradient.into, op.bias_gradient.into];
                gradients.into_iter().chain(op.dx.map(|dx| dx.into.region)).for_each(region);
            }
            Op::MaxPool(op) => [op.y.region, op.switches].into_iter().for_each(region),
            Op::MaxPoolBackward(op) => region(op.dx.into.region),
            Op::AveragePool(op) => region(op.y.region),
            Op::AveragePoolBackward(op) => region(op.dx.into.region),
            Op::Activate(op) => region(op.y.region),
            Op::ActivateBackward(op) => region(op.dx.into.region),
            Op::Add(op) => region(op.y.region),
            Op::Accumulate(op) => region(op.into.into.region),
            Op::Channels(op) => region(op.into.into.region),
            Op::Subsample(op) => region(op.y.region),
            Op::SubsampleBackward(op) => region(op.dx.into.region),
            Op::Dropout(op) => region(op.into.into.region),
            Op::Flatten(op) | Op::Unflatten(op) => region(op.into.into.region),
            Op::SoftmaxCrossEntropy(op) => {
                op.dz.iter().for_each(|dz| region(dz.into.region));
                tell(Written::Tally(op.tally));
            }
            Op::MeanSquaredError(op) => {
                op.dy.iter().for_each(|dy| region(dy.into.region));
                tell(Written::Tally(op.tally));
            }
            Op::Hinge(op) => {
                op.dz.iter().for_each(|dz| region(dz.into.region));
                tell(Written::Tally(op.tally));
            }
            Op::ClearTally(tally) => tell(Written::Tally(*tally)),
            Op::WriteLoss(_, into) => region(*into),
            Op::Zero(into) => region(*into),
            Op::Cast(op) => op.ranges.iter().for_each(|range| region(op.into.region(range.clone()))),
            Op::Update(op) => {
                let of = |memory: Memory| op.ranges.iter().map(move |updated| memory.region(updated.range.clone()));
                std::iter::once(op.weights).chain(op.slots.iter().copied()).flat_map(of).for_each(region);
            }
            Op::Norms(op) => region(op.into),
        }
    }
}
