//! `lockstep scale`: changes the number of workers of a run that is at work.

use std::path::PathBuf;

use anyhow::bail;
use lockstep_launch::Elastic;

use crate::{
    Outcome,
    display::print,
    run::folder::{ReadOnlyFolder, request_workers},
};

/// Arguments of `lockstep scale`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` prints it.
    run: PathBuf,
    /// Number of workers, within spec.elastic.
    workers: u32,
}

/// Asks the `lockstep run` that is at work for `workers` workers. A worker that has to go leaves
/// after a step, and no step is lost.
pub(crate) fn scale(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { run, workers } = arguments;
    let folder = ReadOnlyFolder::open(run)?;
    let Elastic { min_replicas, max_replicas } = folder.job.elastic;
    if min_replicas == max_replicas {
        bail!(
            "{workers}: this job always has {min_replicas} workers; start one with spec.elastic.minReplicas and maxReplicas \
             to change that"
        );
    }
    if !(min_replicas..=max_replicas).contains(workers) {
        bail!("{workers}: {min_replicas} to {max_replicas} (spec.elastic)");
    }
    if !folder.is_at_work() {
        bail!("no `lockstep run` is at work in {}; start it again with --workers {workers}", run.display());
    }
    request_workers(run, *workers)?;
    print(&format!("asked for {workers} workers\n"));
    Ok(Outcome::Done)
}
