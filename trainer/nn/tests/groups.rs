//! What belongs to a sample or a virtual shard does not depend on the micro-batch or the worker
//! that has it.

use lockstep_nn::layers::{
    Activation, BatchNorm, Conv2d, Dropout, Flatten, GlobalAveragePool, Linear, SoftmaxCrossEntropy,
};
use lockstep_nn::{Batch, Cpu, Graph, Network, Optimizer, Replica, Shape, Values, models, optimizers::Sgd};

const SAMPLES: usize = 16;
const SHARD: usize = 4;

fn replica(network: Network) -> Replica<Cpu> {
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });
    let everything = std::iter::once(0..network.table().elements()).collect();
    let mut replica = Replica::new(Cpu::new(), network, sgd, SAMPLES, everything).expect("one bucket");
    replica.initialise(3);
    // The last norm of a residual block begins with 0, which would hide what lies before it.
    let mut weights = replica.weights();
    for tensor in weights.iter_mut().filter(|tensor| tensor.shape.len() == 1 && !tensor.name.contains("running")) {
        tensor.values.iter_mut().for_each(|value| *value += 0.3);
    }
    replica.load_tensors(&weights).expect("the same network");
    replica
}

struct Data {
    images: Vec<f32>,
    labels: Vec<u32>,
}

fn data(network: &Network) -> Data {
    let elements = network.input().elements();
    let image = |index: usize| ((index * 7919 % 1009) as f32 / 504.5 - 1.0) * (1.0 + (index / elements % 3) as f32);
    Data {
        images: (0..SAMPLES * elements).map(image).collect(),
        labels: (0..SAMPLES * labels_a_sample(network)).map(|label| (label * 7 % network.classes()) as u32).collect(),
    }
}

/// Returns 1, or the number of pixels if each has a label.
fn labels_a_sample(network: &Network) -> usize {
    let output = network.shape(network.output());
    output.height * output.width
}

/// The gradients of one worker that has the samples from `first` on, in micro-batches of these
/// sizes.
fn gradients(replica: &mut Replica<Cpu>, data: &Data, first: usize, sizes: &[usize]) -> Vec<f32> {
    let elements = replica.network().input().elements();
    let labels = labels_a_sample(replica.network());
    let mut gradients = Vec::new();
    replica.set_dice(5, 9);
    replica.begin_step();
    let mut start = first;
    for (index, size) in sizes.iter().enumerate() {
        let run = start..start + size;
        let inputs = [Values::F32(&data.images[run.start * elements..run.end * elements])];
        let targets = [Values::U32(&data.labels[run.start * labels..run.end * labels])];
        let ends: Vec<u32> = (1..=size / SHARD).map(|shard| (shard * SHARD) as u32).collect();
        let keys: Vec<u64> = run.clone().map(|sample| sample as u64).collect();
        let batch = Batch { group_ends: &ends, keys: &keys, ..Batch::new(&inputs, &targets, *size) };
        let last = index + 1 == sizes.len();
        replica.micro_batch_of(&batch, 1.0 / SAMPLES as f32, last, &mut |_, mut bucket| {
            gradients.extend_from_slice(bucket.as_mut());
        });
        start = run.end;
    }
    replica.finish_step();
    gradients
}

fn assert_equal_sums(network: Network) {
    let data = data(&network);
    let mut replica = replica(network);
    let whole = gradients(&mut replica, &data, 0, &[SAMPLES]);
    let largest = whole.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    assert!(largest > 1e-4, "{largest}");
    for shares in [&[&[4, 8, 4][..]][..], &[&[8], &[8]], &[&[4, 4], &[4], &[4]]] {
        let mut sum = vec![0.0; whole.len()];
        let mut first = 0;
        for share in shares {
            let own = gradients(&mut replica, &data, first, share);
            sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            first += share.iter().sum::<usize>();
        }
        let furthest = whole.iter().zip(&sum).map(|(whole, sum)| (whole - sum).abs()).fold(0.0, f32::max);
        assert!(furthest <= 1e-5 * largest, "{shares:?}: {furthest} of {largest}");
    }
}

fn normalised() -> Network {
    let mut graph = Graph::new();
    let x = graph.input(Shape::image(2, 6, 5));
    let built = (|| {
        let x = graph.add("conv", Conv2d::new(5, 3).padding(1), &[x])?;
        let x = graph.add("bn", BatchNorm::new(), &[x])?;
        let x = graph.then(Activation::relu(), x)?;
        let x = graph.then(GlobalAveragePool, x)?;
        let x = graph.add("fc", Linear::new(3), &[x])?;
        graph.loss(SoftmaxCrossEntropy::default(), x)
    })();
    built.expect("the layers fit");
    graph.build().expect("a network")
}

#[test]
fn workers_that_share_a_batch_in_shards_have_the_gradients_of_one() {
    assert_equal_sums(normalised());
}

/// The smallest images on which a test of a model says something.
fn toy_input(model: &str) -> Shape {
    match model {
        "perceptron" | "mlp" | "mlp25m" => Shape::image(1, 8, 8),
        "lenet5" | "unet" => Shape::image(1, 16, 16),
        "resnet20" | "resnet32" | "resnet56" => Shape::image(3, 8, 8),
        "alexnet" => Shape::image(3, 64, 64),
        _ => Shape::image(3, 32, 32),
    }
}

#[test]
fn so_have_those_of_every_model() {
    for model in models::MODELS {
        println!("{}", model.name);
        assert_equal_sums((model.build)(toy_input(model.name), 5).expect("images are large enough"));
    }
}

#[test]
fn dice_are_those_of_the_sample_whoever_has_it() {
    let mut graph = Graph::new();
    let x = graph.input(Shape::image(1, 4, 4));
    let built = (|| {
        let x = graph.then(Flatten, x)?;
        let x = graph.then(Dropout::new(0.5), x)?;
        let x = graph.add("fc", Linear::new(3), &[x])?;
        graph.loss(SoftmaxCrossEntropy::default(), x)
    })();
    built.expect("the layers fit");
    assert_equal_sums(graph.build().expect("a network"));
}

/// The running statistics move to the average of the shards', however many workers there are.
#[test]
fn running_statistics_are_those_of_the_whole_batch() {
    let network = normalised();
    let data = data(&network);
    let mut replica = replica(network);
    let range = |replica: &Replica<Cpu>, name: &str| replica.table().get(name).expect("a norm").range.clone();
    let (mean, variance) = (range(&replica, "bn.running_mean"), range(&replica, "bn.running_var"));
    let whole = gradients(&mut replica, &data, 0, &[SAMPLES]);
    replica.take_gradients(&whole);
    replica.update(1, 0.0);
    replica.finish_step();
    let state = replica.tensors();
    let running = |name: &str| state.iter().find(|tensor| tensor.name == name).expect("a statistic").values.clone();
    for (found, own) in running("bn.running_mean").iter().zip(&whole[mean]) {
        assert!((found - 0.1 * own).abs() < 1e-6, "{found} {own}");
    }
    for (found, own) in running("bn.running_var").iter().zip(&whole[variance]) {
        assert!(*own > 0.0 && (found - (0.9 + 0.1 * own)).abs() < 1e-6, "{found} {own}");
    }
    assert!(!state.iter().any(|tensor| tensor.name.starts_with("bn.running") && tensor.name.ends_with("buffer")));
}
