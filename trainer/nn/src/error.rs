use std::ops::Range;

/// What can be wrong with a network, a plan of buckets or a state that is loaded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A layer or a loss cannot compute what it is given.
    #[error("{layer} ({kind}) expects {expected}, but gets {got}")]
    Misfit {
        /// The layer.
        layer: String,
        /// Its kind.
        kind: String,
        /// The shape or size that it needs.
        expected: String,
        /// The shape or size that it gets.
        got: String,
    },
    /// There is nothing to train for.
    #[error("the network has no input or no loss: give it both")]
    NoLoss,
    /// Two layers carry one name, so their parameters could not be told apart in a checkpoint.
    #[error("two layers are named {name}: give each layer with parameters its own name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The network has no layer with parameters.
    #[error("the network has no layer with parameters: add a linear layer or a convolution")]
    NoParameters,
    /// Buckets do not tile the gradient arena in order.
    #[error(
        "bucket {index} is {bucket:?}, but the buckets must tile 0..{elements} in order: it should start at {expected_start}"
    )]
    Buckets {
        /// Index of the first wrong bucket.
        index: usize,
        /// The wrong bucket.
        bucket: Range<usize>,
        /// The element at which it should start.
        expected_start: usize,
        /// Length of the gradient arena.
        elements: usize,
    },
    /// A tensor that the network needs is not among those loaded.
    #[error("loading the state: tensor {name} of shape {shape:?} is missing: load a checkpoint of the same model")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The shape that the network needs.
        shape: Vec<usize>,
    },
    /// A loaded tensor is not one of the network's, or there twice.
    #[error("loading the state: tensor {name} does not belong to this network: load a checkpoint of the same model")]
    UnknownTensor {
        /// The tensor.
        name: String,
    },
    /// A loaded state has a slot of another optimiser.
    #[error(
        "loading the state: it has {slot}, which {optimizer} does not keep: go on with the optimizer that saved it, or begin anew from its weights"
    )]
    OtherOptimizer {
        /// The slot.
        slot: String,
        /// The optimiser of this run.
        optimizer: &'static str,
    },
    /// A loaded tensor has another shape, or another number of values than its shape says.
    #[error(
        "loading the state: tensor {name} has shape {found:?} and {values} values, the network needs shape {expected:?}: load a checkpoint of the same model"
    )]
    TensorShape {
        /// The tensor.
        name: String,
        /// The shape that the network needs.
        expected: Vec<usize>,
        /// The shape that was given.
        found: Vec<usize>,
        /// The number of values that was given.
        values: usize,
    },
}
