//! The gradients of a rank's share of a step, handed over bucket by bucket with which samples they are of. Each function says how long it
//! waited for the loader.
//!
//! What the lines of Algorithm 1 of PyTorch DDP (Li et al., VLDB 2020) are here, in their order:
//!
//! - *broadcast rank 0's states*: all begin from one seed or one checkpoint, newcomers copy, and digests tell that they hold the same.
//! - *init buckets in the reverse order of the parameters*: slices of the gradient arena in the order in which backward completes them, cut
//!   as all ranks have agreed.
//! - *register a hook for each parameter*: none; backward is a list of stages, and each stage announces the buckets that it completes.
//! - *traverse the graph from the output and mark unused parameters as ready*: nothing to find out. Backward walks every stage, whatever the
//!   loss depends on: the gradient of a parameter without a part in it is zero, and a rank without samples announces zeros (`no_samples`).
//!   So every rank announces every bucket once a step, in one order, and no rank waits for a bucket that another leaves out.
//! - *copy the gradient into its bucket*: the bucket is where the gradient was computed.
//! - *launch all-reduce on ready buckets in order*: `submit`, in the order of the arena.
//! - *block once all buckets are ready*: after backward, for the sums that it did not hide.
//!
//! No bucket overtakes another for the sake of the next forward pass: a step is whole or absent, so that a lost rank never leaves weights of
//! two steps behind. Weights change once the last sum is there, whichever that is.

use std::time::{Duration, Instant};

use lockstep_data::{Batch, Loader, Seat, Step, Tally};
use lockstep_elastic::{Activity, ActivityMonitor};
use lockstep_nn::{Cpu, Replica};

use crate::step::rank::Bucket;

/// Which part of a worker's work a thread does.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// It is the thread that is watched: what it does is what the worker does.
    Watched(&'a ActivityMonitor),
    /// The watched thread waits for it, and has come further when it has.
    Beside(&'a ActivityMonitor),
}

/// Of the whole share, buckets handed over as they become ready.
pub(crate) fn of_share(
    replica: &mut Replica<Cpu>,
    loader: &mut Loader,
    step: Step,
    work: Part<'_>,
    submit: &mut dyn FnMut(usize, Bucket, Tally),
) -> Duration {
    let scale = 1.0 / step.samples as f32;
    replica.begin_step();
    let (mut next, mut loading) = next_batch(loader, work);
    if next.is_none() {
        replica.no_samples(&mut |bucket, gradient| submit(bucket, gradient, loader.taken()));
    }
    while let Some(batch) = next {
        let (after, waited) = next_batch(loader, work);
        (next, loading) = (after, loading + waited);
        let announce = &mut |bucket, gradient| submit(bucket, gradient, loader.taken());
        replica.micro_batch(&batch.images, &batch.labels, scale, next.is_none(), announce);
    }
    loading
}

/// Of its parts one by one, added as a binary tree adds them.
pub(crate) fn of_parts(
    replica: &mut Replica<Cpu>,
    loader: &mut Loader,
    step: Step,
    seat: Seat,
    work: &ActivityMonitor,
    submit: &mut dyn FnMut(usize, Bucket, Tally),
) -> Duration {
    let scale = 1.0 / step.samples as f32;
    replica.begin_step();
    let mut loading = Duration::ZERO;
    let mut parts = seat.parts(step.samples).peekable();
    while let Some(part) = parts.next() {
        let mut left = part.end - part.start;
        while left > 0 {
            let (batch, waited) = next_batch(loader, Part::Watched(work));
            loading += waited;
            let Some(batch) = batch else { unreachable!("a loader delivers all samples of every part") };
            left -= batch.len() as u64;
            let announce = &mut |_, _| unreachable!("no bucket is complete before the last part");
            replica.micro_batch(&batch.images, &batch.labels, scale, false, announce);
        }
        let announce = &mut |bucket, gradient| submit(bucket, gradient, loader.taken());
        replica.end_part(parts.peek().is_none(), announce);
    }
    loading
}

fn next_batch(loader: &mut Loader, work: Part<'_>) -> (Option<Batch>, Duration) {
    let start = Instant::now();
    let batch = match work {
        Part::Watched(work) => work.during(Activity::Storing, || loader.next_batch()),
        Part::Beside(work) => {
            work.moved();
            loader.next_batch()
        }
    };
    (batch, start.elapsed())
}
