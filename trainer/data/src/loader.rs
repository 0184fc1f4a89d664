//! A rank's samples of each step, normalised and cut into micro-batches by a thread of its own, ahead of the training.

mod evaluation;

use std::{
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use crate::{DataError, Permutation, Samples, Seat, Step, Tally, normalise::levels, steps_per_epoch};

pub use self::evaluation::Evaluation;

/// Micro-batches that are ready ahead of the training. With the one being filled and the one in use, a loader holds
/// this many and two.
pub const QUEUED_BATCHES: usize = 4;

/// What a loader delivers, in which order.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Seed of the shuffle.
    pub seed: u64,
    /// Samples of one step over all ranks.
    pub global_batch: u64,
    /// Most samples of one micro-batch.
    pub micro_batch: usize,
    /// Whose share; no micro-batch holds samples of two of its [parts](Seat::parts).
    pub seat: Seat,
    /// The first step to deliver, counted from 0: the number of steps done before.
    pub first_step: u64,
    /// Number of steps to deliver.
    pub steps: u64,
}

/// Samples for one pass through the network. Dropping it hands its buffers back to the loader.
#[derive(Debug)]
pub struct Batch {
    /// Normalised pixels, sample × channel × row × column.
    pub images: Vec<f32>,
    /// Classes, one per sample.
    pub labels: Vec<u32>,
    taken: Tally,
    home: Option<SyncSender<Buffers>>,
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
    len: u64,
    next: u64,
    undelivered: u64,
    taken: Tally,
    ready: Option<Receiver<Batch>>,
    thread: Option<thread::JoinHandle<()>>,
}

type Buffers = (Vec<f32>, Vec<u32>);

impl Batch {
    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether it holds none; a loader delivers no such batch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            // A loader that has ended, or that has buffers enough, lets these go.
            let _ = home.try_send((std::mem::take(&mut self.images), std::mem::take(&mut self.labels)));
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
    /// When there are no samples, or a batch size is 0.
    pub fn start(samples: Arc<Samples>, order: Order) -> Result<Self, DataError> {
        assert!(!samples.is_empty() && order.global_batch > 0 && order.micro_batch > 0, "nothing to load: {order:?}");
        let len = samples.len() as u64;
        let (batches, ready) = sync_channel(QUEUED_BATCHES);
        let thread = thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || prepare(&samples, order, &batches))
            .map_err(|source| DataError::Thread { source })?;
        Ok(Self {
            order,
            len,
            next: 0,
            undelivered: 0,
            taken: Tally::default(),
            ready: Some(ready),
            thread: Some(thread),
        })
    }

    /// Steps of one epoch.
    #[must_use]
    pub const fn steps_per_epoch(&self) -> u64 {
        steps_per_epoch(self.len, self.order.global_batch)
    }

    /// Goes on to the next step, past what is left of the one before; `None` after the last.
    pub fn next_step(&mut self) -> Option<StepShare> {
        while self.next_batch().is_some() {}
        if self.next == self.order.steps {
            return None;
        }
        let step = Step::at(self.order.first_step + self.next, self.len, self.order.global_batch);
        let share = self.order.seat.share(step.samples);
        let samples = share.end - share.start;
        let parts = self.order.seat.parts(step.samples);
        let micro_batches = parts.map(|part| (part.end - part.start).div_ceil(self.order.micro_batch as u64)).sum();
        self.next += 1;
        self.undelivered = micro_batches;
        self.taken = Tally::default();
        Some(StepShare { step, samples, micro_batches })
    }

    /// The next micro-batch of the step; `None` after its last. Waits where the thread is behind.
    ///
    /// # Panics
    /// When the thread panicked.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.undelivered == 0 {
            return None;
        }
        self.undelivered -= 1;
        let batch = self.ready.as_ref().and_then(|ready| ready.recv().ok());
        assert!(batch.is_some(), "the loader thread ended with {} micro-batches undelivered", self.undelivered + 1);
        self.taken += batch.as_ref().map_or_else(Tally::default, |batch| batch.taken);
        batch
    }

    /// Which samples of the step were delivered so far.
    #[must_use]
    pub const fn taken(&self) -> Tally {
        self.taken
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Without a receiver the thread's next send fails, which ends it after the micro-batch at hand.
        drop(self.ready.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was already reported where a batch was missed.
            let _ = thread.join();
        }
    }
}

fn prepare(samples: &Samples, order: Order, batches: &SyncSender<Batch>) {
    let levels = levels();
    let len = samples.len() as u64;
    // A rank that has samples in no step would spin through all of them.
    let sizes = [order.global_batch.min(len), len % order.global_batch];
    if sizes.iter().all(|samples| order.seat.share(*samples).is_empty()) {
        return;
    }
    let (home, returned) = sync_channel::<Buffers>(QUEUED_BATCHES + 2);
    for index in order.first_step..order.first_step + order.steps {
        let step = Step::at(index, len, order.global_batch);
        let permutation = Permutation::new(order.seed, step.epoch, len);
        let batches_of = |part: Range<u64>| {
            let end = part.end;
            part.step_by(order.micro_batch).map(move |first| first..end.min(first + order.micro_batch as u64))
        };
        for Range { start: first, end: last } in order.seat.parts(step.samples).flat_map(batches_of) {
            let (mut images, mut labels) = returned.try_recv().unwrap_or_default();
            let ids = (first..last).map(|place| permutation.at(step.cursor + place) as usize);
            let taken = fill(samples, &levels, ids, &mut images, &mut labels);
            if batches.send(Batch { images, labels, taken, home: Some(home.clone()) }).is_err() {
                return;
            }
        }
    }
}

/// Replaces what the buffers hold by the samples `ids`; tells which those were.
fn fill(
    samples: &Samples,
    levels: &[f32; 256],
    ids: impl Iterator<Item = usize>,
    images: &mut Vec<f32>,
    labels: &mut Vec<u32>,
) -> Tally {
    images.clear();
    labels.clear();
    let mut taken = Tally::default();
    for id in ids {
        taken.take(id as u64);
        images.extend(samples.image(id).iter().map(|pixel| levels[usize::from(*pixel)]));
        labels.push(u32::from(samples.label(id)));
    }
    taken
}

#[cfg(test)]
mod tests;
