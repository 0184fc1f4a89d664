use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Normalise, Shape};

const SHARDS: u32 = 64;

/// Samples of two pixels, whose first pixel and label tell the index.
fn samples(len: usize) -> Arc<Samples> {
    let pixels = (0..len).flat_map(|index| [index as u8, 255]).collect();
    let labels = (0..len).map(|index| (index / 256) as u32).collect();
    Arc::new(Samples::new(Shape { channels: 1, height: 1, width: 2 }, 256, pixels, labels))
}

fn index_of(levels: &[f32; 256], image: f32, label: u32) -> u64 {
    let low = levels.iter().position(|level| *level == image).expect("one of the grey levels");
    u64::from(label) * 256 + low as u64
}

fn order(samples: &Samples, rank: u32, world: u32, global_batch: u64, micro_batch: usize) -> Order {
    let seat = Seat::new(rank, world, SHARDS);
    let batches = Batches::constant(samples.len() as u64, global_batch);
    Order { seed: 5, batches, micro_batch, seat, first_step: 0, steps: 1, whole_shards: false }
}

/// The normalised value of each grey level.
fn levels() -> [f32; 256] {
    Normalise::by_default(1).levels()[0]
}

/// The samples of each step, micro-batch sizes checked on the way.
fn deliver(samples: &Arc<Samples>, order: Order) -> Vec<(StepShare, Vec<u64>)> {
    delivered(Loader::start(Arc::clone(samples), order).expect("starts"))
}

fn delivered(mut loader: Loader) -> Vec<(StepShare, Vec<u64>)> {
    let (levels, order) = (levels(), loader.order);
    let mut steps = Vec::new();
    while let Some(share) = loader.next_step() {
        let mut ids = Vec::new();
        let mut micro_batches = 0;
        while let Some(batch) = loader.next_batch() {
            assert!((1..=order.micro_batch).contains(&batch.len()));
            assert_eq!(batch.images.len(), batch.len() * 2);
            ids.extend(batch.labels.iter().zip(batch.images.as_chunks::<2>().0).map(|(label, image)| {
                assert_eq!(image[1], levels[255]);
                index_of(&levels, image[0], *label)
            }));
            micro_batches += 1;
        }
        assert_eq!((share.samples, share.micro_batches), (ids.len() as u64, micro_batches));
        let Tally { samples, hash, .. } = loader.taken();
        assert_eq!(Tally { samples, hash, contents: 0 }, ids.iter().copied().collect());
        steps.push((share, ids));
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_ranks_together_take_each_sample_of_an_epoch_once(
        len in 1_usize..400, batch in 1_u64..100, micro in 1_usize..20, world in 1_u32..=8
    ) {
        let samples = samples(len);
        let steps = (len as u64).div_ceil(batch);
        let mut taken: Vec<u64> = (0..world)
            .flat_map(|rank| deliver(&samples, Order { steps, ..order(&samples, rank, world, batch, micro) }))
            .flat_map(|(_, ids)| ids)
            .collect();
        taken.sort_unstable();
        prop_assert_eq!(taken, (0..len as u64).collect::<Vec<_>>());
    }

    #[test]
    fn any_number_of_ranks_takes_the_same_samples_in_the_same_step(
        len in 1_usize..300, batch in 1_u64..100, world in 2_u32..=8
    ) {
        let samples = samples(len);
        let alone = deliver(&samples, Order { steps: 3, ..order(&samples, 0, 1, batch, 16) });
        let shared: Vec<_> =
            (0..world).map(|rank| deliver(&samples, Order { steps: 3, ..order(&samples, rank, world, batch, 5) })).collect();
        for (step, (share, ids)) in alone.into_iter().enumerate() {
            prop_assert_eq!(shared.iter().flat_map(|rank| rank[step].1.clone()).collect::<Vec<_>>(), ids);
            prop_assert!(shared.iter().all(|rank| rank[step].0.step == share.step));
        }
    }
}

#[test]
fn the_training_waits_for_no_thread_that_gets_no_core() {
    let samples = samples(100);
    let order = Order { steps: 9, ..order(&samples, 1, 3, 32, 4) };
    assert_eq!(delivered(Loader::without_thread(&samples, order)), deliver(&samples, order));
}

#[test]
fn a_resumed_loader_goes_on_where_the_first_would_have() {
    let samples = samples(100);
    let whole = deliver(&samples, Order { steps: 9, ..order(&samples, 1, 3, 32, 4) });
    let resumed = deliver(&samples, Order { first_step: 5, steps: 4, ..order(&samples, 1, 3, 32, 4) });
    assert_eq!(whole[5..], resumed);
    assert_eq!(resumed[0].0.step, Step { index: 5, epoch: 1, cursor: 32, samples: 32 });
    assert_eq!(resumed[2].0.step, Step { index: 7, epoch: 1, cursor: 96, samples: 4 });
}

/// Batches of 20 samples, of 48 from the second epoch on and of 30 from the fourth.
fn changing(samples: &Samples) -> Batches {
    Batches::constant(samples.len() as u64, 20).changed(1, 48).changed(3, 30)
}

#[test]
fn ranks_take_each_sample_once_an_epoch_and_the_same_ones_in_a_step_while_the_batch_changes() {
    let samples = samples(100);
    let batches = changing(&samples);
    let steps = batches.steps_before(5);
    let of_rank = |rank, world| {
        let seat = Seat::new(rank, world, SHARDS);
        deliver(&samples, Order { batches, seat, steps, ..order(&samples, 0, 1, 20, 7) })
    };
    let alone = of_rank(0, 1);
    for world in [2, 3] {
        let ranks: Vec<_> = (0..world).map(|rank| of_rank(rank, world)).collect();
        for (index, (share, ids)) in alone.iter().enumerate() {
            assert_eq!(&ranks.iter().flat_map(|rank| rank[index].1.clone()).collect::<Vec<_>>(), ids, "{share:?}");
        }
    }
    for epoch in 0..5 {
        let of_epoch = alone.iter().filter(|(share, _)| share.step.epoch == epoch);
        let mut taken: Vec<u64> = of_epoch.flat_map(|(_, ids)| ids.clone()).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..100).collect::<Vec<_>>(), "epoch {epoch}");
    }
}

