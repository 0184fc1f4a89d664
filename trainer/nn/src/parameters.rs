//! The table of a model's parameters: one table addresses every arena (weights, gradients,
//! optimiser slots).
//!
//! A statistic, such as the running mean of a batch norm, is a parameter too: its place in the
//! gradients holds what the step's batch adds to it, so it is summed over workers, saved, copied
//! and compared as all others are.

use std::ops::Range;

use crate::arena::LINE_ELEMENTS;
use crate::dtype::DType;

/// A linear layer's weight of so many elements more is ready in one more part: while backward
/// computes the next, this one is on its way. Each part reads the layer's input once more.
const PART_ELEMENTS: usize = 1 << 20;
/// A model has no more parts than this beside its layers: each may become a bucket, of which a
/// group agrees on each.
const MAX_PARTS: usize = 256;

/// Order of a parameter's elements in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Last dimension fastest, as PyTorch's contiguous tensors.
    RowMajor,
}

/// The role of a parameter in its layer. Weight decay applies to weights only (arXiv 1706.02677).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Role {
    /// Multiplies inputs.
    Weight,
    /// Is added to outputs.
    Bias,
    /// Scale or shift of a normalisation.
    Norm,
    /// Is no weight: `s ← s + momentum·(g − s)`, where `g` is the batch's own value.
    Statistic {
        /// How much the newest batch counts.
        momentum: f32,
    },
}

impl Role {
    /// True if gradients train it.
    #[must_use]
    pub const fn is_trained(self) -> bool {
        match self {
            Role::Weight | Role::Bias | Role::Norm => true,
            Role::Statistic { .. } => false,
        }
    }
}

/// How a parameter begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// U(−bound, bound).
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// N(0, deviation²), cut off at six deviations.
    Normal {
        /// The deviation.
        deviation: f32,
    },
    /// The same everywhere.
    Constant(f32),
}

impl Initial {
    /// PyTorch's default for weights and biases of layers with so many inputs to an output: Kaiming
    /// uniform with a = √5 is U(±1/√fan_in).
    #[must_use]
    pub fn of_fan_in(fan_in: usize) -> Initial {
        Initial::Uniform { bound: 1.0 / (fan_in.max(1) as f32).sqrt() }
    }

    /// He et al. (arXiv 1502.01852) for layers that a ReLU follows: N(0, 2/fan).
    #[must_use]
    pub fn he(fan: usize) -> Initial {
        Initial::Normal { deviation: (2.0 / fan.max(1) as f32).sqrt() }
    }
}

/// What a layer says of one of its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Its name in the layer, such as `weight`.
    pub name: &'static str,
    /// Dimensions as PyTorch's.
    pub shape: Vec<usize>,
    /// Its role.
    pub role: Role,
    /// How it begins.
    pub initial: Initial,
}

/// One parameter: what it is called, how it looks, and where it lies in every arena.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamMeta {
    /// The name that PyTorch would use, such as `conv1.weight`.
    pub name: String,
    /// Dimensions as PyTorch's: `[outputs, inputs, kernel, kernel]`, `[outputs, inputs]` or
    /// `[outputs]`.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: DType,
    /// Order of the elements.
    pub layout: Layout,
    /// Elements of each arena; the start is a multiple of [`LINE_ELEMENTS`], the end is not
    /// rounded.
    pub range: Range<usize>,
    /// What the parameter does, which decides how optimisers treat it.
    pub role: Role,
    /// How it begins.
    pub initial: Initial,
    /// True if updates leave it as it is.
    pub frozen: bool,
}

impl ParamMeta {
    /// The values with which it begins. The dice depend only on `seed` and the name, so neither the
    /// order of layers nor the machine matters.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        let dice = |bytes: usize| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(b"lockstep initial values");
            hasher.update(&seed.to_le_bytes());
            hasher.update(self.name.as_bytes());
            let mut drawn = vec![0; self.range.len() * bytes];
            hasher.finalize_xof().fill(&mut drawn);
            drawn
        };
        match self.initial {
            Initial::Constant(value) => vec![value; self.range.len()],
            Initial::Uniform { bound } => {
                let drawn = dice(4);
                let words = drawn.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                // 24 random bits fill the mantissa: every value in [0, 1) is exact.
                words.map(|word| ((word >> 8) as f32 / (1 << 24) as f32).mul_add(2.0 * bound, -bound)).collect()
            }
            // The sum of twelve uniform numbers has variance 1 and is nearly normal; unlike
            // logarithms and cosines it has the same bits everywhere.
            Initial::Normal { deviation } => {
                let drawn = dice(24);
                let sums = drawn.as_chunks::<24>().0.iter().map(|draws| {
                    draws.as_chunks::<2>().0.iter().map(|draw| i32::from(u16::from_le_bytes(*draw))).sum::<i32>()
                });
                // Twice the sum of twelve middles of 65,536 steps.
                sums.map(|sum| (2 * sum + 12 - 12 * 65_536) as f32 / 131_072.0 * deviation).collect()
            }
        }
    }
}

