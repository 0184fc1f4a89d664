//! The accuracy of LeNet-5 under SGD, LARS and LAMB as the batch grows and the number of epochs
//! stays. A sweep with one seed finds the best peak rate of each method at each batch. Three seeds
//! then train with it.

mod page;
mod trainers;

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    Effort,
    record::{Book, Figure},
};
use trainers::{Outcome, Run, Trainers};

/// A way to update weights, as the trainer's example calls it.
type Method = &'static str;

/// Methods whose peak is swept at each batch, with the lowest of six peaks at 64, 1024, 4096 and
/// 8192.
const SWEPT: [(Method, &str, [f64; 4]); 5] = [
    ("sgd", "SGD, tuned", [0.0025, 0.01, 0.01, 0.01]),
    ("sgd-clipped", "SGD clipped to norm 1, tuned", [0.0025, 0.02, 0.02, 0.02]),
    ("lars", "LARS, trust on every tensor, tuned", [1.0, 2.0, 4.0, 4.0]),
    ("lars-mlperf", "LARS in MLPerf's form, tuned", [0.5, 0.5, 1.0, 1.0]),
    ("lamb", "LAMB, tuned", [0.00125, 0.005, 0.01, 0.01]),
];
const BATCHES: [u64; 4] = [64, 1024, 4096, 8192];
const CANDIDATES: i32 = 6;
/// Peaks that are tried beyond an end of the sweep, if the best lies there.
const BEYOND: usize = 2;
const SWEEP_SEED: u64 = 100;

/// One row of the table: a method at each batch.
struct Row {
    name: String,
    cells: BTreeMap<u64, Cell>,
}

/// The runs of a method at a batch with its peak.
struct Cell {
    peak: f64,
    runs: Vec<Outcome>,
}

impl Cell {
    /// Mean accuracy in percent.
    fn accuracy(&self) -> f64 {
        100.0 * self.runs.iter().map(|run| run.accuracy).sum::<f64>() / self.runs.len() as f64
    }

    fn is_dead(&self) -> bool {
        self.runs.iter().all(|run| run.dead)
    }
}

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (batches, seeds): (&[u64], &[u64]) = match effort {
        Effort::Quick => (&[64, 4096], &[1]),
        Effort::Full => (&BATCHES, &[1, 2, 3]),
    };
    let mut trainers = Trainers::start()?;
    let mut rows = Vec::new();
    let mut peaks: BTreeMap<(Method, u64), f64> = BTreeMap::new();
    for (method, name, lowest) in SWEPT {
        let mut cells = BTreeMap::new();
        for (batch, lowest) in BATCHES.into_iter().zip(lowest).filter(|(batch, _)| batches.contains(batch)) {
            let peak = best_peak(&mut trainers, method, batch, lowest)?;
            peaks.insert((method, batch), peak);
            cells.insert(batch, finals(&mut trainers, method, batch, peak, seeds)?);
            println!("{name}, batch {batch}: {:.2} % at peak {peak}", cells[&batch].accuracy());
        }
        rows.push(Row { name: name.to_owned(), cells });
    }
    for (method, name, scale) in [
        ("sgd", "SGD, tuned at 64, linear scaling", (|batch| batch as f64 / 64.0) as fn(u64) -> f64),
        ("lars", "LARS, tuned at 64, not scaled", |_| 1.0),
        ("lars", "LARS, tuned at 64, square-root scaling", |batch| (batch as f64 / 64.0).sqrt()),
    ] {
        let mut cells = BTreeMap::new();
        for batch in batches.iter().copied().filter(|batch| *batch > 64) {
            let peak = peaks[&(method, 64)] * scale(batch);
            cells.insert(batch, finals(&mut trainers, method, batch, peak, seeds)?);
            println!("{name}, batch {batch}: {:.2} % at peak {peak}", cells[&batch].accuracy());
        }
        rows.push(Row { name: name.to_owned(), cells });
    }
    page::write(effort, &rows, trainers.source(), &book.origin())?;
    gates(book, &rows)
}

