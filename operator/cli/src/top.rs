//! `lockstep top`: how each worker spends its time, from two looks at its metrics. No Prometheus is
//! needed.

mod table;

use std::{
    io::{IsTerminal, stdout},
    path::Path,
    time::Duration,
};

use anyhow::bail;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use lockstep_api::{Phase, TrainingJobStatus, label};
use lockstep_launch::metrics_log;
use lockstep_plan::{PodRole, PodSeen, PodState};
use serde::Deserialize;
use tokio::time::sleep;

use crate::{
    Outcome,
    cluster::{self, Cluster},
    display::print,
    run::folder::ReadOnlyFolder,
    scrape::between,
    target::Target,
    worker_metrics::{self, Scrapes},
};

/// Explains the columns.
const COLUMNS: &str = "\
    STEP is the time from step to step. COMPUTE, COMM (sums that computation does not hide), DATA (waits for samples), WAIT \
    (for slower workers) and OTHER (evaluations, checkpoints, changes of the group) add up to the whole time. LAG is how much \
    later a worker comes to the sums of a step than the first one.";

/// Arguments of `lockstep top`.
#[derive(clap::Args)]
#[command(after_help = COLUMNS)]
pub(crate) struct Arguments {
    /// Name of a training job, or the folder of a run.
    #[arg(value_name = "JOB|RUN")]
    target: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Print one table and end.
    #[arg(long)]
    once: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// Shows the workers until the job is over, or once.
pub(crate) async fn top(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { target, cluster, once, interval } = arguments;
    let source = match Target::of(target) {
        Target::Run(folder) => Source::Run(Box::new(ReadOnlyFolder::open(folder)?), folder),
        Target::Job(name) => Source::Job(cluster.connect().await?, name),
    };
    let mut screen = Screen { redraws: !once && stdout().is_terminal(), lines: 0 };
    let mut before = source.look().await?;
    loop {
        sleep(Duration::from_secs(*interval)).await;
        let after = match source.look().await {
            // The job is over.
            Err(_) if screen.lines > 0 => return Ok(Outcome::Done),
            looked => looked?,
        };
        let workers = between(&before.scrapes.found, &after.scrapes.found);
        let now = Timestamp::now();
        screen.show(&table::table(&after.title, &workers, &after.scrapes.missing, now));
        if *once {
            return Ok(Outcome::Done);
        }
        before = after;
    }
}

/// The place that metrics come from.
enum Source<'a> {
    Job(Cluster, &'a str),
    Run(Box<ReadOnlyFolder>, &'a Path),
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
    /// The job is not at work, or no worker's metrics can be read.
    async fn look(&self) -> anyhow::Result<Look> {
        let look = match self {
            Self::Job(cluster, name) => look_at_job(cluster, name).await?,
            Self::Run(folder, path) => look_at_run(folder, path).await?,
        };
        match look.scrapes.missing.iter().next() {
            Some((worker, why)) if look.scrapes.found.is_empty() => bail!("no metrics of {worker}: {why}"),
            _ => Ok(look),
        }
    }
}

async fn look_at_job(cluster: &Cluster, name: &str) -> anyhow::Result<Look> {
    let job = cluster.job(name).await?;
    let namespace = &cluster.namespace;
    let status = job.status.clone().unwrap_or_default();
    let of_job = ListParams::default().labels(&format!("{}={}", label::JOB_UID, job.uid().unwrap_or_default()));
    let pods = cluster.api::<Pod>().list(&of_job).await?;
    let runs = |pod: &PodSeen| pod.role != PodRole::Coordinator && pod.state == PodState::Running;
    let workers: Vec<String> = pods.iter().filter_map(PodSeen::of).filter(runs).map(|pod| pod.name).collect();
    if workers.is_empty() {
        let phase = status.phase.map_or_else(|| "new".to_owned(), |phase: Phase| phase.to_string());
        bail!("{name} is {phase} and no worker of it runs; `lockstep why {name} -n {namespace}` says more");
    }
    Ok(Look { title: title(name, &status), scrapes: worker_metrics::of_pods(cluster, &workers).await })
}

fn title(name: &str, status: &TrainingJobStatus) -> String {
    let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
    let world = status.membership.as_ref().map_or(0, |membership| membership.world_size);
    let progress = status.progress.as_ref().map(|progress| {
        let speed = progress.samples_per_second.map(|speed| format!("  {speed:.0} samples/s")).unwrap_or_default();
        format!("  step {}/{} ({}%){speed}", progress.step, progress.total_steps, progress.percent)
    });
    format!("{name}  {phase}  {world} workers{}", progress.unwrap_or_default())
}

async fn look_at_run(folder: &ReadOnlyFolder, path: &Path) -> anyhow::Result<Look> {
    #[derive(Deserialize)]
    struct Step {
        step: u64,
        world_size: u32,
        samples_per_second: f64,
    }
    let shown = path.display();
    if !folder.is_at_work() {
        bail!("no `lockstep run` is at work in {shown}, so it has no figures of now; see `lockstep why {shown}`");
    }
    let scrapes = worker_metrics::of_run(&path.join("logs")).await;
    if scrapes.found.is_empty() && scrapes.missing.is_empty() {
        bail!("no worker in {shown}/logs has said where it serves metrics; try again in a moment");
    }
    let steps: Vec<Step> = metrics_log::read_last(path).unwrap_or_default();
    let last = steps.last().map(|Step { step, world_size, samples_per_second }| {
        format!("  {world_size} workers  step {step}  {samples_per_second:.0} samples/s")
    });
    Ok(Look { title: format!("{}{}", folder.job.name, last.unwrap_or_default()), scrapes })
}

/// Standard output: a terminal is redrawn, anything else gets one table after the other.
struct Screen {
    redraws: bool,
    /// Lines of the table that is shown.
    lines: usize,
}

impl Screen {
    fn show(&mut self, table: &str) {
        let again = match (self.redraws, self.lines) {
            (_, 0) => String::new(),
            // Up to the table's first line, and clear the rest of the screen.
            (true, lines) => format!("\x1b[{lines}A\x1b[J"),
            (false, _) => "\n".to_owned(),
        };
        print(&format!("{again}{table}"));
        self.lines = table.lines().count();
    }
}
