//! Where numbers stop being numbers: for the message of a run whose loss did.

use std::fmt;
use std::ops::Range;

use crate::batch::Batch;
use crate::device::{Device, Event, Region};
use crate::layers::Mode;
use crate::op::MicroBatch;
use crate::replica::Replica;

/// The first value that is infinite or not a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFinite {
    /// A parameter.
    Parameter(String),
    /// The output of a layer.
    Output(String),
    /// The gradient of a parameter, or of a statistic.
    Gradient(String),
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(name) => write!(f, "the parameter {name}"),
            Self::Output(name) => write!(f, "the output of layer {name}"),
            Self::Gradient(name) => write!(f, "the gradient of {name}"),
        }
    }
}

/// Values that are looked at before it is asked whether one was not finite.
const CHUNK: usize = 4096;

impl<D: Device> Replica<D> {
    /// The first parameter, in forward order, that has a value that is not finite; else the first
    /// layer that makes such a value of a batch; waits.
    ///
    /// # Panics
    /// In mid-step, and as [`Replica::micro_batch_of`].
    pub fn first_not_finite(&mut self, batch: &Batch<'_>) -> Option<NotFinite> {
        self.assert_between_steps("looking for what is not finite");
        let parameters: Vec<_> = self.table().in_forward_order().cloned().collect();
        for parameter in parameters {
            let region = self.plan.weights.region(parameter.range);
            if !self.is_finite(region) {
                return Some(NotFinite::Parameter(parameter.name));
            }
        }
        self.cast_weights();
        let groups = self.upload(batch);
        let run = MicroBatch { samples: batch.samples, groups, scale: 1.0, ..MicroBatch::NONE };
        for number in 0..self.network().nodes().len() {
            let name = self.network().nodes()[number].name.clone();
            let Some((output, ops)) = self.plan.node(self.network(), number, Mode::Training) else { continue };
            ops.iter().for_each(|op| self.device.enqueue(op, &run));
            if !self.is_finite(output.of(batch.samples)) {
                return Some(NotFinite::Output(name));
            }
        }
        None
    }

    /// The first parameter, in the order of backward, whose gradient in the announced step is not
    /// finite; waits.
    ///
    /// # Panics
    /// Before the step's gradients were announced and while a [`Gradient`](crate::Gradient) is out.
    pub fn first_gradient_not_finite(&mut self) -> Option<NotFinite> {
        let mut parameters: Vec<_> = self.table().in_forward_order().cloned().collect();
        parameters.reverse();
        let found = parameters.into_iter().find(|parameter| !self.has_finite_gradients(parameter.range.clone()));
        found.map(|parameter| NotFinite::Gradient(parameter.name))
    }

    fn has_finite_gradients(&mut self, elements: Range<usize>) -> bool {
        let mut gradients = self.gradients(elements);
        // Without an early exit inside a chunk, the comparison of many values is one instruction.
        let finite = |chunk: &[f32]| chunk.iter().fold(true, |all, value| all & value.is_finite());
        gradients.as_mut().chunks(CHUNK).all(finite)
    }

    fn gradients(&mut self, elements: Range<usize>) -> D::HostView {
        self.assert_announced("looking at gradients");
        let event = self.device.ready();
        event.wait();
        self.device.host_view(self.plan.gradients.region(elements), event)
    }

    fn is_finite(&mut self, region: Region) -> bool {
        self.device.ready().wait();
        let mut values = vec![0.0; region.len];
        self.device.read(region, &mut values);
        values.iter().all(|value| value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::{Cpu, Values},
        models,
        optimizers::{Optimizer, Sgd},
    };

    fn lenet5() -> Replica<Cpu> {
        let network = models::lenet5();
        let buckets = network.table().ready_order();
        let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });
        let mut replica = Replica::new(Cpu::new(), network, sgd, 2, buckets).expect("ranges tile the arena");
        replica.initialise(1);
        replica
    }

    fn found(replica: &mut Replica<Cpu>, image: &[f32]) -> Option<NotFinite> {
        replica.first_not_finite(&Batch::new(&[Values::F32(image)], &[Values::U32(&[1])], 1))
    }

    #[test]
    fn a_sound_model_has_nothing_that_is_not_finite() {
        assert_eq!(found(&mut lenet5(), &[0.5; 784]), None);
    }

    #[test]
    fn the_first_wrong_parameter_is_named() {
        let mut replica = lenet5();
        let mut weights = replica.weights();
        for tensor in weights.iter_mut().filter(|tensor| ["conv2.bias", "fc1.weight"].contains(&&*tensor.name)) {
            tensor.values[3] = f32::NAN;
        }
        replica.load_tensors(&weights).expect("the same model");
        assert_eq!(found(&mut replica, &[0.5; 784]), Some(NotFinite::Parameter("conv2.bias".to_owned())));
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_found_and_named_by_the_order_of_backward() {
        let mut replica = lenet5();
        let table = replica.table().clone();
        let range = |name: &str| {
            let mut parameters = table.parameters().iter();
            parameters.find(|parameter| parameter.name == name).expect(name).range.clone()
        };
        let mut gradients = vec![1.0; table.elements()];
        replica.take_gradients(&gradients);
        assert_eq!(replica.first_gradient_not_finite(), None);
        replica.finish_step();
        gradients[range("conv1.weight").end - 1] = f32::INFINITY;
        gradients[range("fc1.bias").start] = f32::NAN;
        replica.take_gradients(&gradients);
        assert_eq!(replica.first_gradient_not_finite(), Some(NotFinite::Gradient("fc1.bias".to_owned())));
    }

    #[test]
    fn the_first_layer_that_overflows_is_named() {
        let mut replica = lenet5();
        let mut weights = replica.weights();
        for tensor in weights.iter_mut().filter(|tensor| tensor.name == "fc2.weight") {
            tensor.values.fill(3e38);
        }
        replica.load_tensors(&weights).expect("the same model");
        assert_eq!(found(&mut replica, &[0.5; 784]), Some(NotFinite::Output("fc2".to_owned())));
    }
}