/// All parameters of a model, in arena order: the last layer first, because its gradients are ready
/// first.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamTable {
    parameters: Vec<ParamMeta>,
    /// The number of the first parameter of each layer that has any, in arena order.
    layers: Vec<usize>,
    elements: usize,
}

impl ParamTable {
    /// Lays out layers given in the order in which their gradients become ready; each entry holds
    /// one layer's name and parameters.
    pub(crate) fn lay_out(layers: impl IntoIterator<Item = (String, Vec<ParamSpec>)>) -> ParamTable {
        let mut table = ParamTable { parameters: Vec::new(), layers: Vec::new(), elements: 0 };
        for (layer, specs) in layers.into_iter().filter(|(_, specs)| !specs.is_empty()) {
            table.layers.push(table.parameters.len());
            for ParamSpec { name, shape, role, initial } in specs {
                table.put(format!("{layer}.{name}"), shape, role, initial);
            }
        }
        table
    }

    /// Lays out parameters of whole names that are all ready at once, in their order.
    #[must_use]
    pub fn of_parameters(parameters: impl IntoIterator<Item = (String, Vec<usize>, Role, Initial)>) -> ParamTable {
        let mut table = ParamTable { parameters: Vec::new(), layers: Vec::new(), elements: 0 };
        for (name, shape, role, initial) in parameters {
            table.layers.push(table.parameters.len());
            table.put(name, shape, role, initial);
        }
        table
    }

    fn put(&mut self, name: String, shape: Vec<usize>, role: Role, initial: Initial) {
        let start = self.elements;
        let range = start..start + shape.iter().product::<usize>();
        self.elements = range.end.next_multiple_of(LINE_ELEMENTS);
        let (dtype, layout, frozen) = (DType::F32, Layout::RowMajor, false);
        self.parameters.push(ParamMeta { name, shape, dtype, layout, range, role, initial, frozen });
    }

    /// Leaves the parameters that `is_frozen` names as they are; gives their number.
    pub fn freeze(&mut self, is_frozen: impl Fn(&str) -> bool) -> usize {
        let named = self.parameters.iter_mut().filter(|parameter| parameter.role.is_trained());
        named.filter(|parameter| is_frozen(&parameter.name)).map(|parameter| parameter.frozen = true).count()
    }

    /// Elements of every arena, alignment gaps included; gaps hold zeros for ever.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of trained values, without gaps and statistics.
    pub fn weights(&self) -> usize {
        let trained = self.parameters.iter().filter(|parameter| parameter.role.is_trained());
        trained.map(|parameter| parameter.range.len()).sum()
    }

    /// The parameters in arena order.
    pub fn parameters(&self) -> &[ParamMeta] {
        &self.parameters
    }

    /// The parameters in forward order of the layers.
    pub fn in_forward_order(&self) -> impl Iterator<Item = &ParamMeta> {
        let ends = self.layers.iter().skip(1).copied().chain([self.parameters.len()]);
        let layers: Vec<Range<usize>> = self.layers.iter().zip(ends).map(|(start, end)| *start..end).collect();
        layers.into_iter().rev().flat_map(|layer| &self.parameters[layer])
    }

    /// The parameter of that name.
    pub fn get(&self, name: &str) -> Option<&ParamMeta> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Ranges of the gradient arena in the order in which they become ready: one for each layer, of
    /// large linear ones several. Together they tile the arena from its start, so any cut of the
    /// arena into ascending ranges is a plan of buckets.
    pub fn ready_order(&self) -> Vec<Range<usize>> {
        (0..self.layers.len()).flat_map(|layer| self.parts_of_layer(layer)).collect()
    }

    /// Those of one layer: whole rows of a linear layer's weight, which lies first; the last has
    /// the bias, too.
    fn parts_of_layer(&self, layer: usize) -> Vec<Range<usize>> {
        let weight = &self.parameters[self.layers[layer]];
        let next = self.layers.get(layer + 1).map(|next| self.parameters[*next].range.start);
        let end = next.unwrap_or(self.elements);
        let mut starts: Vec<usize> = self.row_parts(weight).iter().map(|part| part.start).collect();
        starts.push(end);
        starts.windows(2).map(|part| part[0]..part[1]).collect()
    }

