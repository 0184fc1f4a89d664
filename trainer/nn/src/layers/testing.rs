//! Gradients of layers against finite differences of their own forward pass.

use super::{Loss, MeanSquaredError};
use crate::{
    batch::Batch,
    device::{Cpu, Device, Tensor, Values},
    dtype::DType,
    error::Error,
    graph::{Graph, Network, Value},
    layers::Linear,
    optimizers::{Optimizer, Sgd},
    planner::Options,
    precision::Precision,
    replica::Replica,
    shape::Shape,
};

/// Samples of a check, in two groups.
const SAMPLES: usize = 5;
const GROUPS: [u32; 2] = [2, 5];
/// Step of the differences: inputs are odd multiples of 1/32 that differ by 1/16 at least, so that
/// no maximum and no ReLU of them changes sides within twice the step.
const STEP: f32 = 1.0 / 128.0;
/// Allowed error relative to the largest gradient of the same value or parameter.
const TOLERANCE: f64 = 2e-3;
/// Units in the last place by which 16 bits may differ from f32, in the norm of a tensor.
const UNITS: f64 = 8.0;
/// Values with more elements are checked at that many places.
const PLACES: usize = 24;

/// Checks gradients of inputs and parameters of what `build` makes from inputs of these shapes.
pub(super) fn check(shapes: &[Shape], build: impl Fn(&mut Graph, &[Value]) -> Result<Value, Error>) {
    let (network, output) = network(shapes, MeanSquaredError, &build);
    let targets = targets(SAMPLES * output.elements());
    check_precisions(&network, &Values::F32(&targets));
    Check::new(network, true).run(&Values::F32(&targets));
}

/// Checks that fused operations have the gradients of those of each layer.
pub(super) fn check_fusion(shapes: &[Shape], build: impl Fn(&mut Graph, &[Value]) -> Result<Value, Error>) {
    let (network, output) = network(shapes, MeanSquaredError, &build);
    let targets = targets(SAMPLES * output.elements());
    let gradients = |fuse: bool| {
        let mut check = Check::new(network.clone(), fuse);
        check.step(&Values::F32(&targets));
        let all = check.replica.plan.gradients.region(0..check.replica.table.elements());
        let mut found = vec![0.0; all.len];
        check.replica.device.read(all, &mut found);
        (0..shapes.len()).for_each(|input| found.extend(check.input_gradient(input)));
        (check.replica.plan.training.len(), found)
    };
    let ((fused_ops, fused), (ops, plain)) = (gradients(true), gradients(false));
    assert!(fused_ops < ops, "nothing is fused");
    let largest = plain.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for (index, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
        assert!((fused - plain).abs() <= 1e-6 * largest, "gradient {index} is {fused}, without fusion {plain}");
    }
}

/// Checks that evaluation with fused operations makes what those of each layer make.
pub(super) fn check_evaluation(shape: Shape, build: impl Fn(&mut Graph, &[Value]) -> Result<Value, Error>) {
    let (network, output) = network(&[shape], MeanSquaredError, &build);
    let targets = targets(SAMPLES * output.elements());
    let outputs = |fuse: bool| {
        let mut check = Check::new(network.clone(), fuse);
        let inputs: Vec<Values<'_>> = check.inputs.iter().map(|values| Values::F32(values)).collect();
        check.replica.evaluate_batch(&Batch::new(&inputs, &[Values::F32(&targets)], SAMPLES));
        let mut found = vec![0.0; SAMPLES * output.elements()];
        let output = check.replica.plan.output;
        check.replica.device.download(&output, &mut found);
        (check.replica.plan.evaluation.len(), found)
    };
    let ((fused_ops, fused), (ops, plain)) = (outputs(true), outputs(false));
    assert!(fused_ops < ops, "nothing is fused");
    let largest = plain.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for (index, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
        assert!((fused - plain).abs() <= 1e-5 * largest, "output {index} is {fused}, without fusion {plain}");
    }
}

/// Checks the gradient of a loss's prediction.
pub(super) fn check_loss(shape: Shape, loss: impl Into<Loss>) {
    let loss = loss.into();
    let (dtype, target) = loss.rule().target(shape);
    let (network, _) = network(&[shape], loss, &|_, x| Ok(x[0]));
    let labels: Vec<u32> = (0..SAMPLES * target.elements()).map(|index| (index * 7 % shape.channels) as u32).collect();
    let targets = targets(SAMPLES * target.elements());
    let targets = if dtype == DType::F32 { Values::F32(&targets) } else { Values::U32(&labels) };
    check_precisions(&network, &targets);
    Check::new(network, true).run(&targets);
}

