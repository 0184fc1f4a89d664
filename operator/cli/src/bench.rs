//! `lockstep bench`: a benchmark with processes of this machine, through `lockstep run`.

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
    /// Bytes of the shortest sum, such as 4Ki. Default: 1Ki.
    #[arg(long, value_name = "BYTES")]
    min_bytes: Option<String>,
    /// Bytes of the longest sum. Default: 64Mi.
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<String>,
    /// Most repetitions of each sum. Default: 20.
    #[arg(long, value_name = "COUNT")]
    repetitions: Option<u32>,
    /// The only algorithm to measure, as spec.communication.algorithm names it. Default: all of
    /// them.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// Transport, as spec.communication.backend names it. Default: auto.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Path of the trainer. Default: lockstep-trainer beside this program.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
}

/// A benchmark that is ready to start.
pub(crate) struct PreparedBenchmark {
    local_run: LocalRun,
    /// Folder of the logs. It is removed unless the benchmark fails.
    folder: TempDir,
}

/// Checks everything before any process starts.
pub(crate) fn prepare(arguments: &Arguments) -> anyhow::Result<PreparedBenchmark> {
    let BenchmarkCommand::Collectives(collectives) = &arguments.benchmark;
    let value = manifest(collectives)?;
    let job = ValidJob::from_value(value.clone()).map_err(|fields| refused(&fields))?;
    let folder = TempDir::with_prefix("lockstep-bench-").context("create a folder for the processes' logs")?;
    let local_run = LocalRun::open(job, &value, collectives.trainer.as_deref(), None, Some(folder.path()))?;
    Ok(PreparedBenchmark { local_run, folder })
}

impl PreparedBenchmark {
    /// Measures and prints the table. If that fails, the logs stay.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let Self { local_run, folder } = self;
        let outcome = local_run.run().await;
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
