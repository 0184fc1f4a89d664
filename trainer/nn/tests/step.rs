//! The step engine: what is announced when, what a step adds up to, and that a late device changes
//! nothing.

mod reference;
mod state;

use std::sync::mpsc;
use std::thread;

use lockstep_nn::layers::SoftmaxCrossEntropy;
use lockstep_nn::testing::Late;
use lockstep_nn::{Cpu, Device, Error, Gradient, Network, Optimizer, Replica, Shape, models, optimizers::Sgd};
use reference::Dice;

const OPTIMIZER: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });

/// The function that is called for each bucket.
type Announce<'a> = &'a mut dyn FnMut(usize, Gradient<<Cpu as Device>::HostView>);

struct Batch {
    images: Vec<f32>,
    labels: Vec<u32>,
}

/// Class `c` has a bright bar at row `2·c`, in noise.
fn digits(samples: usize, seed: u64) -> Batch {
    let mut dice = Dice::new(seed);
    let labels: Vec<u32> = (0..samples).map(|sample| sample as u32 % 10).collect();
    let pixel =
        |label: u32, pixel: usize, noise: f32| 0.3 * noise + if pixel / 28 / 2 == label as usize { 1.0 } else { 0.0 };
    let images = labels.iter().flat_map(|label| (0..784).map(move |index| (*label, index)));
    let images = images.map(|(label, index)| pixel(label, index, dice.centred())).collect();
    Batch { images, labels }
}

fn replica<D: Device>(device: D, network: Network, micro_batch: usize) -> Replica<D> {
    replica_with(OPTIMIZER, device, network, micro_batch)
}

fn replica_with<D: Device>(optimizer: Optimizer, device: D, network: Network, micro_batch: usize) -> Replica<D> {
    let buckets = network.table().ready_order();
    let mut replica =
        Replica::new(device, network, optimizer, micro_batch, buckets).expect("ready ranges tile the arena");
    replica.initialise(11);
    replica
}

fn train<D: Device>(replica: &mut Replica<D>, batch: &Batch, steps: usize) -> Vec<(f64, u64)> {
    let scale = 1.0 / batch.labels.len() as f32;
    let step = |_| {
        replica.begin_step();
        replica.micro_batch(&batch.images, &batch.labels, scale, true, &mut |_, _| {});
        replica.update(1, 0.05);
        let result = replica.finish_step();
        (result.loss_sum, result.correct)
    };
    (0..steps).map(step).collect()
}

/// All gradients of one step.
fn gradients<D: Device>(replica: &mut Replica<D>, parts: &[(&[f32], &[u32])], scale: f32) -> Vec<f32> {
    let mut gradients = Vec::new();
    replica.begin_step();
    for (index, (images, labels)) in parts.iter().enumerate() {
        let last = index + 1 == parts.len();
        replica.micro_batch(images, labels, scale, last, &mut |_, mut bucket| {
            gradients.extend_from_slice(bucket.as_mut())
        });
    }
    replica.finish_step();
    gradients
}

#[test]
fn an_untrained_lenet5_knows_nothing() {
    let batch = digits(100, 1);
    let result = replica(Cpu::new(), models::lenet5(), 100).evaluate(&batch.images, &batch.labels);
    assert!((result.loss_sum / 100.0 - 10f64.ln()).abs() < 0.05, "loss {}", result.loss_sum / 100.0);
}

#[test]
fn training_learns_a_small_set_by_heart() {
    let batch = digits(40, 2);
    let mut replica = replica(Cpu::new(), models::lenet5(), 40);
    train(&mut replica, &batch, 150);
    let result = replica.evaluate(&batch.images, &batch.labels);
    assert_eq!(result.correct, 40);
    assert!(result.loss_sum / 40.0 < 0.05, "loss {}", result.loss_sum / 40.0);
}

#[test]
fn a_late_device_trains_to_the_same_bits() {
    for network in [models::lenet5(), models::mlp(784, &[32], 10)] {
        let batch = digits(20, 3);
        let (mut prompt, mut late) = (replica(Cpu::new(), network.clone(), 20), replica(Late::new(), network, 20));
        assert_eq!(train(&mut prompt, &batch, 20), train(&mut late, &batch, 20));
        assert_eq!(prompt.digest(), late.digest());
        assert_eq!(prompt.gradient_norms(), late.gradient_norms());
    }
}

