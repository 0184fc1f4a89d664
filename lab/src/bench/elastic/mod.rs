//! The cost of changes of the group: `lockstep run`, as users call it, with processes that are
//! killed, stopped and asked to leave.

mod checkpoints;
mod run;
mod torchrun;

use std::{path::Path, thread, time::Duration};

use anyhow::ensure;

use self::{
    checkpoints::checkpoints,
    run::{Overhead, Run, now, signal},
    torchrun::Torchrun,
};
use super::{
    Effort, Options, link, load, median,
    record::{Book, Figure},
    torch,
};

/// Workers of the group whose recovery is timed.
const WORKERS: usize = 8;
/// Workers of the group that churns.
const CHURNED: usize = 4;
/// The peer's workers are connected in the same way.
const OVER_SOCKETS: [&str; 2] = ["algorithm=auto", "backend=tcp"];
/// The same, with several buckets.
const IN_BUCKETS: [&str; 3] = ["algorithm=auto", "backend=tcp", "bucketBytes=64Ki"];
/// The same, rounded to bf16. The numbers that confirm a step are then summed and awaited
/// separately.
const ROUNDED: [&str; 4] = ["algorithm=auto", "backend=tcp", "bucketBytes=64Ki", "wire=bf16"];
/// Sums with this setting do not depend on the number of workers.
const REPEATABLE: [&str; 1] = ["algorithm=canonicalTree"];
/// Far more than any change takes.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
/// The length of a job, as a multiple of the time that its kills are expected to take.
const MARGIN: f64 = 1.2;
/// The wanted share of an undisturbed job's speed while processes are killed.
const GOODPUT: f64 = 0.8;
/// Steps between two disturbances.
const QUIET_STEPS: u64 = 20;
/// How long an undisturbed group is observed.
const OBSERVED: Duration = Duration::from_secs(10);
/// The interval of the elastic example.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(10);
/// The wanted ratio of the peer's recovery time to ours.
const SOONER: f64 = 10.0;

/// The number of disturbances of the group of 8, and of turns with its peer.
struct Times {
    turns: usize,
    /// Kills in each turn.
    kills: usize,
    peer_kills: usize,
    freezes: usize,
    leaves: usize,
}

