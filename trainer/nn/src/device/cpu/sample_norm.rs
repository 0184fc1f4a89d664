//! Norms within a sample: sets of `pixels` pixels and a group of channels; see
//! [`crate::layers::GroupNorm`].

use super::{Cpu, put};
use crate::op::{Accumulation, MicroBatch, SampleNorm, SampleNormBackward};

/// The sets of one micro-batch: element ranges of each pixel's part.
#[derive(Clone, Copy)]
struct Sets {
    channels: usize,
    pixels: usize,
    groups: usize,
}

impl Sets {
    fn of(operation: &SampleNorm) -> Sets {
        Sets { channels: operation.x.shape.channels, pixels: operation.pixels, groups: operation.groups }
    }

    const fn part(self) -> usize {
        self.channels / self.groups
    }

    /// Where each pixel's part of a set begins; sets are counted pixels first, groups inside.
    fn starts(self, set: usize) -> impl Iterator<Item = usize> {
        let first = set / self.groups * self.pixels * self.channels + set % self.groups * self.part();
        (0..self.pixels).map(move |pixel| first + pixel * self.channels)
    }

    fn first_channel(self, set: usize) -> usize {
        set % self.groups * self.part()
    }

    fn count(self) -> f32 {
        (self.pixels * self.part()) as f32
    }
}

pub(super) fn forward(cpu: &Cpu, operation: &SampleNorm, batch: &MicroBatch) {
    let SampleNorm { x, y, weight, bias, kept, epsilon, .. } = operation;
    let sets = Sets::of(operation);
    let (weight, bias, mut kept) = (cpu.view::<f32>(*weight), cpu.view::<f32>(*bias), cpu.lease::<f32>(*kept));
    let (values, mut target) = (cpu.read(*x, batch.samples), cpu.write(*y, batch.samples));
    let number = batch.samples * x.shape.pixels() / sets.pixels * sets.groups;
    for (set, kept) in (0..number).zip(kept.chunks_exact_mut(2)) {
        let parts = || sets.starts(set).map(|start| &values[start..start + sets.part()]);
        let mean = parts().map(|part| part.iter().sum::<f32>()).sum::<f32>() / sets.count();
        let squares = |part: &[f32]| part.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>();
        let inverse = 1.0 / (parts().map(squares).sum::<f32>() / sets.count() + epsilon).sqrt();
        kept.copy_from_slice(&[mean, inverse]);
        let first = sets.first_channel(set);
        for start in sets.starts(set) {
            let pairs = target[start..start + sets.part()].iter_mut().zip(&values[start..]);
            for ((y, x), (weight, bias)) in pairs.zip(weight[first..].iter().zip(&bias[first..])) {
                *y = (x - mean) * inverse * weight + bias;
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, operation: &SampleNormBackward, batch: &MicroBatch) {
    let SampleNormBackward { norm, dy, dx, weight_gradient, bias_gradient } = operation;
    let sets = Sets::of(norm);
    let (weight, kept) = (cpu.view::<f32>(norm.weight), cpu.view::<f32>(norm.kept));
    let (values, gradients) = (cpu.read(norm.x, batch.samples), cpu.read(*dy, batch.samples));
    let mut target = dx.as_ref().map(|dx| (cpu.write(dx.into, batch.samples), dx.now(batch)));
    let mut sums = [weight_gradient, bias_gradient].map(|sum| {
        let mut place = cpu.lease::<f32>(sum.into);
        if sum.now(batch) == Accumulation::Replace {
            place.fill(0.0);
        }
        place
    });
    let number = batch.samples * norm.x.shape.pixels() / sets.pixels * sets.groups;
    for (set, kept) in (0..number).zip(kept.chunks_exact(2)) {
        let [mean, inverse] = [kept[0], kept[1]];
        let first = sets.first_channel(set);
        let (mut total, mut along) = (0.0, 0.0);
        for start in sets.starts(set) {
            for channel in 0..sets.part() {
                let (x, dy) = (values[start + channel], gradients[start + channel]);
                let (normal, pulled) = ((x - mean) * inverse, dy * weight[first + channel]);
                sums[0][first + channel] += dy * normal;
                sums[1][first + channel] += dy;
                total += pulled;
                along += pulled * normal;
            }
        }
        let Some((target, accumulation)) = &mut target else { continue };
        let (total, along) = (total / sets.count(), along / sets.count());
        for start in sets.starts(set) {
            for channel in 0..sets.part() {
                let (x, dy) = (values[start + channel], gradients[start + channel]);
                let normal = (x - mean) * inverse;
                let value = (dy * weight[first + channel] - total - normal * along) * inverse;
                put(*accumulation, &mut target[start + channel], value);
            }
        }
    }
}
