//! Memory and operations of one replica, planned once from the network and the largest micro-batch.

use std::sync::Arc;

use crate::arena::LINE_ELEMENTS;
use crate::device::{
    Convolution, Device, Form, Gradients, Linear, Memory, Parameter, Region, SAMPLE_LANES, SoftmaxCrossEntropy, Tally,
    Tensor, Upload,
};
use crate::network::{Block, BlockKind, Network, Shape};
use crate::parameters::{ParamMeta, ParamTable};

/// Everything that steps need, allocated.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) weights: Memory,
    pub(crate) gradients: Memory,
    /// The optimiser's slots, in its order.
    pub(crate) slots: Arc<[Memory]>,
    pub(crate) norms: Memory,
    pub(crate) upload: Upload,
    /// In forward order.
    pub(crate) stages: Vec<Stage>,
    pub(crate) training_loss: SoftmaxCrossEntropy,
    pub(crate) evaluation_loss: SoftmaxCrossEntropy,
}

/// One block's operations.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Convolution(Convolution),
    Linear(Linear),
}

impl Plan {
    /// Allocates on `device` for micro-batches of up to `max_micro_batch` samples.
    pub(crate) fn new<D: Device>(
        device: &mut D,
        network: &Network,
        table: &ParamTable,
        slots: usize,
        max_micro_batch: usize,
    ) -> Plan {
        let arena = |device: &mut D| device.allocate(table.elements());
        let (weights, gradients) = (arena(device), arena(device));
        let slots = (0..slots).map(|_| arena(device)).collect();
        let norms = device.allocate(table.parameters().len());
        let mut planner =
            Planner { device, capacity: max_micro_batch.next_multiple_of(SAMPLE_LANES).max(SAMPLE_LANES) };

        let blocks = network.blocks();
        // points[i] lies before block i, the last one holds the logits.
        let readers = blocks.iter().map(|block| (block.input, Reader::of(block)));
        let readers = readers.chain(blocks.last().map(|block| (block.output, Reader::FEATURES)));
        let points: Vec<Tensor> = readers.map(|(shape, reader)| planner.tensor(shape, reader)).collect();
        let point_gradients: Vec<Option<Tensor>> =
            points.iter().enumerate().map(|(index, point)| (index > 0).then(|| planner.gradient(point))).collect();
        let parameter = |block: &Block, role: &str| {
            let name = format!("{}.{role}", block.name);
            let ParamMeta { range, .. } = table.get(&name).unwrap_or_else(|| panic!("the table lacks {name}"));
            Parameter { values: weights.region(range.clone()), gradient: gradients.region(range.clone()) }
        };
        let mut stages: Vec<Stage> = Vec::new();
        let workspace = weights.region(0..0);
        for (index, block) in blocks.iter().enumerate() {
            // The output of block `index` is the input of the next, seen with the shape that this block gives it.
            let Some(output_gradient) = point_gradients[index + 1] else { continue };
            let given = |tensor: Tensor| given_as(tensor, block.output);
            let (input, output) = (points[index], given(points[index + 1]));
            let gradients = Gradients { output: given(output_gradient), input: point_gradients[index] };
            let (weight, bias, relu) = (parameter(block, "weight"), parameter(block, "bias"), block.relu);
            stages.push(match block.kind {
                BlockKind::Convolution { kernel, .. } => Stage::Convolution(Convolution {
                    input,
                    output,
                    gradients,
                    weight,
                    bias,
                    kernel,
                    relu,
                    window: if block.pooled { 2 } else { 1 },
                    switches: planner.region(block.output.elements() * planner.capacity),
                    workspace,
                }),
                BlockKind::Linear => Stage::Linear(Linear { input, output, gradients, weight, bias, relu, workspace }),
            });
        }
        planner.share_workspace(&mut stages);

        let labels = planner.region(planner.capacity);
        let loss =
            |gradient, tally: Tally| SoftmaxCrossEntropy { logits: points[blocks.len()], gradient, labels, tally };
        let training_loss = loss(point_gradients[blocks.len()], planner.device.allocate_tally());
        let evaluation_loss = loss(None, planner.device.allocate_tally());
        let upload = Upload { images: points[0], labels, classes: network.classes() };
        Plan { weights, gradients, slots, norms, upload, stages, training_loss, evaluation_loss }
    }
}

/// How the operation that reads a tensor wants it.
#[derive(Clone, Copy)]
struct Reader {
    form: Form,
    halo: usize,
}

impl Reader {
    const FEATURES: Reader = Reader { form: Form::Features, halo: 0 };

    fn of(block: &Block) -> Reader {
        match block.kind {
            BlockKind::Convolution { padding, .. } => Reader { form: Form::Images, halo: padding },
            BlockKind::Linear => Reader::FEATURES,
        }
    }
}

/// The same storage with the writer's shape: features that a convolution writes keep its channels, rows and columns.
fn given_as(tensor: Tensor, shape: Shape) -> Tensor {
    let Shape { channels, height, width } = shape;
    Tensor { channels, height, width, ..tensor }
}

struct Planner<'a, D> {
    device: &'a mut D,
    capacity: usize,
}

impl<D: Device> Planner<'_, D> {
    fn region(&mut self, elements: usize) -> Region {
        self.device.allocate(elements.next_multiple_of(LINE_ELEMENTS)).region(0..elements)
    }

    fn tensor(&mut self, shape: Shape, reader: Reader) -> Tensor {
        let Shape { channels, height, width } = shape;
        let Reader { form, halo } = reader;
        let unplaced = Memory(usize::MAX).region(0..0);
        let mut tensor = Tensor { region: unplaced, channels, height, width, halo, form, capacity: self.capacity };
        tensor.region = self.region(tensor.elements());
        tensor
    }

    fn gradient(&mut self, of: &Tensor) -> Tensor {
        let shape = Shape { channels: of.channels, height: of.height, width: of.width };
        self.tensor(shape, Reader { form: of.form, halo: 0 })
    }

    /// Operations run one after the other, so the largest workspace serves all.
    fn share_workspace(&mut self, stages: &mut [Stage]) {
        let wanted = stages.iter().map(|stage| match stage {
            Stage::Convolution(operation) => self.device.convolution_workspace(operation),
            Stage::Linear(operation) => self.device.linear_workspace(operation),
        });
        let elements = wanted.max().unwrap_or(0);
        let shared = self.region(elements);
        for stage in stages {
            match stage {
                Stage::Convolution(operation) => operation.workspace = shared,
                Stage::Linear(operation) => operation.workspace = shared,
            }
        }
    }
}
