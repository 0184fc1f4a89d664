//! `lockstep logs`: the logs of all processes of a job or a run, merged by time.

mod follow;
mod line;
mod local;
mod paint;
mod pods;
mod selection;

use std::{collections::BTreeSet, io};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};

use crate::{
    Outcome,
    cluster::{self, Cluster},
    display::{colours, is_unread, write},
    target::Target,
};

pub(crate) use line::readable;
use line::{LogLine, Process, merged};
use paint::Paint;
use selection::Selection;

/// Arguments of `lockstep logs`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of a training job in the cluster, or folder of a local run, such as runs/lenet-1.
    #[arg(value_name = "JOB|RUN")]
    target: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Print new lines too, until the job or the run is over. A pod that replaces another one is
    /// followed from its first line.
    #[arg(short, long)]
    follow: bool,
    /// Print only these processes, such as 0,2-4,coordinator. The numbers are those in the names
    /// worker-0, worker-1 and so on. A worker keeps its number; its rank in the group may change.
    #[arg(long, visible_alias = "rank", value_name = "NUMBERS")]
    worker: Option<Selection>,
    /// Print only lines that are at most this old, such as 30s, 10m or 2h.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print only the last lines of all processes together; with --follow, begin with so many lines
    /// of each process.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
}

/// Processes that are named if the user's choice matches none.
const NAMED: usize = 10;

/// The lines that the user wants.
#[derive(Clone, Debug, Default)]
struct Wanted {
    processes: Option<Selection>,
    since: Option<Timestamp>,
    tail: Option<u32>,
}

impl Wanted {
    fn includes(&self, line: &LogLine) -> bool {
        self.since.is_none_or(|since| line.time.is_none_or(|time| time >= since))
    }

    fn selects(&self, process: Process) -> bool {
        self.processes.as_ref().is_none_or(|selection| selection.includes(process))
    }

    /// Says that the user chose none of these processes, if it is so and there are any.
    fn unmatched(&self, processes: impl IntoIterator<Item = Process>) -> Option<String> {
        let all: BTreeSet<Process> = processes.into_iter().collect();
        let selection = self.processes.as_ref().filter(|_| !all.is_empty())?;
        if all.iter().any(|process| selection.includes(*process)) {
            return None;
        }
        let mut names: Vec<String> = all.iter().take(NAMED).map(Process::to_string).collect();
        names.extend((all.len() > NAMED).then(|| format!("{} more", all.len() - NAMED)));
        Some(format!("no process matches --worker {selection}; there are: {}", names.join(", ")))
    }
}

/// Prints the lines. A reader that has seen enough, such as `head`, ends it.
pub(crate) async fn logs(arguments: &Arguments) -> anyhow::Result<Outcome> {
    match print(arguments).await {
        Err(error) if !is_unread(&error) => Err(error),
        Ok(()) | Err(_) => Ok(Outcome::Done),
    }
}

async fn print(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { target, cluster, follow, worker, since, tail } = arguments;
    let since = match since {
        Some(text) => {
            let time: SignedDuration =
                text.parse().with_context(|| format!("--since {text}: expected a time such as 30s, 10m or 2h"))?;
            Some(Timestamp::now().checked_sub(time).with_context(|| format!("--since {text}"))?)
        }
        None => None,
    };
    let wanted = Wanted { processes: worker.clone(), since, tail: *tail };
    let paint = Paint::new(colours());
    let logs = match (Target::of(target), follow) {
        (Target::Run(folder), false) => local::read(folder, &wanted)?,
        (Target::Run(folder), true) => return local::follow(folder, &wanted, &paint).await,
        (Target::Job(name), false) => pods::read(&cluster.connect().await?, name, &wanted).await?,
        (Target::Job(name), true) => return follow::follow(&cluster.connect().await?, name, &wanted, &paint).await,
    };
    Ok(show(&paint, last(&merged(logs), wanted.tail))?)
}

/// Returns what the processes of a job wrote, in order, with the time of each line.
///
/// # Errors
/// No log can be read.
pub(crate) async fn texts(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<(Timestamp, String)>> {
    let lines = merged(pods::read(cluster, name, &Wanted::default()).await?);
    Ok(lines.into_iter().filter_map(|line| Some((line.time?, line.text))).collect())
}

/// Returns the last `tail` lines, or all.
fn last(lines: &[LogLine], tail: Option<u32>) -> &[LogLine] {
    let first = tail.map_or(0, |tail| lines.len().saturating_sub(tail as usize));
    &lines[first..]
}

fn show(paint: &Paint, lines: &[LogLine]) -> io::Result<()> {
    write(&lines.iter().map(|line| paint.line(line) + "\n").collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_matches_nothing_says_what_there_is() {
        let wanted = Wanted { processes: Some("7-9".parse().expect("a choice")), ..Wanted::default() };
        let workers = |numbers: std::ops::Range<u32>| numbers.map(Process::Worker);
        let there = [Process::Worker(1), Process::Coordinator, Process::Worker(0), Process::Worker(0)];
        assert_eq!(
            wanted.unmatched(there).as_deref(),
            Some("no process matches --worker 7-9; there are: coordinator, worker-0, worker-1")
        );
        let many = wanted.unmatched(workers(20..40)).expect("none of them");
        assert!(many.ends_with("worker-28, worker-29, 10 more"), "{many}");
        assert_eq!(wanted.unmatched(workers(0..8)), None);
        assert_eq!(wanted.unmatched([]), None, "processes may still come");
        assert_eq!(Wanted::default().unmatched(workers(0..1)), None);
    }
}
