//! The figures of a whole run, with everything that its time went into. Only the coordinator sees a
//! run from end to end: the reporting worker may change with the group.
//!
//! ```text
//! goodput       = samples of the steps that the state holds since the first group / seconds
//! throughput    = those and the samples of steps that were lost and done again    / seconds
//! goodput ratio = time of the steps that the state holds                          / seconds
//! ```

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use lockstep_launch::{GroupChange, Progress, WholeRun};

/// The estimate of the end takes the cost of evaluations and the like from so much time.
const RECENT: Duration = Duration::from_secs(60);
/// The least part of it that tells something.
const LEAST_RECENT: Duration = Duration::from_secs(5);

/// Collects what the coordinator hears about a run.
#[derive(Debug, Default)]
pub(crate) struct RunMeter {
    /// The beginning of the first group, and the step with which it began.
    first: Option<(Instant, u64)>,
    /// The number of steps that were announced and then done again.
    redone: u64,
    /// The step of the newest report.
    step: u64,
    /// Seconds of the steps up to there, by the speeds that the reports tell.
    stepping: f64,
    /// Seconds of the newest step.
    a_step: f64,
    /// Seconds of the steps that were lost.
    lost: f64,
    /// The seconds of steps at the moments of the newest reports.
    recent: VecDeque<(Instant, f64)>,
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
        let lost = self.a_step * self.step.saturating_sub(change.step) as f64;
        self.lost += lost.min(self.stepping);
        self.stepping = (self.stepping - lost).max(0.0);
        self.step = change.step;
        self.recent.retain(|(_, stepping)| *stepping <= self.stepping);
    }

    /// Takes a report into account.
    pub(crate) fn reported(&mut self, report: &Progress, now: Instant) {
        if let (Some(speed), 1..) = (report.samples_per_second.filter(|speed| *speed > 0.0), report.step) {
            self.a_step = report.samples as f64 / report.step as f64 / speed;
        }
        self.stepping += self.a_step * report.step.saturating_sub(self.step) as f64;
        self.step = self.step.max(report.step);
        self.recent.push_back((now, self.stepping));
        while self.recent.front().is_some_and(|(then, _)| now.duration_since(*then) > RECENT) {
            self.recent.pop_front();
        }
    }

    /// Returns the wall time that a second of steps takes at present, with all that happens between
    /// them. It is 1 until that is known.
    pub(crate) fn wall_of_stepping(&self, now: Instant) -> f64 {
        let Some((then, before)) = self.recent.front() else { return 1.0 };
        let (wall, stepping) = (now.duration_since(*then), self.stepping - before);
        if wall < LEAST_RECENT || stepping <= 0.0 { 1.0 } else { (wall.as_secs_f64() / stepping).max(1.0) }
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
        Some(WholeRun {
            seconds,
            samples_per_second: rate(kept + self.redone),
            goodput_samples_per_second: rate(kept),
            goodput_ratio: (self.stepping / seconds).min(1.0),
            lost_seconds: self.lost,
        })
    }
}

#[cfg(test)]
mod tests {
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
        let WholeRun { seconds, samples_per_second, goodput_samples_per_second, .. } = found;
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

    #[test]
    fn the_goodput_ratio_is_the_share_of_steps_that_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let report = |step| Progress {
            step,
            samples: step * 10,
            // A step takes one second.
            samples_per_second: Some(10.0),
            ..Progress::default()
        };
        let mut meter = RunMeter::default();
        meter.changed(&GroupChange::default(), at(0));
        meter.reported(&report(60), at(80));
        let found = meter.figures(&report(60), at(80)).expect("60 steps");
        assert_eq!((found.goodput_ratio, found.lost_seconds), (0.75, 0.0), "20 s were no steps");
        meter.changed(&GroupChange { step: 50, redone: 10, ..GroupChange::default() }, at(85));
        meter.reported(&report(70), at(110));
        let found = meter.figures(&report(70), at(140)).expect("70 steps");
        assert_eq!((found.goodput_ratio, found.lost_seconds), (0.5, 10.0), "70 s of 140 s count");
    }

    #[test]
    fn the_estimate_of_the_end_includes_what_happens_between_steps() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let report = |step| Progress { step, samples: step, samples_per_second: Some(1.0), ..Progress::default() };
        let mut meter = RunMeter::default();
        meter.changed(&GroupChange::default(), at(0));
        meter.reported(&report(1), at(1));
        assert_eq!(meter.wall_of_stepping(at(1)), 1.0, "nothing is known yet");
        meter.reported(&report(11), at(21));
        assert_eq!(meter.wall_of_stepping(at(21)), 2.0, "10 s of steps took 20 s");
    }
}
