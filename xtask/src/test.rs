//! `cargo xtask test` and `check`: the layers of the tests in order.
//!
//! At the end follow the minutes of each layer, the messages of failed tests, and the runners' own
//! summary lines.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader},
    mem,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use xtask::{cargo, folders};

use crate::{lab, tools};

/// A layer: its name and the function that runs it.
type Layer = (&'static str, fn(&mut Summary) -> anyhow::Result<()>);

const QUICK: [Layer; 3] = [("format", format), ("lints", lints), ("unit and simulation tests", quick_tests)];

const WHOLE: [Layer; 7] = [
    ("format", format),
    ("lints", lints),
    ("dependencies", dependencies),
    ("build", build),
    ("images", images),
    ("unit tests", unit_tests),
    ("integration tests", system_tests),
];

/// Runs the quick part.
pub(crate) fn check() -> anyhow::Result<ExitCode> {
    run(&QUICK)
}

/// Runs everything.
pub(crate) fn test() -> anyhow::Result<ExitCode> {
    run(&WHOLE)
}

fn run(layers: &[Layer]) -> anyhow::Result<ExitCode> {
    let mut summary = Summary::default();
    let mut ended = Ok(());
    for (name, layer) in layers {
        println!("== {name}");
        let start = Instant::now();
        ended = layer(&mut summary).with_context(|| (*name).to_owned());
        summary.minutes.push((name, start.elapsed()));
        if ended.is_err() {
            break;
        }
    }
    summary.print();
    if let Err(error) = ended {
        eprintln!("error: {error:#}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn format(_: &mut Summary) -> anyhow::Result<()> {
    cargo::run(&mut cargo::cargo(&["fmt", "--all", "--check"]))
}

fn lints(_: &mut Summary) -> anyhow::Result<()> {
    let words =
        ["clippy", "--release", "--locked", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
    cargo::run(&mut cargo::cargo(&words))
}

fn dependencies(_: &mut Summary) -> anyhow::Result<()> {
    let deny = tools::cargo_deny()?;
    cargo::run(
        Command::new(deny)
            .args(["--log-level", "error", "check", "bans", "licenses", "sources"])
            .current_dir(folders::root()),
    )
}

fn build(_: &mut Summary) -> anyhow::Result<()> {
    cargo::run(cargo::everything("build").arg("--all-targets"))
}

fn images(_: &mut Summary) -> anyhow::Result<()> {
    let ended = lab::lab("image", &[])?;
    if ended != ExitCode::SUCCESS {
        bail!("the images cannot be made");
    }
    Ok(())
}

/// A simulation that passes also prints how often it met each event and which mutants it found.
const SHOWN: [&str; 2] = ["--", "--show-output"];

fn quick_tests(summary: &mut Summary) -> anyhow::Result<()> {
    summary.runner(
        cargo::everything("test").args(["--no-fail-fast", "--lib", "--bins", "--test", "simulation"]).args(SHOWN),
    )
}

fn unit_tests(summary: &mut Summary) -> anyhow::Result<()> {
    summary.runner(cargo::everything("test").args(["--no-fail-fast", "--lib", "--bins"]).args(SHOWN))?;
    summary.runner(cargo::everything("test").args(["--no-fail-fast", "--doc"]))
}

fn system_tests(summary: &mut Summary) -> anyhow::Result<()> {
    summary.runner(cargo::everything("test").args(["--no-fail-fast", "--test", "*", "--", "--nocapture"]))
}

/// The runners' output, and the time that the layers took.
#[derive(Default)]
struct Summary {
    minutes: Vec<(&'static str, Duration)>,
    /// The time of test programs by kind.
    kinds: BTreeMap<&'static str, Duration>,
    lines: Vec<String>,
    skipped: Vec<String>,
    /// The panic messages of failed tests.
    failed: Vec<String>,
}

/// A test prints this word if it cannot run here.
const SKIPPED: &str = "SKIPPED";

impl Summary {
    /// Runs a test runner, passes its output on and keeps its summary lines.
    fn runner(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let (output, both) = io::pipe()?;
        command.stdout(both.try_clone()?).stderr(both);
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        // Only the runner may hold the writing ends. Otherwise the loop below would not end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (mut program, mut began) = (String::new(), Instant::now());
        let mut panics = Panics::default();
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            panics.see(&line);
            let text = line.trim_start();
            if let Some(running) = text.strip_prefix("Running ").or(text.strip_prefix("Doc-tests ")) {
                program = running.split(" (").next().unwrap_or(running).to_owned();
                began = Instant::now();
            } else if line.starts_with("test result: ") {
                *self.kinds.entry(kind(&program)).or_default() += began.elapsed();
                self.lines.push(format!("{line}: {program}"));
                self.failed.extend(mem::take(&mut panics).of_failed_tests());
            } else if line.contains(SKIPPED) {
                self.skipped.push(line);
            }
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        Ok(())
    }

    fn print(&self) {
        let Self { minutes, kinds, lines, skipped, failed } = self;
        let row = |name: &str, took: &Duration| println!("{:>6.1} min  {name}", took.as_secs_f64() / 60.0);
        println!();
        minutes.iter().for_each(|(name, took)| row(name, took));
        row("in all, of which:", &minutes.iter().map(|(_, took)| *took).sum());
        kinds.iter().for_each(|(name, took)| row(name, took));
        println!();
        for line in failed.iter().chain(skipped).chain(lines) {
            println!("{line}");
        }
        let (passed, failed) = (count(lines, "passed"), count(lines, "failed"));
        println!("\n{passed} passed, {failed} failed, {} skipped", skipped.len());
    }
}

/// The panics in the output of one test program, and the names of its failed tests.
#[derive(Default)]
struct Panics {
    /// The name of each panicking thread, which is that of its test, and the lines of the panic.
    seen: Vec<(String, Vec<String>)>,
    /// True while the next line may belong to the last panic.
    open: bool,
    listed: Vec<String>,
    listing: bool,
}

impl Panics {
    /// The most lines of a panic that are kept. A text such as the description of a pod is long.
    const LONGEST_LINES: usize = 40;

    fn see(&mut self, line: &str) {
        let thread = line.strip_prefix("thread '").filter(|rest| rest.contains(" panicked at "));
        if let Some((name, _)) = thread.and_then(|rest| rest.split_once('\'')) {
            self.seen.push((name.to_owned(), vec![line.to_owned()]));
            self.open = true;
        } else if ["stack backtrace:", "note: ", "test "].iter().any(|start| line.starts_with(start)) {
            self.open = false;
        } else if let (true, Some((_, lines))) = (self.open, self.seen.last_mut()) {
            lines.push(line.to_owned());
            self.open = lines.len() < Self::LONGEST_LINES;
        }
        if line == "failures:" {
            // This heading comes twice: first before the output of the failed tests, then before
            // their names.
            (self.listing, self.listed) = (true, Vec::new());
        }
        if let (true, Some(name)) = (self.listing, line.strip_prefix("    ")) {
            self.listed.push(name.to_owned());
        }
    }

    /// Returns the name of each failed test and its panic, unless another thread panicked.
    fn of_failed_tests(self) -> impl Iterator<Item = String> {
        let Self { seen, listed, .. } = self;
        listed.into_iter().flat_map(move |name| {
            let said = seen.iter().filter(|(thread, _)| *thread == name).flat_map(|(_, lines)| lines.clone());
            let said: Vec<_> = said.collect();
            std::iter::once(format!("FAILED: {name}")).chain(said)
        })
    }
}

/// Returns the kind of a test program's tests, by its file.
fn kind(program: &str) -> &'static str {
    match program.split('/').nth(1).map(|name| name.trim_end_matches(".rs")) {
        Some("model") => "model check",
        Some("simulation") => "simulation",
        Some("process_faults") => "process faults",
        Some("local_run" | "run") => "runs on one machine",
        Some("cluster") => "cluster",
        _ => "all other tests",
    }
}

fn count(lines: &[String], word: &str) -> u64 {
    let number = |line: &String| {
        let before = line.split(word).next()?;
        before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    lines.iter().filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_test_program_decides_its_kind() {
        let programs = ["tests/model/main.rs", "unittests src/lib.rs", "tests/run.rs", "tests/cluster/main.rs"];
        let expected = ["model check", "all other tests", "runs on one machine", "cluster"];
        assert_eq!(programs.map(kind), expected);
    }

    #[test]
    fn the_summary_repeats_the_panics_of_failed_tests_but_no_intended_panic() {
        let output = "thread 'background-0' (7) panicked at lib.rs:1:5:\nintended\nnote: run with `RUST_BACKTRACE=1`\n\
                      thread 'a::fails' (8) panicked at lib.rs:2:5:\nleft: 1\n right: 2\nstack backtrace:\n   0: begin\n\
                      test a::fails ... FAILED\n\nfailures:\n\nfailures:\n    a::fails\n";
        let mut panics = Panics::default();
        output.lines().for_each(|line| panics.see(line));
        let found: Vec<_> = panics.of_failed_tests().collect();
        let expected = ["FAILED: a::fails", "thread 'a::fails' (8) panicked at lib.rs:2:5:", "left: 1", " right: 2"];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_total_adds_up_the_lines_of_all_runners() {
        let lines = [
            "test result: ok. 13 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s".to_owned(),
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s"
                .to_owned(),
        ];
        assert_eq!((count(&lines, "passed"), count(&lines, "failed")), (17, 2));
    }
}
