//! Models that are no chain: several inputs and losses, shared and frozen parameters.

use lockstep_nn::layers::{
    Activation, Add, BatchNorm, Concatenate, Conv2d, GlobalAveragePool, Linear, MeanSquaredError, SoftmaxCrossEntropy,
};
use lockstep_nn::{
    Batch, Cpu, Criterion, Error, Graph, Network, Optimizer, Replica, Shape, StateTensor, Value, Values,
    optimizers::Sgd,
};

const SGD: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.1, nesterov: false });
const SGD_WITHOUT_DECAY: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });
const SAMPLES: usize = 6;

fn replica(network: Network) -> Replica<Cpu> {
    let buckets = network.table().ready_order();
    let mut replica = Replica::new(Cpu::new(), network, SGD, SAMPLES, buckets).expect("ranges tile the arena");
    replica.initialise(3);
    replica
}

fn values(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + salt * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// Gradients of one step, by parameter.
fn gradients(replica: &mut Replica<Cpu>, batch: &Batch<'_>) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    replica.begin_step();
    replica.micro_batch_of(batch, 1.0, true, &mut |_, mut bucket| all.extend_from_slice(bucket.as_mut()));
    replica.finish_step();
    let of = |parameter: &lockstep_nn::ParamMeta| (parameter.name.clone(), all[parameter.range.clone()].to_vec());
    replica.table().parameters().iter().map(of).collect()
}

fn assert_close(found: &[f32], expected: impl IntoIterator<Item = f32>, what: &str) {
    let expected: Vec<f32> = expected.into_iter().collect();
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    assert!(found.len() == expected.len() && largest > 0.0, "{what}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-5 * largest, "{what}: {found}, not {expected}");
    }
}

/// Two inputs, of which both parts of the network read the sum of what they become.
fn two_losses(weights: [f32; 2]) -> Network {
    let mut graph = Graph::new();
    let [a, b] = [Shape::features(4), Shape::features(3)].map(|shape| graph.input(shape));
    let mut build = || -> Result<(), Error> {
        let joined = graph.join(Concatenate, &[a, b])?;
        let hidden = graph.add("hidden", Linear::new(5), &[joined])?;
        let hidden = graph.then(Activation::relu(), hidden)?;
        let classes = graph.add("classes", Linear::new(3), &[hidden])?;
        let numbers = graph.add("numbers", Linear::new(2), &[hidden])?;
        let criterion = |loss, prediction, target| Criterion {
            loss,
            prediction,
            target,
            weight: weights[target],
            is_auxiliary: target == 1,
        };
        graph.criterion(criterion(SoftmaxCrossEntropy::default().into(), classes, 0))?;
        graph.criterion(criterion(MeanSquaredError.into(), numbers, 1))
    };
    build().expect("the layers fit");
    graph.build().expect("a network")
}

#[test]
fn the_gradients_of_several_losses_are_the_sums_of_each_ones() {
    let (a, b, numbers) = (values(SAMPLES * 4, 1), values(SAMPLES * 3, 2), values(SAMPLES * 2, 3));
    let inputs = [Values::F32(&a), Values::F32(&b)];
    let targets = [Values::U32(&[0, 1, 2, 0, 1, 2]), Values::F32(&numbers)];
    let batch = Batch::new(&inputs, &targets, SAMPLES);
    let of = |weights| gradients(&mut replica(two_losses(weights)), &batch);
    let (both, first, second) = (of([1.0, 0.3]), of([1.0, 0.0]), of([0.0, 1.0]));
    for (((name, both), (_, first)), (_, second)) in both.iter().zip(&first).zip(&second) {
        assert_close(both, first.iter().zip(second).map(|(first, second)| first + 0.3 * second), name);
    }
    let mut replica = replica(two_losses([1.0, 0.3]));
    replica.begin_step();
    replica.micro_batch_of(&batch, 1.0, true, &mut |_, _| {});
    let trained = replica.finish_step().loss_sum;
    let evaluated = replica.evaluate_batch(&batch).loss_sum;
    assert!(evaluated > 0.0 && trained > evaluated, "evaluation leaves the auxiliary loss out: {trained} {evaluated}");
}

fn one_input(shape: Shape, build: impl Fn(&mut Graph, Value) -> Result<Value, Error>) -> Network {
    let mut graph = Graph::new();
    let x = graph.input(shape);
    let built = build(&mut graph, x).and_then(|y| graph.loss(SoftmaxCrossEntropy::default(), y));
    built.expect("the layers fit");
    graph.build().expect("a network")
}

#[test]
fn shared_weights_have_the_sum_of_the_gradients_of_both_uses() {
    let shape = Shape::features(4);
    let shared = one_input(shape, |graph, x| {
        let y = graph.add("one", Linear::new(4), &[x])?;
        let y = graph.then(Activation::relu(), y)?;
        graph.add_sharing("two", Linear::new(4), &[y], "one")
    });
    let apart = one_input(shape, |graph, x| {
        let y = graph.add("one", Linear::new(4), &[x])?;
        let y = graph.then(Activation::relu(), y)?;
        graph.add("two", Linear::new(4), &[y])
    });
    let (x, labels) = (values(SAMPLES * 4, 1), [0, 1, 2, 3, 0, 1]);
    let (inputs, targets) = ([Values::F32(&x)], [Values::U32(&labels)]);
    let batch = Batch::new(&inputs, &targets, SAMPLES);
    let mut shared = replica(shared);
    let mut apart = replica(apart);
    let one = shared.weights();
    let copied = |tensor: &StateTensor| {
        let name = tensor.name.replace("one.", "two.");
        [tensor.clone(), StateTensor { name, ..tensor.clone() }]
    };
    apart.load_tensors(&one.iter().flat_map(copied).collect::<Vec<_>>()).expect("the same shapes");
    let (together, apart) = (gradients(&mut shared, &batch), gradients(&mut apart, &batch));
    let find = |name: &str| &apart.iter().find(|(other, _)| other == name).expect("a parameter").1;
    for (name, found) in &together {
        let other = find(&name.replace("one.", "two."));
        assert_close(found, find(name).iter().zip(other).map(|(one, other)| one + other), name);
    }
    // A second step does not add to the first.
    assert_eq!(gradients(&mut shared, &batch), together);
}

#[test]
fn a_branch_that_no_loss_reads_changes_nothing() {
    let network = one_input(Shape::features(4), |graph, x| {
        let y = graph.add("used", Linear::new(3), &[x])?;
        graph.add("unused", Linear::new(9), &[x])?;
        Ok(y)
    });
    let (x, labels) = (values(SAMPLES * 4, 1), [0, 1, 2, 0, 1, 2]);
    let (inputs, targets) = ([Values::F32(&x)], [Values::U32(&labels)]);
    let found = gradients(&mut replica(network), &Batch::new(&inputs, &targets, SAMPLES));
    for (name, gradient) in found {
        assert_eq!(gradient.iter().all(|value| *value == 0.0), name.starts_with("unused"), "{name}");
    }
}

#[test]
fn frozen_parameters_stay_as_they_are() {
    let mut network = one_input(Shape::features(4), |graph, x| {
        let y = graph.add("first", Linear::new(5), &[x])?;
        graph.add("second", Linear::new(3), &[y])
    });
    assert_eq!(network.freeze(|name| name.starts_with("first.")), 2);
    let mut replica = replica(network);
    let before = replica.weights();
    replica.begin_step();
    replica.micro_batch(&values(SAMPLES * 4, 1), &[0, 1, 2, 0, 1, 2], 1.0, true, &mut |_, _| {});
    replica.update(1, 0.1);
    replica.finish_step();
    for (before, after) in before.iter().zip(replica.weights()) {
        assert_eq!(*before == after, before.name.starts_with("first."), "{}", after.name);
    }
}

/// With momentum 1 the running statistics are those of the newest batch, so evaluation makes of it
/// nearly what training made: its variance is the one without bias.
#[test]
fn evaluation_normalises_by_the_running_statistics() {
    let norm = BatchNorm { momentum: 1.0, ..BatchNorm::new() };
    let network = one_input(Shape::image(2, 9, 8), |graph, x| {
        let y = graph.add("conv", Conv2d::new(4, 3).padding(1), &[x])?;
        let y = graph.add("bn", norm, &[y])?;
        let z = graph.join(Add, &[y, y])?;
        let z = graph.then(GlobalAveragePool, z)?;
        graph.add("fc", Linear::new(3), &[z])
    });
    let mut replica = replica(network);
    let (images, labels) = (values(SAMPLES * 144, 1), [0, 1, 2, 0, 1, 2]);
    let untrained = replica.evaluate(&images, &labels).loss_sum;
    replica.begin_step();
    replica.micro_batch(&images, &labels, 1.0 / SAMPLES as f32, true, &mut |_, _| {});
    replica.update(1, 0.0);
    let trained = replica.finish_step().loss_sum;
    let evaluated = replica.evaluate(&images, &labels).loss_sum;
    assert!((trained - evaluated).abs() < 2e-3 * trained, "{trained} in training, {evaluated} in evaluation");
    assert!((untrained - evaluated).abs() > 2e-3 * trained, "{untrained} before, {evaluated} after");
}

#[test]
fn predictions_are_what_evaluation_judges() {
    let network = one_input(Shape::features(4), |graph, x| graph.add("fc", Linear::new(3), &[x]));
    let mut replica = replica(network);
    // More samples than a micro-batch has.
    let x = values(4 * (SAMPLES + 3), 1);
    let predictions = replica.predict(&x);
    assert_eq!(predictions.len(), 3 * (SAMPLES + 3));
    let best = |row: &[f32]| (0..3).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("three classes") as u32;
    let labels: Vec<u32> = predictions.chunks(3).map(best).collect();
    assert_eq!(replica.evaluate(&x, &labels).correct, labels.len() as u64);
}

#[test]
fn a_residual_network_learns_a_small_set_by_heart() {
    let network = lockstep_nn::models::resnet20(Shape::image(3, 8, 8), 10).expect("images are large enough");
    let buckets = network.table().ready_order();
    let mut replica = Replica::new(Cpu::new(), network, SGD_WITHOUT_DECAY, 20, buckets).expect("ranges tile the arena");
    replica.initialise(1);
    let (images, labels) = (values(20 * 192, 5), (0..20).map(|sample| sample % 10).collect::<Vec<u32>>());
    let mut losses = Vec::new();
    for step in 1..=60 {
        replica.begin_step();
        replica.micro_batch(&images, &labels, 0.05, true, &mut |_, _| {});
        replica.update(step, 0.05);
        losses.push(replica.finish_step().loss_sum / 20.0);
    }
    assert!(losses[0] > 1.5 && losses[59] < 0.05, "{losses:?}");
    let evaluated = replica.evaluate(&images, &labels);
    assert_eq!(evaluated.correct, 20, "by the running statistics: {}", evaluated.loss_sum);
}
