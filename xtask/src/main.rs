//! Every command of a contributor or of CI: `cargo xtask COMMAND`.

mod lab;
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
    /// Train LeNet-5 on the built-in glyphs with 2 local workers. Further arguments go to
    /// `lockstep run`.
    Train {
        /// Arguments for `lockstep run`, such as `--workers 4`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the quick part of the tests: format, lints, unit and simulation tests.
    Check,
    /// Run every test, the real cluster included; installs what they need.
    Test,
    /// Simulate the membership under faults for any range of seeds, such as a million overnight.
    Simulate(simulate::Arguments),
    /// Let jobs on a real cluster meet every fault, many times in a row.
    Faults(Rest),
    /// Start, show or stop a real Kubernetes on this machine with Lockstep installed from its
    /// chart.
    Cluster(Rest),
    /// Measure against the peers; without a name, list the benchmarks.
    Bench(Rest),
    /// Make the container images as OCI archives, without a Docker daemon.
    Image(Rest),
    /// Write a CycloneDX list of each program's crates, with licences and checksums, to
    /// target/sbom.
    Sbom(Rest),
    /// Run the commands that show a job on a new cluster, and write docs/transcripts.md.
    Transcripts(Rest),
}

/// Arguments that `lockstep-lab` reads.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Rest {
    /// Passed on; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Train { arguments } => train::train(&arguments),
        Command::Check => test::check(),
        Command::Test => test::test(),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Faults(rest) => lab::lab("faults", &rest.arguments),
        Command::Cluster(rest) => lab::lab("cluster", &rest.arguments),
        Command::Bench(rest) => lab::lab("bench", &rest.arguments),
        Command::Image(rest) => lab::lab("image", &rest.arguments),
        Command::Sbom(rest) => lab::lab("sbom", &rest.arguments),
        Command::Transcripts(rest) => lab::lab("transcripts", &rest.arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
