//! Memory of one replica: where values, gradients and parameters lie, and what each layer's
//! operations work on.

use crate::arena::LINE_ELEMENTS;
use crate::device::{Device, Values};
use crate::dtype::DType;
use crate::fusion::Fusions;
use crate::gradient_sharing::SharedGradients;
use crate::graph::{Criterion, Network, Node, Value};
use crate::layers::{Folded, Judged, Layer, Operands};
use crate::memory::{Form, LANES, Memory, Region, Tally, Tensor};
use crate::op::FoldedNorm;
use crate::parameters::{ParamTable, Role};
use crate::placement::{Placement, without_halo};
use crate::precision::Precision;
use crate::shape::Shape;

/// The memory for a sample's targets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) tensor: Tensor,
    /// Labels must be smaller than this.
    pub(crate) classes: usize,
    pub(crate) ignored: Option<u32>,
}

impl Target {
    /// True if a label is one that the loss takes.
    pub(crate) fn takes(&self, label: u32) -> bool {
        (label as usize) < self.classes || Some(label) == self.ignored
    }
}

/// How a plan is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) slots: usize,
    pub(crate) max_micro_batch: usize,
    pub(crate) fuse: bool,
    /// True if gradients of inputs are computed, too, and nothing's memory is reused: for tests.
    pub(crate) keep_all: bool,
    pub(crate) precision: Precision,
}

/// For each node where its parameters lie in the arenas, by their roles.
pub(crate) fn parameter_regions(
    network: &Network,
    table: &ParamTable,
    arena: impl Fn(Role) -> Memory,
) -> Vec<Vec<(&'static str, Region)>> {
    let of_node = |node: &Node| {
        let specs = node.layer.rule().parameters(&network.input_shapes(node));
        let region = |name: &'static str| {
            let name_in_table = format!("{}.{name}", network.owner(node));
            let parameter = table.get(&name_in_table).unwrap_or_else(|| panic!("the table lacks {name_in_table}"));
            (name, arena(parameter.role).region(parameter.range.clone()))
        };
        specs.into_iter().map(|spec| region(spec.name)).collect()
    };
    network.nodes().iter().map(of_node).collect()
}

/// Gives memory to one network.
pub(crate) struct Planner<'a, D> {
    pub(crate) device: &'a mut D,
    network: &'a Network,
    table: &'a ParamTable,
    options: Options,
    pub(crate) fusions: Fusions,
    pub(crate) shared: SharedGradients,
}

impl<'a, D: Device> Planner<'a, D> {
    pub(crate) fn new(device: &'a mut D, network: &'a Network, table: &'a ParamTable, options: Options) -> Self {
        let blocks = device.has_blocks() && !options.keep_all;
        let (fusions, shared) = if options.fuse {
            let fusions = Fusions::of(network, blocks);
            let shared = SharedGradients::of(network, &fusions, options.keep_all);
            (fusions, shared)
        } else {
            (Fusions::none(network), SharedGradients::none(network))
        };
        Planner { device, network, table, options, fusions, shared }
    }

    pub(crate) fn region(&mut self, dtype: DType, elements: usize) -> Region {
        self.device.allocate(dtype, elements.next_multiple_of(LINE_ELEMENTS)).region(0..elements)
    }

