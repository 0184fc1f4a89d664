//! Every layer's gradient against finite differences of an independent forward pass in double
//! precision.

mod reference;

use lockstep_nn::{Cpu, Instructions, Network, Optimizer, Replica, Shape, models, optimizers::Sgd};
use reference::{Dice, Reference, chain, conv, flatten, linear, pool, relu};

const OPTIMIZER: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });

/// Step of the central differences, taken in f64: so small that no relu and no maximum changes
/// sides within it, and large enough that rounding stays below 1e-8.
const STEP: f64 = 3e-7;
/// Allowed error of an f32 gradient, relative to the largest gradient of the same parameter.
const TOLERANCE: f64 = 2e-5;
/// Parameters with more elements than this are checked at that many places.
const PLACES: usize = 30;

fn check(network: Network, samples: usize, instructions: Instructions) {
    let mut dice = Dice::new(samples as u64 + 17);
    let images: Vec<f32> = (0..samples * network.input().elements()).map(|_| dice.centred()).collect();
    let labels: Vec<u32> = (0..samples).map(|_| dice.below(network.classes() as u32)).collect();
    let elements = network.table().elements();
    let everything = std::iter::once(0..elements).collect();
    let cpu = Cpu::with_instructions(instructions);
    let mut replica =
        Replica::new(cpu, network.clone(), OPTIMIZER, samples, everything).expect("one bucket tiles the arena");
    replica.initialise(3);
    let mut gradients = Vec::new();
    replica.begin_step();
    let scale = 1.0 / samples as f32;
    replica
        .micro_batch(&images, &labels, scale, true, &mut |_, mut bucket| gradients.extend_from_slice(bucket.as_mut()));
    let result = replica.finish_step();

    let mut reference = Reference::new(&network, &replica.weights());
    let (loss, correct) = reference.loss(&images, &labels);
    assert!((loss - result.loss_sum).abs() < 1e-5 * loss, "loss {} where {loss} is right", result.loss_sum);
    assert_eq!(correct, result.correct);
    for parameter in network.table().parameters() {
        let own = &gradients[parameter.range.clone()];
        let largest = own.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 0.0, "{} has no gradient", parameter.name);
        for place in places(own.len()) {
            let mut loss_at = |offset: f64| {
                reference.nudge(&parameter.name, place, offset);
                let (loss, _) = reference.loss(&images, &labels);
                reference.nudge(&parameter.name, place, -offset);
                loss
            };
            let expected = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP) * f64::from(scale);
            let error = (f64::from(own[place]) - expected).abs();
            let allowed = TOLERANCE * f64::from(largest) + 1e-8;
            assert!(error <= allowed, "{}[{place}] is {}, not {expected}", parameter.name, own[place]);
        }
    }
}

fn places(elements: usize) -> impl Iterator<Item = usize> {
    (0..elements).step_by(elements.div_ceil(PLACES))
}

fn check_everywhere(network: impl Fn() -> Network, samples: usize) {
    let all = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];
    all.into_iter().filter(|instructions| instructions.available()).for_each(|set| check(network(), samples, set));
}

#[test]
fn a_linear_layer_has_the_gradient_of_its_loss() {
    check_everywhere(|| models::mlp(7, &[], 3), 5);
}

#[test]
fn relu_and_linear_layers_have_the_gradient_of_their_loss() {
    check_everywhere(|| models::mlp(19, &[33, 5], 4), 21);
}

#[test]
fn a_bare_convolution_has_the_gradient_of_its_loss() {
    check_everywhere(|| chain(Shape::image(2, 4, 3), &[("c", conv(3, 3, 0)), flatten()]), 4);
}

#[test]
fn a_padded_convolution_with_relu_has_the_gradient_of_its_loss() {
    let layers = [("a", conv(7, 3, 1)), relu(), ("b", conv(4, 3, 2)), relu(), flatten(), ("fc", linear(3))];
    check_everywhere(|| chain(Shape::image(3, 5, 6), &layers), 17);
}

#[test]
fn pooling_with_and_without_relu_has_the_gradient_of_its_loss() {
    let layers = [("a", conv(5, 5, 2)), pool(), ("b", conv(13, 3, 1)), relu(), pool(), flatten(), ("fc", linear(4))];
    check_everywhere(|| chain(Shape::image(1, 12, 12), &layers), 3);
}

#[test]
fn pooling_that_drops_an_odd_row_and_column_has_the_gradient_of_its_loss() {
    let layers = [("a", conv(4, 2, 0)), relu(), pool(), ("b", conv(3, 1, 0)), relu(), flatten(), ("fc", linear(3))];
    check_everywhere(|| chain(Shape::image(2, 8, 10), &layers), 16);
}

#[test]
fn kernels_of_every_size_have_the_gradient_of_their_loss() {
    for kernel in [1, 2, 4, 6, 7] {
        let layers =
            [("a", conv(3, 3, 1)), relu(), ("b", conv(5, kernel, kernel / 2)), relu(), flatten(), ("fc", linear(2))];
        check_everywhere(|| chain(Shape::image(2, 9, 9), &layers), 2);
    }
}

#[test]
fn lenet5_has_the_gradient_of_its_loss() {
    check(models::lenet5(), 3, Instructions::detect());
}