/// Checks that a step in 16 bits has the output and the gradients of one in f32, as far as the
/// format allows: an error of each stored value adds to those before, so a few units in the last
/// place of the whole tensor's norm.
fn check_precisions(network: &Network, targets: &Values<'_>) {
    let tensors = |precision: Precision| {
        let mut check = Check::in_precision(network.clone(), true, precision);
        // Equal inputs in all formats: else a maximum would come from another place.
        check.inputs.iter_mut().flatten().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
        check.step(targets);
        let mut output = vec![0.0; SAMPLES * check.replica.network().shape(network.output()).elements()];
        check.replica.device.download(&check.replica.plan.output.clone(), &mut output);
        let mut found = vec![("output".to_owned(), output)];
        for input in 0..check.inputs.len() - 1 {
            found.push((format!("gradient of input {input}"), check.input_gradient(input)));
        }
        let trained: Vec<_> = check.replica.table.parameters().iter().filter(|one| one.role.is_trained()).collect();
        for parameter in trained.into_iter().cloned().collect::<Vec<_>>() {
            let mut gradient = vec![0.0; parameter.range.len()];
            check.replica.device.read(check.replica.plan.gradients.region(parameter.range), &mut gradient);
            found.push((format!("gradient of {}", parameter.name), gradient));
        }
        found
    };
    let expected = tensors(Precision::F32);
    for (precision, unit) in [(Precision::Bf16, 2f64.powi(-8)), (Precision::F16, 2f64.powi(-11))] {
        for ((name, found), (_, expected)) in tensors(precision).into_iter().zip(&expected) {
            let norm =
                |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
            let difference = norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected)).sqrt();
            let size = norm(&mut expected.iter().copied()).sqrt();
            let allowed = UNITS * unit * size + 1e-6;
            assert!(difference <= allowed, "{precision:?}: {name} differs by {difference}, norm {size}");
        }
    }
}

/// The mean over the samples of a loss of predictions `z`, and its gradient.
pub(super) fn mean_loss(
    shape: Shape,
    loss: impl Into<Loss>,
    z: &[f32],
    labels: &[u32],
    importance: f32,
) -> (f64, Vec<f32>) {
    let samples = z.len() / shape.elements();
    let (network, _) = network(&[shape], loss, &|_, x| Ok(x[0]));
    let mut replica = replica(network, samples, true, Precision::F32);
    let (beside, targets) = (vec![0.0; samples], [Values::U32(labels)]);
    let inputs = [Values::F32(z), Values::F32(&beside)];
    let batch = Batch { importance, ..Batch::new(&inputs, &targets, samples) };
    replica.begin_step();
    replica.micro_batch_of(&batch, 1.0 / samples as f32, true, &mut |_, _| {});
    let input = replica.network().inputs()[0];
    let gradient = replica.plan.value_gradient(input).expect("inputs have gradients in tests");
    let mut found = vec![0.0; z.len()];
    replica.device.download(&gradient, &mut found);
    (replica.finish_step().loss_sum / samples as f64, found)
}

/// What `build` makes of inputs in training, as the host has it; each input has some samples.
pub(super) fn outputs(
    shapes: &[Shape],
    inputs: &[&[f32]],
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, Error>,
) -> Vec<f32> {
    let (network, output) = network(shapes, MeanSquaredError, &build);
    let samples = inputs[0].len() / shapes[0].elements();
    let mut replica = replica(network, samples, true, Precision::F32);
    let targets = vec![0.0; samples * output.elements()];
    let inputs: Vec<Values<'_>> =
        inputs.iter().map(|values| Values::F32(values)).chain([Values::F32(&[0.0; 5][..samples])]).collect();
    let targets = [Values::F32(&targets)];
    replica.begin_step();
    replica.micro_batch_of(&Batch::new(&inputs, &targets, samples), 1.0, true, &mut |_, _| {});
    let mut found = vec![0.0; samples * output.elements()];
    replica.device.download(&replica.plan.output, &mut found);
    replica.finish_step();
    found
}

type Building<'a> = dyn Fn(&mut Graph, &[Value]) -> Result<Value, Error> + 'a;

/// A network of what `build` makes, with a layer beside it that has a parameter in any case.
fn network(shapes: &[Shape], loss: impl Into<Loss>, build: &Building<'_>) -> (Network, Shape) {
    let mut graph = Graph::new();
    let inputs: Vec<Value> = shapes.iter().map(|shape| graph.input(*shape)).collect();
    let output = build(&mut graph, &inputs).expect("the layer computes on these inputs");
    let shape = graph.shape(output);
    graph.loss(loss, output).expect("the loss reads the output");
    let beside = graph.input(Shape::features(1));
    graph.add("beside", Linear::new(1), &[beside]).expect("features");
    (graph.build().expect("a network"), shape)
}

fn replica(network: Network, samples: usize, fuse: bool, precision: Precision) -> Replica<Cpu> {
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });
    let buckets = network.table().ready_order();
    let options = Options { slots: 1, max_micro_batch: samples, fuse, keep_all: true, precision };
    let mut replica = Replica::with_options(Cpu::new(), network, sgd, buckets, options).expect("ranges tile the arena");
    replica.initialise(5);
    replica
}

struct Check {
    replica: Replica<Cpu>,
    inputs: Vec<Vec<f32>>,
}

