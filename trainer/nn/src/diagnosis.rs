//! Where numbers stop being numbers: for the message of a run whose loss did.

use crate::batch::Batch;
use crate::device::{Device, Event, Region};
use crate::layers::Mode;
use crate::op::MicroBatch;
use crate::replica::Replica;

/// What is infinite, or not a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFinite {
    /// A parameter.
    Parameter(String),
    /// What a layer made of a batch.
    Output(String),
}

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
