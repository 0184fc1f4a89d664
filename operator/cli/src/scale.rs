//! `lockstep scale`: another number of workers for a run that is at work.

use std::path::PathBuf;

use anyhow::bail;
use lockstep_launch::Elastic;

use crate::{Outcome, display::print, run::folder::ReadOnlyFolder};

/// Arguments of `lockstep scale`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` tells it.
    run: PathBuf,
    /// How many workers it shall have, within spec.elastic.
    workers: u32,
}

/// Asks the `lockstep run` that is at work for it; whoever has to go leaves after a step, and no step is lost.
pub(crate) fn scale(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { run, workers } = arguments;
    let other = ReadOnlyFolder::open(run)?;
    let Elastic { min_replicas, max_replicas } = other.job.elastic;
    if min_replicas == max_replicas {
        bail!(
            "{workers}: this job always has {min_replicas} workers; begin one with spec.elastic.minReplicas and maxReplicas \
             to change that"
        );
    }
    if !(min_replicas..=max_replicas).contains(workers) {
        bail!("{workers}: {min_replicas} to {max_replicas} (spec.elastic)");
    }
    if !other.is_at_work() {
        bail!("no `lockstep run` is at work in {}; begin it again with --workers {workers}", run.display());
    }
    other.want_workers(*workers)?;
    print(&format!("asked for {workers} workers\n"));
    Ok(Outcome::Done)
}
