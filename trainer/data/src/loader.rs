//! A rank's samples of each step, normalised and cut into micro-batches by a thread of its own,
//! ahead of the training.
//!
//! The training waits for no core: a micro-batch that is not ready when it is wanted, the training
//! prepares itself. Pictures on disk are the exception: to decode them twice would cost more. On a
//! busy machine the thread may get no core for milliseconds, which is a hundred times as long as a
//! micro-batch of small samples takes to prepare.

mod evaluation;

mod shelf;

use std::{fmt, mem::take, ops::Range, sync::Arc, thread};

use crate::{Batches, DataError, Permutation, Samples, Seat, Step, Tally, pass::Pass};

pub use self::evaluation::Evaluation;
use self::shelf::Shelf;

/// Micro-batches that are ready ahead of the training. With the one being filled and the one in
/// use, a loader holds this many and two.
pub const QUEUED_BATCHES: usize = 4;

/// The samples that a loader delivers, and their order.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Seed of the shuffle.
    pub seed: u64,
    /// Samples of each step over all ranks.
    pub batches: Batches,
    /// Most samples of one micro-batch.
    pub micro_batch: usize,
    /// Whose share; no micro-batch holds samples of two of its [parts](Seat::parts).
    pub seat: Seat,
    /// The first step to deliver, counted from 0: the number of steps done before.
    pub first_step: u64,
    /// Number of steps to deliver.
    pub steps: u64,
    /// True if micro-batches are cut between virtual shards only, for layers that compute over a
    /// shard. A shard of more samples than a micro-batch may have is cut into several groups.
    pub whole_shards: bool,
}

/// Samples for one pass through the network. Dropping it hands its buffers back to the loader.
#[derive(Debug)]
pub struct Batch {
    /// Normalised values, sample × channel × row × column.
    pub images: Vec<f32>,
    /// Classes, one per sample, or one per pixel of each sample.
    pub labels: Vec<u32>,
    /// Where each group of samples ends that is a virtual shard. Empty if shards may be cut.
    pub group_ends: Vec<u32>,
    /// The place of each sample in its step.
    pub keys: Vec<u64>,
    /// The number by which the mean loss of each sample is multiplied, so that the mean over the
    /// whole step is the weighted mean over all of its labels. It is the same in all micro-batches
    /// of a step and on all ranks; 1 where all labels count the same.
    pub importance: f32,
    samples: usize,
    taken: Tally,
    home: Option<Arc<Shelf>>,
}

/// A rank's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShare {
    /// The step, with its sample count over all ranks.
    pub step: Step,
    /// Samples of this rank; 0 where there are more ranks than samples.
    pub samples: u64,
    /// Micro-batches that hold them.
    pub micro_batches: u64,
}

/// Delivers micro-batches step by step; its thread ends when this is dropped.
#[derive(Debug)]
pub struct Loader {
    order: Order,
    next: u64,
    undelivered: u64,
    taken: Tally,
    shelf: Arc<Shelf>,
    /// Prepares what the thread has not prepared in time.
    own: Preparation,
    thread: Option<thread::JoinHandle<()>>,
}

type Buffers = (Vec<f32>, Vec<u32>, Vec<u32>, Vec<u64>);

impl Batch {
    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.samples
    }

    /// True if it holds none; a loader delivers no such batch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.samples == 0
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let Self { images, labels, group_ends, keys, .. } = self;
            home.give_back((take(images), take(labels), take(group_ends), take(keys)));
        }
    }
}

impl Loader {
    /// Starts to prepare `order.steps` steps over `samples`.
    ///
    /// # Errors
    /// [`DataError::Thread`].
    ///
    /// # Panics
    /// When the batches are not of these samples, or a micro-batch has none.
    pub fn start(samples: Arc<Samples>, order: Order) -> Result<Self, DataError> {
        let len = samples.len() as u64;
        assert!(len == order.batches.samples() && order.micro_batch > 0, "{len} samples, to load {order:?}");
        let mut loader = Self::without_thread(&samples, order);
        let (ahead, shelf) = (Preparation::of(&samples, order), Arc::clone(&loader.shelf));
        let thread = thread::Builder::new().name("loader".to_owned()).spawn(move || prepare_ahead(ahead, &shelf));
        loader.thread = Some(thread.map_err(|source| DataError::Thread { source })?);
        Ok(loader)
    }

    fn without_thread(samples: &Arc<Samples>, order: Order) -> Self {
        Self {
            order,
            next: 0,
            undelivered: 0,
            taken: Tally::default(),
            shelf: Arc::new(Shelf::default()),
            own: Preparation::of(samples, order),
            thread: None,
        }
    }

    /// The number of micro-batches that are ready ahead of the training.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.shelf.ready()
    }

    /// Goes on to the next step, past what is left of the one before; `None` after the last.
    pub fn next_step(&mut self) -> Option<StepShare> {
        while self.next_batch().is_some() {}
        if self.next == self.order.steps {
            return None;
        }
        let step = self.order.batches.step(self.order.first_step + self.next);
        let share = self.order.seat.share(step.samples);
        let samples = share.end - share.start;
        let micro_batches = cuts_of_step(step, self.order).count() as u64;
        self.next += 1;
        self.undelivered = micro_batches;
        self.taken = Tally::default();
        Some(StepShare { step, samples, micro_batches })
    }

    /// The next micro-batch of the step; `None` after its last.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.undelivered == 0 {
            return None;
        }
        self.undelivered -= 1;
        let cut = self.own.cuts.next()?;
        if self.thread.is_some() && self.own.samples.is_costly() {
            self.shelf.await_next();
        }
        let batch = self.shelf.take().unwrap_or_else(|| self.own.prepare(cut, &self.shelf));
        self.taken += batch.taken;
        Some(batch)
    }

    /// Which samples of the step were delivered so far.
    #[must_use]
    pub const fn taken(&self) -> Tally {
        self.taken
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shelf.close();
        if let Some(thread) = self.thread.take() {
            // Its panic was already reported; what it did not prepare was prepared here.
            let _ = thread.join();
        }
    }
}

