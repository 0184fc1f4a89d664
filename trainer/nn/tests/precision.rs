//! The three pitfalls of training in 16 bits (Micikevicius et al., arXiv 1710.03740), each with its
//! remedy turned off as well, and the promises of precision that cross layers.

use half::{bf16, f16};
use lockstep_nn::{Cpu, Instructions, Network, Optimizer, Precision, Replica, Shape, models, optimizers::Sgd};

const PLAIN: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });

fn replica(network: &Network, precision: Precision, micro_batch: usize) -> Replica<Cpu> {
    on(Cpu::new(), network, precision, micro_batch)
}

fn on(cpu: Cpu, network: &Network, precision: Precision, micro_batch: usize) -> Replica<Cpu> {
    let buckets = network.table().ready_order();
    let mut replica =
        Replica::with_precision(cpu, network.clone(), PLAIN, micro_batch, buckets, precision).expect("ready ranges");
    replica.initialise(7);
    replica
}

/// Numbers between −1 and 1, in no order.
fn numbers(count: usize, salt: u32) -> Vec<f32> {
    let word = |index: usize| (index as u32 ^ salt.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9).rotate_left(11);
    (0..count).map(|index| word(index).wrapping_mul(0xc2b2_ae35) as f32 / (1_u64 << 31) as f32 - 1.0).collect()
}

fn labels(samples: usize, classes: u32) -> Vec<u32> {
    (0..samples as u32).map(|sample| sample % classes).collect()
}

/// The gradients of one step.
fn gradients(replica: &mut Replica<Cpu>, images: &[f32], labels: &[u32], scale: f32) -> Vec<f32> {
    replica.begin_step();
    replica.micro_batch(images, labels, scale, true, &mut |_, _| {});
    let mut gradients = vec![0.0; replica.table().elements()];
    replica.copy_gradients(0..gradients.len(), &mut gradients);
    replica.finish_step();
    gradients
}

fn state(replica: &mut Replica<Cpu>) -> Vec<f32> {
    let mut state = vec![0.0; replica.state_elements()];
    replica.copy_state(0..state.len(), &mut state);
    state
}

/// The norm of the difference, relative to that of the second.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(one, other)| one - other)) / norm(&mut expected.iter().copied())
}

/// Imprecise weights: 64 updates of 2⁻¹⁰ to a weight of 1. Half a unit in the last place of bf16 is
/// 2⁻⁸ there. The remedy is f32 masters; `round` after each update turns it off.
fn weight_after_small_updates(round: impl Fn(&mut f32)) -> (f32, f32) {
    let network = models::mlp(1, &[], 2);
    let mut replica = replica(&network, Precision::Bf16, 1);
    let mut values = state(&mut replica);
    values.fill(0.0);
    let weight = network.table().get("fc1.weight").expect("a weight").range.start;
    values[weight] = 1.0;
    replica.write_state(&values);
    let mut gradients = vec![0.0; network.table().elements()];
    gradients[weight] = -1.0;
    for step in 1..=64 {
        replica.take_gradients(&gradients);
        replica.update(step, 2f32.powi(-10));
        replica.finish_step();
        let mut values = state(&mut replica);
        values.iter_mut().for_each(&round);
        replica.write_state(&values);
    }
    (state(&mut replica)[weight], replica.predict(&[1.0])[0])
}

#[test]
fn updates_below_half_a_unit_of_bf16_add_up_in_the_masters() {
    assert_eq!(weight_after_small_updates(|_| {}), (1.0625, 1.0625), "the masters, and what products read");
    let without = weight_after_small_updates(|value| *value = bf16::from_f32(*value).to_f32());
    assert_eq!(without, (1.0, 1.0), "without masters in f32 no update changes the weight");
}

/// Gradient underflow: a batch of 2²⁰ samples divides each gradient so that it is below the least
/// number of f16. The remedy is a scaled loss; a scale of 1 turns it off.
#[test]
fn gradients_below_the_least_number_of_f16_survive_with_a_scaled_loss() {
    let network = models::mlp(16, &[32, 32], 10);
    let (images, labels) = (numbers(8 * 16, 1), labels(8, 10));
    let of = |precision: Precision, loss_scale: f32| {
        let mut replica = replica(&network, precision, 8);
        replica.scale_loss(loss_scale);
        let gradients = gradients(&mut replica, &images, &labels, 2f32.powi(-26));
        let first = network.table().get("fc1.weight").expect("a weight").range.clone();
        gradients[first].iter().map(|value| value / loss_scale).collect::<Vec<f32>>()
    };
    let exact = of(Precision::F32, 1.0);
    let without = of(Precision::F16, 1.0);
    assert!(without.iter().all(|value| *value == 0.0), "without a scale all gradients vanish: {without:?}");
    let scaled = distance(&of(Precision::F16, 65_536.0), &exact);
    assert!(scaled < 0.01, "with a scale they differ by {scaled}");
}

/// A step whose loss is scaled updates the weights as one whose loss is not, clipped or not.
#[test]
fn gradients_are_divided_by_the_scale_before_they_are_clipped_or_used() {
    let network = models::mlp(16, &[32], 10);
    let (images, labels) = (numbers(8 * 16, 1), labels(8, 10));
    for clip in [None, Some(0.01), Some(100.0)] {
        let of = |loss_scale: f32| {
            let mut replica = replica(&network, Precision::F32, 8);
            replica.clip_gradients(clip);
            replica.scale_loss(loss_scale);
            replica.begin_step();
            replica.micro_batch(&images, &labels, 0.125, true, &mut |_, _| {});
            let norms = replica.gradient_norms();
            replica.update(1, 0.5);
            replica.finish_step();
            (state(&mut replica), norms)
        };
        // A power of two changes no bit of a gradient; the factor of a clipped one is rounded.
        let ((plain, norms), (scaled, scaled_norms)) = (of(1.0), of(65_536.0));
        assert_eq!(norms, scaled_norms);
        assert!(distance(&scaled, &plain) < 1e-7, "clipped to {clip:?}");
    }
}

