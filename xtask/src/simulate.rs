//! `cargo xtask simulate`: simulated histories of the membership, or of checkpoints on a disk, for
//! any range of seeds, on all cores.

use std::{
    io::{BufRead as _, BufReader},
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, ensure};

use xtask::cargo;

/// Simulate one group or disk after another, with every known fault, and check the history of each.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The simulated part.
    #[arg(value_enum, default_value_t = Simulated::Membership)]
    simulated: Simulated,
    /// The number of histories. Two idle cores take about a minute for 40,000 of the membership, or
    /// for 10,000 of checkpoints.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The seed of the first history. The others follow it.
    #[arg(long, value_name = "S", default_value_t = 0)]
    first_seed: u64,
    /// Run only this history, and print every event in it.
    #[arg(long, value_name = "K", conflicts_with_all = ["seeds", "first_seed"])]
    seed: Option<u64>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Simulated {
    /// Workers and coordinators on a network.
    Membership,
    /// The checkpointer on a disk.
    Checkpoints,
}

impl Simulated {
    /// Returns the options that select the test program, and the name of the test in it.
    const fn test(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::Membership => [&["--test", "simulation"], &["whatever_happens_no_step_is_lost_and_every_run_ends"]],
            Self::Checkpoints => {
                [&["--lib"], &["tests::simulation::no_fault_of_the_disk_loses_or_mixes_a_promised_checkpoint"]]
            }
        }
    }
}

/// Runs the simulation and returns its exit code. The simulation prints how often it met each
/// event, and how to see a seed that failed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { simulated, seeds, first_seed, seed } = arguments;
    let [programs, test] = simulated.test();
    let mut command = cargo::everything("test");
    command.arg("--quiet").args(programs).args(["--", "--exact"]).args(test).arg("--nocapture");
    match seed {
        Some(seed) => command.env("LOCKSTEP_SIMULATION_SEED", seed.to_string()),
        None => command
            .env("LOCKSTEP_SIMULATION_FIRST_SEED", first_seed.to_string())
            .env("LOCKSTEP_SIMULATION_SEEDS", seeds.to_string()),
    };
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {command:?}"))?;
    let mut has_run = false;
    for line in BufReader::new(child.stdout.take().context("the output is piped")?).lines() {
        let line = line?;
        has_run |= line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed;");
        println!("{line}");
    }
    let status = child.wait()?;
    ensure!(has_run || !status.success(), "no test is called {test:?}");
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
