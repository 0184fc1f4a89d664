//! `lockstep history`: shows how the group of a run changed, and the cost.

use std::path::PathBuf;

use jiff::Timestamp;
use lockstep_launch::GroupChange;
use serde::{Deserialize, Serialize};

use crate::{
    Outcome,
    display::{eprint_line, print},
    run::folder::{ReadOnlyFolder, metrics_log_of},
};

/// Arguments of `lockstep history`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` prints it.
    run: PathBuf,
    /// Print one line of JSON for each change.
    #[arg(long)]
    json: bool,
}

/// Prints a line for each generation.
pub(crate) fn history(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let changes = ReadOnlyFolder::open(&arguments.run)?.history()?;
    let metrics_log = metrics_log_of(&arguments.run).unwrap_or_else(|error| {
        eprint_line(&format!("{error:#}: no stall can be shown"));
        String::new()
    });
    let steps = steps(&metrics_log);
    let rows = changes.into_iter().map(|change| Row { stalled: stalled(&change, &steps), change });
    let lines: Vec<String> = match arguments.json {
        true => rows.map(|row| serde_json::to_string(&row)).collect::<Result<_, _>>()?,
        false => std::iter::once(HEADER.to_owned()).chain(rows.map(|row| row.to_string())).collect(),
    };
    print(&lines.into_iter().map(|line| line + "\n").collect::<String>());
    Ok(Outcome::Done)
}

/// A change of the group, with its cost.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(flatten)]
    change: GroupChange,
    /// Seconds without a new step.
    #[serde(rename = "stalledSeconds", skip_serializing_if = "Option::is_none")]
    stalled: Option<f64>,
}

const HEADER: &str = "GENERATION  TIME                  WORKERS  STEP        STALLED     REDONE  CAUSE";

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GroupChange { generation, time, workers, step, redone, .. } = &self.change;
        let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
        let stalled = self.stalled.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3} s"));
        let cause = cause(&self.change);
        write!(f, "{generation:<10}  {time:<20}  {workers:<7}  {step:<10}  {stalled:<10}  {redone:<6}  {cause}")
    }
}

fn cause(change: &GroupChange) -> String {
    let GroupChange { joined, left, lost, broken, rollback, .. } = change;
    let mut causes: Vec<String> = lost.iter().map(|gone| format!("{} was lost: {}", gone.pod, gone.reason)).collect();
    causes.extend(left.iter().map(|gone| format!("{} left: {}", gone.pod, gone.reason)));
    if !joined.is_empty() {
        causes.push(format!("{} joined", joined.join(", ")));
    }
    causes.extend(broken.clone());
    if *rollback {
        causes.push("started from a checkpoint: no worker was left with the steps after it".to_owned());
    }
    causes.join("; ")
}

/// A step whose loss is known, from the metrics log.
#[derive(Deserialize)]
struct Step {
    step: u64,
    generation: u64,
    step_seconds: f64,
    time: Timestamp,
    /// Missing if no worker was left that had computed the step. Its time is then of no use.
    #[serde(rename = "loss")]
    _seen: f64,
}

fn steps(metrics_log: &str) -> Vec<Step> {
    metrics_log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the seconds from the last step that counts of the groups before to the first step of
/// this one, less the time of the steps themselves. They cover the detection of the loss, the
/// rendezvous, the catch-up, and steps that were done and lost. Returns `None` for the first group,
/// and for a group of which no step is left.
fn stalled(change: &GroupChange, steps: &[Step]) -> Option<f64> {
    let (before, after) = steps.split_at(steps.partition_point(|step| step.step <= change.step));
    let before = before.iter().rfind(|step| step.generation < change.generation)?;
    let first = after.first().filter(|step| step.generation == change.generation)?;
    let took = first.time.duration_since(before.time).as_secs_f64();
    Some((took - first.step_seconds * (first.step - before.step) as f64).max(0.0))
}

#[cfg(test)]
mod tests {
    use lockstep_launch::Departure;

    use super::*;

    #[test]
    fn a_row_shows_the_time_the_cause_and_the_cost() {
        let change = GroupChange {
            time: "2026-11-22T05:12:00.123456Z".into(),
            generation: 3,
            workers: 2,
            step: 140,
            joined: vec!["w-2".into()],
            lost: vec![Departure { pod: "w-1".into(), reason: "closed its connection".into() }],
            redone: 12,
            ..GroupChange::default()
        };
        let row = |stalled| Row { change: change.clone(), stalled }.to_string();
        assert_eq!(
            row(Some(0.0214)),
            "3           2026-11-22T05:12:00   2        140         0.021 s     12      \
             w-1 was lost: closed its connection; w-2 joined"
        );
        assert_eq!(row(None), row(Some(0.0214)).replace("0.021 s", "-      "));
    }

    #[test]
    fn a_stall_lasts_from_the_last_step_that_counts_to_the_next_one() {
        let line = |step: u64, generation: u64, loss: &str, second: f64| {
            format!(
                "{{\"step\":{step},\"generation\":{generation},\"loss\":{loss},\"step_seconds\":0.25,\
                 \"time\":\"2026-11-22T05:12:{second:06.3}Z\"}}\n"
            )
        };
        let metrics_log = [
            line(9, 1, "0.5", 10.0),
            "{\"step\":9,\"evaluation\":{\"loss\":0.5}}\n".to_owned(),
            // No worker was left that had computed this step.
            line(10, 2, "null", 12.0),
            line(11, 2, "0.5", 13.0),
            line(12, 4, "0.5", 13.75),
        ];
        let steps = steps(&metrics_log.concat());
        let stalled = |generation, step| stalled(&GroupChange { generation, step, ..GroupChange::default() }, &steps);
        assert_eq!(stalled(1, 0), None, "there was no step before");
        assert_eq!(stalled(2, 10), Some(2.5), "2.5 s beyond the two steps of a quarter of a second");
        assert_eq!(stalled(3, 11), None, "it did no step");
        assert_eq!(stalled(4, 11), Some(0.5));
    }
}
