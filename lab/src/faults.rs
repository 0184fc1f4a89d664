//! `cargo xtask faults`: the tests of faults on a real cluster, many times.

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

/// Tests of jobs that meet a fault.
const FAULTS: [&str; 3] = ["jobs::faults", "jobs::elastic", "jobs::outages"];

/// Tests that break only their own jobs run side by side. They mostly wait.
const AT_ONCE: &str = "--test-threads=4";

/// Kill, evict, hang, scale and suspend workers, drain nodes, and fail nodes, images and the
/// control plane, while jobs train on one real cluster.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of turns. Each takes about eight minutes on two cores.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Run only tests whose name contains one of these.
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

/// Runs the turns, prints how often each test passed, and succeeds if all passed in every turn.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    Cluster::available().map_err(anyhow::Error::msg)?;
    let images = image::make()?;
    // Tests compare with runs on this machine and would build these programs beside the jobs.
    products();
    // The cluster ends with this process.
    let kept = Cluster::start_guarded(Settings::tests(TEST_NODES))?;
    cluster::load(&images, &kept)?;
    chart::install(kept.client())?;
    let mut passed: BTreeMap<String, u32> = BTreeMap::new();
    for turn in 1..=arguments.times {
        println!("== turn {turn} of {}", arguments.times);
        let begun = Instant::now();
        // Each job of the turns before keeps its volume.
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

/// Runs one turn and returns each test with true if it passed.
fn faults(filters: &[String]) -> anyhow::Result<Vec<(String, bool)>> {
    let mut command = cargo::everything("test");
    command.args(["--quiet", "--test", "cluster", "--", "--format=pretty", AT_ONCE]);
    match filters {
        [] => command.args(FAULTS),
        filters => command.args(filters),
    };
    // A skipped test is a failure.
    command.env("CI", "true").env(KEPT_CLUSTER, "");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {command:?}"))?;
    let output = child.stdout.take().context("the output is piped")?;
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

/// Returns the test that a line of the runner is about, and true if it passed.
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
    fn a_line_of_the_runner_names_a_test_and_its_outcome() {
        assert_eq!(outcome("test jobs::faults::kill ... ok"), Some(("jobs::faults::kill", true)));
        assert_eq!(outcome("test jobs::faults::kill ... FAILED"), Some(("jobs::faults::kill", false)));
        assert_eq!(outcome("test owner::waits ... ignored, is started by another"), None);
        assert_eq!(outcome("test result: ok. 1 passed; 0 failed"), None);
    }
}
