//! Backward of one rank's share of a step. Gradients are handed over bucket by bucket, each with
//! the samples that it comes from. Each function returns how long it waited for the loader.
//!
//! The lines of Algorithm 1 of PyTorch DDP (Li et al., VLDB 2020) are done as follows, in their
//! order:
//!
//! - *broadcast rank 0's states*: all ranks begin from one seed or one checkpoint, newcomers copy
//!   the state, and digests show that all hold the same.
//! - *init buckets in the reverse order of the parameters*: a bucket is a slice of the gradient
//!   arena. Slices lie in the order in which backward completes them; all ranks agree on the cuts.
//! - *register a hook for each parameter*: there are none. Backward is a list of stages, and each
//!   stage announces the buckets that it completes.
//! - *traverse the graph from the output and mark unused parameters as ready*: this needs no
//!   search. Backward walks every stage, so an unused parameter has a gradient of zero, and a rank
//!   without samples announces zeros (`no_samples`). Every rank announces every bucket once a step,
//!   in one order, and no rank waits for a bucket that another leaves out.
//! - *copy the gradient into its bucket*: the gradient was computed there.
//! - *launch all-reduce on ready buckets in order*: this is `submit`, in the order of the arena.
//! - *block once all buckets are ready*: the worker waits after backward, for the sums that
//!   backward did not hide.
//!
//! No bucket overtakes another for the sake of the next forward pass: a step is whole or absent, so
//! a lost rank never leaves weights of two steps behind. Weights change once the last sum is there.

use std::time::{Duration, Instant};

use lockstep_data::{Batch, Loader, Seat, Step, Tally};
use lockstep_elastic::{Activity, ActivityMonitor};
use lockstep_nn::{Cpu, Device, Gradient, Replica, Values};

/// A leased slice of the gradient arena.
pub(crate) type HeldBucket = Gradient<<Cpu as Device>::HostView>;

/// The part that a thread has in a worker's work.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// The watchdog watches this thread.
    Watched(&'a ActivityMonitor),
    /// The watched thread waits for this thread, whose progress counts as its own.
    Beside(&'a ActivityMonitor),
}

/// Computes the gradients of the whole share, and hands over each bucket as soon as it is ready.
pub(crate) fn of_share(
    replica: &mut Replica<Cpu>,
    loader: &mut Loader,
    step: Step,
    seed: u64,
    work: Part<'_>,
    submit: &mut dyn FnMut(usize, HeldBucket, Tally),
) -> Duration {
    begin(replica, step, seed);
    let (mut next, mut loading) = next_batch(loader, work);
    if next.is_none() {
        replica.no_samples(&mut |bucket, gradient| submit(bucket, gradient, loader.taken()));
    }
    while let Some(batch) = next {
        let (after, waited) = next_batch(loader, work);
        (next, loading) = (after, loading + waited);
        let announce = &mut |bucket, gradient| submit(bucket, gradient, loader.taken());
        of_batch(replica, &batch, step, next.is_none(), announce);
    }
    loading
}

/// Computes the gradients of the share's virtual shards one by one, and adds them as a binary tree
/// does.
pub(crate) fn of_parts(
    replica: &mut Replica<Cpu>,
    loader: &mut Loader,
    step: Step,
    seat: Seat,
    seed: u64,
    work: &ActivityMonitor,
    submit: &mut dyn FnMut(usize, HeldBucket, Tally),
) -> Duration {
    begin(replica, step, seed);
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
            of_batch(replica, &batch, step, false, announce);
        }
        let announce = &mut |bucket, gradient| submit(bucket, gradient, loader.taken());
        replica.end_part(parts.peek().is_none(), announce);
    }
    loading
}

/// Begins a step, whose dice depend only on the seed, the step and each sample's place in it.
fn begin(replica: &mut Replica<Cpu>, step: Step, seed: u64) {
    replica.set_dice(seed, step.index);
    replica.begin_step();
}

/// Adds the gradients of a micro-batch to those of its step.
fn of_batch(
    replica: &mut Replica<Cpu>,
    batch: &Batch,
    step: Step,
    is_last: bool,
    announce: &mut dyn FnMut(usize, HeldBucket),
) {
    with_samples(batch, |samples| replica.micro_batch_of(samples, 1.0 / step.samples as f32, is_last, announce));
}

