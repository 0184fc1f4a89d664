//! The steps of a job that the logs of its pods tell: lines of progress and of evaluations.

use std::{collections::BTreeMap, str::FromStr};

use jiff::Timestamp;

use super::Log;
use crate::{
    cluster::Cluster,
    logs,
    metrics_lines::{Evaluation, Figures, Step},
};

/// Reads the steps from the logs of the pods that are still there.
///
/// # Errors
/// No log can be read.
pub(super) async fn read(cluster: &Cluster, name: &str) -> anyhow::Result<Log> {
    Ok(of_lines(&logs::texts(cluster, name).await?))
}

/// Reads the lines in order. A step that was done again counts once, as it was the last time.
fn of_lines(lines: &[(Timestamp, String)]) -> Log {
    let mut log = Log::default();
    for (time, line) in lines {
        if let Some(step) = step(*time, line) {
            log.steps.retain(|before: &Step| before.step < step.step);
            log.evaluations.retain(|before: &Evaluation| before.step <= step.step);
            log.steps.push(step);
        } else if let Some(evaluation) = evaluation(line) {
            log.evaluations.retain(|before: &Evaluation| before.step < evaluation.step);
            log.evaluations.push(evaluation);
        }
    }
    log
}

fn step(time: Timestamp, line: &str) -> Option<Step> {
    let fields = Fields::of(line, "progress")?;
    Some(Step {
        step: fields.get("step")?,
        epoch: 0,
        generation: fields.get("generation")?,
        world_size: fields.get("world")?,
        loss: fields.figure("loss"),
        learning_rate: fields.figure("learning_rate")?,
        samples_per_second: fields.figure("samples_per_second")?,
        step_seconds: fields.figure("step_seconds")?,
        time,
        scaling_efficiency: fields.figure("efficiency"),
        load_balance: None,
        communication_efficiency: None,
        alone_samples_per_second: None,
        phases: BTreeMap::new(),
    })
}

fn evaluation(line: &str) -> Option<Evaluation> {
    let fields = Fields::of(line, "evaluated")?;
    let figures = Figures { loss: fields.figure("loss"), accuracy: fields.figure("accuracy") };
    Some(Evaluation { step: fields.get("step")?, figures })
}

/// The fields of a line.
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    /// Returns the fields of a line that says this.
    fn of(line: &'a str, message: &str) -> Option<Self> {
        let rest = line.strip_prefix(message)?.strip_prefix(' ')?;
        rest.split(' ').map(|field| field.split_once('=')).collect::<Option<_>>().map(Self)
    }

    fn get<T: FromStr>(&self, name: &str) -> Option<T> {
        self.0.get(name)?.parse().ok()
    }

    /// Returns a finite number.
    fn figure(&self, name: &str) -> Option<f64> {
        self.get(name).filter(|figure: &f64| figure.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> Log {
        let read = |(second, text): (usize, &&str)| {
            (Timestamp::from_second(second as i64).expect("a time"), (*text).to_owned())
        };
        of_lines(&lines.iter().enumerate().map(read).collect::<Vec<_>>())
    }

    fn progress(step: u64, loss: &str) -> String {
        format!(
            "progress step={step} of=90 generation=2 world=3 loss={loss} samples_per_second=1234.5 step_seconds=0.0125 learning_rate=0.05 efficiency=0.93"
        )
    }

    #[test]
    fn lines_of_progress_become_steps_and_others_nothing() {
        let found =
            log(&["group formed generation=2", &progress(7, "0.25"), "evaluated step=7 loss=0.5 accuracy=0.75"]);
        let [step] = &found.steps[..] else { panic!("{found:?}") };
        assert_eq!((step.step, step.generation, step.world_size, step.loss), (7, 2, 3, Some(0.25)));
        assert_eq!((step.samples_per_second, step.step_seconds, step.scaling_efficiency), (1234.5, 0.0125, Some(0.93)));
        let figures = Figures { loss: Some(0.5), accuracy: Some(0.75) };
        assert_eq!(found.evaluations, [Evaluation { step: 7, figures }]);
    }

    #[test]
    fn steps_that_were_done_again_count_as_they_were_the_last_time() {
        let found = log(&[
            &progress(5, "1"),
            &progress(9, "NaN"),
            "evaluated step=9 loss=1 accuracy=0.1",
            &progress(6, "0.5"),
            &progress(9, "0.25"),
        ]);
        let losses: Vec<_> = found.steps.iter().map(|step| (step.step, step.loss)).collect();
        assert_eq!(losses, [(5, Some(1.0)), (6, Some(0.5)), (9, Some(0.25))]);
        assert!(found.evaluations.is_empty(), "{:?}", found.evaluations);
    }

    #[test]
    fn words_of_a_users_program_are_no_step() {
        assert!(log(&["progress is slow", "progress step=x of=90", "progress"]).steps.is_empty());
    }
}
