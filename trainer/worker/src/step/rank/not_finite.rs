//! Steps whose loss or gradients are infinite or not a number, by `spec.training.onNonFinite`.
//!
//! All ranks hold the same summed gradients and, unless gradients are rounded, the same summed loss
//! before any weight changes. So each decides by itself, and all decide alike; so do newcomers and
//! a replay. If the loss is scaled, gradients may be too large only because of that: such a step is
//! left out whatever the policy says, until the scale can fall no more. A state that is not finite
//! never comes about, and none is saved.

use lockstep_data::Step;
use lockstep_launch::OnNonFinite;
use tracing::{info, warn};

use super::{Rank, uncommitted::Summed};
use crate::{failure::Failure, lines::StepLine};

/// The number of steps in a row after which a run that skips them fails.
const MOST_SKIPPED_IN_A_ROW: u32 = 10;

impl Rank<'_> {
    /// Returns true if the next step may change the weights; false if all ranks leave it out.
    ///
    /// # Errors
    /// Fatal, if the job is to stop at such a step, or has left out too many.
    pub(super) fn is_sound(&mut self, step: Step, summed: &Summed) -> Result<bool, Failure> {
        if summed.is_finite {
            self.skipped_in_a_row = 0;
            return Ok(true);
        }
        let loss = summed.trained.map(|trained| trained.loss / step.samples as f64);
        // The factor of the loss changes no loss that is told.
        if self.state.can_lower_loss_scale() && loss.is_none_or(f64::is_finite) {
            self.skipped_in_a_row += 1;
            self.session.metrics.skipped.inc();
            let scale = self.state.loss_scale();
            info!(
                step = step.index + 1,
                scale, "a gradient is not finite: the step is left out, the loss scale halves"
            );
            return Ok(false);
        }
        let problem = problem(step.index + 1, loss, self.last_finite_loss());
        if self.state.recipe.on_non_finite == OnNonFinite::Stop {
            let first = self.state.first_not_finite(step);
            return Err(self.stops(&format!("{problem}{}", named(first.as_deref()))));
        }
        self.skipped_in_a_row += 1;
        self.session.metrics.skipped.inc();
        if self.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW {
            let (skipped, first) = (self.skipped_in_a_row, self.state.first_not_finite(step));
            return Err(self.stops(&format!("{problem}{}; {skipped} such steps in a row", named(first.as_deref()))));
        }
        if self.skipped_in_a_row == 1 {
            warn!("{problem}: the step is left out (spec.training.onNonFinite: skip)");
        }
        Ok(false)
    }

    /// Refuses a loss that is not finite of a step with finite gradients. It is known only after
    /// the step if gradients are rounded.
    pub(super) fn check_loss_of_sound_gradients(&self, step: u64, loss: f64, skipped: bool) -> Result<(), Failure> {
        if loss.is_finite() || skipped || self.state.recipe.on_non_finite == OnNonFinite::Skip {
            return Ok(());
        }
        Err(self.stops(&problem(step, Some(loss), self.last_finite_loss())))
    }

    fn stops(&self, problem: &str) -> Failure {
        let rate = self.state.recipe.rate(self.state.step + 1);
        Failure::fatal(format!(
            "{problem}: lower spec.training.schedule.baseLearningRate (the rate is {rate}), or clip gradients by \
             spec.training.clipGradientNorm; the newest checkpoint stays as it is"
        ))
    }

    /// Returns the newest step with a finite loss, and that loss.
    fn last_finite_loss(&self) -> Option<(u64, f64)> {
        let finite = |line: &StepLine| Some((line.step, line.loss.filter(|loss| loss.is_finite())?));
        self.state.remembered().iter().rev().find_map(finite)
    }
}

fn problem(step: u64, loss: Option<f64>, last: Option<(u64, f64)>) -> String {
    let mut text = match loss.filter(|loss| !loss.is_finite()) {
        Some(loss) => format!("the training loss became {loss} at step {step}"),
        None => format!("a gradient became infinite or not a number at step {step}"),
    };
    if let Some((step, loss)) = last {
        let loss = if loss.abs() < 1e4 { format!("{loss:.4}") } else { format!("{loss:.3e}") };
        text += &format!(" (the last finite loss was {loss} at step {step})");
    }
    text
}

fn named(first: Option<&str>) -> String {
    first.map(|first| format!("; the first that is not finite is {first}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_names_the_step_and_the_last_finite_loss() {
        assert_eq!(
            problem(7, Some(f64::NAN), Some((6, 2.5))),
            "the training loss became NaN at step 7 (the last finite loss was 2.5000 at step 6)"
        );
        assert_eq!(problem(1, Some(0.5), None), "a gradient became infinite or not a number at step 1");
        assert_eq!(
            named(Some("the output of layer conv2")),
            "; the first that is not finite is the output of layer conv2"
        );
    }
}