#[test]
fn a_late_device_trains_every_kind_of_model_to_the_same_bits() {
    let images = Shape::image(1, 32, 32);
    let kinds = ["perceptron", "mlp", "lenet5", "googlenet", "resnet20", "resnet18"].map(|name| {
        let model = models::named(name).expect("a model");
        (model.build)(images, 10).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    let loss = SoftmaxCrossEntropy { ignored: Some(255), ..SoftmaxCrossEntropy::default() };
    let unet = models::unet_of(images, 10, 4, loss).expect("images are large enough");
    for network in kinds.into_iter().chain([unet]) {
        let mut dice = Dice::new(4);
        let labels = 3 * network.shape(network.output()).pixels();
        let batch = Batch {
            images: (0..3 * images.elements()).map(|_| dice.centred()).collect(),
            labels: (0..labels).map(|label| if label % 5 == 4 && labels > 3 { 255 } else { dice.below(10) }).collect(),
        };
        let (mut prompt, mut late) = (replica(Cpu::new(), network.clone(), 3), replica(Late::new(), network, 3));
        let losses = train(&mut prompt, &batch, 3);
        assert_eq!(losses, train(&mut late, &batch, 3));
        assert!(losses.iter().all(|(loss, _)| loss.is_finite()) && losses[0] != losses[2], "{losses:?}");
        assert_eq!(prompt.digest(), late.digest());
    }
}

#[test]
fn a_late_device_hands_its_buckets_to_another_thread() {
    let batch = digits(20, 4);
    let scaled = |replica: &mut Replica<Late>, factor: f32| {
        replica.begin_step();
        let (sender, buckets) = mpsc::channel::<lockstep_nn::Gradient<_>>();
        let reducer = thread::spawn(move || {
            for mut bucket in buckets {
                bucket.as_mut().iter_mut().for_each(|gradient| *gradient *= factor);
            }
        });
        let announce = &mut |_, bucket| sender.send(bucket).expect("the reducer receives until the sender is gone");
        replica.micro_batch(&batch.images, &batch.labels, 0.05, true, announce);
        drop(sender);
        reducer.join().expect("the reducer only multiplies");
        replica.update(1, 1.0);
        replica.finish_step();
        replica.digest()
    };
    let plain = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });
    let once = scaled(&mut replica_with(plain, Late::new(), models::lenet5(), 20), 0.0);
    assert_eq!(
        once,
        replica(Cpu::new(), models::lenet5(), 20).digest(),
        "gradients times zero leave the weights alone"
    );
}

#[test]
fn the_same_inputs_give_the_same_bits_at_every_address() {
    let batch = digits(33, 5);
    let digest = |offset: usize| {
        let mut shifted = vec![0.0; offset];
        shifted.extend_from_slice(&batch.images);
        let mut replica = replica(Cpu::new(), models::lenet5(), 33 + offset * 16);
        for _ in 0..3 {
            replica.begin_step();
            replica.micro_batch(&shifted[offset..], &batch.labels, 1.0 / 33.0, true, &mut |_, _| {});
            replica.update(1, 0.05);
            replica.finish_step();
        }
        replica.digest()
    };
    assert!((1..4).all(|offset| digest(offset) == digest(0)));
}

#[test]
fn two_micro_batches_add_up_to_one_batch() {
    let batch = digits(40, 6);
    let mut replica = replica(Cpu::new(), models::lenet5(), 40);
    let whole = gradients(&mut replica, &[(&batch.images, &batch.labels)], 1.0 / 40.0);
    let (first, second) = batch.images.split_at(13 * 784);
    let halves = gradients(&mut replica, &[(first, &batch.labels[..13]), (second, &batch.labels[13..])], 1.0 / 40.0);
    let furthest = whole.iter().zip(&halves).map(|(one, two)| (one - two).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-6, "furthest {furthest}");
    assert!(whole.iter().any(|gradient| gradient.abs() > 1e-3));
}

/// Two layers, of which the first is ready in two parts.
fn wide() -> Network {
    let network = models::mlp(784, &[3000], 10);
    assert_eq!(network.table().ready_order().len(), 3);
    network
}

