//! The table of a model's parameters: one table addresses every arena (weights, gradients, optimiser slots).

use std::ops::Range;

use crate::arena::LINE_ELEMENTS;

/// A linear layer's weight of so many elements more is ready in one more part: while backward computes the next, this one is on its way.
/// Each part reads the layer's input once more.
const PART_ELEMENTS: usize = 1 << 20;
/// A model has no more parts than this beside its layers: each may become a bucket, of which a group agrees on each.
const MAX_PARTS: usize = 256;

/// Type of a parameter's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
        }
    }
}

/// Order of a parameter's elements in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Last dimension fastest, as PyTorch's contiguous tensors.
    RowMajor,
}

/// What a parameter does in its layer. Weight decay applies to weights only (arXiv 1706.02677).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Multiplies inputs.
    Weight,
    /// Is added to outputs.
    Bias,
    /// Scale or shift of a normalisation.
    Norm,
}

/// One parameter: what it is called, how it looks, and where it lies in every arena.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamMeta {
    /// The name that PyTorch would use, such as `conv1.weight`.
    pub name: String,
    /// Dimensions as PyTorch's: `[outputs, inputs, kernel, kernel]`, `[outputs, inputs]` or `[outputs]`.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: DType,
    /// Order of the elements.
    pub layout: Layout,
    /// Elements of each arena; the start is a multiple of [`LINE_ELEMENTS`], the end is not rounded.
    pub range: Range<usize>,
    /// What the parameter does, which decides how optimisers treat it.
    pub role: Role,
    /// Whether updates leave it as it is.
    pub frozen: bool,
    /// The parameter whose storage it shares; its gradient is ready when its last contributor is.
    pub tied_to: Option<String>,
    /// Inputs that feed one output, the `fan_in` of initialisation.
    pub fan_in: usize,
}

impl ParamMeta {
    /// Initial values as PyTorch's layers have them: Kaiming uniform with a = √5 is U(±1/√fan_in), for weights and
    /// biases alike. The dice depend only on `seed` and the name, so neither the order of layers nor the machine matters.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        let bound = 1.0 / (self.fan_in as f32).sqrt();
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"lockstep initial values");
        hasher.update(&seed.to_le_bytes());
        hasher.update(self.name.as_bytes());
        let mut bytes = vec![0; self.range.len() * 4];
        hasher.finalize_xof().fill(&mut bytes);
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        // 24 random bits fill the mantissa: every value in [0, 1) is exact.
        words.map(|word| ((word >> 8) as f32 / (1 << 24) as f32).mul_add(2.0 * bound, -bound)).collect()
    }
}

/// All parameters of a model, in arena order: the last layer first, because its gradients are ready first.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamTable {
    parameters: Vec<ParamMeta>,
    layers: Vec<Range<usize>>,
    elements: usize,
}

impl ParamTable {
    /// Lays out layers given in the order in which their gradients become ready; each entry holds one layer's
    /// parameters, whose `range` is set here.
    pub(crate) fn lay_out(layers: Vec<Vec<ParamMeta>>) -> ParamTable {
        let mut table = ParamTable { parameters: Vec::new(), layers: Vec::new(), elements: 0 };
        for layer in layers {
            let layer_start = table.elements;
            for mut parameter in layer {
                let start = table.elements;
                parameter.range = start..start + parameter.shape.iter().product::<usize>();
                table.elements = parameter.range.end.next_multiple_of(LINE_ELEMENTS);
                table.parameters.push(parameter);
            }
            table.layers.push(layer_start..table.elements);
        }
        table
    }

    /// Elements of every arena, alignment gaps included; gaps hold zeros for ever.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of trained values, without gaps.
    pub fn weights(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.range.len()).sum()
    }

    /// The parameters in arena order.
    pub fn parameters(&self) -> &[ParamMeta] {
        &self.parameters
    }

    /// The parameter of that name.
    pub fn get(&self, name: &str) -> Option<&ParamMeta> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Ranges of the gradient arena in the order in which they become ready: one for each layer, of large linear ones several. Together they
    /// tile the arena from its start, so any cut of the arena into ascending ranges is a plan of buckets.
    pub fn ready_order(&self) -> Vec<Range<usize>> {
        (0..self.layers.len()).flat_map(|layer| self.parts(layer)).collect()
    }

    /// Those of one layer, counted from the last: whole rows of a linear layer's weight, which lies first; the last has the bias, too.
    pub(crate) fn parts(&self, layer: usize) -> Vec<Range<usize>> {
        let layer = self.layers[layer].clone();
        let weight = self.parameters.iter().find(|parameter| parameter.range.start == layer.start);
        let (rows, row) = match weight.map(|weight| weight.shape.as_slice()) {
            Some([outputs, inputs]) => (*outputs, *inputs),
            _ => (1, 0),
        };
        let part = PART_ELEMENTS.max(self.elements.div_ceil(MAX_PARTS));
        let parts = (rows * row / part).min(rows / LINE_ELEMENTS).max(1);
        // Whole cache lines, however long a row is.
        let cut = |part: usize| layer.start + (rows * part / parts).next_multiple_of(LINE_ELEMENTS) * row;
        (0..parts).map(|part| if part + 1 < parts { cut(part)..cut(part + 1) } else { cut(part)..layer.end }).collect()
    }
}

#[cfg(test)]
mod tests {
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
        let table = models::mlp(784, &[65_536; 4], 10).table();
        let ranges = table.ready_order().len();
        assert!((200..=super::MAX_PARTS + 5).contains(&ranges), "{ranges}");
    }

    #[test]
    fn the_last_layer_lies_first() {
        assert_eq!(models::lenet5().table().parameters()[0].name, "fc3.weight");
    }

    #[test]
    fn parameters_start_on_cache_lines() {
        assert!(models::lenet5().table().parameters().iter().all(|parameter| parameter.range.start % 16 == 0));
    }

    #[test]
    fn initial_values_fill_the_uniform_interval_of_pytorch() {
        let table = models::lenet5().table();
        let values = table.get("fc1.weight").expect("LeNet-5 has it").initial_values(1);
        let bound = 1.0 / 400f32.sqrt();
        assert!(values.iter().all(|value| value.abs() <= bound));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < bound * 0.02, "mean {mean}");
        assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.02, "variance {variance}");
    }

    #[test]
    fn initial_values_depend_on_seed_and_name() {
        let table = models::lenet5().table();
        let (weight, other) = (table.get("fc1.weight").expect("fc1"), table.get("fc2.weight").expect("fc2"));
        assert_eq!(weight.initial_values(1), weight.initial_values(1));
        assert_ne!(weight.initial_values(1), weight.initial_values(2));
        assert_ne!(weight.initial_values(1)[0] * 20.0, other.initial_values(1)[0] * 120f32.sqrt());
    }

    #[test]
    fn initial_values_are_the_recorded_ones() {
        let table = models::lenet5().table();
        let values = table.get("conv1.bias").expect("LeNet-5 has it").initial_values(42);
        assert_eq!(values, RECORDED_CONV1_BIAS_SEED_42);
    }

    /// Recorded when the generator was written: another machine or a later build must draw the same dice.
    const RECORDED_CONV1_BIAS_SEED_42: [f32; 6] =
        [0.093_232_63, -0.100_530_44, 0.135_837_48, 0.118_670_46, -0.095_864_154, -0.152_521_45];
}
