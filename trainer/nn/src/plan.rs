//! Memory and operations of one replica, planned once from the network and the largest micro-batch.

use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::dtype::DType;
use crate::fusion::Fusions;
use crate::gradient_sharing::SharedGradients;
use crate::graph::{Network, Value};
use crate::layers::{Gradients, Mode, Operands};
use crate::memory::{Memory, Region, Tally, Tensor};
use crate::op::{Adding, Cast, Op, Sum, Written};
use crate::parameters::{ParamTable, Role};
use crate::planner::{Options, Planner, Target, parameter_regions, reshaped};
use crate::precision::Precision;

/// Everything that steps need, allocated.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) weights: Memory,
    pub(crate) gradients: Memory,
    /// The weights in 16 bits that products read, if they do not read the masters.
    pub(crate) cast: Option<Cast>,
    /// The optimiser's slots, in its order.
    pub(crate) slots: Arc<[Memory]>,
    pub(crate) norms: Memory,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) targets: Vec<Target>,
    /// The end of each group of samples.
    pub(crate) group_ends: Region,
    /// Two words for each sample.
    pub(crate) sample_keys: Region,
    /// The first loss's prediction.
    pub(crate) output: Tensor,
    pub(crate) training: Vec<Op>,
    pub(crate) evaluation: Vec<Op>,
    pub(crate) training_tally: Tally,
    pub(crate) evaluation_tally: Tally,
    graph: Planned,
}

/// An operation of backward.
#[derive(Debug, Clone)]
pub(crate) struct Scheduled {
    pub(crate) op: Op,
    /// The gradient arena is final up to this element once the operation is done.
    pub(crate) ready: usize,
}

/// The parts from which backward is made.
#[derive(Debug)]
struct Planned {
    operands: Vec<Option<Operands>>,
    /// By value; that of the value whose memory it has.
    value_gradients: Vec<Option<Tensor>>,
    /// By node.
    parameter_gradients: Vec<Vec<(&'static str, Region)>>,
    /// Losses that write each value's gradient in forward.
    written_by_losses: Vec<usize>,
    fusions: Fusions,
    shared: SharedGradients,
}

impl Plan {
    /// Allocates on `device`.
    pub(crate) fn new<D: Device>(device: &mut D, network: &Network, table: &ParamTable, options: Options) -> Plan {
        let arena = |device: &mut D| device.allocate(DType::F32, table.elements());
        let (weights, gradients) = (arena(device), arena(device));
        let slots = (0..options.slots).map(|_| arena(device)).collect();
        let norms = device.allocate(DType::F32, table.parameters().len());
        let cast = cast(device, table, options.precision, weights);
        let of_role = |role: Role| match &cast {
            Some(cast) if role == Role::Weight => cast.into,
            _ => weights,
        };
        let mut planner = Planner::new(device, network, table, options);
        let group_ends = planner.region(DType::U32, options.max_micro_batch);
        let sample_keys = planner.region(DType::U32, 2 * options.max_micro_batch);
        let (values, value_gradients) = planner.tensors();
        let operands = planner.operands(&values, of_role, group_ends, sample_keys);
        let fusions = &planner.fusions;
        let forward = |mode: Mode| {
            let mut ops = Vec::new();
            for (number, (node, operands)) in network.nodes().iter().zip(&operands).enumerate() {
                let Some(operands) = operands else { continue };
                if mode == Mode::Training || !fusions.is_folded(number) {
                    node.layer.rule().forward(operands, mode, &mut ops);
                }
            }
            ops
        };
        let (mut training, mut evaluation) = (forward(Mode::Training), forward(Mode::Evaluation));
        let memory_of = fusions.memory_of.clone();
        let targets = planner.targets();
        let [training_tally, evaluation_tally] = [(); 2].map(|()| planner.device.allocate_tally());
        let mut written_by_losses = vec![0; network.values()];
        for criterion in network.criteria() {
            let root = memory_of[criterion.prediction.0].0;
            let gradient = value_gradients[root].map(|into| {
                let adding = if written_by_losses[root] == 0 { Adding::Never } else { Adding::Always };
                written_by_losses[root] += 1;
                Sum { into: reshaped(into, network.shape(criterion.prediction)), adding }
            });
            let mut judged = planner.judged(criterion, &values, &targets, training_tally);
            judged.gradient = gradient;
            training.push(criterion.loss.rule().operation(&judged));
            if !criterion.is_auxiliary {
                (judged.gradient, judged.tally) = (None, evaluation_tally);
                evaluation.push(criterion.loss.rule().operation(&judged));
            }
        }
        let planned = Planned {
            parameter_gradients: parameter_regions(network, table, |_| gradients),
            operands,
            value_gradients: (0..network.values())
                .map(|value| {
                    value_gradients[memory_of[value].0].map(|into| reshaped(into, network.shape(Value(value))))
                })
                .collect(),
            written_by_losses,
            fusions: planner.fusions,
            shared: planner.shared,
        };
        let plan = Plan {
            weights,
            gradients,
            cast,
            slots,
            norms,
            inputs: network.inputs().iter().map(|input| values[input.0]).collect(),
            targets,
            group_ends,
            sample_keys,
            output: values[network.output().0],
            training,
            evaluation,
            training_tally,
            evaluation_tally,
            graph: planned,
        };
        let backward = plan.backward(network, table, &table.ready_order());
        let all = plan.training.iter().chain(&plan.evaluation).chain(backward.iter().map(|scheduled| &scheduled.op));
        all.for_each(|op| device.reserve(op, options.max_micro_batch));
        plan
    }

