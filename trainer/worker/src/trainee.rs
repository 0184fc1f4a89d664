//! What a worker trains: the border between the elastic training and the mathematics.
//!
//! The worker knows members, steps, checkpoints and reports. A [`Trainee`] knows samples, weights
//! and gradients. In each step it computes the gradients of this worker's share of the samples, in
//! buckets that the worker sums over all workers meanwhile. Then it updates its weights with the
//! sums. Its state is one row of `f32` values, in which each tensor has a name and a range.
//!
//! `networks` implements it for the models that a manifest names, `own_model` for a user's own
//! forward and backward.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_data::{Batches, Permutation, Seat, Step, Tally};
use lockstep_elastic::ActivityMonitor;

use crate::failure::Failure;

/// The key of a model's description in the metadata of an exported file.
pub(crate) const DESCRIPTION: &str = "lockstep";

/// A model with its samples, its gradients and its optimiser.
///
/// A step is [`Trainee::gradients`], the drop of all buckets, and [`Trainee::update`]. A step whose
/// group breaks ends with [`Trainee::abandon_step`] instead. All workers that begin with equal
/// states and get equal sums must hold equal states after the update, to the last bit.
pub trait Trainee {
    /// The number of samples.
    fn samples(&self) -> SampleCounts;

    /// A digest of all samples. Workers with other samples are not let into the group.
    fn fingerprint(&self) -> [u8; 32];

    /// The ranges of the gradients in the order in which backward completes them. They tile the
    /// gradients from 0 to their number.
    fn ready_order(&self) -> Vec<Range<usize>>;

    /// Hands over gradients in these buckets from the next step on. They are cuts of the ready
    /// order, and tile the gradients.
    ///
    /// # Errors
    /// They do not tile the gradients.
    fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure>;

    /// Keeps the gradients in memory that the collectives lend, from the next step on. Elements
    /// behind the gradients belong to the last bucket, as with [`Trainee::own_gradient_memory`].
    fn set_gradient_memory(&mut self, memory: Lent);

    /// Keeps the gradients in memory of its own from the next step on. The last bucket gets
    /// `beside` elements more. In each step, the first of them holds the sum of the losses of this
    /// worker's samples; the worker uses the others.
    fn own_gradient_memory(&mut self, beside: usize);

    /// Gets ready for the steps of a new group, which begin with the present state.
    ///
    /// # Errors
    /// The system refuses a thread, or this trainee cannot divide its steps like this.
    fn expect(&mut self, shares: Shares) -> Result<(), Failure>;

    /// Computes the gradients of this worker's share of the next of the expected steps: the sum
    /// over its samples, divided by the samples of all workers. Calls `announce` with the number
    /// of each bucket and the bucket, in order, as soon as it is computed. Returns how long it
    /// waited for samples.
    ///
    /// `work` must hear of progress at least every few seconds.
    fn gradients(
        &mut self,
        step: Step,
        work: &Arc<ActivityMonitor>,
        announce: &mut dyn FnMut(usize, Box<dyn Bucket>),
    ) -> Duration;

    /// The number of micro-batches that are ready for the next step. `None` if this trainee
    /// prepares none ahead.
    fn queued(&self) -> Option<usize> {
        None
    }

    /// The floating-point operations of a sample's forward and backward pass, if known.
    fn flops(&self) -> Option<f64> {
        None
    }

    /// The memory of this trainee's devices in bytes, by kind: weights, gradients, optimizer,
    /// activations, samples.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Copies some gradients as they are now, after all buckets of a step were given back.
    fn copy_gradients(&mut self, elements: Range<usize>, into: &mut [f32]);

    /// Updates the weights with the gradients as they are now. `step` counts from 1. Returns what
    /// this worker's own share of the step was.
    fn update(&mut self, step: u64, rate: f32) -> Trained;

    /// Does step number `step` with the gradients that a group has summed, in place of computing
    /// any.
    fn repeat_step(&mut self, gradients: &[f32], step: u64, rate: f32);

    /// Gives up the step under way, if there is one. All its buckets were given back.
    fn abandon_step(&mut self);

    /// Ends a step that changes no weight, because the summed gradients are not finite. All workers
    /// do so alike, also one that computed no gradients.
    fn skip_step(&mut self) {
        self.abandon_step();
    }

    /// The factor by which the loss of the next step is multiplied. The gradients that are handed
    /// over are so many times too large; the update divides them.
    fn loss_scale(&self) -> f32 {
        1.0
    }

    /// True if gradients that are not finite may be so because of that factor, and a skipped step
    /// lowers it.
    fn can_lower_loss_scale(&self) -> bool {
        false
    }

    /// Names the first layer or parameter that is not finite in the step under way, whose summed
    /// gradients or loss are not, for the message of the error. Gives the step up as well.
    fn first_not_finite(&mut self, step: Step) -> Option<String> {
        let _ = step;
        self.abandon_step();
        None
    }

    /// Judges the present state by the held-out samples `run`.
    fn evaluate(&mut self, run: Range<u64>, work: &ActivityMonitor) -> Evaluated;

