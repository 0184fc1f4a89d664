//! `lockstep report`: writes one page about a run, which needs nothing else to be read.

mod figures;
mod page;

use std::{fs, path::PathBuf};

use anyhow::Context;
use jiff::Timestamp;

use crate::{Outcome, curves::Across, display::print, run_history};

/// Arguments of `lockstep report`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` prints it, or the name of a training job.
    #[arg(value_name = "RUN|JOB")]
    target: String,
    #[command(flatten)]
    read: run_history::Arguments,
    /// The page to write.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The horizontal axis of the curves.
    #[arg(long, value_name = "AXIS", default_value = "step")]
    across: Across,
}

/// Writes the page.
pub(crate) async fn report(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { target, read, output, across } = arguments;
    let page = page::page(&read.read_one(target).await?, *across, Timestamp::now());
    fs::write(output, page).with_context(|| format!("write {}", output.display()))?;
    print(&format!("{}\n", output.display()));
    Ok(Outcome::Done)
}
