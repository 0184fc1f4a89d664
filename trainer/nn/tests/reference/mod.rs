//! The mathematics once more, in double precision, as plainly as it can be written.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;

use lockstep_nn::{BlockKind, Network, StateTensor};

pub(crate) struct Reference<'a> {
    network: &'a Network,
    weights: HashMap<String, Vec<f64>>,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(network: &'a Network, weights: &[StateTensor]) -> Reference<'a> {
        let wide = |tensor: &StateTensor| tensor.values.iter().map(|value| f64::from(*value)).collect();
        Reference { network, weights: weights.iter().map(|tensor| (tensor.name.clone(), wide(tensor))).collect() }
    }

    pub(crate) fn nudge(&mut self, name: &str, place: usize, offset: f64) {
        self.weights.get_mut(name).expect("the network has the parameter")[place] += offset;
    }

    /// Sum of the samples' losses, and the number of correct predictions.
    pub(crate) fn loss(&self, images: &[f32], labels: &[u32]) -> (f64, u64) {
        let samples = images.chunks(self.network.input().elements()).zip(labels);
        samples.fold((0.0, 0), |(loss, correct), (image, label)| {
            let logits = self.logits(image);
            let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - highest).exp()).sum();
            let own = logits[*label as usize];
            (loss + sum.ln() + highest - own, correct + u64::from(own == highest))
        })
    }

    fn logits(&self, image: &[f32]) -> Vec<f64> {
        let mut values: Vec<f64> = image.iter().map(|value| f64::from(*value)).collect();
        for block in self.network.blocks() {
            let weight = &self.weights[&format!("{}.weight", block.name)];
            let bias = &self.weights[&format!("{}.bias", block.name)];
            let product = block.product();
            let mut sums = Vec::new();
            for output in 0..product.channels {
                for y in 0..product.height {
                    for x in 0..product.width {
                        let sum: f64 = match block.kind {
                            BlockKind::Linear => {
                                values.iter().zip(&weight[output * values.len()..]).map(|(v, w)| v * w).sum()
                            }
                            BlockKind::Convolution { kernel, padding } => {
                                let (height, width) = (block.input.height, block.input.width);
                                let mut sum = 0.0;
                                for channel in 0..block.input.channels {
                                    for i in 0..kernel {
                                        for j in 0..kernel {
                                            let (y, x) = ((y + i).wrapping_sub(padding), (x + j).wrapping_sub(padding));
                                            if y < height && x < width {
                                                let tap = ((output * block.input.channels + channel) * kernel + i)
                                                    * kernel
                                                    + j;
                                                sum += weight[tap] * values[(channel * height + y) * width + x];
                                            }
                                        }
                                    }
                                }
                                sum
                            }
                        };
                        let sum = sum + bias[output];
                        sums.push(if block.relu { sum.max(0.0) } else { sum });
                    }
                }
            }
            values = sums;
            if block.pooled {
                let at =
                    |channel: usize, y: usize, x: usize| values[(channel * product.height + y) * product.width + x];
                let mut pooled = Vec::new();
                for channel in 0..block.output.channels {
                    for y in 0..block.output.height {
                        for x in 0..block.output.width {
                            let window =
                                [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(i, j)| at(channel, 2 * y + i, 2 * x + j));
                            pooled.push(window.into_iter().fold(f64::NEG_INFINITY, f64::max));
                        }
                    }
                }
                values = pooled;
            }
        }
        values
    }
}

/// A small generator: the tests need variety, not quality.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// In −1..1.
    pub(crate) fn centred(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 33) as u32 % limit
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
