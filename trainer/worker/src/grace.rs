//! The grace of a process that is asked to end: the time until it is killed.

use std::{fmt, time::Duration};

use lockstep_launch::ShortGrace;

/// The steps until all ranks stop: the present one, and one in which all learn of it.
const LAST_STEPS: u32 = 2;

/// Returns the problem if a drain does not fit into the grace. `step`, `evaluating` and `saving`
/// are the times that they take. An evaluation that is under way, or that follows one of the last
/// steps, is completed.
pub(crate) fn short_grace(
    step: Duration,
    evaluating: Duration,
    saving: Duration,
    grace_seconds: u32,
) -> Option<ShortGrace> {
    let drain = step * LAST_STEPS + evaluating + saving;
    let fits = drain <= Duration::from_secs(grace_seconds.into());
    (!fits).then_some(ShortGrace { drain_seconds: drain.as_secs_f64(), grace_seconds })
}

/// The time that a process took to end after it was asked, and the time that it had.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    pub took: Duration,
    pub grace_seconds: u32,
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { took, grace_seconds } = self;
        write!(
            f,
            "drained in {:.1} s of the {grace_seconds} s after which it would have been killed",
            took.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_fits_if_two_steps_an_evaluation_and_a_checkpoint_do() {
        let ms = Duration::from_millis;
        let found = |step, evaluating, saving, grace| {
            short_grace(ms(step), ms(evaluating), ms(saving), grace).map(|short| short.drain_seconds)
        };
        for (step, evaluating, saving, grace, too_long) in [
            (0, 0, 0, 0, None),
            (1, 0, 0, 0, Some(0.002)),
            (10_000, 0, 10_000, 30, None),
            (10_000, 0, 10_001, 30, Some(30.001)),
            (10_000, 1, 10_000, 30, Some(30.001)),
            (15_001, 0, 0, 30, Some(30.002)),
            (20, 0, 600_000, 30, Some(600.04)),
            (20, 0, 600_000, 601, None),
        ] {
            let situation =
                format!("steps of {step} ms, evaluated in {evaluating} ms, saved in {saving} ms, {grace} s");
            assert_eq!(found(step, evaluating, saving, grace), too_long, "{situation}");
        }
    }
}
