//! `lockstep`, also `kubectl lockstep`: training jobs and benchmarks from the command line, with
//! and without a cluster.

mod bench;
mod chart;
mod cluster;
mod curves;
mod display;
mod eval;
mod history;
mod logs;
mod manifest;
mod metrics_lines;
mod pass_on;
mod plot;
mod replay;
mod report;
mod run;
mod run_history;
mod scale;
mod scrape;
mod summary;
mod target;
mod top;
mod validate;
mod watch;
mod why;
mod worker_metrics;

use std::{path::Path, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockstep_launch::StandardError;
use tracing_subscriber::EnvFilter;

/// kubectl finds plugins by this file name.
const PLUGIN: &str = "kubectl-lockstep";

#[derive(Parser)]
#[command(name = "lockstep", version, about = "Trains neural networks in elastic lockstep", propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a training job as local processes, without a cluster.
    Run(run::Arguments),
    /// Change the number of workers of a run while it trains.
    Scale(scale::Arguments),
    /// Show how the group of a run changed: when, why, and at what cost.
    History(history::Arguments),
    /// Draw loss, throughput, efficiency and world size, in the terminal or as SVG or PNG.
    Plot(plot::Arguments),
    /// Write one page about a run that outlives it: figures, curves, changes, checkpoints.
    Report(report::Arguments),
    /// Repeat a finished run without faults, by the memberships that it had, and compare the states
    /// after its steps and the weights bit for bit.
    Replay(replay::Arguments),
    /// Measure this machine with local processes, as a job with spec.benchmark measures a cluster.
    Bench(bench::Arguments),
    /// List, verify, prune or export the checkpoints in a job's folder.
    Checkpoints(pass_on::Arguments),
    /// Predict the classes of pictures with a trained model.
    Predict(pass_on::Arguments),
    /// Evaluate a trained model: loss, accuracy, figures of each class, confusion matrix.
    Eval(eval::Arguments),
    /// Write a trained model as a safetensors file, and as a module of PyTorch.
    Export(pass_on::Arguments),
    /// Print the layers of a model, their shapes, weights, operations and bytes.
    Summary(summary::Arguments),
    /// Check manifests without a cluster: fields, types and rules.
    Validate(validate::Arguments),
    /// Follow a job in the cluster until it ends; the exit code is its result.
    Watch(watch::Arguments),
    /// Show how each worker of a job or a run spends its time.
    Top(top::Arguments),
    /// Print the logs of all workers of a job or a run, merged by time.
    Logs(logs::Arguments),
    /// Say why a job or a run waits, is slow or failed, and what to do next.
    Why(why::Arguments),
}

/// The result of a command, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The command did its work.
    Done,
    /// The job or the command failed.
    Failed,
    /// Nothing was started: the command line, a manifest or a file is wrong.
    Refused,
    /// A signal of this number ended it. The exit code is the one that a shell would give.
    Interrupted(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::Refused => 2,
            Outcome::Interrupted(signal) => 128 + signal,
        })
    }
}

fn main() -> ExitCode {
    let as_plugin =
        std::env::args_os().next().is_some_and(|path| Path::new(&path).file_stem().is_some_and(|name| name == PLUGIN));
    let mut command = Arguments::command();
    if as_plugin {
        command = command.name("kubectl lockstep").bin_name("kubectl lockstep");
    }
    let Arguments { command } = match Arguments::from_arg_matches(&command.get_matches()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError).init();
    // One thread only: a child asks to be killed when the thread that started it ends, so that must
    // be the process's first thread.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("start the runtime"), Outcome::Failed),
    };
    match command {
        Command::Run(arguments) => match run::prepare(&arguments) {
            Ok(prepared) => finish(runtime.block_on(prepared.run())),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Replay(arguments) => match replay::prepare(&arguments) {
            Ok(prepared) => finish(runtime.block_on(prepared.run())),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Bench(arguments) => match bench::prepare(&arguments) {
            Ok(prepared) => finish(runtime.block_on(prepared.run())),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Scale(arguments) => match scale::scale(&arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::History(arguments) => match history::history(&arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Plot(arguments) => finish(runtime.block_on(plot::plot(&arguments))),
        Command::Report(arguments) => finish(runtime.block_on(report::report(&arguments))),
        Command::Predict(arguments) => match pass_on::pass_on("predict", &arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Eval(arguments) => match eval::eval(&arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Export(arguments) => match pass_on::pass_on("export", &arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Checkpoints(arguments) => match pass_on::pass_on("checkpoints", &arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Summary(arguments) => match summary::summary(&arguments) {
            Ok(outcome) => outcome.into(),
            Err(error) => report(&error, Outcome::Refused),
        },
        Command::Validate(arguments) => validate::validate(&arguments).into(),
        Command::Watch(arguments) => finish(runtime.block_on(watch::watch(&arguments))),
        Command::Top(arguments) => finish(runtime.block_on(top::top(&arguments))),
        Command::Logs(arguments) => finish(runtime.block_on(logs::logs(&arguments))),
        Command::Why(arguments) => finish(runtime.block_on(why::why(&arguments))),
    }
}

fn finish(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) => report(&error, Outcome::Failed),
    }
}

fn report(error: &anyhow::Error, outcome: Outcome) -> ExitCode {
    display::eprint_line(&format!("error: {error:#}"));
    outcome.into()
}
