//! `lockstep top`: how each worker spends its time, from two looks at its metrics. No Prometheus is
//! needed.

mod table;

use std::{
    io::{IsTerminal, stdout},
    path::Path,
    time::Duration,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use kube::ResourceExt;
use lockstep_api::{Phase, TrainingJobStatus};
use lockstep_launch::metrics_log;
use tokio::time::sleep;

use crate::{
    Outcome,
    cluster::{self, Cluster, StoredJob, no_job},
    display::{eprint_line, is_unread, rounded, write},
    metrics_lines::Step,
    run::folder::ReadOnlyFolder,
    scrape::{BETWEEN_SCRAPES, between},
    target::Target,
    worker_metrics::{self, LocalWorkers, Scrapes},
};

/// Explains the columns.
const COLUMNS: &str = "\
Columns:
  STEP ms  mean time of a step, without OTHER
  COMPUTE  share of the time in which the worker computes
  COMM     share in which it waits for sums of gradients that computation does not hide
  DATA     share in which it waits for samples
  WAIT     share in which it waits for slower workers
  OTHER    the rest: evaluations, checkpoints, changes of the group
  LAG ms   how much later than the first worker it comes to the sums of a step
  MEMORY   memory that its process holds
All figures are of the time between two looks. The five shares add up to the whole time.";

/// Arguments of `lockstep top`.
#[derive(clap::Args)]
#[command(after_help = COLUMNS)]
pub(crate) struct Arguments {
    /// Name of a training job in the cluster, or folder of a local run, such as runs/lenet-1.
    #[arg(value_name = "JOB|RUN")]
    target: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Print one table and end. Without it, tables come until the job or the run is over.
    #[arg(long)]
    once: bool,
    /// Seconds between two looks.
    #[arg(
        long, value_name = "SECONDS", default_value_t = BETWEEN_SCRAPES.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    interval: u64,
}

/// Shows the workers until the job is over, or once. A reader that has seen enough ends it.
pub(crate) async fn top(arguments: &Arguments) -> anyhow::Result<Outcome> {
    match show(arguments).await {
        Err(error) if !is_unread(&error) => Err(error),
        Ok(()) | Err(_) => Ok(Outcome::Done),
    }
}

async fn show(Arguments { target, cluster, once, interval }: &Arguments) -> anyhow::Result<()> {
    let mut source = match Target::of(target) {
        Target::Run(path) => {
            Source::Run(Box::new(ReadOnlyFolder::open(path)?), path, LocalWorkers::of(&path.join("logs")))
        }
        Target::Job(name) => Source::Job(cluster.connect().await?, name),
    };
    let mut before = match source.look().await? {
        Looked::AtWork(look) => look,
        Looked::Over(why) => bail!(why),
    };
    let redraws = !once && stdout().is_terminal();
    let columns = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let mut screen = Screen { columns: columns.filter(|_| redraws), ..Screen::default() };
    loop {
        sleep(Duration::from_secs(*interval)).await;
        match source.look().await {
            Ok(Looked::AtWork(after)) => {
                let workers = between(&before.scrapes.found, &after.scrapes.found);
                let table = table::table(&after.title, &workers, &after.scrapes.missing, Timestamp::now());
                write(&screen.with_table(&table))?;
                if *once {
                    return Ok(());
                }
                before = after;
            }
            Ok(Looked::Over(why)) if screen.table.is_empty() => bail!(why),
            Ok(Looked::Over(why)) => {
                eprint_line(&why);
                return Ok(());
            }
            Err(error) if *once => return Err(error),
            Err(error) => write(&screen.with_error(&format!("error: {error:#}")))?,
        }
    }
}

/// The place that metrics come from.
enum Source<'a> {
    Job(Cluster, &'a str),
    Run(Box<ReadOnlyFolder>, &'a Path, LocalWorkers),
}

/// The findings of a look.
enum Looked {
    AtWork(Look),
    /// No worker comes any more, for this reason.
    Over(String),
}

/// One look at all workers.
struct Look {
    title: String,
    scrapes: Scrapes,
}

impl Source<'_> {
    /// Looks at all workers.
    ///
    /// # Errors
    /// The job is not at work now, or no worker's metrics can be read.
    async fn look(&mut self) -> anyhow::Result<Looked> {
        let looked = match self {
            Self::Job(cluster, name) => look_at_job(cluster, name).await?,
            Self::Run(folder, path, workers) => look_at_run(folder, path, workers).await?,
        };
        if let Looked::AtWork(look) = &looked
            && look.scrapes.found.is_empty()
            && let Some((worker, why)) = look.scrapes.missing.first_key_value()
        {
            bail!("no metrics of {worker}: {why}");
        }
        Ok(looked)
    }
}

async fn look_at_job(cluster: &Cluster, name: &str) -> anyhow::Result<Looked> {
    let namespace = &cluster.namespace;
    let job = match unfinished(cluster.find_job(name).await?, namespace, name) {
        Ok(job) => job,
        Err(why) => return Ok(Looked::Over(why)),
    };
    let pods = cluster.pods_of(&job.uid().unwrap_or_default()).await;
    let pods = pods.with_context(|| format!("list the pods in namespace {namespace}"))?;
    let workers = worker_metrics::running_workers(&pods);
    if workers.is_empty() {
        let phase = job.phase_word();
        bail!("{name} is {phase} and no worker of it runs; `lockstep why {name} -n {namespace}` says more");
    }
    let title = title(name, &job.status.unwrap_or_default());
    Ok(Looked::AtWork(Look { title, scrapes: worker_metrics::of_pods(cluster, &workers).await }))
}

/// Returns the job, or the reason why no worker of it comes any more.
fn unfinished(job: Option<StoredJob>, namespace: &str, name: &str) -> Result<StoredJob, String> {
    let job = job.ok_or_else(|| no_job(namespace, name))?;
    match job.phase() {
        Some(phase) if phase.is_finished() => {
            Err(format!("{name} is {phase}; `lockstep why {name} -n {namespace}` says more"))
        }
        _ => Ok(job),
    }
}

fn title(name: &str, status: &TrainingJobStatus) -> String {
    let phase = status.phase.as_ref().map(Phase::to_string).unwrap_or_default();
    let world = status.membership.as_ref().map_or(0, |membership| membership.world_size);
    let progress = status.progress.as_ref().map(|progress| {
        let speed = progress.samples_per_second.map(|speed| format!("  {} samples/s", rounded(speed)));
        let speed = speed.unwrap_or_default();
        format!("  step {}/{} ({}%){speed}", progress.step, progress.total_steps, progress.percent)
    });
    format!("{name}  {phase}  {world} workers{}", progress.unwrap_or_default())
}

async fn look_at_run(folder: &ReadOnlyFolder, path: &Path, workers: &mut LocalWorkers) -> anyhow::Result<Looked> {
    let shown = path.display();
    if !folder.is_at_work() {
        return Ok(Looked::Over(format!(
            "no `lockstep run` is at work in {shown}, so it has no figures of now; see `lockstep why {shown}`"
        )));
    }
    let scrapes = workers.look().await;
    if scrapes.found.is_empty() && scrapes.missing.is_empty() {
        bail!("no worker in {shown}/logs has said where it serves metrics; try again in a moment");
    }
    let steps: Vec<Step> = metrics_log::read_last(path).unwrap_or_default();
    let last = steps.iter().rfind(|step| step.world_size > 0).map(|step| {
        let Step { step, world_size, samples_per_second, .. } = step;
        format!("  {world_size} workers  step {step}  {} samples/s", rounded(*samples_per_second))
    });
    Ok(Looked::AtWork(Look { title: format!("{}{}", folder.job.name, last.unwrap_or_default()), scrapes }))
}

/// Standard output: a terminal is redrawn, anything else gets one table after the other.
#[derive(Default)]
struct Screen {
    /// Columns of the terminal; none if it is not redrawn.
    columns: Option<usize>,
    /// The last table.
    table: String,
    /// Lines of the terminal that the last table and its error take.
    lines: usize,
}

impl Screen {
    /// Returns what shows a table in place of the last one.
    fn with_table(&mut self, table: &str) -> String {
        let is_first = self.table.is_empty();
        table.clone_into(&mut self.table);
        match self.columns {
            Some(columns) => self.redrawn(table, columns),
            None if is_first => table.to_owned(),
            None => format!("\n{table}"),
        }
    }

    /// Returns what shows an error below the last table.
    fn with_error(&mut self, error: &str) -> String {
        match self.columns {
            Some(columns) => self.redrawn(&format!("{}{error}\n", self.table), columns),
            None => format!("{error}\n"),
        }
    }

    /// Goes up to the first line, and clears the rest of the screen.
    fn redrawn(&mut self, text: &str, columns: usize) -> String {
        let up = if self.lines > 0 { format!("\x1b[{}A\x1b[J", self.lines) } else { String::new() };
        let height = |line: &str| line.chars().count().div_ceil(columns.max(1)).max(1);
        self.lines = text.lines().map(height).sum();
        up + text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_job_that_is_finished_or_gone_ends_the_tables() {
        let over = |phase: Option<&str>| {
            let job = json!({"metadata": {"name": "lenet"}, "spec": {}, "status": {"phase": phase}});
            unfinished(Some(serde_json::from_value(job).expect("a job")), "ml", "lenet").err()
        };
        for phase in [None, Some("Pending"), Some("Running"), Some("Restarting"), Some("Suspended")] {
            assert_eq!(over(phase), None);
        }
        for phase in ["Complete", "Failed"] {
            let why = over(Some(phase)).expect("it is over");
            assert!(why.contains(phase) && why.contains("lockstep why lenet -n ml"), "{why}");
        }
        let gone = unfinished(None, "ml", "lenet").expect_err("it is gone");
        assert!(gone.starts_with("there is no training job lenet"), "{gone}");
    }

    #[test]
    fn an_error_stands_below_the_table_until_the_next_one() {
        let mut screen = Screen { columns: Some(10), ..Screen::default() };
        assert_eq!(screen.with_table("a\nb\n"), "a\nb\n");
        assert_eq!(screen.with_error("error: twelve"), "\x1b[2A\x1b[Ja\nb\nerror: twelve\n");
        assert_eq!(screen.with_table("c\n"), "\x1b[4A\x1b[Jc\n", "the error took two lines");
    }

    #[test]
    fn a_file_gets_one_table_after_the_other() {
        let mut screen = Screen::default();
        let shown = [screen.with_table("a\n"), screen.with_error("error: x"), screen.with_table("b\n")];
        assert_eq!(shown, ["a\n", "error: x\n", "\nb\n"]);
    }
}