#[test]
fn a_loader_that_is_resumed_after_any_step_goes_on_through_a_change_of_the_batch() {
    let samples = samples(100);
    let batches = changing(&samples);
    let steps = batches.steps_before(5);
    let order = Order { batches, steps, ..order(&samples, 1, 3, 20, 7) };
    let whole = deliver(&samples, order);
    assert_eq!(whole.len() as u64, steps);
    for done in 0..steps {
        let resumed = deliver(&samples, Order { first_step: done, steps: steps - done, ..order });
        assert_eq!(whole[done as usize..], resumed, "after step {done}");
    }
}

#[test]
fn epochs_are_shuffled_differently() {
    let samples = samples(100);
    let epochs = deliver(&samples, Order { steps: 2, ..order(&samples, 0, 1, 100, 100) });
    assert_ne!(epochs[0].1, epochs[1].1);
    assert_ne!(epochs[0].1, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_rank_without_samples_still_takes_part_in_every_step() {
    let samples = samples(10);
    let steps = deliver(&samples, Order { steps: 5, ..order(&samples, 0, 4, 2, 8) });
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|(share, _)| share.samples == 0 && share.micro_batches == 0 && share.step.samples == 2));
}

#[test]
fn a_step_that_is_left_early_is_passed_over() {
    let samples = samples(64);
    let mut loader =
        Loader::start(Arc::clone(&samples), Order { steps: 2, ..order(&samples, 0, 1, 32, 8) }).expect("starts");
    loader.next_step().expect("a step");
    drop(loader.next_batch());
    loader.next_step().expect("another");
    let expected = deliver(&samples, Order { steps: 2, ..order(&samples, 0, 1, 32, 8) });
    let batch = loader.next_batch().expect("its first micro-batch");
    let first = index_of(&levels(), batch.images[0], batch.labels[0]);
    assert_eq!(first, expected[1].1[0]);
}

#[test]
fn buffers_go_round_instead_of_being_made_anew() {
    let samples = samples(256);
    let order = Order { steps: 500, ..order(&samples, 0, 1, 64, 16) };
    let mut loader = Loader::start(samples, order).expect("starts");
    let mut buffers = BTreeSet::new();
    while loader.next_step().is_some() {
        while let Some(batch) = loader.next_batch() {
            buffers.insert((batch.images.as_ptr() as usize, batch.images.capacity()));
        }
    }
    assert!(buffers.len() <= QUEUED_BATCHES + 2, "{} buffers for 2000 micro-batches", buffers.len());
}

#[test]
fn a_caller_may_hold_more_batches_than_the_queue() {
    let samples = samples(256);
    let mut loader =
        Loader::start(Arc::clone(&samples), Order { steps: 1, ..order(&samples, 0, 1, 256, 4) }).expect("starts");
    loader.next_step().expect("a step");
    let held: Vec<_> = std::iter::from_fn(|| loader.next_batch()).collect();
    assert_eq!(held.len(), 64);
    drop(loader);
    assert_eq!(held.iter().map(Batch::len).sum::<usize>(), 256);
}

