//! `cargo xtask test` and `check`: the layers of the tests in order, the minutes that each takes, what failed tests said, and the
//! runners' own summary lines at the close.

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

/// One layer: its name and what runs it.
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

/// The quick part.
pub(crate) fn check() -> anyhow::Result<ExitCode> {
    run(&QUICK)
}

/// Everything.
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

/// How often a simulation met what, and which planted bugs it found, is to be seen of one that passes too.
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

/// What the runners said and how long the layers took.
#[derive(Default)]
struct Summary {
    minutes: Vec<(&'static str, Duration)>,
    /// The part of it that programs with tests of one kind took.
    kinds: BTreeMap<&'static str, Duration>,
    lines: Vec<String>,
    skipped: Vec<String>,
    /// What failed tests said as they panicked.
    failed: Vec<String>,
}

/// What a test prints when it cannot run here.
const SKIPPED: &str = "SKIPPED";

impl Summary {
    /// Runs a test runner, passes its output on and keeps its summary lines.
    fn runner(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let (output, both) = io::pipe()?;
        command.stdout(both.try_clone()?).stderr(both);
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        // Only the runner may hold the writing ends, or the reading below would not end.
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

/// The panics in the output of one program with tests, and the tests that it lists as failed.
#[derive(Default)]
struct Panics {
    /// The name of the thread, which is that of its test, and the lines.
    told: Vec<(String, Vec<String>)>,
    /// The last one may go on in the next line.
    open: bool,
    listed: Vec<String>,
    listing: bool,
}

impl Panics {
    /// Of a panic with a long text, such as the description of a pod.
    const LONGEST_LINES: usize = 40;

    fn see(&mut self, line: &str) {
        let thread = line.strip_prefix("thread '").filter(|rest| rest.contains(" panicked at "));
        if let Some((name, _)) = thread.and_then(|rest| rest.split_once('\'')) {
            self.told.push((name.to_owned(), vec![line.to_owned()]));
            self.open = true;
        } else if ["stack backtrace:", "note: ", "test "].iter().any(|start| line.starts_with(start)) {
            self.open = false;
        } else if let (true, Some((_, lines))) = (self.open, self.told.last_mut()) {
            lines.push(line.to_owned());
            self.open = lines.len() < Self::LONGEST_LINES;
        }
        if line == "failures:" {
            // The first time what each said follows, the second time their names.
            (self.listing, self.listed) = (true, Vec::new());
        }
        if let (true, Some(name)) = (self.listing, line.strip_prefix("    ")) {
            self.listed.push(name.to_owned());
        }
    }

    /// The name of each, and what it said unless another thread of it did.
    fn of_failed_tests(self) -> impl Iterator<Item = String> {
        let Self { told, listed, .. } = self;
        listed.into_iter().flat_map(move |name| {
            let said = told.iter().filter(|(thread, _)| *thread == name).flat_map(|(_, lines)| lines.clone());
            let said: Vec<_> = said.collect();
            std::iter::once(format!("FAILED: {name}")).chain(said)
        })
    }
}

/// What the tests of a program are, by the file that it is made of.
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
    fn a_program_counts_as_what_its_file_says() {
        let programs = ["tests/model/main.rs", "unittests src/lib.rs", "tests/run.rs", "tests/cluster/main.rs"];
        let expected = ["model check", "all other tests", "runs on one machine", "cluster"];
        assert_eq!(programs.map(kind), expected);
    }

    #[test]
    fn what_a_failed_test_said_is_told_again_and_a_panic_that_was_meant_is_not() {
        let output = "thread 'background-0' (7) panicked at lib.rs:1:5:\nmeant\nnote: run with `RUST_BACKTRACE=1`\n\
                      thread 'a::fails' (8) panicked at lib.rs:2:5:\nleft: 1\n right: 2\nstack backtrace:\n   0: begin\n\
                      test a::fails ... FAILED\n\nfailures:\n\nfailures:\n    a::fails\n";
        let mut panics = Panics::default();
        output.lines().for_each(|line| panics.see(line));
        let told: Vec<_> = panics.of_failed_tests().collect();
        let said = ["FAILED: a::fails", "thread 'a::fails' (8) panicked at lib.rs:2:5:", "left: 1", " right: 2"];
        assert_eq!(told, said);
    }

    #[test]
    fn the_total_adds_up_what_the_runners_said() {
        let lines = [
            "test result: ok. 13 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s".to_owned(),
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s"
                .to_owned(),
        ];
        assert_eq!((count(&lines, "passed"), count(&lines, "failed")), (17, 2));
    }
}
