//! What a replica's present weights make of samples.

use crate::batch::Batch;
use crate::device::{Device, Event, Tally, Values};
use crate::op::{MicroBatch, Op};
use crate::replica::{Replica, StepResult};

impl<D: Device> Replica<D> {
    /// Loss and correct predictions of any number of samples under the present weights; waits.
    ///
    /// # Panics
    /// In mid-step, and with a label that is not a class.
    pub fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> StepResult {
        self.assert_between_steps("evaluate");
        let tally = self.plan.evaluation_tally;
        self.device.enqueue(&Op::ClearTally(tally), &MicroBatch::NONE);
        let (image, label) = (self.network().input().elements(), self.plan.targets[0].tensor.shape.elements());
        let samples = labels.len() / label;
        assert_eq!(images.len(), samples * image, "images of {samples} samples");
        let most = self.max_micro_batch();
        for (images, labels) in images.chunks(most * image).zip(labels.chunks(most * label)) {
            let (inputs, targets) = ([Values::F32(images)], [Values::U32(labels)]);
            self.evaluate_more(&Batch::new(&inputs, &targets, labels.len() / label));
        }
        self.totals_of(tally)
    }

    /// The same of any samples, no more than a micro-batch may have.
    ///
    /// # Panics
    /// As [`Replica::evaluate`].
    pub fn evaluate_batch(&mut self, batch: &Batch<'_>) -> StepResult {
        self.assert_between_steps("evaluate");
        let tally = self.plan.evaluation_tally;
        self.device.enqueue(&Op::ClearTally(tally), &MicroBatch::NONE);
        self.evaluate_more(batch);
        self.totals_of(tally)
    }

    /// The same, and what the network makes of the samples, as [`Replica::predict`] gives it.
    ///
    /// # Panics
    /// As [`Replica::evaluate`].
    pub fn evaluate_and_predict(&mut self, batch: &Batch<'_>, predictions: &mut Vec<f32>) -> StepResult {
        let found = self.evaluate_batch(batch);
        let output = self.plan.output;
        predictions.resize(batch.samples * output.shape.elements(), 0.0);
        self.device.download(&output, predictions);
        found
    }

    fn evaluate_more(&mut self, batch: &Batch<'_>) {
        self.cast_weights();
        let groups = self.upload(batch);
        let batch = MicroBatch { samples: batch.samples, groups, scale: 1.0, ..MicroBatch::NONE };
        self.plan.evaluation.iter().for_each(|op| self.device.enqueue(op, &batch));
    }

    /// What the network makes of samples, `[sample][channel][row][column]` of its output; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn predict(&mut self, images: &[f32]) -> Vec<f32> {
        self.assert_between_steps("predict");
        let (image, output) = (self.network().input().elements(), self.plan.output);
        self.cast_weights();
        let mut predictions = Vec::with_capacity(images.len() / image * output.shape.elements());
        for images in images.chunks(self.max_micro_batch() * image) {
            let samples = images.len() / image;
            self.device.upload(&self.plan.inputs[0], Values::F32(images));
            let batch = MicroBatch { samples, ..MicroBatch::NONE };
            let judging = |op: &&Op| matches!(op, Op::SoftmaxCrossEntropy(_) | Op::MeanSquaredError(_) | Op::Hinge(_));
            for op in self.plan.evaluation.iter().filter(|op| !judging(op)) {
                self.device.enqueue(op, &batch);
            }
            self.device.ready().wait();
            let start = predictions.len();
            predictions.resize(start + samples * output.shape.elements(), 0.0);
            self.device.download(&output, &mut predictions[start..]);
        }
        predictions
    }

    fn totals_of(&mut self, tally: Tally) -> StepResult {
        self.device.ready().wait();
        let (loss_sum, correct) = self.device.read_tally(tally);
        StepResult { loss_sum, correct }
    }
}