impl Check {
    fn new(network: Network, fuse: bool) -> Check {
        Check::in_precision(network, fuse, Precision::F32)
    }

    fn in_precision(network: Network, fuse: bool, precision: Precision) -> Check {
        let elements: Vec<usize> = network.inputs().iter().map(|input| network.shape(*input).elements()).collect();
        let mut replica = replica(network, SAMPLES, fuse, precision);
        // Scales of norms that are not all the same.
        let mut weights = replica.weights();
        for tensor in weights.iter_mut().filter(|tensor| tensor.shape.len() == 1) {
            tensor.values.iter_mut().enumerate().for_each(|(index, value)| *value += 0.1 * (index % 3) as f32);
        }
        replica.load_tensors(&weights).expect("the same network");
        let inputs =
            elements.iter().enumerate().map(|(salt, elements)| values(SAMPLES * elements, salt as u32)).collect();
        Check { replica, inputs }
    }

    /// The sum of losses; gradients are then those of it.
    fn step(&mut self, targets: &Values<'_>) -> f64 {
        let inputs: Vec<Values<'_>> = self.inputs.iter().map(|values| Values::F32(values)).collect();
        let targets = [*targets];
        let batch = Batch { group_ends: &GROUPS, ..Batch::new(&inputs, &targets, SAMPLES) };
        self.replica.begin_step();
        self.replica.micro_batch_of(&batch, 1.0, true, &mut |_, _| {});
        self.replica.finish_step().loss_sum
    }

    fn run(mut self, targets: &Values<'_>) {
        self.step(targets);
        let inputs: Vec<Tensor> = self.replica.plan.inputs.clone();
        let found: Vec<Vec<f32>> = (0..inputs.len() - 1).map(|input| self.input_gradient(input)).collect();
        let table = self.replica.table.clone();
        let mut gradients = vec![0.0; table.elements()];
        self.replica.device.read(self.replica.plan.gradients.region(0..table.elements()), &mut gradients);
        for (input, found) in found.iter().enumerate() {
            for place in places(found.len()) {
                let expected = self.difference(targets, |check, step| check.inputs[input][place] += step);
                assert_close(&format!("input {input}"), found, place, expected);
            }
        }
        for parameter in table.parameters().iter().filter(|parameter| parameter.role.is_trained()) {
            if parameter.name.starts_with("beside") {
                continue;
            }
            let found = &gradients[parameter.range.clone()];
            for place in places(found.len()) {
                let region =
                    self.replica.plan.weights.region(parameter.range.start + place..parameter.range.start + place + 1);
                let expected = self.difference(targets, |check, step| {
                    let mut value = [0.0];
                    check.replica.device.read(region, &mut value);
                    check.replica.device.write(region, Values::F32(&[value[0] + step]));
                });
                assert_close(&parameter.name, found, place, expected);
            }
        }
    }

    /// In the host's order.
    fn input_gradient(&mut self, input: usize) -> Vec<f32> {
        let value = self.replica.network().inputs()[input];
        let gradient = self.replica.plan.value_gradient(value).expect("inputs have gradients in tests");
        let mut found = vec![0.0; self.inputs[input].len()];
        self.replica.device.download(&gradient, &mut found);
        found
    }

    /// The derivative by differences of fourth order.
    fn difference(&mut self, targets: &Values<'_>, mut nudge: impl FnMut(&mut Check, f32)) -> f64 {
        let mut loss_at = |steps: f32| {
            nudge(self, steps * STEP);
            let loss = self.step(targets);
            nudge(self, -steps * STEP);
            loss
        };
        let (near, far) = (loss_at(1.0) - loss_at(-1.0), loss_at(2.0) - loss_at(-2.0));
        (8.0 * near - far) / (12.0 * f64::from(STEP))
    }
}

fn assert_close(name: &str, found: &[f32], place: usize, expected: f64) {
    let largest = found.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let error = (f64::from(found[place]) - expected).abs();
    let allowed = TOLERANCE * f64::from(largest) + 4e-5;
    assert!(error <= allowed, "{name}[{place}] is {}, not {expected} (largest {largest})", found[place]);
}

fn places(elements: usize) -> impl Iterator<Item = usize> {
    (0..elements).step_by(elements.div_ceil(PLACES))
}

/// Odd multiples of 1/32, in no order.
fn values(count: usize, salt: u32) -> Vec<f32> {
    let mut order: Vec<usize> = (0..count).collect();
    let word = |index: usize| (index as u32 ^ salt.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9).rotate_left(13);
    order.sort_by_key(|index| word(*index).wrapping_mul(0xc2b2_ae35));
    let mut values = vec![0.0; count];
    for (rank, index) in order.into_iter().enumerate() {
        values[index] = (rank as f32 + 0.5 - (count / 2) as f32) / 16.0;
    }
    values
}

/// Numbers in −1..1.
fn targets(count: usize) -> Vec<f32> {
    values(count, 99).into_iter().map(|value| value * 32.0 / count as f32).collect()
}
