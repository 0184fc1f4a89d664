#![allow(dead_code, unreachable_pub, missing_docs, reason = "each caller takes what it needs of it")]
//! The table of what happens to workers and how the job fares. `lockstep run` and the operator both
//! follow it: each runs every line by its own code and compares.

use std::{fs, path::Path};

const ARROW: &str = " ⇒ ";
/// Workers of each job in the table. It trains with any one of them.
pub const WORKERS: u32 = 3;
/// Seconds between two moments. The lost workers have joined again meanwhile.
pub const SECONDS_BETWEEN: i64 = 60;

/// The left side of a line.
pub struct Scenario {
    pub backoff_limit: u32,
    /// False if nobody has joined yet.
    pub trains: bool,
    pub moments: Vec<Moment>,
}

pub enum Moment {
    /// These processes end at the same time.
    Ends(Vec<(Who, How)>),
    /// The job trains undisturbed for so many minutes, and does new steps.
    Trains(i64),
    /// The job repeats steps that were done before, for so many minutes.
    Repeats(i64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Coordinator,
    Worker(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    Exits(i32),
    Killed(i32),
    OutOfMemory,
    /// By chaos or by the cluster.
    TakenAway,
}

/// The right side of a line: the failures that count, and the end if the job failed.
pub struct Outcome {
    pub failures: u32,
    pub failed: Option<(String, String)>,
}

/// Compares the table with what `run` makes of each scenario.
pub fn check(run: impl Fn(&Scenario) -> Outcome) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lifecycle/testdata/endings.txt");
    let table = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() > 10, "the table is too short");
    for line in lines {
        let (situation, stated) = line.split_once(ARROW).unwrap_or_else(|| panic!("no arrow in: {line}"));
        let Outcome { failures, failed } = run(&read(situation).unwrap_or_else(|| panic!("`{situation}`")));
        let found = match failed {
            // The rest names a process in the words of a machine or of a cluster.
            Some((reason, message)) => {
                let message = message.split("; the last:").next().unwrap_or_default();
                if reason == "InvalidInput" {
                    format!("Failed {reason}")
                } else {
                    format!("Failed {reason}: {message}")
                }
            }
            None => format!("goes on, failures {failures}"),
        };
        assert_eq!(found, stated, "{situation}");
    }
}

fn read(situation: &str) -> Option<Scenario> {
    let (limit, rest) = situation.strip_prefix("backoffLimit ")?.split_once(": ")?;
    let (trains, rest) = match rest.strip_prefix("before anyone joins, ") {
        Some(rest) => (false, rest),
        None => (true, rest),
    };
    let moments = rest.split("; ").map(moment).collect::<Option<Vec<_>>>()?;
    Some(Scenario { backoff_limit: limit.parse().ok()?, trains, moments })
}

fn moment(words: &str) -> Option<Moment> {
    let minutes = |words: &str| words.strip_suffix(" min")?.parse().ok();
    if let Some(time) = words.strip_prefix("trains ") {
        return minutes(time).map(Moment::Trains);
    }
    if let Some(time) = words.strip_prefix("repeats steps ") {
        return minutes(time).map(Moment::Repeats);
    }
    words.split(" and ").map(end).collect::<Option<Vec<_>>>().map(Moment::Ends)
}

fn end(words: &str) -> Option<(Who, How)> {
    let (who, how) = match words.strip_prefix("coordinator ") {
        Some(how) => (Who::Coordinator, how),
        None => {
            let (index, how) = words.strip_prefix("worker ")?.split_once(' ')?;
            (Who::Worker(index.parse().ok()?), how)
        }
    };
    let how = match how {
        "runs out of memory" => How::OutOfMemory,
        "is taken away" => How::TakenAway,
        how => match how.strip_prefix("exits ") {
            Some(code) => How::Exits(code.parse().ok()?),
            None => How::Killed(how.strip_prefix("gets signal ")?.parse().ok()?),
        },
    };
    Some((who, how))
}
