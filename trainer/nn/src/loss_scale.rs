//! The scale of the loss: gradients too small for f16 are computed many times too large.
//!
//! The rule is that of PyTorch's `GradScaler`: the scale halves after a step whose gradients are
//! infinite or not a number, which changes no weight, and doubles after a number of good steps in a
//! row. All ranks see the same summed gradients, so all of them change the scale alike.

/// The least scale to which a dynamic scale falls, and the highest to which it grows.
const LEAST: f32 = 1.0;
const HIGHEST: f32 = (1_u64 << 40) as f32;

/// How the loss is scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossScaling {
    /// The same factor in all steps; 1 does nothing.
    Constant(f32),
    /// As high as the gradients allow.
    Dynamic {
        /// The factor of the first step.
        initial: f32,
        /// The number of good steps in a row after which the factor doubles.
        growth_interval: u32,
    },
}

/// The part of a run's state that decides the scale of the next step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossScale {
    /// The factor; 0 before the first step with a dynamic scale.
    pub scale: f32,
    /// The number of good steps since the factor changed.
    pub good_steps: f32,
}

impl LossScaling {
    /// Returns the factor of the next step.
    #[must_use]
    pub fn factor(self, state: LossScale) -> f32 {
        match self {
            LossScaling::Constant(factor) => factor,
            LossScaling::Dynamic { initial, .. } if state.scale <= 0.0 => initial,
            LossScaling::Dynamic { .. } => state.scale,
        }
    }

    /// Returns true if a lower factor may make gradients finite.
    #[must_use]
    pub fn can_fall(self, state: LossScale) -> bool {
        matches!(self, LossScaling::Dynamic { .. }) && self.factor(state) > LEAST
    }

    /// Returns the state after a step with finite gradients.
    #[must_use]
    pub fn after_good_step(self, state: LossScale) -> LossScale {
        let LossScaling::Dynamic { growth_interval, .. } = self else { return state };
        let (scale, good_steps) = (self.factor(state), state.good_steps + 1.0);
        if good_steps < growth_interval as f32 {
            return LossScale { scale, good_steps };
        }
        LossScale { scale: (2.0 * scale).min(HIGHEST), good_steps: 0.0 }
    }

    /// Returns the state after a step that was left out.
    #[must_use]
    pub fn after_skipped_step(self, state: LossScale) -> LossScale {
        match self {
            LossScaling::Constant(_) => state,
            LossScaling::Dynamic { .. } => LossScale { scale: (0.5 * self.factor(state)).max(LEAST), good_steps: 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: LossScaling = LossScaling::Dynamic { initial: 65_536.0, growth_interval: 3 };

    /// The factor after some steps, each good or skipped.
    fn after(scaling: LossScaling, steps: &[bool]) -> f32 {
        let step = |state, good: &bool| match good {
            true => scaling.after_good_step(state),
            false => scaling.after_skipped_step(state),
        };
        scaling.factor(steps.iter().fold(LossScale::default(), step))
    }

    #[test]
    fn a_dynamic_scale_halves_at_each_skipped_step_and_doubles_after_good_ones_in_a_row() {
        for (steps, factor) in [
            (&[][..], 65_536.0),
            (&[false], 32_768.0),
            (&[true, true], 65_536.0),
            (&[true, true, true], 131_072.0),
            (&[true, true, false, true, true], 32_768.0),
            (&[true, true, false, true, true, true], 65_536.0),
        ] {
            assert_eq!(after(DYNAMIC, steps), factor, "{steps:?}");
        }
    }

    #[test]
    fn a_dynamic_scale_falls_to_1_at_the_lowest() {
        let (mut state, mut falls) = (LossScale::default(), 0);
        while DYNAMIC.can_fall(state) {
            (state, falls) = (DYNAMIC.after_skipped_step(state), falls + 1);
        }
        assert_eq!((DYNAMIC.factor(state), falls), (1.0, 16));
    }

    #[test]
    fn a_constant_scale_stays_whatever_a_state_of_another_run_says() {
        let constant = LossScaling::Constant(1024.0);
        assert_eq!(after(constant, &[true, true, true, true, false]), 1024.0);
        assert!(!constant.can_fall(LossScale { scale: 8.0, good_steps: 0.0 }));
    }
}