#[test]
fn every_gradient_is_announced_once_in_order_and_final() {
    let layers = models::lenet5().table().ready_order();
    // Cuts through the middle of parameters, and two buckets inside one layer.
    let cuts = vec![0, 5, 200, 900, 11_000, 11_001, layers[3].start + 7];
    let parts = wide().table().ready_order();
    let in_parts = vec![0, parts[1].start, parts[1].start + 7, parts[1].end - 1, parts[2].start + 5];
    for (network, mut cuts) in [(models::lenet5(), cuts), (wide(), vec![0, parts[2].start]), (wide(), in_parts)] {
        let elements = network.table().elements();
        cuts.push(elements);
        let buckets: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        let mut replica =
            Replica::new(Cpu::new(), network, OPTIMIZER, 20, buckets.clone()).expect("the cuts tile the arena");
        replica.initialise(1);
        let batch = digits(20, 7);
        replica.begin_step();
        let mut announced = Vec::new();
        let mut keep =
            |index, mut bucket: Gradient<_>| announced.push((index, AsMut::<[f32]>::as_mut(&mut bucket).to_vec()));
        replica.micro_batch(&batch.images, &batch.labels, 0.05, true, &mut keep);
        replica.finish_step();
        let order: Vec<usize> = announced.iter().map(|(index, _)| *index).collect();
        assert_eq!(order, (0..buckets.len()).collect::<Vec<_>>());
        let when_announced: Vec<f32> = announced.into_iter().flat_map(|(_, values)| values).collect();
        replica.set_buckets(std::iter::once(0..elements).collect()).expect("one bucket tiles the arena");
        assert!(when_announced == gradients(&mut replica, &[(&batch.images, &batch.labels)], 0.05));
    }
}

#[test]
fn what_is_summed_beside_the_gradients_goes_with_the_last_bucket_and_changes_no_other() {
    let batch = digits(20, 6);
    let mut alone = replica(Cpu::new(), models::lenet5(), 20);
    let lengths: Vec<usize> = alone.buckets().iter().map(ExactSizeIterator::len).collect();
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    // More than before needs other memory, less does not.
    for beside in [5, 2000, 3] {
        replica.own_gradient_memory(beside);
        replica.begin_step();
        let mut found = Vec::new();
        replica.micro_batch(&batch.images, &batch.labels, 0.05, true, &mut |_, mut bucket| {
            let bucket = bucket.as_mut();
            found.push(bucket.len());
            if found.len() == lengths.len() {
                let gradients = bucket.len() - beside;
                bucket[gradients..].fill(f32::NAN);
            }
        });
        replica.update(1, 0.05);
        replica.finish_step();
        train(&mut alone, &batch, 1);
        assert_eq!(replica.digest(), alone.digest());
        let mut expected = lengths.clone();
        *expected.last_mut().expect("a bucket") += beside;
        assert_eq!(found, expected);
    }
}

#[test]
fn the_loss_of_a_step_goes_behind_the_gradients_of_its_last_bucket() {
    let batch = digits(20, 6);
    let (first, second) = (batch.images.split_at(8 * 784), batch.labels.split_at(8));
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    replica.own_gradient_memory(3);
    let elements = replica.table().elements();
    let mut step = |compute: &mut dyn FnMut(&mut Replica<Cpu>, Announce<'_>)| {
        let mut announced = Vec::new();
        replica.begin_step();
        compute(&mut replica, &mut |_, mut bucket| announced.extend_from_slice(AsMut::<[f32]>::as_mut(&mut bucket)));
        (announced[elements], replica.finish_step().loss_sum as f32)
    };
    let (behind, loss) = step(&mut |replica, announce| {
        replica.micro_batch(first.0, second.0, 0.05, false, announce);
        replica.micro_batch(first.1, second.1, 0.05, true, announce);
    });
    assert!(loss > 1.0 && behind == loss, "{behind} of two micro-batches with {loss}");
    let (behind, loss) = step(&mut |replica, announce| {
        replica.micro_batch(first.0, second.0, 0.05, false, announce);
        replica.end_part(false, announce);
        replica.micro_batch(first.1, second.1, 0.05, false, announce);
        replica.end_part(true, announce);
    });
    assert!(loss > 1.0 && behind == loss, "{behind} of two parts with {loss}");
    let (behind, loss) = step(&mut |replica, announce| replica.no_samples(announce));
    assert_eq!((behind, loss), (0.0, 0.0));
}

#[test]
fn buckets_are_announced_before_the_rest_of_backward_is_enqueued() {
    for network in [models::lenet5(), wide()] {
        let device = Late::new();
        let progress = device.progress();
        let mut replica = replica(device, network, 20);
        let batch = digits(20, 8);
        replica.begin_step();
        let mut recorded = Vec::new();
        let announce = &mut |_, _| recorded.push(progress.recorded());
        replica.micro_batch(&batch.images, &batch.labels, 0.05, true, announce);
        recorded.push(progress.recorded() + 1);
        assert!(recorded.is_sorted_by(|earlier, later| earlier < later), "{recorded:?}");
        replica.finish_step();
    }
}