    /// Begins with the weights of a seed, or those that the manifest names.
    ///
    /// # Errors
    /// The named weights cannot be read, or are those of another model.
    fn initialise(&mut self, seed: u64) -> Result<(), Failure>;

    /// Describes the model for those who use it: checkpoints and the exported model carry the text.
    fn description(&self) -> Option<String> {
        None
    }

    /// The tensors of the state: first those that make the model, then what the optimiser keeps
    /// beside them.
    fn tensors(&self) -> Vec<StateRange>;

    /// The number of values in the state, with values that belong to no tensor.
    fn state_elements(&self) -> usize;

    /// Copies some values of the state.
    fn copy_state(&mut self, elements: Range<usize>, into: &mut [f32]);

    /// Replaces the whole state.
    fn write_state(&mut self, state: &[f32]);

    /// The memory of these tensors, in their order, for a checkpoint that is read. They are all
    /// tensors of the state, or those of the model alone: then the optimiser begins anew. The state
    /// is whole again once all memory was written and given back.
    ///
    /// # Errors
    /// They are tensors of another state. The message names the first difference.
    fn tensor_memory(&mut self, tensors: &[(&str, &[usize])]) -> Result<Vec<Lent>, String>;

    /// A checksum of a part of the state, another part with each `turn`. Workers with equal states
    /// get equal checksums.
    ///
    /// # Errors
    /// The devices of this worker hold different states.
    fn window_checksum(&mut self, turn: u64) -> Result<u32, Failure>;

    /// A checksum of the whole state.
    fn checksum(&mut self) -> u32;
}

/// How many samples there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCounts {
    /// For training.
    pub training: u64,
    /// Held out for evaluation; may be 0.
    pub held_out: u64,
}

/// A range of a worker's gradients, lent until it is dropped. What is written into it is what the
/// update sees.
pub trait Bucket: AsMut<[f32]> + Send {
    /// Completes the gradients, if they lack those of other devices of this worker. A second call
    /// does nothing more.
    fn complete(&mut self) -> Completion;
}

/// The facts of a bucket that is complete.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The samples from which the gradients come. Those of the last bucket are all of the share.
    pub taken: Tally,
    /// The time at which the last of the gradients was computed.
    pub ready: Instant,
}

/// A worker's own part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// The sum of the losses over the samples.
    pub loss: f64,
    /// The samples that were taken.
    pub taken: Tally,
}

/// A model's answers to samples, judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// The sum of the losses over the samples.
    pub loss: f64,
    /// The number of right answers.
    pub correct: u64,
    /// The number of samples.
    pub samples: u64,
}

impl Judged {
    /// Adds what a model makes of other samples.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let Self { loss, correct, samples } = other;
        Self { loss: self.loss + loss, correct: self.correct + correct, samples: self.samples + samples }
    }
}

/// Held-out samples, judged by the present state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// The sum of the losses over the labels, each times its weight.
    pub loss: f64,
    /// The sum of the weights: the number of labels, unless they count by their class.
    pub weight: f64,
    /// The number of right answers.
    pub correct: u64,
    /// The number of answers that count: one a sample, or one a pixel.
    pub answers: u64,
    /// The overlap of each class, where each pixel has a class; as many on all workers.
    pub overlaps: Vec<Overlap>,
}

impl From<Judged> for Evaluated {
    fn from(Judged { loss, correct, samples }: Judged) -> Self {
        Self { loss, weight: samples as f64, correct, answers: samples, overlaps: Vec::new() }
    }
}

/// The pixels that have a class, and those that a model takes for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// The number of pixels of which both is true.
    pub both: u64,
    /// The number of pixels of which at least one is true.
    pub either: u64,
}

/// A tensor of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRange {
    /// Its name, unlike all others of the state.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values in the whole state, last dimension fastest.
    pub elements: Range<usize>,
    /// True if the optimiser keeps it beside the model.
    pub is_slot: bool,
}

/// Memory of another owner, until it is dropped.
pub struct Lent(Box<dyn AsMut<[f32]> + Send>);

impl Lent {
    /// Lends `memory`.
    pub fn new(memory: impl AsMut<[f32]> + Send + 'static) -> Self {
        Self(Box::new(memory))
    }
}

impl AsMut<[f32]> for Lent {
    fn as_mut(&mut self) -> &mut [f32] {
        (*self.0).as_mut()
    }
}

/// Which samples a worker takes in the steps of a group.
#[derive(Clone, Debug)]
pub struct Shares {
    /// The seed of the order of the samples, and of all dice.
    pub seed: u64,
    /// The samples of each step over all workers.
    pub batches: Batches,
    /// The seat of each device of this worker.
    pub seats: Vec<Seat>,
    /// The number of steps that are done.
    pub first_step: u64,
    /// The number of steps to come.
    pub steps: u64,
}

impl Shares {
    /// The numbers of the samples that a seat takes in a step, of `training` samples.
    pub fn samples(&self, seat: Seat, step: Step, training: u64) -> impl Iterator<Item = u64> + use<> {
        let order = Permutation::new(self.seed, step.epoch, training);
        seat.share(step.samples).map(move |place| order.at(step.cursor + place))
    }
}
