//! Layers and losses against outputs and gradients that PyTorch computed: tests/recorded/layers.py.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Linear;
use crate::{
    batch::Batch,
    description::{Description, LayerSpec, LossSpec},
    device::{Cpu, Device, Values},
    dtype::DType,
    graph::Graph,
    kernels::Instructions,
    optimizers::{Optimizer, Sgd},
    planner::Options,
    replica::Replica,
    shape::Shape,
};

const RECORDED: &str = include_str!("../../tests/recorded/layers.json");
/// Relative to the largest value of the same tensor: PyTorch computed in f64, this crate in f32.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    layers: Vec<LayerSpec>,
    loss: LossSpec,
    classes: usize,
    shape: [usize; 3],
    x: Vec<f32>,
    targets: Vec<f32>,
    parameters: BTreeMap<String, Vec<f32>>,
    y: Vec<f32>,
    total: f64,
    dx: Vec<f32>,
    gradients: BTreeMap<String, Vec<f32>>,
    after: BTreeMap<String, Vec<f32>>,
}

impl Case {
    fn replica(&self, instructions: Instructions) -> Replica<Cpu> {
        let [channels, height, width] = self.shape;
        let mut graph = Graph::new();
        let x = graph.input(Shape::image(channels, height, width));
        let description = Description { layers: self.layers.clone(), loss: self.loss.clone() };
        let y = description.add_layers(&mut graph, x, self.classes).expect("the layers fit");
        let shape = graph.shape(y);
        graph.loss(self.loss.loss(shape), y).expect("the loss fits");
        // A network has a parameter in any case.
        let beside = graph.input(Shape::features(1));
        graph.add("beside", Linear::new(1), &[beside]).expect("features");
        let network = graph.build().expect("a network");
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });
        let options = Options {
            slots: 1,
            max_micro_batch: 2,
            fuse: true,
            keep_all: true,
            precision: crate::precision::Precision::F32,
        };
        let buckets = network.table().ready_order();
        let cpu = Cpu::with_instructions(instructions);
        let mut replica = Replica::with_options(cpu, network, sgd, buckets, options).expect("ranges tile the arena");
        let mut weights = replica.weights();
        for tensor in &mut weights {
            if let Some(values) = self.parameters.get(&tensor.name) {
                tensor.values.clone_from(values);
            }
        }
        replica.load_tensors(&weights).expect("the same network");
        replica
    }

    fn check(&self, instructions: Instructions) {
        let mut replica = self.replica(instructions);
        let labels: Vec<u32> = self.targets.iter().map(|target| *target as u32).collect();
        let is_labels = replica.plan.targets[0].tensor.region.memory.dtype == DType::U32;
        let targets = [if is_labels { Values::U32(&labels) } else { Values::F32(&self.targets) }];
        let inputs = [Values::F32(&self.x), Values::F32(&[0.0; 2])];
        replica.begin_step();
        replica.micro_batch_of(&Batch::new(&inputs, &targets, 2), 1.0, true, &mut |_, _| {});
        let mut y = vec![0.0; self.y.len()];
        let output = replica.plan.output;
        replica.device.download(&output, &mut y);
        self.compare("the output", &y, &self.y);
        let dx = replica.plan.value_gradient(replica.network().inputs()[0]).expect("inputs have gradients in tests");
        let mut found = vec![0.0; self.dx.len()];
        replica.device.download(&dx, &mut found);
        self.compare("the input's gradient", &found, &self.dx);
        for (name, gradient) in &self.gradients {
            let parameter = replica.table.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name)).clone();
            let mut found = vec![0.0; gradient.len()];
            replica.device.read(replica.plan.gradients.region(parameter.range), &mut found);
            self.compare(name, &found, gradient);
        }
        // The batch that was recorded is the whole one: its statistics count once.
        let statistics_of = |found: &[f32]| found.iter().map(|value| value * 0.5).collect::<Vec<_>>();
        for (name, after) in &self.after {
            let parameter = replica.table.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name)).clone();
            let mut found = vec![0.0; after.len()];
            replica.device.read(replica.plan.gradients.region(parameter.range), &mut found);
            let before = &self.parameters[name];
            let moved = before.iter().zip(statistics_of(&found)).map(|(before, own)| before + 0.1 * (own - before));
            self.compare(name, &moved.collect::<Vec<_>>(), after);
        }
        let total = replica.finish_step().loss_sum;
        assert!((total - self.total).abs() <= 1e-5 * self.total, "{}: loss {total}, not {}", self.name, self.total);
    }

    fn compare(&self, what: &str, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{}: {what}", self.name);
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            assert!(
                error <= TOLERANCE * largest + 1e-7,
                "{}: {what}[{index}] is {found}, not {expected} (largest {largest})",
                self.name
            );
        }
    }
}

#[test]
fn outputs_and_gradients_are_those_of_pytorch_on_every_instruction_set() {
    let cases: Vec<Case> = serde_json::from_str(RECORDED).expect("what the script wrote");
    assert!(cases.len() >= 27, "{} cases", cases.len());
    let all = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];
    for instructions in all.into_iter().filter(|instructions| instructions.available()) {
        cases.iter().for_each(|case| case.check(instructions));
    }
}
