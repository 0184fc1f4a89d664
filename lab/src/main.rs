//! `lockstep-lab`: the commands of `cargo xtask` that need the test harness. `cargo xtask` builds
//! this program and calls it.

mod bench;
mod cluster;
mod faults;
mod image;
mod sbom;
mod transcripts;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Clusters, images and measurements of Lockstep.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Let jobs on a real cluster meet every fault, many times in a row.
    Faults(faults::Arguments),
    /// Start, show or stop a real Kubernetes on this machine with Lockstep installed from its
    /// chart.
    Cluster(cluster::Arguments),
    /// Measure against the peers; without a name, list the benchmarks.
    Bench(bench::Arguments),
    /// Make the container images as OCI archives, without a Docker daemon.
    Image(image::Arguments),
    /// Write a CycloneDX list of each program's crates, with licences and checksums, to
    /// target/sbom.
    Sbom(sbom::Arguments),
    /// Run the commands that show a job on a new cluster, and write docs/transcripts.md.
    Transcripts(transcripts::Arguments),
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Faults(arguments) => faults::run(&arguments),
        Command::Cluster(arguments) => cluster::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Image(arguments) => image::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Sbom(arguments) => sbom::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Transcripts(arguments) => transcripts::run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
