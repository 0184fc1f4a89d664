//! `lockstep history`: shows how the group of a run changed, and the cost.

use std::path::PathBuf;

use lockstep_launch::GroupChange;

use crate::{
    Outcome,
    display::{eprint_line, print},
    run::folder::{ReadOnlyFolder, metrics_log_of},
    run_history::{Change, Log, with_costs},
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
    let steps = Log::parse(&metrics_log).steps;
    let changes = with_costs(changes, &steps).into_iter();
    let lines: Vec<String> = match arguments.json {
        true => changes.map(|change| serde_json::to_string(&change)).collect::<Result<_, _>>()?,
        false => std::iter::once(HEADER.to_owned()).chain(changes.map(|change| Row(change).to_string())).collect(),
    };
    print(&lines.into_iter().map(|line| line + "\n").collect::<String>());
    Ok(Outcome::Done)
}

/// A line of the table.
struct Row(Change);

const HEADER: &str = "GENERATION  TIME                  WORKERS  STEP        STALLED     REDONE  CAUSE";

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GroupChange { generation, time, workers, step, redone, .. } = &self.0.change;
        let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
        let stalled = self.0.stalled.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3} s"));
        let cause = self.0.cause();
        write!(f, "{generation:<10}  {time:<20}  {workers:<7}  {step:<10}  {stalled:<10}  {redone:<6}  {cause}")
    }
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
        let row = |stalled| Row(Change { change: change.clone(), stalled }).to_string();
        assert_eq!(
            row(Some(0.0214)),
            "3           2026-11-22T05:12:00   2        140         0.021 s     12      \
             w-1 was lost: closed its connection; w-2 joined"
        );
        assert_eq!(row(None), row(Some(0.0214)).replace("0.021 s", "-      "));
    }
}