#[test]
fn a_step_waits_for_nothing_before_its_end() {
    let device = Late::new();
    let progress = device.progress();
    let mut replica = replica(device, models::lenet5(), 20);
    let batch = digits(20, 8);
    replica.begin_step();
    replica.micro_batch(&batch.images, &batch.labels, 0.05, true, &mut |_, _| {});
    replica.update(1, 0.05);
    assert_eq!(progress.done(), 0);
    replica.finish_step();
    assert_eq!(progress.done(), progress.recorded());
}

#[test]
fn an_abandoned_step_leaves_the_weights_alone_and_the_next_one_starts_afresh() {
    let batch = digits(20, 14);
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    let whole = gradients(&mut replica, &[(&batch.images, &batch.labels)], 0.05);
    let before = replica.digest();
    replica.begin_step();
    replica.micro_batch(&batch.images, &batch.labels, 0.05, false, &mut |_, _| {});
    replica.abandon_step();
    assert_eq!(replica.digest(), before);
    assert_eq!(gradients(&mut replica, &[(&batch.images, &batch.labels)], 0.05), whole);
}

#[test]
fn a_replica_can_move_to_another_thread() {
    fn movable<T: Send>() {}
    movable::<Replica<Cpu>>();
    movable::<Replica<Late>>();
}

#[test]
fn a_rank_without_samples_announces_zeros() {
    let batch = digits(20, 9);
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    gradients(&mut replica, &[(&batch.images, &batch.labels)], 0.05);
    replica.begin_step();
    let mut announced = Vec::new();
    replica.no_samples(&mut |_, mut bucket| announced.extend_from_slice(bucket.as_mut()));
    let result = replica.finish_step();
    assert_eq!(announced, vec![0.0; replica.table().elements()]);
    assert_eq!((result.loss_sum, result.correct), (0.0, 0));
}

#[test]
fn evaluation_goes_through_any_number_of_samples_and_changes_nothing() {
    let batch = digits(50, 10);
    let (mut small, mut large) = (replica(Cpu::new(), models::lenet5(), 7), replica(Cpu::new(), models::lenet5(), 50));
    let before = small.digest();
    let (one, two) = (small.evaluate(&batch.images, &batch.labels), large.evaluate(&batch.images, &batch.labels));
    assert_eq!(one.correct, two.correct);
    assert!((one.loss_sum - two.loss_sum).abs() < 1e-4);
    assert_eq!(small.digest(), before);
}

#[test]
fn a_step_is_repeated_from_its_gradients_to_the_last_bit() {
    let batch = digits(20, 11);
    let mut first = replica(Cpu::new(), models::lenet5(), 20);
    train(&mut first, &batch, 3);
    let mut second = replica(Cpu::new(), models::lenet5(), 1);
    let elements = first.table().elements();
    let mut state = vec![0.0; first.state_elements()];
    // Cut within the weights, and within the momentum.
    for part in [0..7, 7..elements + 3, elements + 3..first.state_elements()] {
        first.copy_state(part.clone(), &mut state[part]);
    }
    second.write_state(&state);

    let mut gradients = vec![0.0; elements];
    first.begin_step();
    first.micro_batch(&batch.images, &batch.labels, 0.05, true, &mut |_, _| {});
    let (left, right) = gradients.split_at_mut(100);
    first.copy_gradients(0..100, left);
    first.copy_gradients(100..elements, right);
    second.take_gradients(&gradients);
    for replica in [&mut first, &mut second] {
        replica.update(1, 0.05);
        replica.finish_step();
    }
    assert_eq!(first.digest(), second.digest());
    assert_eq!(train(&mut first, &batch, 1), {
        let mut whole = replica(Cpu::new(), models::lenet5(), 20);
        second.copy_state(0..state.len(), &mut state);
        whole.write_state(&state);
        train(&mut whole, &batch, 1)
    });
}

#[test]
fn buckets_that_do_not_tile_the_arena_are_refused() {
    let network = models::mlp(4, &[], 2);
    let elements = network.table().elements();
    for buckets in [
        vec![],
        vec![0..16, 16..elements - 1],
        vec![1..16, 16..elements],
        vec![0..16, 15..elements],
        vec![0..16, 17..elements],
    ] {
        let refused = Replica::new(Cpu::new(), network.clone(), OPTIMIZER, 1, buckets.clone()).err();
        assert!(matches!(refused, Some(Error::Buckets { .. })), "{buckets:?}");
    }
}

