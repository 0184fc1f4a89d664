//! Where the values of a network and their gradients lie in one allocation, and how much memory
//! beside parameters a replica needs.

use std::ops::RangeInclusive;

use crate::fusion::Fusions;
use crate::gradient_sharing::SharedGradients;
use crate::graph::{Network, Value};
use crate::lifetimes::Lifetimes;
use crate::memory::{Form, LANES};
use crate::memory_plan::{Need, place};

/// Places of values and gradients.
#[derive(Debug)]
pub(crate) struct Placement {
    needs: Vec<Need>,
    starts: Vec<usize>,
    /// Elements of the allocation.
    pub(crate) total: usize,
    /// By value; none where it has another's memory, or its own beside the allocation.
    pub(crate) values: Vec<Option<usize>>,
    pub(crate) gradients: Vec<Option<usize>>,
}

impl Placement {
    /// For micro-batches of up to so many samples.
    pub(crate) fn of(
        network: &Network,
        fusions: &Fusions,
        shared: &SharedGradients,
        samples: usize,
        keep_all: bool,
    ) -> Placement {
        let times = Lifetimes::of(network, fusions, shared, keep_all);
        let (mut needs, mut values, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for value in 0..network.values() {
            let (shape, form) = (network.shape(Value(value)), fusions.forms[value]);
            let is_own = fusions.memory_of[value] == Value(value);
            let mut need = |when: &Option<RangeInclusive<usize>>, form: Form| {
                let when = when.clone().filter(|_| is_own)?;
                needs.push(Need { elements: form.elements(shape, samples), when });
                Some(needs.len() - 1)
            };
            // Zeros around samples stay for ever, so nothing else may lie there.
            values.push(if has_halo(form) { None } else { need(&times.values[value], form) });
            let has_own = shared.memory_of[value] == Value(value);
            gradients.push(if has_own { need(&times.gradients[value], without_halo(form)) } else { None });
        }
        let (starts, total) = place(&needs);
        Placement { needs, starts, total, values, gradients }
    }

    /// The elements of the allocation that one of them has.
    pub(crate) fn range(&self, at: usize) -> std::ops::Range<usize> {
        self.starts[at]..self.starts[at] + self.needs[at].elements
    }
}

pub(crate) const fn has_halo(form: Form) -> bool {
    matches!(form, Form::Lanes { halo } if halo > 0)
}

pub(crate) const fn without_halo(form: Form) -> Form {
    match form {
        Form::Samples => Form::Samples,
        Form::Lanes { .. } => Form::Lanes { halo: 0 },
    }
}

impl Network {
    /// Bytes that a replica on a CPU needs for values, their gradients and what layers keep for
    /// backward, for micro-batches of up to so many samples; parameters come on top.
    #[must_use]
    pub fn working_bytes(&self, samples: usize) -> usize {
        let fusions = Fusions::of(self, true);
        let shared = SharedGradients::of(self, &fusions, false);
        let placed = Placement::of(self, &fusions, &shared, samples, false).total;
        let beside = |value: usize| match fusions.forms[value] {
            form if has_halo(form) && fusions.memory_of[value] == Value(value) => {
                form.elements(self.shape(Value(value)), samples)
            }
            _ => 0,
        };
        let beside: usize = (0..self.values()).map(beside).sum();
        let kept = self.nodes().iter().enumerate().map(|(number, node)| {
            if fusions.is_block[number] {
                let made = self.shape(fusions.made_by(number, node));
                return made.elements() * samples.next_multiple_of(LANES) * 4;
            }
            let kept = node.layer.rule().kept(&self.input_shapes(node), self.shape(node.output));
            kept.iter().map(|kept| kept.elements_a_sample * samples * kept.dtype.bytes()).sum()
        });
        (placed + beside) * 4 + kept.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use crate::{models, shape::Shape};

    /// Without sharing, values and gradients would need twice the outputs of all layers.
    #[test]
    fn values_that_are_not_needed_at_once_share_memory() {
        let network = models::resnet20(Shape::image(3, 32, 32), 10).expect("a network");
        let outputs = network.summary().activation_bytes(128);
        let working = network.working_bytes(128);
        assert!(working < outputs, "{working} for outputs of {outputs}");
    }
}
