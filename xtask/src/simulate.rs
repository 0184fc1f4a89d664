//! `cargo xtask simulate`: the simulated histories of the membership for any range of seeds, on all cores.

use std::process::ExitCode;

use crate::cargo;

/// Simulates group after group with every fault that is known, and checks each one's history.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many histories: some 50,000 a minute on two cores that do nothing else.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The first one's seed; the others follow it.
    #[arg(long, value_name = "S", default_value_t = 0)]
    first_seed: u64,
    /// Only this one, and everything that happens in it.
    #[arg(long, value_name = "K", conflicts_with_all = ["seeds", "first_seed"])]
    seed: Option<u64>,
}

/// Ends as the simulation does: it prints what was met how often, and how to see a seed that failed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { seeds, first_seed, seed } = arguments;
    let mut command = cargo::everything("test");
    command.args(["--quiet", "--test", "simulation", "--"]);
    command.args(["--exact", "whatever_happens_no_step_is_lost_and_every_run_ends", "--nocapture"]);
    match seed {
        Some(seed) => command.env("LOCKSTEP_SIMULATION_SEED", seed.to_string()),
        None => command
            .env("LOCKSTEP_SIMULATION_FIRST_SEED", first_seed.to_string())
            .env("LOCKSTEP_SIMULATION_SEEDS", seeds.to_string()),
    };
    Ok(if command.status()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
