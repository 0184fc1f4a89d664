//! Losses; the formulas are with the layers of the same names.

use super::{Cpu, Totals, put, staging::Writing};
use crate::{
    device::Tensor,
    op::{Accumulation, Hinge, MeanSquaredError, MicroBatch, SoftmaxCrossEntropy, Sum},
};

/// The memory for a prediction's gradient.
struct Target {
    values: Writing,
    accumulation: Accumulation,
}

impl Target {
    fn of(cpu: &Cpu, sum: Option<Sum<Tensor>>, batch: &MicroBatch) -> Option<Target> {
        sum.map(|sum| Target { values: cpu.write(sum.into, batch.samples), accumulation: sum.now(batch) })
    }

    fn put(&mut self, index: usize, value: f32) {
        put(self.accumulation, &mut self.values[index], value);
    }
}

/// The first of the highest values; one that is not a number is higher than all.
fn highest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, index| if values[index] > values[best] { index } else { best })
}

pub(super) fn softmax_cross_entropy(cpu: &Cpu, operation: &SoftmaxCrossEntropy, batch: &MicroBatch) -> Totals {
    let SoftmaxCrossEntropy { z, dz, labels, tally: _, smoothing, class_weights, ignored, weight } = operation;
    let (classes, pixels) = (z.shape.channels, z.pixels(batch.samples));
    let (logits, labels) = (cpu.read(*z, batch.samples), cpu.view::<u32>(labels.part(0..pixels)));
    let class_weights = class_weights.map(|weights| cpu.view::<f32>(weights));
    let weight_of = |class: usize| class_weights.as_ref().map_or(1.0, |weights| weights[class]);
    let mut gradient = Target::of(cpu, *dz, batch);
    let counts_by_label = class_weights.is_some() || ignored.is_some();
    let importance = if counts_by_label { batch.importance } else { 1.0 };
    let share = weight * importance / z.shape.pixels() as f32;
    // What the smoothed targets of all classes add up to.
    let spread = smoothing / classes as f32;
    let all: f32 = (0..classes).map(weight_of).sum();
    let mut totals = Totals::default();
    for (pixel, (logits, label)) in logits.chunks_exact(classes).zip(labels.iter()).enumerate() {
        if Some(*label) == *ignored {
            let zeros = pixel * classes..(pixel + 1) * classes;
            gradient.iter_mut().for_each(|gradient| zeros.clone().for_each(|index| gradient.put(index, 0.0)));
            continue;
        }
        let label = *label as usize;
        let predicted = highest(logits);
        let highest = logits[predicted];
        let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
        // −log softmax of a class.
        let cost = |class: usize| sum.ln() + highest - logits[class];
        let own = (1.0 - smoothing) * weight_of(label);
        let mut loss = own * cost(label);
        if spread > 0.0 {
            loss += spread * (0..classes).map(|class| weight_of(class) * cost(class)).sum::<f32>();
        }
        totals.loss_sum += f64::from(loss * share);
        totals.correct += u64::from(predicted == label && highest.is_finite());
        if let Some(gradient) = &mut gradient {
            let mass = own + spread * all;
            for (class, logit) in logits.iter().enumerate() {
                let target = if class == label { own } else { 0.0 } + spread * weight_of(class);
                let value = ((logit - highest).exp() / sum * mass - target) * share * batch.gradient_scale();
                gradient.put(pixel * classes + class, value);
            }
        }
    }
    totals
}

pub(super) fn mean_squared_error(cpu: &Cpu, operation: &MeanSquaredError, batch: &MicroBatch) -> Totals {
    let MeanSquaredError { y, dy, targets, tally: _, weight } = operation;
    let (predictions, targets) = (cpu.read(*y, batch.samples), cpu.read(*targets, batch.samples));
    let mut gradient = Target::of(cpu, *dy, batch);
    let share = weight / y.shape.elements() as f32;
    let mut loss_sum = 0.0;
    for (index, (prediction, target)) in predictions.iter().zip(targets.iter()).enumerate() {
        let difference = prediction - target;
        loss_sum += f64::from(difference * difference);
        if let Some(gradient) = &mut gradient {
            gradient.put(index, 2.0 * difference * share * batch.gradient_scale());
        }
    }
    Totals { loss_sum: loss_sum * f64::from(share), correct: 0 }
}

pub(super) fn hinge(cpu: &Cpu, operation: &Hinge, batch: &MicroBatch) -> Totals {
    let Hinge { z, dz, labels, tally: _, margin, weight } = operation;
    let classes = z.shape.elements();
    let (scores, labels) = (cpu.read(*z, batch.samples), cpu.view::<u32>(labels.part(0..batch.samples)));
    let mut gradient = Target::of(cpu, *dz, batch);
    let share = weight / classes as f32;
    let mut totals = Totals::default();
    for (sample, (scores, label)) in scores.chunks_exact(classes).zip(labels.iter()).enumerate() {
        let label = *label as usize;
        let excess = |class: usize| if class == label { 0.0 } else { margin - scores[label] + scores[class] };
        let counts = |class: usize| excess(class) > 0.0;
        let all: f32 = (0..classes).map(excess).filter(|excess| *excess > 0.0 || excess.is_nan()).sum();
        totals.loss_sum += f64::from(all * share);
        let predicted = highest(scores);
        totals.correct += u64::from(predicted == label && scores[predicted].is_finite());
        if let Some(gradient) = &mut gradient {
            let number = (0..classes).filter(|class| counts(*class)).count() as f32;
            for class in 0..classes {
                let value = if class == label { -number } else { f32::from(counts(class)) };
                gradient.put(sample * classes + class, value * share * batch.gradient_scale());
            }
        }
    }
    totals
}
