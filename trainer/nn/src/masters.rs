//! The masters of a replica: the weights in f32 that updates change, from gradients of a loss that
//! may be scaled, and from which the weights that products read are rounded.

use crate::device::Device;
use crate::op::{MicroBatch, Op};
use crate::replica::Replica;

impl<D: Device> Replica<D> {
    /// Multiplies the loss by `scale` in the steps that begin from now on. All gradients of such a
    /// step are those of the multiplied loss, until [`Replica::update`] divides them.
    ///
    /// # Panics
    /// In mid-step.
    pub fn scale_loss(&mut self, scale: f32) {
        self.assert_between_steps("scaling the loss");
        self.loss_scale = scale;
    }

    /// Rounds the weights for products again if the masters have changed.
    pub(crate) fn cast_weights(&mut self) {
        if let Some(cast) = self.plan.cast.as_ref().filter(|_| self.masters_changed) {
            self.device.enqueue(&Op::Cast(cast.clone()), &MicroBatch::NONE);
        }
        self.masters_changed = false;
    }
}