/// Times how soon a group of 8 resumes after a kill, beside `torchrun`'s, notices a frozen worker,
/// and lets a worker go. It also measures checkpoints and the transfer of a state between members.
pub(crate) fn recovery(book: &mut Book, effort: Effort, _options: Options) -> anyhow::Result<()> {
    let Times { turns, kills, peer_kills, freezes, leaves } = match effort {
        Effort::Quick => Times { turns: 2, kills: 5, peer_kills: 1, freezes: 3, leaves: 3 },
        Effort::Full => Times { turns: 5, kills: 20, peer_kills: 4, freezes: 20, leaves: 20 },
    };
    let python = torch::python();
    if let Err(error) = &python {
        println!("NO PEER, so there is no ratio: PyTorch cannot be installed: {error:#}");
    }
    let mut dice = Dice(1);
    let (turns, kills_disturbed) =
        load::rounds(turns, || Recovered::of(&mut dice, kills, python.as_deref().ok(), peer_kills))?;
    let all = |of: fn(&Recovered) -> &[f64]| turns.iter().flat_map(of).copied().collect::<Vec<_>>();
    let [mut resumed, mut redone, mut peer_resumed, mut peer_lost] = [
        all(|turn| &turn.resumed),
        all(|turn| &turn.redone),
        all(|turn| &turn.peer_resumed),
        all(|turn| &turn.peer_lost),
    ];
    let rollbacks = redone.iter().filter(|steps| **steps > 0.0).count();
    let (mut found, disturbed) = load::rounds(1, || Changed::of(&mut dice, freezes, leaves))?;
    let Changed { overhead, overhead_rounded, noticed, mut leave_stalls, mut join_stalls } = found.remove(0);
    let killed = "from kill -9 of one of 8 workers over TCP to the start of the next step, p50";
    let ours = median(&mut resumed);
    if !peer_resumed.is_empty() {
        let name = format!("{} torchrun", torch::NAME);
        let peer = Some((name.as_str(), median(&mut peer_resumed)));
        book.write(&Figure {
            case: &format!("{killed}, LeNet-5"),
            unit: "s",
            ours,
            peer,
            goal: SOONER,
            disturbed: kills_disturbed,
        })?;
        book.write(&Figure {
            case: "reported steps that are done again after the median kill",
            unit: "steps",
            ours: median(&mut redone),
            peer: Some((name.as_str(), median(&mut peer_lost))),
            goal: 1.0,
            disturbed: kills_disturbed,
        })?;
    }
    book.write(&Figure {
        case: "kills after which reported steps were done again",
        unit: "kills",
        ours: rollbacks as f64,
        peer: None,
        goal: 0.0,
        disturbed: false,
    })?;
    let mut write = |case: &str, ours: f64, goal: f64, disturbed: bool| {
        book.write(&Figure { case, unit: "s", ours, peer: None, goal, disturbed })
    };
    write(killed, ours, 0.5, kills_disturbed)?;
    write("the same, the slowest", slowest(&resumed), 2.0, kills_disturbed)?;
    write(
        "from SIGSTOP of one of 8 workers to the start of the next step, the slowest",
        slowest(&noticed),
        3.0,
        disturbed,
    )?;
    let mut stalls = |what: &str, stalls: &mut [f64]| {
        write(&format!("{what}: training pauses, median"), median(stalls), 0.1, disturbed)?;
        write(&format!("{what}: training pauses, the slowest of {leaves}"), slowest(stalls), 0.1, disturbed)
    };
    stalls("one of 8 workers leaves as planned", &mut leave_stalls)?;
    stalls("a worker joins, with a state of 0.5 MB", &mut join_stalls)?;
    let Overhead { membership, coordinator, stable } = overhead;
    let costs = [
        ("all of it", membership + coordinator + stable),
        ("processor time of its membership thread", membership),
        ("processor time of its part of the coordinator", coordinator),
        ("waiting until every member is known to have done a step", stable),
        ("the same with gradients in bf16", overhead_rounded.stable),
    ];
    for (what, ours) in costs {
        let case = format!("the cost of a quiet group, as a share of a worker's training time: {what}");
        book.write(&Figure { case: &case, unit: "", ours, peer: None, goal: 0.005, disturbed })?;
    }
    checkpoints(book, effort)?;
    link::state_transfer(book, effort)
}

/// How a group of 8 resumed after kills, in one turn with its peer.
struct Recovered {
    resumed: Vec<f64>,
    /// Steps that were reported before the kill and done again after it.
    redone: Vec<f64>,
    peer_resumed: Vec<f64>,
    peer_lost: Vec<f64>,
}

impl Recovered {
    fn of(dice: &mut Dice, kills: usize, python: Option<&Path>, peer_kills: usize) -> anyhow::Result<Self> {
        let (mut resumed, mut redone) = (Vec::new(), Vec::new());
        let (mut peer_resumed, mut peer_lost) = (Vec::new(), Vec::new());
        let run = Run::start("recovery", WORKERS, 100_000, &OVER_SOCKETS)?;
        for _ in 0..kills {
            run.settle()?;
            let victim = run.worker(dice.below(WORKERS))?;
            let reported = run.reported_step();
            let killed = now();
            signal(victim, "KILL")?;
            let (seconds, base) = run.resumed_after(killed)?;
            resumed.push(seconds);
            redone.push(reported.saturating_sub(base) as f64);
        }
        run.require_sockets()?;
        drop(run);
        if let Some(python) = python {
            let peer = Torchrun::start(python, WORKERS)?;
            for _ in 0..peer_kills {
                let before = peer.settle()?;
                // A kill may come at any moment between two checkpoints.
                thread::sleep(CHECKPOINT_EVERY.mul_f64(dice.share()));
                let victim = peer.worker(before.restart, dice.below(WORKERS))?;
                let killed = now();
                signal(victim, "KILL")?;
                let (seconds, lost) = peer.resumed_after(killed)?;
                peer_resumed.push(seconds);
                peer_lost.push(lost as f64);
            }
        }
        Ok(Self { resumed, redone, peer_resumed, peer_lost })
    }
}

/// The cost of a group of 8: left alone, with workers that freeze, and with workers that leave and
/// are replaced.
struct Changed {
    overhead: Overhead,
    overhead_rounded: Overhead,
    noticed: Vec<f64>,
    leave_stalls: Vec<f64>,
    join_stalls: Vec<f64>,
}

