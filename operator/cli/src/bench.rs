//! `lockstep bench`: a benchmark as processes of this machine, through `lockstep run`.

use std::{num::NonZeroU32, path::PathBuf};

use anyhow::{Context, anyhow};
use lockstep_api::{ValidJob, manifest::set};
use lockstep_launch::InvalidField;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Outcome, run::LocalRun};

/// Arguments of `lockstep bench`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    benchmark: BenchmarkCommand,
}

#[derive(clap::Subcommand)]
enum BenchmarkCommand {
    /// Time all-reduces between the workers, by size and algorithm.
    Collectives(CollectivesArguments),
}

#[derive(clap::Args)]
struct CollectivesArguments {
    /// Number of workers, 2 or more.
    #[arg(long, value_name = "N", default_value = "2")]
    workers: NonZeroU32,
    /// The shortest sum, such as 4Ki. Default: 1Ki.
    #[arg(long, value_name = "BYTES")]
    min_bytes: Option<String>,
    /// The longest sum. Default: 64Mi.
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<String>,
    /// How often each sum is repeated, at most. Default: 20.
    #[arg(long, value_name = "COUNT")]
    repetitions: Option<u32>,
    /// The only algorithm to measure, as spec.communication.algorithm names it. Default: all of them.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// Transport, as spec.communication.backend names it. Default: auto.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The trainer. Default: lockstep-trainer beside this program.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
}

/// A benchmark that can begin.
pub(crate) struct Bench {
    session: LocalRun,
    /// Removed unless the benchmark fails.
    folder: TempDir,
}

/// Checks everything that can be checked beforehand.
pub(crate) fn prepare(arguments: &Arguments) -> anyhow::Result<Bench> {
    let BenchmarkCommand::Collectives(collectives) = &arguments.benchmark;
    let value = manifest(collectives)?;
    let job = ValidJob::from_value(value.clone()).map_err(|fields| refused(&fields))?;
    let folder = TempDir::with_prefix("lockstep-bench-").context("create a folder for the processes' logs")?;
    let session = LocalRun::open(job, &value, collectives.trainer.as_deref(), None, Some(folder.path()))?;
    Ok(Bench { session, folder })
}

impl Bench {
    /// Measures and prints the table. The logs of a failure stay.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let Self { session, folder } = self;
        let outcome = session.run().await;
        match outcome {
            Ok(Outcome::Done | Outcome::Refused | Outcome::Interrupted(_)) => {
                folder.close().context("remove the logs")?
            }
            Ok(Outcome::Failed) | Err(_) => drop(folder.keep()),
        }
        outcome
    }
}

fn manifest(collectives: &CollectivesArguments) -> anyhow::Result<Value> {
    let CollectivesArguments { workers, min_bytes, max_bytes, repetitions, algorithm, backend, trainer: _ } =
        collectives;
    let mut value = json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "collectives"},
        "spec": {"benchmark": {"collectives": {}}},
    });
    let options = [
        ("--workers", "spec.replicas", Some(workers.to_string())),
        ("--min-bytes", "spec.benchmark.collectives.minBytes", min_bytes.clone()),
        ("--max-bytes", "spec.benchmark.collectives.maxBytes", max_bytes.clone()),
        ("--repetitions", "spec.benchmark.collectives.repetitions", repetitions.map(|count| count.to_string())),
        ("--algorithm", "spec.communication.algorithm", algorithm.clone()),
        ("--backend", "spec.communication.backend", backend.clone()),
    ];
    for (option, field, given) in options {
        if let Some(given) = given {
            set(&mut value, &format!("{field}={given}")).with_context(|| format!("{option} {given}"))?;
        }
    }
    Ok(value)
}

fn refused(fields: &[InvalidField]) -> anyhow::Error {
    let lines: Vec<_> = fields.iter().map(ToString::to_string).collect();
    anyhow!(lines.join("\n"))
}