/// Closes a shelf when its thread ends, even by a panic.
struct Closing<'a>(&'a Shelf);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.close();
        }
    }
}

/// The thread's work, until all is prepared or nobody wants it any more.
fn prepare_ahead(mut ahead: Preparation, shelf: &Arc<Shelf>) {
    let _closing = Closing(shelf);
    if ahead.is_idle() {
        return;
    }
    let mut next = 0;
    while let Some(wanted) = shelf.await_room(next) {
        // Those before it the training has prepared itself.
        let Some(cut) = ahead.cuts.nth((wanted - next) as usize) else { return };
        shelf.put(wanted, ahead.prepare(cut, shelf));
        next = wanted + 1;
    }
}

/// The micro-batches of a rank one after another, and what it takes to prepare them.
struct Preparation {
    samples: Arc<Samples>,
    order: Order,
    cuts: Box<dyn Iterator<Item = Cut> + Send>,
    /// The step of the newest micro-batch, and the importance of its samples.
    importance: Option<(u64, f32)>,
}

/// The samples of a micro-batch: a part of those of its step.
#[derive(Clone, Debug)]
struct Cut {
    step: Step,
    samples: Range<u64>,
}

impl Preparation {
    fn of(samples: &Arc<Samples>, order: Order) -> Self {
        let cuts = Box::new(cuts(order));
        Self { samples: Arc::clone(samples), order, cuts, importance: None }
    }

    /// True if the rank has samples in no step: to look for some would take all of them.
    fn is_idle(&self) -> bool {
        let Order { batches, seat, .. } = self.order;
        batches.step_sizes().all(|samples| seat.share(samples).is_empty())
    }

    fn prepare(&mut self, Cut { step, samples }: Cut, shelf: &Arc<Shelf>) -> Batch {
        let permutation = Permutation::new(self.order.seed, step.epoch, self.samples.len() as u64);
        let Range { start: place, end } = samples;
        let ids: Vec<u64> = samples.map(|place| permutation.at(step.cursor + place)).collect();
        let pass = Pass { seed: self.order.seed, epoch: step.epoch };
        let importance = match self.importance {
            Some((index, importance)) if index == step.index => importance,
            Some(_) | None => {
                let all = (0..step.samples).map(|place| permutation.at(step.cursor + place));
                self.samples.importance(all, pass)
            }
        };
        self.importance = Some((step.index, importance));
        let (mut images, mut labels, mut group_ends, mut keys) = shelf.buffers();
        let taken = fill(&self.samples, &ids, Some(pass), &mut images, &mut labels);
        keys.clear();
        keys.extend(place..end);
        group_ends.clear();
        if self.order.whole_shards {
            group_ends.extend(groups(step, place..end, self.order.seat));
        }
        let (samples, home) = (ids.len(), Some(Arc::clone(shelf)));
        Batch { images, labels, group_ends, keys, importance, samples, taken, home }
    }
}

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Preparation").field("order", &self.order).finish_non_exhaustive()
    }
}

/// Each step's share cut into parts, and those into micro-batches.
fn cuts(order: Order) -> impl Iterator<Item = Cut> {
    let Order { batches, first_step, steps, .. } = order;
    (first_step..first_step + steps).flat_map(move |index| cuts_of_step(batches.step(index), order))
}

fn cuts_of_step(step: Step, order: Order) -> impl Iterator<Item = Cut> {
    order.seat.parts(step.samples).flat_map(move |part| {
        let mut first = part.start;
        std::iter::from_fn(move || {
            let start = first;
            first = end_of_cut(start, part.end, step, order);
            (start < first).then_some(Cut { step, samples: start..first })
        })
    })
}

/// The end of the micro-batch that begins at `first`, in a part that ends at `end`.
fn end_of_cut(first: u64, end: u64, step: Step, order: Order) -> u64 {
    let furthest = end.min(first + order.micro_batch as u64);
    if !order.whole_shards || furthest == end {
        return furthest;
    }
    let whole = order.seat.shard_end_until(furthest, step.samples);
    if whole > first { whole } else { furthest }
}

/// The ends of the groups of a micro-batch, counted from its first sample.
fn groups(step: Step, samples: Range<u64>, seat: Seat) -> impl Iterator<Item = u32> {
    let mut end = samples.start;
    std::iter::from_fn(move || {
        let start = end;
        // A shard has a sample more than another at most.
        let longest = step.samples.div_ceil(u64::from(seat.shard_count()));
        let whole = (start + 1..=start + longest).map(|place| seat.shard_end_until(place, step.samples));
        end = whole.into_iter().find(|whole| *whole > start).unwrap_or(samples.end).min(samples.end);
        (start < end).then_some((end - samples.start) as u32)
    })
}

/// Replaces what the buffers hold by the samples `ids`, changed at random in a pass over the
/// training samples; tells which those were.
fn fill(samples: &Samples, ids: &[u64], pass: Option<Pass>, images: &mut Vec<f32>, labels: &mut Vec<u32>) -> Tally {
    let hashes = samples.prepare(ids, pass, images, labels);
    let mut taken = Tally::default();
    ids.iter().zip(hashes).for_each(|(id, hash)| taken.take_with(*id, hash));
    taken
}

#[cfg(test)]
mod tests;