impl Changed {
    fn of(dice: &mut Dice, freezes: usize, leaves: usize) -> anyhow::Result<Self> {
        let costs = |communication: &[&str]| {
            let run = Run::start("overhead", WORKERS, 100_000, communication)?;
            run.settle()?;
            let overhead = run.overhead(OBSERVED)?;
            run.require_sockets()?;
            anyhow::Ok(overhead)
        };
        let (overhead, overhead_rounded) = (costs(&IN_BUCKETS)?, costs(&ROUNDED)?);
        let run = Run::start("recovery", WORKERS, 100_000, &OVER_SOCKETS)?;
        let mut noticed = Vec::new();
        for _ in 0..freezes {
            run.settle()?;
            let victim = run.worker(dice.below(WORKERS))?;
            let stopped = now();
            signal(victim, "STOP")?;
            noticed.push(run.resumed_after(stopped)?.0);
            signal(victim, "CONT")?;
        }
        let (mut leave_stalls, mut join_stalls) = (Vec::new(), Vec::new());
        for _ in 0..leaves {
            run.settle()?;
            let asked = now();
            signal(run.worker(dice.below(WORKERS))?, "TERM")?;
            let left = run.change_after(asked)?;
            leave_stalls.push(run.stall_at(&left)?);
            let joined = run.change_after(left.time)?;
            join_stalls.push(run.stall_at(&joined)?);
        }
        Ok(Self { overhead, overhead_rounded, noticed, leave_stalls, join_stalls })
    }
}

/// Kills processes of a group, the coordinator included, at random moments until the job is done.
pub(crate) fn churn(book: &mut Book, effort: Effort, options: Options) -> anyhow::Result<()> {
    let kills = options.kills.unwrap_or(match effort {
        Effort::Quick => 100,
        Effort::Full => 1000,
    });
    let mean = options.mean.unwrap_or(Duration::from_secs(1)).as_secs_f64();
    let probe = Run::start("churn-probe", CHURNED, 2, &REPEATABLE)?;
    let seconds = probe.finish()?.seconds / 2.0;
    let epochs = (MARGIN * f64::from(kills) * mean / seconds).ceil().max(2.0) as u32;
    let (watch, before) = (load::Watch::start(), load::children());
    let undisturbed = Run::start("churn-undisturbed", CHURNED, epochs, &REPEATABLE)?.finish()?;

    let run = Run::start("churn", CHURNED, epochs, &REPEATABLE)?;
    let mut dice = Dice(2);
    let mut killed = 0;
    while killed < kills && !run.is_over() {
        thread::sleep(Duration::from_secs_f64(-mean * (1.0 - dice.share()).ln()));
        let processes = run.processes()?;
        if !processes.is_empty() && signal(processes[dice.below(processes.len())], "KILL").is_ok() {
            killed += 1;
        }
        run.check_wedge()?;
    }
    let (killed_for, done) = run.progress();
    let churned = run.finish()?;
    let disturbed = watch.disturbed(load::children().saturating_sub(before));
    ensure!(killed == kills, "the job ended after {killed} of {kills} kills: this machine is too fast for its length");
    ensure!(churned.steps == undisturbed.steps, "{} steps, {} undisturbed", churned.steps, undisturbed.steps);
    ensure!(churned.model == undisturbed.model, "the weights differ from those of an undisturbed run");
    println!(
        "{killed} kills, {} generations, no wedge; {} of {} steps without a loss line",
        churned.generations, churned.unseen, churned.steps
    );
    book.write(&Figure {
        case: &format!(
            "reported steps that were done again; {} times all workers were dead at once and resumed from a checkpoint",
            churned.extinct
        ),
        unit: "steps",
        ours: churned.redone as f64,
        peer: None,
        goal: 0.0,
        disturbed: false,
    })?;
    book.write(&Figure {
        case: "changes that repeated steps although a surviving worker had done them",
        unit: "changes",
        ours: churned.rollbacks as f64,
        peer: None,
        goal: 0.0,
        disturbed: false,
    })?;
    book.write(&Figure {
        case: "seconds a step until the last kill, against the same job undisturbed",
        unit: "s",
        ours: killed_for / done as f64,
        peer: Some(("undisturbed", undisturbed.seconds / undisturbed.steps as f64)),
        goal: GOODPUT,
        disturbed,
    })
}

fn slowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// SplitMix64 (Steele et al., 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns a number from 0 to 1, 1 excluded.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
