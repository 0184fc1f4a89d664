//! The learning rate of every step: warm-up, then decay, from a peak that may follow the global
//! batch.
//!
//! Linear scaling and gradual warm-up: Goyal et al., arXiv 1706.02677. Square-root scaling: You et
//! al., arXiv 1708.03888. The polynomial form is MLPerf's.

/// How the learning rate follows the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// The rate is meant for the given batch.
    None,
    /// `rate·B / B₀`.
    Linear,
    /// `rate·√(B / B₀)`.
    SquareRoot,
}

impl Scaling {
    /// The rate for `batch` samples, from the one that was found for `base_batch`.
    #[must_use]
    pub fn scale(self, rate: f64, batch: u64, base_batch: u64) -> f64 {
        let ratio = batch as f64 / base_batch as f64;
        match self {
            Scaling::None => rate,
            Scaling::Linear => rate * ratio,
            Scaling::SquareRoot => rate * ratio.sqrt(),
        }
    }
}

/// The rate after warm-up, from the peak down.
#[derive(Debug, Clone, PartialEq)]
pub enum Decay {
    /// The peak to the end.
    Constant,
    /// `peak·factorᵏ` after `k` of these steps.
    Steps {
        /// Steps after which the rate drops, ascending.
        at: Vec<u64>,
        /// The factor on the rate at each.
        factor: f64,
    },
    /// `end + (peak − end)·(1 + cos πx) / 2`, where `x` is the share of the steps after warm-up.
    Cosine {
        /// The last rate.
        end: f64,
    },
    /// `end + (peak − end)·(1 − x)ᵖ`.
    Polynomial {
        /// `p`.
        power: f64,
        /// The last rate.
        end: f64,
    },
}

/// The learning rate over a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The rate at the end of warm-up.
    pub peak: f64,
    /// Steps over which the rate grows from 0 to the peak, in equal parts.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// The decay after warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The same rate at every step.
    #[must_use]
    pub fn constant(rate: f64) -> Self {
        Self { peak: rate, warmup_steps: 0, total_steps: 0, decay: Decay::Constant }
    }

    /// The rate of a step; steps count from 1.
    #[must_use]
    pub fn rate(&self, step: u64) -> f32 {
        self.rate_below(self.peak, step)
    }

    /// The rate of a step if the peak were this one, as for another global batch.
    #[must_use]
    pub fn rate_below(&self, peak: f64, step: u64) -> f32 {
        let Self { peak: _, warmup_steps, total_steps, ref decay } = *self;
        if step <= warmup_steps {
            return (peak * step as f64 / warmup_steps as f64) as f32;
        }
        let left = total_steps.saturating_sub(warmup_steps).max(1) as f64;
        let share = ((step - warmup_steps) as f64 / left).min(1.0);
        let rate = match decay {
            Decay::Constant => peak,
            Decay::Steps { at, factor } => {
                let passed = at.iter().filter(|at| **at < step).count();
                peak * factor.powi(i32::try_from(passed).unwrap_or(i32::MAX))
            }
            Decay::Cosine { end } => end + (peak - end) * (1.0 + (std::f64::consts::PI * share).cos()) / 2.0,
            Decay::Polynomial { power, end } => end + (peak - end) * (1.0 - share).powf(*power),
        };
        rate as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_rates(schedule: &Schedule, expected: &[(u64, f64)]) {
        for (step, expected) in expected {
            let rate = f64::from(schedule.rate(*step));
            assert!((rate - expected).abs() <= 1e-7 * expected.max(1e-3), "step {step}: {rate}, not {expected}");
        }
    }

    /// The vector of the design's data plane page: ResNet-50 at 4096, 313 steps an epoch.
    #[test]
    fn polynomial_decay_is_that_of_mlperf() {
        let decay = Decay::Polynomial { power: 2.0, end: 1e-4 };
        let schedule = Schedule { peak: 10.0, warmup_steps: 1565, total_steps: 13_137, decay };
        let expected = [
            (1, 0.006_389_78),
            (782, 4.996_805_11),
            (1565, 10.0),
            (1566, 9.998_271_78),
            (5000, 4.944_429_88),
            (13_137, 1e-4),
        ];
        for (step, expected) in expected {
            let rate = f64::from(schedule.rate(step));
            assert!((rate - expected).abs() < 1e-7 * f64::max(1.0, expected), "step {step}: {rate}, not {expected}");
        }
    }

    /// Research, large batch: 75 steps at 4096 with peak 64 and 15 of warm-up.
    #[test]
    fn a_short_run_ends_at_zero() {
        let decay = Decay::Polynomial { power: 2.0, end: 0.0 };
        let schedule = Schedule { peak: 64.0, warmup_steps: 15, total_steps: 75, decay };
        assert_rates(&schedule, &[(1, 64.0 / 15.0), (15, 64.0), (16, 64.0 * (59.0f64 / 60.0).powi(2)), (75, 0.0)]);
    }

    #[test]
    fn cosine_decay_is_half_way_in_the_middle() {
        let schedule = Schedule { peak: 1.0, warmup_steps: 0, total_steps: 100, decay: Decay::Cosine { end: 0.0 } };
        assert_rates(&schedule, &[(50, 0.5), (100, 0.0)]);
    }

    #[test]
    fn steps_drop_the_rate_after_the_named_ones() {
        let decay = Decay::Steps { at: vec![10, 20], factor: 0.1 };
        let schedule = Schedule { peak: 1.0, warmup_steps: 0, total_steps: 30, decay };
        assert_rates(&schedule, &[(10, 1.0), (11, 0.1), (20, 0.1), (21, 0.01)]);
    }

    #[test]
    fn scaling_follows_the_batch_or_its_root() {
        let scaled = |scaling: Scaling| scaling.scale(0.1, 1024, 256);
        assert_eq!([scaled(Scaling::None), scaled(Scaling::Linear), scaled(Scaling::SquareRoot)], [0.1, 0.4, 0.2]);
    }

    #[test]
    fn a_constant_rate_holds_beyond_every_end() {
        assert_eq!(Schedule::constant(0.02).rate(1_000_000), 0.02);
    }
}
