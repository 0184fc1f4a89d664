//! The scaling efficiency that a run reports, beside that by runs of one worker in the same rounds.
//! LeNet-5 with a global batch of 64: on few cores, most of it is lost.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{
    Effort, load, median,
    record::{Book, Figure},
};
use xtask::{cargo, folders};

const WORKERS: [u32; 3] = [2, 4, 8];
/// The number of newest steps of which a run reports its efficiency.
const WINDOW: usize = 50;
/// The greatest factor between both figures.
const GOAL: f64 = 1.1;

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let count = match effort {
        Effort::Quick => 3,
        Effort::Full => 11,
    };
    let (mut alone, mut groups) = (Vec::new(), BTreeMap::<u32, Vec<Seen>>::new());
    let (_, disturbed) = load::rounds(count, || {
        alone.push(seen(1)?.mean);
        for workers in WORKERS {
            groups.entry(workers).or_default().push(seen(workers)?);
        }
        Ok(())
    })?;
    let alone = median(&mut alone);
    for (workers, seen) in &groups {
        let all = f64::from(*workers) * alone;
        let of = |figure: &dyn Fn(&Seen) -> f64| median(&mut seen.iter().map(figure).collect::<Vec<_>>());
        let (reported, honest) = (of(&|seen| seen.reported), of(&|seen| seen.mean / all));
        println!("{workers} workers: reported {:.1} %, true {:.1} %", reported * 100.0, honest * 100.0);
        // Each report counts the last steps only, so it is compared with these.
        let ratio = of(&|seen| seen.reported / (seen.last / all));
        book.write(&Figure {
            case: &format!("reported by true efficiency, {workers} workers, or its inverse"),
            unit: "times",
            ours: ratio.max(ratio.recip()),
            peer: None,
            goal: GOAL,
            disturbed,
        })?;
    }
    Ok(())
}

/// The figures that a run shows.
struct Seen {
    reported: f64,
    /// Samples per second of the newest steps, and of all after the first ones.
    last: f64,
    mean: f64,
}

fn seen(workers: u32) -> anyhow::Result<Seen> {
    let folder = folders::target().join("bench/efficiency");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let output = Command::new(cargo::build()?.join("lockstep"))
        .args(["run", "deploy/examples/glyphs.yaml", "--workers", &workers.to_string(), "--output"])
        .arg(&folder)
        .current_dir(folders::root())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    ensure!(output.status.success(), "the run in {} ended with {}", folder.display(), output.status);
    let said = String::from_utf8(output.stdout)?;
    let reported =
        said.lines().find_map(|line| line.strip_prefix("efficiency")?.split('%').next()?.trim().parse::<f64>().ok());
    let log = fs::read_to_string(folder.join("metrics.jsonl"))?;
    let steps = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps: Vec<(f64, f64)> =
        steps.filter_map(|step| Some((step["samples"].as_f64()?, step["step_seconds"].as_f64()?))).collect();
    ensure!(steps.len() > 2 * WINDOW, "the run in {} has {} steps", folder.display(), steps.len());
    let rate = |steps: &[(f64, f64)]| {
        let (samples, seconds) = steps.iter().fold((0.0, 0.0), |sums, step| (sums.0 + step.0, sums.1 + step.1));
        samples / seconds
    };
    Ok(Seen {
        reported: reported.with_context(|| format!("no efficiency in: {said}"))? / 100.0,
        last: rate(&steps[steps.len() - WINDOW..]),
        mean: rate(&steps[WINDOW..]),
    })
}
