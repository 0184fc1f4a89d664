//! `lockstep history`: how the group of a run changed.

use std::path::PathBuf;

use lockstep_launch::Change;

use crate::{Outcome, display::print, run::folder::Other};

/// Arguments of `lockstep history`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` tells it.
    run: PathBuf,
    /// One line of JSON for each change.
    #[arg(long)]
    json: bool,
}

/// Prints a line for each membership.
pub(crate) fn history(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let changes = Other::open(&arguments.run)?.history()?;
    let lines: Vec<String> = match arguments.json {
        true => changes.iter().map(serde_json::to_string).collect::<Result<_, _>>()?,
        false => std::iter::once(HEADER.to_owned()).chain(changes.iter().map(row)).collect(),
    };
    print(&lines.into_iter().map(|line| line + "\n").collect::<String>());
    Ok(Outcome::Done)
}

const HEADER: &str = "GENERATION  TIME                  WORKERS  STEP        SECONDS  CAUSE";

/// Seconds are those from the moment when the need for the change was seen to the recorded membership.
fn row(change: &Change) -> String {
    let Change { generation, time, workers, step, seconds, .. } = change;
    let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
    format!("{generation:<10}  {time:<20}  {workers:<7}  {step:<10}  {seconds:<7.3}  {}", cause(change))
}

fn cause(change: &Change) -> String {
    let Change { joined, left, lost, broken, rollback, .. } = change;
    let mut causes: Vec<String> = lost.iter().map(|gone| format!("{} was lost: {}", gone.pod, gone.reason)).collect();
    causes.extend(left.iter().map(|gone| format!("{} left: {}", gone.pod, gone.reason)));
    if !joined.is_empty() {
        causes.push(format!("{} joined", joined.join(", ")));
    }
    causes.extend(broken.clone());
    if *rollback {
        causes.push("begun from a checkpoint: nobody holds the steps after it".to_owned());
    }
    causes.join("; ")
}

#[cfg(test)]
mod tests {
    use lockstep_launch::Gone;

    use super::*;

    #[test]
    fn a_row_tells_when_why_and_at_what_cost() {
        let change = Change {
            time: "2026-11-22T05:12:00.123456Z".into(),
            generation: 3,
            workers: 2,
            step: 140,
            joined: vec!["w-2".into()],
            lost: vec![Gone { pod: "w-1".into(), reason: "closed its connection".into() }],
            seconds: 0.0214,
            ..Change::default()
        };
        assert_eq!(
            row(&change),
            "3           2026-11-22T05:12:00   2        140         0.021    w-1 was lost: closed its connection; w-2 joined"
        );
    }
}
