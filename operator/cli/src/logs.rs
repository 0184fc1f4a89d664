//! `lockstep logs`: the logs of all processes of a job or a run, merged by time.

mod follow;
mod line;
mod local;
mod paint;
mod pods;
mod selection;

use std::io::{IsTerminal, stdout};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};

use crate::{Outcome, cluster, display::print, target::Target};

pub(crate) use line::readable;
use line::{LogLine, merged};
use paint::Paint;
use selection::Selection;

/// Arguments of `lockstep logs`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of a training job, or the folder of a run.
    #[arg(value_name = "JOB|RUN")]
    target: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Go on with new lines, also of pods that replace others, until the job is over.
    #[arg(short, long)]
    follow: bool,
    /// Only these processes: numbers of workers as in their pods' names, and `coordinator`, such as
    /// 0,2-4,coordinator.
    #[arg(long, alias = "worker", value_name = "NUMBERS")]
    rank: Option<Selection>,
    /// Only lines of the last time of this length, such as 30s, 10m or 2h.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only the last lines of all together; with --follow, of each process.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
}

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

    fn selects(&self, process: line::Process) -> bool {
        self.processes.as_ref().is_none_or(|selection| selection.includes(process))
    }
}

/// Prints the lines.
pub(crate) async fn logs(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { target, cluster, follow, rank, since, tail } = arguments;
    let since = match since {
        Some(text) => {
            let time: SignedDuration =
                text.parse().with_context(|| format!("--since {text}: expected a time such as 30s, 10m or 2h"))?;
            Some(Timestamp::now().checked_sub(time).with_context(|| format!("--since {text}"))?)
        }
        None => None,
    };
    let wanted = Wanted { processes: rank.clone(), since, tail: *tail };
    let paint = Paint::new(stdout().is_terminal());
    match (Target::of(target), follow) {
        (Target::Run(folder), false) => show_all(&paint, local::read(folder, &wanted)?, &wanted),
        (Target::Run(folder), true) => local::follow(folder, &wanted, &paint).await?,
        (Target::Job(name), false) => {
            let lines = pods::read(&cluster.connect().await?, name, &wanted).await?;
            show_all(&paint, lines, &wanted);
        }
        (Target::Job(name), true) => follow::follow(&cluster.connect().await?, name, &wanted, &paint).await?,
    }
    Ok(Outcome::Done)
}

fn show_all(paint: &Paint, logs: Vec<Vec<LogLine>>, wanted: &Wanted) {
    let lines = merged(logs);
    let first = wanted.tail.map_or(0, |tail| lines.len().saturating_sub(tail as usize));
    show(paint, &lines[first..]);
}

fn show(paint: &Paint, lines: &[LogLine]) {
    print(&lines.iter().map(|line| paint.line(line) + "\n").collect::<String>());
}