#[test]
#[should_panic(expected = "update needs every bucket back, 1 of 5 are out")]
fn an_update_while_a_bucket_is_out_panics() {
    let batch = digits(20, 12);
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    replica.begin_step();
    let mut held = None;
    replica.micro_batch(&batch.images, &batch.labels, 0.05, true, &mut |index, bucket| {
        if index == 2 {
            held = Some(bucket);
        }
    });
    replica.update(1, 0.1);
}

#[test]
#[should_panic(expected = "label 10 is not below the 10 classes")]
fn a_label_that_is_no_class_panics() {
    replica(Cpu::new(), models::lenet5(), 1).evaluate(&[0.0; 784], &[10]);
}

#[test]
fn frozen_gaps_between_parameters_stay_zero() {
    let batch = digits(20, 13);
    let mut replica = replica(Cpu::new(), models::lenet5(), 20);
    let parameters: Vec<_> = replica.table().parameters().iter().map(|parameter| parameter.range.clone()).collect();
    let gradients = gradients(&mut replica, &[(&batch.images, &batch.labels)], 0.05);
    let gap = |index: &usize| !parameters.iter().any(|range| range.contains(index));
    assert!((0..gradients.len()).filter(gap).all(|index| gradients[index] == 0.0));
}

/// Gradients and loss of a step whose parts are these runs of samples, some of them in two
/// micro-batches.
fn in_parts<D: Device>(replica: &mut Replica<D>, batch: &Batch, parts: &[std::ops::Range<usize>]) -> (Vec<f32>, f64) {
    let mut gradients = Vec::new();
    replica.begin_step();
    for (index, part) in parts.iter().enumerate() {
        let micro_batches = [part.start..part.end.min(part.start + 3), part.end.min(part.start + 3)..part.end];
        for run in micro_batches.into_iter().filter(|run| !run.is_empty()) {
            let (images, labels) = (&batch.images[run.start * 784..run.end * 784], &batch.labels[run]);
            replica.micro_batch(images, labels, 0.1, false, &mut |_, _| panic!("announced before the last part"));
        }
        replica.end_part(index + 1 == parts.len(), &mut |_, mut bucket| gradients.extend_from_slice(bucket.as_mut()));
    }
    let result = replica.finish_step();
    (gradients, result.loss_sum)
}

#[test]
fn parts_add_up_to_the_same_bits_however_many_ranks_share_them() {
    let batch = digits(30, 21);
    let mut replica = replica(Late::new(), models::lenet5(), 10);
    // Eight leaves of a tree, one of them empty.
    let parts = [0..4, 4..5, 5..5, 5..12, 12..15, 15..20, 20..29, 29..30];
    let whole = in_parts(&mut replica, &batch, &parts);
    for ranks in [2, 4, 8] {
        let shares = parts.chunks(parts.len() / ranks);
        let mut sums: Vec<(Vec<f32>, f64)> = shares.map(|share| in_parts(&mut replica, &batch, share)).collect();
        while sums.len() > 1 {
            let add = |pair: &[(Vec<f32>, f64)]| {
                let [(left, left_loss), (right, right_loss)] = pair else { panic!("pairs of ranks") };
                let sum = left.iter().zip(right).map(|(left, right)| left + right).collect();
                (sum, f64::from(*left_loss as f32 + *right_loss as f32))
            };
            sums = sums.chunks(2).map(add).collect();
        }
        assert!(sums[0] == whole, "{ranks} ranks: other bits");
    }
    let plain = gradients(&mut replica, &[(&batch.images[..7840], &batch.labels[..10])], 0.1);
    let (in_tree, _) = in_parts(&mut replica, &batch, &[0..4, 4..10]);
    let greatest = plain.iter().fold(0.0_f32, |most, gradient| most.max(gradient.abs()));
    let differs = plain.iter().zip(&in_tree).map(|(plain, in_tree)| (plain - in_tree).abs()).fold(0.0, f32::max);
    assert!(differs <= 1e-5 * greatest, "{differs} of {greatest}");
}

#[test]
#[should_panic(expected = "3 parts make no binary tree")]
fn parts_that_make_no_tree_are_refused() {
    in_parts(&mut replica(Cpu::new(), models::lenet5(), 10), &digits(10, 1), &[0..4, 4..5, 5..10]);
}