    /// What a node's operations write, and they; none where another's compute it.
    pub(crate) fn node(&self, network: &Network, number: usize, mode: Mode) -> Option<(Tensor, Vec<Op>)> {
        let operands = self.graph.operands[number].as_ref()?;
        let mut ops = Vec::new();
        network.nodes()[number].layer.rule().forward(operands, mode, &mut ops);
        Some((operands.output, ops))
    }

    /// The memory for the gradient of a value.
    #[cfg(test)]
    pub(crate) fn value_gradient(&self, value: Value) -> Option<Tensor> {
        self.graph.value_gradients[value.0]
    }

    /// The operations of backward, for buckets that end where these do.
    pub(crate) fn backward(&self, network: &Network, table: &ParamTable, buckets: &[Range<usize>]) -> Vec<Scheduled> {
        let planned = &self.graph;
        let memory_of = &planned.fusions.memory_of;
        let mut contributions = planned.written_by_losses.clone();
        // Of parameters that several nodes share, the last of these contributes first.
        let mut is_begun = vec![false; network.nodes().len()];
        let mut ops = Vec::new();
        for (number, node) in network.nodes().iter().enumerate().rev() {
            let Some(operands) = &planned.operands[number] else { continue };
            let Some(dy) = planned.value_gradients[planned.fusions.made_by(number, node).0] else { continue };
            // No loss depends on what nothing contributes to.
            if contributions[memory_of[node.output.0].0] == 0 {
                continue;
            }
            let weight = table.get(&format!("{}.weight", network.owner(node)));
            let row_parts = weight.map_or_else(Vec::new, |weight| {
                let row = weight.shape.iter().skip(1).product::<usize>().max(1);
                let parts = wanted_parts(table.row_parts(weight), buckets);
                let start = weight.range.start;
                parts.into_iter().map(|part| (part.start - start) / row..(part.end - start) / row).collect()
            });
            let mut dx = |input: usize| {
                let value = node.inputs[input];
                let into = planned.value_gradients[value.0]?;
                let count = &mut contributions[memory_of[value.0].0];
                let adding = if *count == 0 { Adding::Never } else { Adding::Always };
                *count += 1;
                (!planned.shared.is_passed_on(number, input)).then_some(Sum { into, adding })
            };
            let owner = node.shares.unwrap_or(number);
            let parameter = |name: &str| {
                let regions = &planned.parameter_gradients[number];
                let found = regions.iter().find(|(other, _)| *other == name);
                let into = found.unwrap_or_else(|| panic!("{} has no {name}", node.name)).1;
                let adding = if is_begun[owner] { Adding::Always } else { Adding::AfterFirst };
                Sum { into, adding }
            };
            let mut gradients = Gradients { dy, dx: &mut dx, parameter: &parameter, row_parts };
            node.layer.rule().backward(operands, &mut gradients, &mut ops);
            is_begun[owner] = true;
        }
        self.with_readiness(ops, table)
    }

    /// An element is final once the last operation that writes it is done; the arena is ready up to
    /// the first that is not.
    fn with_readiness(&self, ops: Vec<Op>, table: &ParamTable) -> Vec<Scheduled> {
        let mut last_writers: Vec<(Range<usize>, usize)> = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            op.each_written(&mut |written| {
                if let Written::Region(region) = written
                    && region.memory == self.gradients
                {
                    last_writers.push((region.range(), index));
                }
            });
        }
        let parts = finest_parts(&last_writers, table.elements());
        let mut final_after = vec![0; parts.len()];
        for (range, index) in &last_writers {
            let first = parts.partition_point(|part| part.end <= range.start);
            for (part, last) in parts.iter().zip(&mut final_after).skip(first) {
                if part.start >= range.end {
                    break;
                }
                *last = (*last).max(*index);
            }
        }
        let (mut next, mut ready) = (0, 0);
        let scheduled = ops.into_iter().enumerate().map(|(index, op)| {
            while next < parts.len() && final_after[next] <= index {
                ready = parts[next].end;
                next += 1;
            }
            Scheduled { op, ready }
        });
        scheduled.collect()
    }
}

/// Memory for the weights of products in 16 bits.
fn cast<D: Device>(device: &mut D, table: &ParamTable, precision: Precision, weights: Memory) -> Option<Cast> {
    match precision {
        Precision::F32 => None,
        Precision::Bf16 | Precision::F16 => {
            let multiply = table.parameters().iter().filter(|parameter| parameter.role == Role::Weight);
            let ranges = multiply.map(|parameter| parameter.range.clone()).collect();
            Some(Cast { from: weights, into: device.allocate(precision.dtype(), table.elements()), ranges })
        }
    }
}

/// Cuts of the arena at every edge of a written range: each part is written as a whole or not at
/// all.
fn finest_parts(written: &[(Range<usize>, usize)], elements: usize) -> Vec<Range<usize>> {
    let mut edges: Vec<usize> = written.iter().flat_map(|(range, _)| [range.start, range.end]).collect();
    edges.extend([0, elements]);
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).map(|edges| edges[0]..edges[1]).collect()
}

/// Parts that no bucket ends in go with the next one.
fn wanted_parts(parts: Vec<Range<usize>>, buckets: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut wanted: Vec<Range<usize>> = Vec::new();
    let mut start = parts.first().map_or(0, |part| part.start);
    let end = parts.last().map_or(0, |part| part.end);
    for part in parts {
        // The bucket that holds the next element to be computed.
        let bucket = buckets.partition_point(|bucket| bucket.end <= start);
        let awaited = buckets.get(bucket).map_or(usize::MAX, |bucket| bucket.end);
        if part.end >= awaited || part.end == end {
            wanted.push(start..part.end);
            start = part.end;
        }
    }
    wanted
}
