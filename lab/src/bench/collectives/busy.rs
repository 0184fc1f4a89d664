//! All-reduce beside one process that computes all the time, as on any shared node: the scheduler
//! puts two ranks on one core.

use std::{
    collections::BTreeMap,
    process::{Child, Command},
    thread::available_parallelism,
};

use anyhow::Context as _;

use super::{FULL, Link, PAIR, QUICK, SHARED, Side, prepare, size_name};
use crate::bench::{
    Effort,
    cores::Cores,
    load, median,
    record::{Book, Figure},
};

/// The most that a sum shorter than [`SHORT`] may take, as a multiple of its time on a quiet
/// machine.
const MOST: f64 = 20.0;
const SHORT: usize = 64 << 10;

/// A side, and true if the busy process runs meanwhile.
type Run = (Side, bool);

const OVER_TCP: [Run; 4] = [(Side::Ours, false), (Side::Ours, true), (Side::Gloo, true), (Side::OpenMpi, true)];
/// Gloo does not share memory.
const THROUGH_MEMORY: [Run; 3] = [(Side::Ours, false), (Side::Ours, true), (Side::OpenMpi, true)];

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, budget, spare) = match effort {
        Effort::Quick => (3, 32, QUICK),
        Effort::Full => (11, 256, FULL),
    };
    let programs = prepare()?;
    let mut cores = Cores::with(spare);
    for (link, runs, goals) in [(Link::Tcp, &OVER_TCP[..], PAIR), (Link::Memory, &THROUGH_MEMORY[..], SHARED)] {
        let sizes = goals.map(|(size, ..)| size);
        let (apart, mut disturbed) = (cores.apart(), false);
        let mut seconds = BTreeMap::<(Run, usize), Vec<f64>>::new();
        for run @ (side, is_busy) in (0..rounds).flat_map(|_| runs.iter().copied()) {
            let round = || {
                let _neighbour = if is_busy { Some(Neighbour::start()?) } else { None };
                programs.measure(side, link, 2, &sizes, budget)
            };
            let (found, by_others) = cores.near(|| load::rounds(1, round))?;
            disturbed |= by_others;
            for (size, measured) in found.into_iter().flatten() {
                seconds.entry((run, size)).or_default().push(measured);
            }
        }
        disturbed |= cores.apart() > apart;
        for size in sizes {
            let mut middle = |run| median(seconds.entry((run, size)).or_default());
            let (quiet, ours) = (middle((Side::Ours, false)), middle((Side::Ours, true)));
            let peers = [("gloo", middle((Side::Gloo, true))), ("Open MPI", middle((Side::OpenMpi, true)))];
            // A side that took no part has no figure.
            let better = peers
                .into_iter()
                .filter(|(_, theirs)| theirs.is_finite())
                .min_by(|(_, one), (_, other)| one.total_cmp(other));
            let case = format!("beside a busy process, {link:?}, 2 ranks, {}", size_name(size));
            let mut write = |peer, goal| book.write(&Figure { case: &case, unit: "s", ours, peer, goal, disturbed });
            write(better, 1.0)?;
            if size < SHORT {
                write(Some(("the same on a quiet machine", quiet)), 1.0 / MOST)?;
            }
        }
    }
    println!("{}", cores.summary());
    Ok(())
}

/// A process that computes on the last core.
///
/// It ends when it is dropped, when this process ends, or after [`Neighbour::SECONDS`] of
/// computing.
struct Neighbour(Child);

impl Neighbour {
    const SECONDS: u32 = 600;

    fn start() -> anyhow::Result<Self> {
        let last = available_parallelism().map_or(1, usize::from) - 1;
        let endless = format!("ulimit -t {}; while :; do :; done", Self::SECONDS);
        // Each of these programs replaces itself by the next one, so there is one process to kill.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "taskset", "--cpu-list", &last.to_string(), "sh", "-c", &endless])
            .spawn()
            .context("starting setpriv and taskset, of util-linux")?;
        Ok(Self(child))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
