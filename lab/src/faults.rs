//! `cargo xtask faults`: what goes wrong on a real cluster, again and again.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use lockstep_tests::{
    chart,
    cluster::{Cluster, KEPT_CLUSTER, Settings, TEST_NODES},
    products,
};

use xtask::cargo;

use crate::{cluster, image};

/// Tests of jobs to which something happens.
const FAULTS: [&str; 3] = ["jobs::faults", "jobs::elastic", "jobs::outages"];

/// Those that break nothing but their own jobs run side by side, and wait for more than they compute.
const AT_ONCE: &str = "--test-threads=4";

/// Kills, evicts, hangs, scales and suspends workers, drains nodes, and fails nodes, images and the control plane, while jobs train on a
/// real cluster, the same one through all turns.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often in a row; some eight minutes each on two cores.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Only those whose name contains this.
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

/// Ends well if nothing failed in any turn; says what failed how often.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    Cluster::available().map_err(anyhow::Error::msg)?;
    let images = image::make()?;
    // Tests compare with runs on this machine, and would build what these need beside the jobs.
    products();
    // It ends with this process.
    let kept = Cluster::start_guarded(Settings::tests(TEST_NODES))?;
    cluster::load(&images, &kept)?;
    chart::install(kept.client())?;
    let mut passed: BTreeMap<String, u32> = BTreeMap::new();
    for turn in 1..=arguments.times {
        println!("== turn {turn} of {}", arguments.times);
        let begun = Instant::now();
        // Each job of the turns before keeps its own.
        kept.add_volumes(turn + 1)?;
        for (name, well) in faults(&arguments.filters)? {
            *passed.entry(name).or_default() += u32::from(well);
        }
        println!("turn {turn} took {:.0} s", begun.elapsed().as_secs_f64());
    }
    println!();
    for (name, passed) in &passed {
        println!("{passed:>4} of {}  {name}", arguments.times);
    }
    let all = !passed.is_empty() && passed.values().all(|passed| *passed == arguments.times);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One turn: each test and whether it passed.
fn faults(filters: &[String]) -> anyhow::Result<Vec<(String, bool)>> {
    let mut command = cargo::everything("test");
    command.args(["--quiet", "--test", "cluster", "--", "--format=pretty", AT_ONCE]);
    match filters {
        [] => command.args(FAULTS),
        filters => command.args(filters),
    };
    // What cannot run here is no success.
    command.env("CI", "true").env(KEPT_CLUSTER, "");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {command:?}"))?;
    let output = child.stdout.take().context("it was piped")?;
    let mut ended = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        ended.extend(outcome(&line).map(|(name, well)| (name.to_owned(), well)));
    }
    let status = child.wait()?;
    ensure!(status.success() || ended.iter().any(|(_, well)| !well), "the tests ended with {status}");
    Ok(ended)
}

/// The test that a line of the runner is about, and whether it passed.
fn outcome(line: &str) -> Option<(&str, bool)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match outcome {
        "ok" => Some((name, true)),
        "FAILED" => Some((name, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runners_lines_say_what_passed() {
        assert_eq!(outcome("test jobs::faults::kill ... ok"), Some(("jobs::faults::kill", true)));
        assert_eq!(outcome("test jobs::faults::kill ... FAILED"), Some(("jobs::faults::kill", false)));
        assert_eq!(outcome("test owner::waits ... ignored, is started by another"), None);
        assert_eq!(outcome("test result: ok. 1 passed; 0 failed"), None);
    }
}
