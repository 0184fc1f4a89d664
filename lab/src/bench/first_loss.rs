//! How long a user waits for the first sign of learning.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::Context as _;

use super::{
    Effort, load, median,
    record::{Book, Figure},
};
use xtask::{cargo, folders};

const GOAL_SECONDS: f64 = 5.0;

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let rounds = match effort {
        Effort::Quick => 3,
        Effort::Full => 11,
    };
    let binaries = cargo::build()?;
    let (mut seconds, disturbed) = load::rounds(rounds, || {
        let (mut lines, both) = {
            let (reading, writing) = std::io::pipe()?;
            (BufReader::new(reading).lines(), writing)
        };
        let folder = folders::target().join("bench/first-loss-run");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let start = Instant::now();
        let mut child = Command::new(binaries.join("lockstep"))
            .args(["run", "deploy/examples/glyphs.yaml", "--set", "spec.training.epochs=1", "--output"])
            .arg(&folder)
            .current_dir(folders::root())
            .stdin(Stdio::null())
            .stdout(both.try_clone()?)
            .stderr(both)
            .spawn()?;
        let shown = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("loss")));
        let seconds = start.elapsed().as_secs_f64();
        shown.context("`lockstep run` ended without a loss line")??;
        for line in lines {
            line?;
        }
        child.wait()?;
        Ok(seconds)
    })?;
    book.write(&Figure {
        case: "glyphs, 2 workers, median",
        unit: "s",
        ours: median(&mut seconds),
        peer: None,
        goal: GOAL_SECONDS,
        disturbed,
    })
}
