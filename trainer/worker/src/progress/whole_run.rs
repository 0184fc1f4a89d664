//! The figures of a whole run, with everything that its time went into. Only the coordinator sees a
//! run from end to end: the reporting worker may change with the group.
//!
//! ```text
//! goodput    = samples of the steps that the state holds since the first group / seconds
//! throughput = those and the samples of steps that were lost and done again    / seconds
//! ```

use std::time::Instant;

use lockstep_launch::{GroupChange, Progress, WholeRun};

/// Collects what the coordinator hears about a run.
#[derive(Debug, Default)]
pub(crate) struct RunMeter {
    /// The beginning of the first group, and the step with which it began.
    first: Option<(Instant, u64)>,
    /// The number of steps that were announced and then done again.
    redone: u64,
}

impl RunMeter {
    /// Takes a group into account.
    pub(crate) fn changed(&mut self, change: &GroupChange, now: Instant) {
        match &mut self.first {
            None => self.first = Some((now, change.step)),
            Some((_, step)) => {
                // Nothing stays of the steps since the beginning if the run goes back beyond it.
                *step = (*step).min(change.step);
                self.redone += change.redone;
            }
        }
    }

    /// Returns the figures of the run at the moment of a report.
    pub(crate) fn figures(&self, report: &Progress, now: Instant) -> Option<WholeRun> {
        let (begun, first) = self.first?;
        let seconds = now.duration_since(begun).as_secs_f64();
        if report.samples == 0 || report.step <= first || seconds <= 0.0 {
            return None;
        }
        let a_step = report.samples as f64 / report.step as f64;
        let rate = |steps: u64| steps as f64 * a_step / seconds;
        let kept = report.step - first;
        Some(WholeRun { seconds, samples_per_second: rate(kept + self.redone), goodput_samples_per_second: rate(kept) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn steps_that_are_done_again_count_in_the_throughput_only() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let change = |step, redone| GroupChange { step, redone, ..GroupChange::default() };
        let report = |step| Progress { step, samples: step * 10, ..Progress::default() };
        let mut meter = RunMeter::default();
        assert_eq!(meter.figures(&report(1), at(1)), None, "no group was formed");
        meter.changed(&change(100, 0), at(0));
        let found = meter.figures(&report(160), at(60)).expect("60 steps");
        assert_eq!((found.samples_per_second, found.goodput_samples_per_second), (10.0, 10.0));
        meter.changed(&change(140, 20), at(70));
        let found = meter.figures(&report(180), at(100)).expect("80 steps");
        let WholeRun { seconds, samples_per_second, goodput_samples_per_second } = found;
        assert_eq!((seconds, samples_per_second, goodput_samples_per_second), (100.0, 10.0, 8.0));
    }

    #[test]
    fn a_group_that_has_just_begun_has_no_figures() {
        let now = Instant::now();
        let mut meter = RunMeter::default();
        meter.changed(&GroupChange { step: 50, ..GroupChange::default() }, now);
        let report = Progress { step: 50, samples: 500, ..Progress::default() };
        assert_eq!(meter.figures(&report, now + Duration::from_secs(1)), None);
    }
}