    /// Memory of values and of their gradients, by value; those of a value with another's memory
    /// are that one's.
    pub(crate) fn tensors(&mut self) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
        let Planner { network, options, .. } = *self;
        let most = options.max_micro_batch;
        let placement = Placement::of(network, &self.fusions, &self.shared, most, options.keep_all);
        let dtype = options.precision.dtype();
        let memory = self.device.allocate(dtype, placement.total.next_multiple_of(LINE_ELEMENTS));
        let tensor = |value: usize, at: usize, form: Form| {
            let region = memory.region(placement.range(at));
            Tensor { region, shape: network.shape(Value(value)), form }
        };
        let mut own = vec![None; network.values()];
        for (value, own) in own.iter_mut().enumerate() {
            if self.fusions.memory_of[value] != Value(value) {
                continue;
            }
            let form = self.fusions.forms[value];
            *own = Some(match placement.values[value] {
                Some(at) => tensor(value, at, form),
                None => {
                    let shape = network.shape(Value(value));
                    Tensor { region: self.region(dtype, form.elements(shape, most)), shape, form }
                }
            });
        }
        let shared = |value: usize| {
            let root = own[self.fusions.memory_of[value].0];
            reshaped(root.unwrap_or_else(|| panic!("value {value} has no memory")), network.shape(Value(value)))
        };
        let values = (0..network.values()).map(shared).collect();
        let gradient = |value: usize| {
            let own = self.shared.memory_of[value].0;
            placement.gradients[own].map(|at| tensor(own, at, without_halo(self.fusions.forms[own])))
        };
        let gradients = (0..network.values()).map(gradient).collect();
        (values, gradients)
    }

    pub(crate) fn operands(
        &mut self,
        values: &[Tensor],
        weights: impl Fn(Role) -> Memory,
        group_ends: Region,
        sample_keys: Region,
    ) -> Vec<Option<Operands>> {
        let parameters = parameter_regions(self.network, self.table, weights);
        let mut operands = Vec::new();
        for (number, node) in self.network.nodes().iter().enumerate() {
            if self.fusions.is_absorbed[number] {
                operands.push(None);
                continue;
            }
            let kept = node.layer.rule().kept(&self.network.input_shapes(node), self.network.shape(node.output));
            let most = self.options.max_micro_batch;
            let kept = kept.into_iter().map(|kept| self.region(kept.dtype, kept.elements_a_sample * most)).collect();
            let output = values[self.fusions.made_by(number, node).0];
            let switches = self.fusions.is_block[number].then(|| {
                let elements = output.shape.elements() * most.next_multiple_of(LANES);
                self.region(DType::F32, elements)
            });
            operands.push(Some(Operands {
                inputs: node.inputs.iter().map(|value| values[value.0]).collect(),
                output,
                switches,
                parameters: parameters[number].clone(),
                kept,
                relu: self.fusions.takes_relu[number],
                folded: self.folded(number, values, &parameters),
                number: u32::try_from(number).unwrap_or(u32::MAX),
                group_ends,
                sample_keys,
            }));
        }
        operands
    }

    /// The batch norm that evaluation computes with a convolution.
    fn folded(
        &self,
        convolution: usize,
        values: &[Tensor],
        parameters: &[Vec<(&'static str, Region)>],
    ) -> Option<Folded> {
        let number = self.fusions.norm_behind[convolution]?;
        let node = &self.network.nodes()[number];
        let Layer::BatchNorm(layer) = &node.layer else { return None };
        let of = |name: &str| parameters[number].iter().find(|(other, _)| *other == name).map(|(_, region)| *region);
        let norm = FoldedNorm {
            weight: of("weight")?,
            bias: of("bias")?,
            mean: of("running_mean")?,
            variance: of("running_var")?,
            epsilon: layer.epsilon,
        };
        Some(Folded { norm, output: values[node.output.0], relu: self.fusions.takes_relu[number] })
    }

    pub(crate) fn targets(&mut self) -> Vec<Target> {
        let criteria = self.network.criteria();
        let number = criteria.iter().map(|criterion| criterion.target + 1).max().unwrap_or(0);
        let target = |number: usize| {
            let criterion = criteria.iter().find(|criterion| criterion.target == number);
            let Criterion { loss, prediction, .. } = criterion.unwrap_or(&criteria[0]);
            let predicted = self.network.shape(*prediction);
            let (dtype, shape) = loss.rule().target(predicted);
            (dtype, shape, predicted.channels, loss.rule().ignored())
        };
        let targets: Vec<_> = (0..number).map(target).collect();
        let place = |(dtype, shape, classes, ignored): (DType, Shape, usize, Option<u32>)| {
            let region = self.region(dtype, shape.elements() * self.options.max_micro_batch);
            Target { tensor: Tensor { region, shape, form: Form::Samples }, classes, ignored }
        };
        targets.into_iter().map(place).collect()
    }

    pub(crate) fn judged(
        &mut self,
        criterion: &Criterion,
        values: &[Tensor],
        targets: &[Target],
        tally: Tally,
    ) -> Judged {
        let constants = criterion.loss.rule().constants();
        let constants = (!constants.is_empty()).then(|| {
            let region = self.region(DType::F32, constants.len());
            self.device.write(region, Values::F32(constants));
            region
        });
        Judged {
            prediction: values[criterion.prediction.0],
            gradient: None,
            target: targets[criterion.target].tensor,
            constants,
            tally,
            weight: criterion.weight,
        }
    }
}

/// The same memory with another shape of as many elements.
pub(crate) fn reshaped(tensor: Tensor, shape: Shape) -> Tensor {
    Tensor { shape, ..tensor }
}
