//! A step between its end on this rank and the moment at which all ranks are known to have done it.

use std::{
    mem,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use lockstep_collective::{BESIDE, Completed, Tag};
use lockstep_data::Tally;
use lockstep_elastic::Activity;
use lockstep_launch::OnNonFinite;

use super::{Rank, shares, without_room};
use crate::{
    compute::{fingerprint::Fingerprint, payload::Payload, training_state::all_finite},
    failure::Failure,
    lines::StepLine,
    membership::session::Halt,
    step::{
        efficiency::Step,
        step_sync::{checkpoint_flags::CheckpointFlags, numbers::Sums},
    },
    trainee::{Completion, Trained},
};

/// A step that this rank has done.
pub(super) struct UncommittedStep {
    /// The line of the step. It lacks the loss and the samples if these travel with the other
    /// numbers.
    line: StepLine,
    samples: u64,
    /// True if the step's numbers will travel behind the next step's gradients.
    pub(super) rides: bool,
    window: Fingerprint,
    /// The fingerprint of the whole state, if it will be saved.
    whole: Fingerprint,
    /// The squared norm of its gradients, if it was measured.
    square: Option<f64>,
}

/// The gradients of a step, added over all ranks.
pub(super) struct Summed {
    /// What all ranks trained on, if that travelled with the gradients.
    pub trained: Option<Trained>,
    /// The samples of this rank.
    pub taken: Tally,
    /// True if no gradient is infinite or not a number, and no loss that travelled with them.
    pub is_finite: bool,
}

/// A step that every rank has done.
#[derive(Clone, Debug)]
pub(crate) struct CommittedStep {
    pub line: StepLine,
    /// The reason for which all ranks stop after the next step.
    pub halt: Option<Halt>,
    /// The checkpoint flags that any rank set.
    pub checkpoint: CheckpointFlags,
}

impl Rank<'_> {
    /// Notes the step of `samples` samples that was just applied and took `seconds`. The
    /// fingerprints are those of a window of the state and of the whole state.
    pub(super) fn note_step(
        &mut self,
        samples: u64,
        seconds: f64,
        trained: Option<Trained>,
        rides: bool,
        [window, whole]: [Fingerprint; 2],
    ) -> Result<UncommittedStep, Failure> {
        let step = self.state.step;
        let mut line = StepLine {
            step,
            epoch: self.state.recipe.batches.epochs_done(step),
            generation: self.generation,
            world_size: self.world as u32,
            loss: None,
            samples: None,
            sample_hash: None,
            data_hash: None,
            state_hash: Some(window.bits()),
            learning_rate: self.state.recipe.rate(step),
            samples_per_second: samples as f64 / seconds,
            step_seconds: seconds,
            skipped: self.skipped_in_a_row > 0,
            time: Timestamp::now().to_string(),
        };
        if let Some(trained) = trained {
            self.complete(&mut line, samples, trained)?;
        }
        Ok(UncommittedStep { line, samples, rides, window, whole, square: self.noise.summed() })
    }

    /// Adds the loss and the samples of all ranks to the line of a step, and remembers the line in
    /// case the reporting worker is lost. Returns the mean loss.
    fn complete(&mut self, line: &mut StepLine, samples: u64, trained: Trained) -> Result<f64, Failure> {
        let Trained { loss, taken } = trained;
        let loss = loss / samples as f64;
        (line.loss, line.samples, line.sample_hash) = (Some(loss), Some(taken.samples), Some(taken.hash));
        line.data_hash = Some(taken.contents).filter(|contents| *contents > 0);
        self.state.remember(line.clone());
        if taken.samples != samples {
            let (taken, step) = (taken.samples, line.step);
            return Err(Failure::fatal(format!(
                "all ranks together took {taken} samples in step {step}, which has {samples}: report this as a bug"
            )));
        }
        Ok(loss)
    }

    /// Waits for the summed buckets of this step, and gives their memory back to the replica.
    pub(super) fn wait_for_gradients(&mut self) -> Result<Summed, Failure> {
        let Self { collectives, sums, step_times, session, numbers, state, world, noise, .. } = self;
        let (last, carries) = (state.bucket_count() - 1, state.carries_numbers());
        let skips = state.recipe.on_non_finite == OnNonFinite::Skip || state.can_lower_loss_scale();
        session.work().during(Activity::Waiting, || {
            let mut summed = Summed { trained: None, taken: Tally::default(), is_finite: true };
            for sum in sums.drain(..) {
                let Completed { bucket, transferred, memory, .. } =
                    collectives.wait(sum).map_err(|failed| Failure::lost(&failed.error))?;
                let Payload::Gradient(mut gradients) = memory else {
                    unreachable!("numbers that travel alone were waited for before")
                };
                // The collectives of a group of one send nothing, so they did not complete it.
                let Completion { taken, ready } = gradients.complete();
                noise.add_summed(without_room(gradients.as_mut(), carries && bucket as usize == last, *world));
                // A loss that is carried is among the values.
                let is_finite = all_finite(gradients.as_mut());
                (summed.taken, summed.is_finite) = (taken, summed.is_finite && is_finite);
                if let Some(carried) = gradients.carried() {
                    summed.trained = Some(Trained::of_sums(&carried));
                    *numbers = carried;
                }
                if skips && !is_finite {
                    // Newcomers get the gradients without the loss, and must leave it out too.
                    gradients.as_mut()[0] = f32::NAN;
                }
                if let Some((times, begun)) = &mut *step_times {
                    let ready = ready.saturating_duration_since(*begun);
                    times.summed(bucket as usize, ready.as_secs_f64(), transferred.took.as_secs_f64());
                }
            }
            Ok(summed)
        })
    }

    /// Sends the numbers of the last step alone.
    pub(super) fn send_numbers(&mut self) {
        let numbers = Payload::Numbers(mem::take(&mut self.numbers));
        let tag = Tag { step: self.state.step - 1, bucket: BESIDE };
        // With one bucket, the numbers wait for it. With more, the thread that sums them is busy
        // anyway.
        self.alone = Some(if self.state.bucket_count() == 1 {
            self.collectives.all_reduce_with_next(tag, numbers)
        } else {
            self.collectives.all_reduce(tag, numbers)
        });
    }

    /// Waits for the numbers of the last step. No step is uncommitted after that.
    pub(crate) fn settle(&mut self) -> Result<Option<CommittedStep>, Failure> {
        let Some(UncommittedStep { rides, .. }) = self.uncommitted else { return Ok(None) };
        if rides {
            // No other step follows at once.
            self.send_numbers();
        }
        let Some(alone) = self.alone.take() else { unreachable!("numbers that do not ride were sent alone") };
        let waiting = Instant::now();
        let sum = || self.collectives.wait(alone).map_err(|failed| Failure::lost(&failed.error));
        let Completed { memory, .. } = self.session.work().during(Activity::Waiting, sum)?;
        self.waited += waiting.elapsed();
        let Payload::Numbers(numbers) = memory else {
            unreachable!("operations come back in the order of submission: numbers before the next step's gradients")
        };
        self.numbers = numbers;
        self.commit()
    }

    /// Reads the summed numbers of the last step, which is then committed.
    pub(super) fn commit(&mut self) -> Result<Option<CommittedStep>, Failure> {
        let Some(UncommittedStep { mut line, samples, rides: _, window, whole, square }) = self.uncommitted.take()
        else {
            return Ok(None);
        };
        let loss = match line.loss {
            Some(loss) => loss,
            None => self.complete(&mut line, samples, Trained::of_sums(&self.numbers))?,
        };
        let sums = Sums::of(&self.numbers, self.world);
        let (step, halt, checkpoint) = (line.step, sums.halt(), sums.checkpoint());
        self.session.metrics.waited_for_stable(sums.waited());
        let useful = sums.useful();
        let longest = useful.iter().copied().fold(0.0, f32::max);
        let longer = Duration::try_from_secs_f32(longest - useful[self.rank]).unwrap_or_default();
        self.session.metrics.phases.was_for_ranks(longer);
        self.meter.record(Step { samples, wall: line.step_seconds, useful: sums.useful().to_vec() });
        self.bus_bandwidth.record(sums.summing());
        if let Some(square) = square.filter(|_| !line.skipped) {
            let shares = shares(samples, self.seat, self.world);
            self.gradient_norm = Some(square.sqrt());
            let scale = self.noise.scale(&shares, samples, sums.squares(), square);
            self.gradient_noise_scale = scale.or(self.gradient_noise_scale);
        }
        if let Some(alone) = self.meter.alone() {
            self.state.alone = Some(alone);
        }
        self.catchup.hear(step, sums.all_know_newcomer());
        if !sums.all_hold(window, whole) {
            return Err(Failure::diverged(format_args!("after step {step} the workers do not hold the same weights")));
        }
        if checkpoint.asks || halt.is_some() {
            self.saves_after = Some(step + 1);
        }
        self.check_loss_of_sound_gradients(step, loss, line.skipped)?;
        Ok(Some(CommittedStep { line, halt, checkpoint }))
    }
}