/// The sum of `inputs` products, as a linear layer with one output computes it.
fn product(precision: Precision, inputs: &[f32], weights: &[f32]) -> f32 {
    let network = models::mlp(inputs.len(), &[], 2);
    let mut replica = replica(&network, precision, 1);
    let mut values = state(&mut replica);
    values.fill(0.0);
    let start = network.table().get("fc1.weight").expect("a weight").range.start;
    values[start..start + weights.len()].copy_from_slice(weights);
    replica.write_state(&values);
    replica.predict(inputs)[0]
}

/// Reduction overflow: the products are exact in 16 bits, and so is their sum; a sum on the way is
/// not. The remedy is to add in f32. `naive` turns it off: it rounds each sum to the format.
#[test]
fn sums_of_many_products_neither_stagnate_nor_overflow() {
    let naive = |round: fn(f32) -> f32, inputs: &[f32], weights: &[f32]| {
        inputs.iter().zip(weights).fold(0.0, |sum, (input, weight)| round(sum + round(input * weight)))
    };
    let (to_bf16, to_f16) = (|value| bf16::from_f32(value).to_f32(), |value| f16::from_f32(value).to_f32());
    // 4,096 ones: bf16 cannot count beyond 256, f16 not beyond 2,048.
    let ones = vec![1.0; 4096];
    assert_eq!(product(Precision::Bf16, &ones, &ones), 4096.0);
    assert_eq!(naive(to_bf16, &ones, &ones), 256.0, "bf16 stagnates");
    assert_eq!(product(Precision::F16, &ones, &ones), 4096.0);
    assert_eq!(naive(to_f16, &ones, &ones), 2048.0, "f16 stagnates");
    // On the way to 32 the sum is 131,072, twice what f16 can hold.
    let weights: Vec<f32> = (0..8193).map(|index| if index < 4096 { 32.0 } else { -32.0 }).collect();
    let inputs: Vec<f32> = (0..8193).map(|index| if index == 8192 { -1.0 } else { 1.0 }).collect();
    assert_eq!(product(Precision::F16, &inputs, &weights), 32.0);
    assert_eq!(naive(to_f16, &inputs, &weights), f32::INFINITY, "f16 overflows");
}

/// A batch of many samples: the gradient of a bias is the sum of all its values in 16 bits.
#[test]
fn a_biass_gradient_of_many_samples_is_added_in_f32() {
    let network = models::mlp(1, &[], 2);
    let samples = 4096;
    let mut replica = replica(&network, Precision::Bf16, samples);
    let zeros = vec![0.0; replica.state_elements()];
    replica.write_state(&zeros);
    let found = gradients(&mut replica, &vec![0.0; samples], &vec![0; samples], 1.0);
    let bias = network.table().get("fc1.bias").expect("a bias").range.clone();
    assert_eq!(found[bias], [-2048.0, 2048.0], "half of each sample: bf16 would stay at 128");
}

#[test]
fn the_same_seed_gives_the_same_bits_in_each_precision_and_a_state_of_one_loads_into_another() {
    let network = models::resnet20(Shape::image(3, 16, 16), 10).expect("a network");
    let (images, labels) = (numbers(12 * 3 * 256, 3), labels(12, 10));
    let train = |precision: Precision| {
        let mut replica = replica(&network, precision, 12);
        for step in 1..=4 {
            replica.begin_step();
            replica.micro_batch(&images, &labels, 1.0 / 12.0, true, &mut |_, _| {});
            replica.update(step, 0.05);
            replica.finish_step();
        }
        (replica.digest(), replica)
    };
    for precision in [Precision::Bf16, Precision::F16] {
        let ((one, mut replica), (other, _)) = (train(precision), train(precision));
        assert_eq!(one, other, "{precision:?}");
        let mut whole = self::replica(&network, Precision::F32, 12);
        whole.write_state(&state(&mut replica));
        let (found, expected) = (replica.predict(&images), whole.predict(&images));
        let distance = distance(&found, &expected);
        assert!(distance < 0.03, "{precision:?}: the logits of the same weights in f32 differ by {distance}");
    }
}

/// Gradients of a convolutional network in bf16 differ between instruction sets only as roundings
/// do: an instruction for bf16 adds pairs of products at once.
#[test]
fn every_instruction_set_gives_the_gradients_of_f32_within_the_format() {
    let network = models::resnet20(Shape::image(3, 16, 16), 10).expect("a network");
    let (images, labels) = (numbers(8 * 3 * 256, 3), labels(8, 10));
    let of = |cpu: Cpu, precision: Precision| gradients(&mut on(cpu, &network, precision, 8), &images, &labels, 0.125);
    let exact = of(Cpu::new(), Precision::F32);
    let sets = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];
    for set in sets.into_iter().filter(|set| set.available()) {
        for (precision, allowed) in [(Precision::Bf16, 0.15), (Precision::F16, 0.02)] {
            let distance = distance(&of(Cpu::with_instructions(set), precision), &exact);
            assert!(distance < allowed, "{precision:?} with {set:?}: {distance}");
        }
    }
}