#[test]
fn dropping_a_loader_ends_its_thread() {
    let samples = samples(256);
    let order = Order { steps: u64::MAX / 256, ..order(&samples, 0, 1, 64, 16) };
    let mut loader = Loader::start(Arc::clone(&samples), order).expect("starts");
    loader.next_step().expect("a step");
    drop(loader);
    assert_eq!(Arc::strong_count(&samples), 1, "the thread holds the samples until it ends");
}

#[test]
fn a_loader_that_never_has_samples_ends_without_walking_through_its_steps() {
    let samples = samples(256);
    let order = Order { steps: u64::MAX / 256, ..order(&samples, 0, 4, 2, 8) };
    drop(Loader::start(Arc::clone(&samples), order).expect("starts"));
    assert_eq!(Arc::strong_count(&samples), 1);
}

#[test]
fn black_and_white_are_normalised_with_the_moments_of_mnist() {
    let levels = levels();
    assert!((levels[0] - -0.424_212_9).abs() < 1e-6 && (levels[255] - 2.821_486_7).abs() < 1e-6, "{levels:?}");
}

#[test]
fn aligned_ranks_take_the_same_micro_batches_however_many_they_are() {
    let samples = samples(200);
    let batches = |world: u32| -> Vec<Vec<u32>> {
        let of_rank = |rank| {
            let seat = Seat::aligned(rank, world, SHARDS);
            let mut loader =
                Loader::start(Arc::clone(&samples), Order { seat, ..order(&samples, rank, world, 200, 2) })
                    .expect("starts");
            let share = loader.next_step().expect("a step");
            let batches: Vec<_> =
                std::iter::from_fn(|| loader.next_batch().map(|batch| batch.images.clone())).collect();
            assert_eq!(batches.len() as u64, share.micro_batches);
            batches.into_iter().map(|images| images.iter().map(|pixel| pixel.to_bits()).collect())
        };
        (0..world).flat_map(of_rank).collect()
    };
    let alone = batches(1);
    // 200 samples in 64 shards of 3 or 4, in micro-batches of 2.
    assert_eq!(alone.len(), 128);
    for world in [2, 3, 5, 7, 64] {
        assert!(batches(world) == alone, "{world} ranks");
    }
}

#[test]
fn evaluation_takes_each_sample_once_and_in_order() {
    let samples = samples(101);
    let levels = levels();
    let mut seen = Vec::new();
    for rank in 0..3 {
        let mut evaluation = Evaluation::new(&samples, Seat::new(rank, 3, SHARDS).share(samples.len() as u64), 8);
        while let Some(batch) = evaluation.next_batch() {
            assert!(batch.len() <= 8);
            let (images, _) = batch.images.as_chunks::<2>();
            seen.extend(batch.labels.iter().zip(images).map(|(label, image)| index_of(&levels, image[0], *label)));
        }
    }
    assert_eq!(seen, (0..101).collect::<Vec<_>>());
}

#[test]
fn evaluation_of_no_samples_ends_at_once() {
    assert!(Evaluation::new(&samples(0), 0..0, 8).next_batch().is_none());
}

/// The groups of a step over all ranks, as ends in the whole step.
fn group_ends(samples: &Arc<Samples>, world: u32, batch: u64, micro_batch: usize) -> Vec<u64> {
    let of_rank = |rank| {
        let order = Order { whole_shards: true, ..order(samples, rank, world, batch, micro_batch) };
        let mut loader = Loader::start(Arc::clone(samples), order).expect("starts");
        loader.next_step().expect("a step");
        let batches = std::iter::from_fn(move || loader.next_batch());
        batches.flat_map(|batch| batch.group_ends.iter().map(|end| batch.keys[0] + u64::from(*end)).collect::<Vec<_>>())
    };
    (0..world).flat_map(of_rank).collect()
}

#[test]
fn whole_shards_form_the_same_groups_in_any_number_of_ranks() {
    let samples = samples(300);
    for (batch, micro_batch) in [(64, 5), (200, 7), (300, 300), (300, 3), (30, 4)] {
        let alone = group_ends(&samples, 1, batch, micro_batch);
        assert_eq!(alone.last(), Some(&batch), "batches of {batch}");
        assert!(alone.len() as u64 >= batch.min(64), "batches of {batch}: {} groups", alone.len());
        for world in [2, 3, 5] {
            assert_eq!(group_ends(&samples, world, batch, micro_batch), alone, "{world} ranks, {batch} samples");
        }
    }
}
