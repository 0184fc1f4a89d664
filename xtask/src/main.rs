//! Everything that a contributor or CI does with this repository: `cargo xtask COMMAND`.

mod bench;
mod cargo;
mod cluster;
mod faults;
mod image;
mod simulate;
mod test;
mod tools;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, train, test and measure Lockstep.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train LeNet-5 on the built-in glyphs with 2 local workers; further arguments go to `lockstep run`.
    Train {
        /// Arguments for `lockstep run`, such as `--workers 4`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the quick part of the tests: format, lints, unit and simulation tests.
    Check,
    /// Run every test, the real cluster included; installs what they need.
    Test,
    /// Simulate the membership under faults for any range of seeds, such as a million through the night.
    Simulate(simulate::Arguments),
    /// Let jobs on a real cluster meet every fault, many times in a row.
    Faults(faults::Arguments),
    /// A real Kubernetes on this machine with Lockstep installed from its chart.
    Cluster(cluster::Arguments),
    /// Measure against the peers; without a name, list the benchmarks.
    Bench(bench::Arguments),
    /// Make the container images as OCI archives, without a Docker daemon.
    Image(image::Arguments),
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Train { arguments } => train::train(&arguments),
        Command::Check => test::check(),
        Command::Test => test::test(),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Faults(arguments) => faults::run(&arguments),
        Command::Cluster(arguments) => cluster::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Image(arguments) => image::run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
