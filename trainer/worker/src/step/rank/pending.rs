//! A step between its end on this rank and the moment when all ranks are known to have done it.

use std::{mem, time::Instant};

use jiff::Timestamp;
use lockstep_collective::{BESIDE, Completed};
use lockstep_elastic::Activity;

use super::{Rank, Slice};
use crate::{
    compute::fingerprint::Fingerprint,
    failure::Failure,
    membership::session::Halt,
    progress::metrics_log::StepLine,
    step::efficiency::Step,
    step::step_sync::checkpoint_flags::Word,
    step::step_sync::slots::{Sums, Trained},
};

/// A step that this rank has done.
pub(super) struct Pending {
    /// Without what was trained on, where that is told with the rest.
    line: StepLine,
    samples: u64,
    /// Its numbers are to go behind the next step's gradients.
    pub(super) rides: bool,
    window: Fingerprint,
    /// Of the whole state, where it is to be saved.
    whole: Fingerprint,
}

/// One step that every rank has done.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub line: StepLine,
    /// Why all are to stop after the next step, if any rank was asked to.
    pub halt: Option<Halt>,
    /// What any rank told of checkpoints.
    pub told: Word,
}

impl Rank<'_> {
    /// Takes down the step of so many samples that was just applied, which took so many seconds; a window of the state after it and the
    /// whole.
    pub(super) fn take_down(
        &mut self,
        samples: u64,
        seconds: f64,
        trained: Option<Trained>,
        rides: bool,
        [window, whole]: [Fingerprint; 2],
    ) -> Result<Pending, Failure> {
        let step = self.trainee.step;
        let mut line = StepLine {
            step,
            epoch: step / self.trainee.recipe.steps_per_epoch,
            generation: self.generation,
            world_size: self.world as u32,
            loss: None,
            samples: None,
            sample_hash: None,
            state_hash: Some(window.bits()),
            learning_rate: self.trainee.recipe.rate,
            samples_per_second: samples as f64 / seconds,
            step_seconds: seconds,
            time: Timestamp::now().to_string(),
        };
        if let Some(trained) = trained {
            self.complete(&mut line, samples, trained)?;
        }
        Ok(Pending { line, samples, rides, window, whole })
    }

    /// Puts into the line of a step what all ranks trained on in it, and keeps the line in case that the one who writes it goes; gives the
    /// mean loss.
    fn complete(&mut self, line: &mut StepLine, samples: u64, trained: Trained) -> Result<f64, Failure> {
        let Trained { loss, taken } = trained;
        let loss = loss / samples as f64;
        (line.loss, line.samples, line.sample_hash) = (Some(loss), Some(taken.samples), Some(taken.hash));
        self.trainee.remember(line.clone());
        if taken.samples != samples {
            let (taken, step) = (taken.samples, line.step);
            return Err(Failure::fatal(format!(
                "all ranks together took {taken} samples in step {step}, which has {samples}: report this as a bug"
            )));
        }
        Ok(loss)
    }

    /// Waits for the gradients of this step, and what goes with them, and gives them back to the replica; says what all ranks trained on,
    /// where that went with them.
    pub(super) fn gather(&mut self) -> Result<Option<Trained>, Failure> {
        let Self { communicator, seen, member, numbers, .. } = self;
        member.membership.work().during(Activity::Waiting, || {
            let mut trained = None;
            for completed in communicator.wait_all() {
                let Completed { bucket, transferred, memory, .. } =
                    completed.map_err(|failed| Failure::lost(&failed.error))?;
                let Slice::Gradient(mut gathered) = memory else {
                    unreachable!("numbers by themselves were waited for before")
                };
                // A group of one has not looked at it.
                gathered.whole();
                if let Some(carried) = gathered.carried() {
                    trained = Some(Trained::of_sums(&carried));
                    *numbers = carried;
                }
                if let Some((seen, begun)) = &mut *seen {
                    let ready = gathered.ready().saturating_duration_since(*begun);
                    seen.summed(bucket as usize, ready.as_secs_f64(), transferred.took.as_secs_f64());
                }
            }
            Ok(trained)
        })
    }

    /// Has the numbers of the last step summed by themselves.
    pub(super) fn send_numbers(&mut self) {
        let (step, numbers) = (self.trainee.step - 1, Slice::Numbers(mem::take(&mut self.numbers)));
        // Beside one bucket they wait for it; with more, the thread that sums those is there for them too.
        if self.trainee.replica.buckets().len() == 1 {
            self.communicator.defer(step, BESIDE, numbers);
        } else {
            self.communicator.submit(step, BESIDE, numbers);
        }
    }

    /// Waits for the numbers of the last step. After it nothing is pending.
    pub(crate) fn settle(&mut self) -> Result<Option<Done>, Failure> {
        let Some(Pending { rides, .. }) = self.pending else { return Ok(None) };
        if rides {
            // No other step follows at once.
            self.send_numbers();
        }
        let waiting = Instant::now();
        let sum = || self.communicator.wait().map_err(|failed| Failure::lost(&failed.error));
        let Completed { memory, .. } = self.member.membership.work().during(Activity::Waiting, sum)?;
        self.waited += waiting.elapsed();
        let Slice::Numbers(numbers) = memory else {
            unreachable!("operations come back in the order of submission: numbers before the next step's gradients")
        };
        self.numbers = numbers;
        self.conclude()
    }

    /// What the sums of the last step's numbers tell.
    pub(super) fn conclude(&mut self) -> Result<Option<Done>, Failure> {
        let Some(Pending { mut line, samples, rides: _, window, whole }) = self.pending.take() else { return Ok(None) };
        let loss = match line.loss {
            Some(loss) => loss,
            None => self.complete(&mut line, samples, Trained::of_sums(&self.numbers))?,
        };
        let sums = Sums::of(&self.numbers, self.world);
        let (step, halt, told) = (line.step, sums.halt(), sums.word());
        self.member.metrics.waited_for_stable(sums.waited());
        self.meter.record(Step { samples, wall: line.step_seconds, useful: sums.useful().to_vec() });
        self.feeds.hear(step, sums.all_know_newcomer());
        if !sums.all_hold(window, whole) {
            return Err(Failure::diverged(format_args!("after step {step} the workers do not hold the same weights")));
        }
        if told.asks || halt.is_some() {
            self.saves_after = Some(step + 1);
        }
        if !loss.is_finite() {
            return Err(Failure::fatal(format!(
                "the training loss became {loss} at step {step}: lower spec.training.schedule.baseLearningRate ({})",
                self.trainee.recipe.rate
            )));
        }
        Ok(Some(Done { line, halt, told }))
    }
}
