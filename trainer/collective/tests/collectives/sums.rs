use lockstep_collective::algorithm::MAX_FRAME;
use lockstep_collective::{Communicator, Limits, Waiting};

use crate::group::{PATIENT, ends, group};

/// Returns small integers, whose sums are exact in any order.
fn whole(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((rank * 31 + i * 7) % 101) as f32).collect()
}

fn sum_of_whole(world: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| (0..world).map(|rank| ((rank * 31 + i * 7) % 101) as f32).sum()).collect()
}

/// Returns numbers whose sum depends on the order of addition.
fn fractions(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((rank * 7919 + i * 104_729) % 99_991) as f32 / 997.0 + 1e-7).collect()
}

fn sum_once(
    communicator: &mut Communicator<Vec<f32>>,
    values: fn(usize, usize) -> Vec<f32>,
    length: usize,
) -> Vec<f32> {
    communicator.submit(1, 0, values(communicator.rank(), length));
    communicator.wait().unwrap().memory
}

#[test]
fn every_rank_holds_the_sum_for_any_group_and_length() {
    for world in 1..=5 {
        ends(move || {
            group(world, PATIENT, |mut communicator| {
                for length in [0, 1, world - 1, world, 999, 12_345, MAX_FRAME * world + 1] {
                    let sum = sum_once(&mut communicator, whole, length);
                    assert!(sum == sum_of_whole(world, length), "{world} ranks, length {length}");
                }
            })
        });
    }
}

#[test]
fn a_slice_far_longer_than_the_sockets_buffers_is_summed() {
    let length = 12 << 20;
    let sums = ends(move || group(2, PATIENT, move |mut communicator| sum_once(&mut communicator, whole, length)));
    assert!(sums.iter().all(|sum| *sum == sum_of_whole(2, length)));
}

#[test]
fn all_ranks_end_with_the_same_bits_and_a_second_run_repeats_them() {
    let run = || {
        group(3, PATIENT, |mut communicator| {
            let sum = sum_once(&mut communicator, fractions, 100_003);
            sum.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        })
    };
    let bits: Vec<_> = ends(move || [run(), run()]).concat();
    assert!(bits.iter().all(|rank| *rank == bits[0]));
}

#[test]
fn spinning_ranks_form_the_same_sum() {
    let limits = Limits { waiting: Waiting::SpinThenBlock, ..PATIENT };
    let sums = ends(move || group(2, limits, |mut communicator| sum_once(&mut communicator, whole, 5000)));
    assert!(sums.iter().all(|sum| *sum == sum_of_whole(2, 5000)));
}

#[test]
fn buckets_come_back_in_the_order_of_submission_each_with_its_sum() {
    ends(|| {
        group(3, PATIENT, |mut communicator| {
            let lengths = [40_000, 1, 0, 3 * MAX_FRAME + 1, 17, 5000];
            for step in 0..10 {
                for (bucket, length) in lengths.into_iter().enumerate() {
                    communicator.submit(step, bucket as u32, whole(communicator.rank(), length));
                }
                let completed: Vec<_> = communicator.wait_all().map(|outcome| outcome.unwrap()).collect();
                assert_eq!(completed.len(), lengths.len());
                for (index, completed) in completed.into_iter().enumerate() {
                    assert_eq!((completed.step, completed.bucket), (step, index as u32));
                    assert!(completed.memory == sum_of_whole(3, lengths[index]));
                }
            }
        })
    });
}

#[test]
fn a_few_values_are_summed_while_buckets_are_pending() {
    ends(|| {
        group(2, PATIENT, |mut communicator| {
            communicator.submit(1, 0, whole(communicator.rank(), 50_000));
            let mut values = [1.0, communicator.rank() as f32];
            communicator.all_reduce_now(1, &mut values).unwrap();
            assert_eq!(values, [2.0, 1.0]);
            assert!(communicator.wait().unwrap().memory == sum_of_whole(2, 50_000));
        })
    });
}

#[test]
fn a_group_of_one_has_every_sum_at_once() {
    group(1, PATIENT, |mut communicator| {
        communicator.submit(1, 0, vec![3.0; 10]);
        assert_eq!(communicator.wait().unwrap().memory, [3.0; 10]);
        let mut values = [5.0];
        communicator.all_reduce_now(1, &mut values).unwrap();
        assert_eq!((values, communicator.statistics().bytes_sent), ([5.0], 0));
    });
}

#[test]
fn a_rank_that_leaves_after_its_last_sum_disturbs_no_other() {
    for _ in 0..30 {
        ends(|| group(3, PATIENT, |mut communicator| drop(sum_once(&mut communicator, whole, 20_000))));
    }
}

#[test]
fn the_bytes_sent_stay_within_a_hundredth_of_the_shortest_share() {
    for world in 2..=4 {
        let length = 1 << 20;
        let statistics = ends(move || {
            group(world, PATIENT, move |mut communicator| {
                sum_once(&mut communicator, whole, length);
                communicator.statistics()
            })
        });
        for statistics in statistics {
            let share = (2 * (world - 1) * length * 4 / world) as f64;
            assert!((share..=1.01 * share).contains(&(statistics.bytes_sent as f64)), "{statistics:?}, share {share}");
        }
    }
}

#[test]
fn the_silence_limit_can_change_between_operations() {
    ends(|| {
        group(2, PATIENT, |mut communicator| {
            communicator.set_silence_limits(PATIENT.silence * 2, PATIENT.silence * 2);
            assert!(sum_once(&mut communicator, whole, 100) == sum_of_whole(2, 100));
        })
    });
}