/// Uses a micro-batch in the form that a replica takes.
pub(crate) fn with_samples<T>(batch: &Batch, mut take: impl FnMut(&lockstep_nn::Batch<'_>) -> T) -> T {
    let (inputs, targets) = ([Values::F32(&batch.images)], [Values::U32(&batch.labels)]);
    take(&lockstep_nn::Batch {
        group_ends: &batch.group_ends,
        keys: &batch.keys,
        importance: batch.importance,
        ..lockstep_nn::Batch::new(&inputs, &targets, batch.len())
    })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_data::{Augment, Batches, Order, Samples, glyphs, segmentation};
    use lockstep_nn::{Network, Optimizer, Precision, Shape, layers::SoftmaxCrossEntropy, models, optimizers::Sgd};

    use super::*;

    /// Returns the gradients and the batch's statistics of a step, summed over so many ranks.
    fn summed(world: u32, micro_batch: usize, precision: Precision) -> Vec<f32> {
        let network = models::resnet20(Shape::image(1, 28, 28), 10).expect("a network");
        summed_of(network, glyphs::draw(150, 7, 0.1).train, 128, (world, micro_batch), precision).0
    }

    /// Returns the same for a network on samples, and the sum of the losses.
    fn summed_of(
        network: Network,
        samples: Samples,
        global_batch: u64,
        (world, micro_batch): (u32, usize),
        precision: Precision,
    ) -> (Vec<f32>, f64) {
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });
        let buckets = network.table().ready_order();
        let mut replica = Replica::with_precision(Cpu::new(), network, sgd, micro_batch, buckets, precision)
            .expect("ranges that tile it");
        replica.initialise(7);
        let samples = Arc::new(samples);
        let (mut sum, mut loss) = (vec![0.0; replica.table().elements()], 0.0);
        for rank in 0..world {
            let seat = Seat::new(rank, world, 64);
            let order = Order {
                seed: 7,
                batches: Batches::constant(samples.len() as u64, global_batch),
                micro_batch,
                seat,
                first_step: 0,
                steps: 1,
                whole_shards: true,
            };
            let mut loader = Loader::start(Arc::clone(&samples), order).expect("a loader");
            let step = loader.next_step().expect("a step").step;
            let work = ActivityMonitor::default();
            of_share(&mut replica, &mut loader, step, 7, Part::Watched(&work), &mut |_, _, _| {});
            let mut own = vec![0.0; sum.len()];
            replica.copy_gradients(0..own.len(), &mut own);
            loss += replica.finish_step().loss_sum;
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        (sum, loss)
    }

    /// Returns the gradients and the loss of a step of a small U-Net with rare classes that count
    /// more, clouds that do not count, and random views.
    fn segmented(world: u32, micro_batch: usize) -> (Vec<f32>, f64) {
        let class_weights = vec![0.5, 1.0, 1.5, 9.0];
        let augment = Augment { random_crop_padding: 6, random_horizontal_flip: 0.5, ..Augment::default() };
        let samples = segmentation::draw(12, 3, 0.0).train.weighted(class_weights.clone()).augmented(augment);
        let loss = SoftmaxCrossEntropy { class_weights, ignored: Some(255), ..SoftmaxCrossEntropy::default() };
        let network = models::unet_of(Shape::image(16, 64, 64), 4, 2, loss).expect("a network");
        summed_of(network, samples, 10, (world, micro_batch), Precision::F32)
    }

    #[test]
    fn any_number_of_ranks_forms_the_weighted_mean_over_all_pixels_of_a_step() {
        let (alone, loss) = segmented(1, 10);
        let largest = alone.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        for (world, micro_batch) in [(1, 3), (2, 10), (3, 2)] {
            let (shared, shared_loss) = segmented(world, micro_batch);
            let furthest = alone.iter().zip(shared).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(furthest <= 1e-5 * largest, "{world} ranks: {furthest} of {largest}");
            assert!((loss - shared_loss).abs() <= 1e-5 * loss, "{world} ranks: loss {shared_loss}, not {loss}");
        }
    }

    /// The furthest that a gradient is from that of one rank, relative to the largest.
    fn furthest(precision: Precision, world: u32, micro_batch: usize) -> f32 {
        let alone = summed(1, 128, precision);
        let largest = alone.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let other = summed(world, micro_batch, precision);
        alone.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max) / largest
    }

    #[test]
    fn any_number_of_ranks_forms_the_gradients_of_one_batch_norms_included() {
        for (world, micro_batch) in [(1, 50), (2, 128), (3, 20)] {
            let furthest = furthest(Precision::F32, world, micro_batch);
            assert!(furthest <= 1e-5, "{world} ranks: {furthest}");
        }
    }

    /// Each value is rounded on the rank that computes it, so only the sums of statistics and of
    /// gradients differ, which are added in f32.
    #[test]
    fn any_number_of_ranks_forms_the_gradients_of_one_batch_in_bf16_too() {
        for (world, micro_batch) in [(2, 128), (3, 20)] {
            let furthest = furthest(Precision::Bf16, world, micro_batch);
            assert!(furthest <= 1e-4, "{world} ranks: {furthest}");
        }
    }
}