    /// The parts of a linear layer's weight that are ready one after another; other weights are one
    /// part.
    pub(crate) fn row_parts(&self, weight: &ParamMeta) -> Vec<Range<usize>> {
        let (rows, row) = match weight.shape.as_slice() {
            [outputs, inputs] => (*outputs, *inputs),
            _ => (1, 0),
        };
        let part = PART_ELEMENTS.max(self.elements.div_ceil(MAX_PARTS));
        let parts = (rows * row / part).min(rows / LINE_ELEMENTS).max(1);
        let Range { start, end } = weight.range;
        // Whole cache lines, however long a row is.
        let cut = |part: usize| start + (rows * part / parts).next_multiple_of(LINE_ELEMENTS) * row;
        (0..parts).map(|part| if part + 1 < parts { cut(part)..cut(part + 1) } else { cut(part)..end }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models;

    #[test]
    fn ready_ranges_tile_the_arena_from_its_start() {
        for (network, ranges) in [(models::lenet5(), 5), (models::mlp25m(), 1 + 4 + 16 + 3)] {
            let table = network.table();
            assert_eq!(table.ready_order().len(), ranges);
            let mut next = 0;
            for range in table.ready_order() {
                assert_eq!((range.start, range.start % 16), (next, 0));
                assert!(range.len() < 2 << 20, "{range:?}");
                next = range.end;
            }
            assert_eq!(next, table.elements());
        }
    }

    #[test]
    fn the_largest_model_has_so_many_ready_ranges_and_no_more() {
        let table = models::mlp(784, &[65_536; 4], 10).table().clone();
        let ranges = table.ready_order().len();
        assert!((200..=super::MAX_PARTS + 5).contains(&ranges), "{ranges}");
    }

    #[test]
    fn the_last_layer_lies_first() {
        assert_eq!(models::lenet5().table().parameters()[0].name, "fc3.weight");
        let network = models::lenet5();
        let names: Vec<&str> = network.table().in_forward_order().map(|parameter| &*parameter.name).take(3).collect();
        assert_eq!(names, ["conv1.weight", "conv1.bias", "conv2.weight"]);
    }

    #[test]
    fn parameters_start_on_cache_lines() {
        assert!(models::lenet5().table().parameters().iter().all(|parameter| parameter.range.start % 16 == 0));
    }

    #[test]
    fn initial_values_fill_the_uniform_interval_of_pytorch() {
        let network = models::lenet5();
        let values = network.table().get("fc1.weight").expect("LeNet-5 has it").initial_values(1);
        let bound = 1.0 / 400f32.sqrt();
        assert!(values.iter().all(|value| value.abs() <= bound));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < bound * 0.02, "mean {mean}");
        assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.02, "variance {variance}");
    }

    #[test]
    fn normal_values_have_the_moments_of_a_normal_distribution() {
        let initial = Initial::Normal { deviation: 0.5 };
        let specs = vec![ParamSpec { name: "weight", shape: vec![300, 300], role: Role::Weight, initial }];
        let table = ParamTable::lay_out([("fc".to_owned(), specs)]);
        let values = table.parameters()[0].initial_values(1);
        let moment = |power| values.iter().map(|value| f64::from(value / 0.5).powi(power)).sum::<f64>() / 90_000.0;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.02, "{} {}", moment(1), moment(2));
        assert!(moment(3).abs() < 0.05 && (moment(4) - 2.9).abs() < 0.1, "{} {}", moment(3), moment(4));
    }

    #[test]
    fn initial_values_depend_on_seed_and_name() {
        let network = models::lenet5();
        let parameter = |name| network.table().get(name).expect("LeNet-5 has it");
        let (weight, other) = (parameter("fc1.weight"), parameter("fc2.weight"));
        assert_eq!(weight.initial_values(1), weight.initial_values(1));
        assert_ne!(weight.initial_values(1), weight.initial_values(2));
        assert_ne!(weight.initial_values(1)[0] * 20.0, other.initial_values(1)[0] * 120f32.sqrt());
    }

    #[test]
    fn initial_values_are_the_recorded_ones() {
        let network = models::lenet5();
        let values = network.table().get("conv1.bias").expect("LeNet-5 has it").initial_values(42);
        assert_eq!(values, RECORDED_CONV1_BIAS_SEED_42);
    }

    /// Recorded when the generator was written: another machine or a later build must draw the same
    /// dice.
    const RECORDED_CONV1_BIAS_SEED_42: [f32; 6] =
        [0.093_232_63, -0.100_530_44, 0.135_837_48, 0.118_670_46, -0.095_864_154, -0.152_521_45];

    #[test]
    fn frozen_parameters_are_named_by_whoever_trains() {
        let mut table = models::lenet5().table().clone();
        assert_eq!(table.freeze(|name| name.starts_with("conv")), 4);
        assert!(table.get("conv2.bias").is_some_and(|parameter| parameter.frozen));
    }
}