/// Returns the peak with the best accuracy on held-out samples. Tries no peak above one that died.
fn best_peak(trainers: &mut Trainers, method: Method, batch: u64, lowest: f64) -> anyhow::Result<f64> {
    let sweep = |peak| Run { method, batch, peak, seed: SWEEP_SEED, sweep: true };
    let mut found: Vec<(f64, Outcome)> = Vec::new();
    let candidates: Vec<Run> = (0..CANDIDATES).map(|power| sweep(lowest * 2f64.powi(power))).collect();
    let outcomes = trainers.train(&candidates)?;
    found.extend(candidates.iter().map(|run| run.peak).zip(outcomes));
    if let Some(first_dead) = found.iter().position(|(_, outcome)| outcome.dead) {
        found.truncate(first_dead + 1);
    }
    for _ in 0..BEYOND {
        let best = best(&found);
        let next = match (found.first(), found.last()) {
            (_, Some((last, outcome))) if *last == best && !outcome.dead => best * 2.0,
            (Some((first, _)), _) if *first == best => best / 2.0,
            _ => break,
        };
        let outcome = trainers.train(&[sweep(next)])?.remove(0);
        found.push((next, outcome));
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    Ok(best(&found))
}

fn best(found: &[(f64, Outcome)]) -> f64 {
    let alive = |outcome: &Outcome| if outcome.dead { -1.0 } else { outcome.accuracy };
    found.iter().max_by(|(_, one), (_, other)| alive(one).total_cmp(&alive(other))).map_or(f64::NAN, |(peak, _)| *peak)
}

fn finals(trainers: &mut Trainers, method: Method, batch: u64, peak: f64, seeds: &[u64]) -> anyhow::Result<Cell> {
    let runs: Vec<Run> = seeds.iter().map(|seed| Run { method, batch, peak, seed: *seed, sweep: false }).collect();
    Ok(Cell { peak, runs: trainers.train(&runs)? })
}

/// Writes the goals of LARS, in points of accuracy. Each figure is a loss: less is better.
fn gates(book: &mut Book, rows: &[Row]) -> anyhow::Result<()> {
    let accuracy = |start: &str, batch: u64| {
        rows.iter().find(|row| row.name.starts_with(start))?.cells.get(&batch).map(Cell::accuracy)
    };
    let (lars, unscaled, clipped) = ("LARS, trust", "LARS, tuned at 64, not", "SGD clipped");
    let root = "LARS, tuned at 64, square-root";
    let difference = |one: Option<f64>, other: Option<f64>| Some(one? - other?);
    for (case, lost, goal) in [
        ("LARS at 1024 below its own 64", difference(accuracy(lars, 64), accuracy(lars, 1024)), 0.3),
        ("LARS at 4096 below its own 64", difference(accuracy(lars, 64), accuracy(lars, 4096)), 1.5),
        (
            "LARS at 1024, scaled by the root, below its own 64",
            difference(accuracy(lars, 64), accuracy(root, 1024)),
            0.3,
        ),
        (
            "LARS at 4096, scaled by the root, below its own 64",
            difference(accuracy(lars, 64), accuracy(root, 4096)),
            1.5,
        ),
        ("clipped SGD minus LARS at 4096", difference(accuracy(clipped, 4096), accuracy(lars, 4096)), -0.5),
        ("LARS unscaled minus scaled at 4096", difference(accuracy(unscaled, 4096), accuracy(lars, 4096)), -3.0),
        ("LARS at 8192 below its own 64 (reported)", difference(accuracy(lars, 64), accuracy(lars, 8192)), 100.0),
    ] {
        if let Some(ours) = lost {
            book.write(&Figure { case, unit: "points", ours, peer: None, goal, disturbed: false })?;
        }
    }
    Ok(())
}

/// The page and its picture.
fn places(effort: Effort) -> [PathBuf; 2] {
    let folder = match effort {
        Effort::Quick => xtask::folders::target().join("bench"),
        Effort::Full => xtask::folders::root().join("docs"),
    };
    ["large-batch.md", "large-batch.svg"].map(|name| folder.join(name))
}
