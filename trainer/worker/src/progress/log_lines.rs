//! Lines of progress in a worker's own log, for those who read nothing else. `lockstep plot` and
//! `lockstep report` draw them once a job's workers have ended.

use std::time::{Duration, Instant};

use lockstep_launch::{Progress, six_digits};
use tracing::info;

use crate::lines::{Evaluation, StepLine};

/// The next line comes after a hundredth of the time that the group has had, within these limits.
const SHARE: u32 = 100;
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(30);

/// The lines of a generation's reporting worker.
#[derive(Debug)]
pub(crate) struct LogLines {
    begun: Instant,
    last: Option<Instant>,
}

impl LogLines {
    /// Begins with a generation.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { begun: now, last: None }
    }

    /// Writes what a step was, if the last line is old enough or the step is the last one.
    pub(crate) fn step(&mut self, line: &StepLine, figures: &Progress, now: Instant) {
        if !self.is_due(line.step == figures.total_steps, now) {
            return;
        }
        let StepLine { step, generation, world_size: world, .. } = *line;
        let loss = line.loss.map(six_digits);
        let samples_per_second = six_digits(line.samples_per_second);
        let step_seconds = six_digits(line.step_seconds);
        let learning_rate = six_digits(line.learning_rate.into());
        let efficiency = figures.scaling_efficiency.map(six_digits);
        let of = figures.total_steps;
        info!(
            step,
            of, generation, world, loss, samples_per_second, step_seconds, learning_rate, efficiency, "progress"
        );
    }

    fn is_due(&mut self, is_last: bool, now: Instant) -> bool {
        let between = ((now - self.begun) / SHARE).clamp(LEAST, MOST);
        let is_due = is_last || self.last.is_none_or(|last| now - last >= between);
        self.last = if is_due { Some(now) } else { self.last };
        is_due
    }
}

/// Writes what an evaluation found.
pub(crate) fn evaluation(step: u64, found: &Evaluation) {
    info!(step, loss = six_digits(found.loss), accuracy = six_digits(found.accuracy), "evaluated");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_each_second_at_first_and_each_half_minute_at_last() {
        let start = Instant::now();
        let mut lines = LogLines::begin(start);
        let due: Vec<u64> =
            (0..7200).filter(|second| lines.is_due(false, start + Duration::from_secs(*second))).collect();
        assert_eq!(due[..5], [0, 1, 2, 3, 4]);
        assert_eq!(due[due.len() - 1] - due[due.len() - 2], 30);
        assert!((400..700).contains(&due.len()), "{} lines in two hours", due.len());
    }

    #[test]
    fn the_last_step_always_has_a_line() {
        let start = Instant::now();
        let mut lines = LogLines::begin(start);
        assert!(lines.is_due(false, start));
        assert!(!lines.is_due(false, start + Duration::from_millis(1)));
        assert!(lines.is_due(true, start + Duration::from_millis(2)));
    }
}
