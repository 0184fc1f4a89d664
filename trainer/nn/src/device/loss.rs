//! Softmax cross-entropy on the CPU. For one sample with logits `z` and label `c`:
//! `loss = log Σ exp(zᵢ − m) + m − z_c` with `m = max z`, and `d loss / d zᵢ = softmax(z)ᵢ − [i = c]`.

use super::cpu::{Cpu, Totals, padded};
use super::operations::SoftmaxCrossEntropy;

pub(super) fn softmax_cross_entropy(cpu: &Cpu, operation: &SoftmaxCrossEntropy, scale: f32, samples: usize) -> Totals {
    let SoftmaxCrossEntropy { logits, gradient, labels, tally: _ } = operation;
    let (classes, stride) = (logits.sample_elements(), logits.capacity);
    let (z, labels) = (cpu.lease(logits.region), cpu.lease(*labels));
    let mut gradient = gradient.map(|gradient| cpu.lease(gradient.region));
    let mut totals = Totals::default();
    for (sample, label) in labels[..samples].iter().enumerate() {
        let label = *label as usize;
        let logit = |class: usize| z[class * stride + sample];
        // Starting from the first class keeps a value that is not a number from being overlooked.
        let predicted = (1..classes).fold(0, |best, class| if logit(class) > logit(best) { class } else { best });
        let highest = logit(predicted);
        let sum: f32 = (0..classes).map(|class| (logit(class) - highest).exp()).sum();
        totals.loss_sum += f64::from(sum.ln() + highest - logit(label));
        totals.correct += u64::from(predicted == label && highest.is_finite());
        if let Some(gradient) = &mut gradient {
            for class in 0..classes {
                let target = if class == label { 1.0 } else { 0.0 };
                gradient[class * stride + sample] = ((logit(class) - highest).exp() / sum - target) * scale;
            }
        }
    }
    if let Some(gradient) = &mut gradient {
        for row in gradient.chunks_mut(stride) {
            row[samples..padded(samples)].fill(0.0);
        }
    }
    totals
}
