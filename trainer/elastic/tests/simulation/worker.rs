//! The training on top of each member: copy, step together, announce stable steps, seal and end.
//!
//! A member's contribution to a step says that it has done the step before (DONE), and if it was
//! asked to stop. A member that has all contributions knows that the step before is STABLE, and
//! stops with all others one step later. After the last step of a group, one more exchange without
//! a gradient shows that it is stable.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockstep_elastic::{
    Assignment, Break, CheckpointMark, Digest, HeldState, MemberId, PlanAgreement,
    member::{Event, FinalReport},
};

use crate::{
    catchup::CatchUp,
    fixtures::index_of,
    history::{Batch, SAMPLES, batch},
    sums::Kind,
    world::{Bug, World},
};

/// A checkpoint is taken after this many steps.
const CHECKPOINT_EVERY: u64 = 8;
/// A group agrees on a new plan after this many steps.
pub(crate) const ANEW: u64 = 3;

/// The activity of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It is sealed until it is committed.
    #[default]
    Sealed,
    /// It catches up with a group that trains without it.
    Following,
    /// It connects to the others of its group.
    Forming,
    /// It copies the state of its group from this rank.
    Copying(u32),
    /// It computes its share of a step.
    Computing,
    /// It has contributed and waits for the others.
    Reducing,
    /// It has all numbers and waits for the sum.
    Summing,
    /// It has sent its final report.
    Done,
    /// Its process ended.
    Gone,
}

/// The reason why all stop after an agreed step. A drain takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    Seal,
    Drain,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) doing: Doing,
    pub(crate) held: Option<HeldState>,
    /// The generation whose collectives it takes part in.
    pub(crate) generation: Option<u64>,
    /// The last generation that it started to connect for, and the last one that it entered.
    pub(crate) begun: Option<u64>,
    pub(crate) entered: Option<u64>,
    pub(crate) group: Option<Assignment>,
    /// Its next group, which it has not started to form.
    pub(crate) next: Option<Assignment>,
    /// The group that it follows.
    pub(crate) trail: Option<CatchUp>,
    /// The newcomers that it feeds, and the generation in which it was asked to.
    pub(crate) fed: BTreeSet<(u64, MemberId)>,
    /// Set while a change is due; true if it is planned.
    pub(crate) sealing: Option<bool>,
    pub(crate) draining: bool,
    /// The step after which all stop.
    pub(crate) stop: Option<(u64, Stop)>,
    /// The newest step that it knows to be stable.
    pub(crate) stable: u64,
    /// Counts its activities, so that events of past ones are recognised.
    pub(crate) turn: u64,
}

/// The microseconds for which a rank waits for one that it cannot connect to.
const FORMING: (u64, u64) = (300_000, 350_000);
/// The microseconds for connecting to ranks that are ready, and between two looks for the others.
const CONNECTING: (u64, u64) = (200, 3000);
const RETRYING: (u64, u64) = (5000, 40_000);

/// The next task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerTask {
    Begin(u64),
    Follow(u64),
    Connected(u64),
    Copied(u64),
    Contribute(u64),
    Heard(u64),
    Summed(u64),
    /// A collective of this generation fails because a peer is gone.
    Break(u64),
    /// It could not connect to this rank within its limit.
    Unformed(u64, u32),
    /// Look for a request to stop.
    Notice,
    /// No coordinator commits it, and it holds nothing, so it reads the newest checkpoint.
    Reload(u64),
    /// A snapshot of this step's state is on disk.
    Saved(HeldState),
    /// The planted bug: it seals only now, after it said so.
    StopAtLast(u64),
}

/// The members' exchange of one generation and one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    shares: BTreeMap<u32, Batch>,
    settles: bool,
    stop: Option<Stop>,
    pub(crate) sum: Option<HeldState>,
}

/// Returns the plan of a generation after this step.
pub(crate) fn plan(generation: u64, after: u64) -> Digest {
    Digest::of(&[generation.to_le_bytes(), after.to_le_bytes()].concat())
}

impl World {
    pub(crate) fn committed(&mut self, pod: usize, group: Assignment) {
        let id = self.processes[pod].id();
        let agreed = &self.history.agreed[&group.generation];
        let ranked = agreed.member(&id).map(|ranked| ranked.rank);
        if ranked != Some(group.rank) || group.world as usize != agreed.members.len() {
            self.fail(format!(
                "{id} entered generation {} at rank {}, its ranked is {ranked:?}",
                group.generation, group.rank
            ));
        }
        let worker = &mut self.processes[pod].worker;
        (worker.sealing, worker.next) = (None, Some(group));
        self.next_turn(pod, (100, 3000), WorkerTask::Begin);
    }

    pub(crate) fn next_turn(&mut self, pod: usize, (least, most): (u64, u64), work: impl Fn(u64) -> WorkerTask) {
        let worker = &mut self.processes[pod].worker;
        worker.turn += 1;
        let work = work(worker.turn);
        let delay = self.dice.micros(least, most);
        self.work_later(pod, delay, work);
    }

    /// Notes a request to seal. An unplanned change never becomes a planned one.
    pub(crate) fn asked_to_seal(&mut self, pod: usize, planned: bool) {
        let worker = &mut self.processes[pod].worker;
        worker.sealing = Some(planned && worker.sealing != Some(false));
        if !planned || worker.doing == Doing::Done {
            self.notice_later(pod);
        }
    }

    pub(crate) fn work(&mut self, pod: usize, work: WorkerTask) {
        let worker = &self.processes[pod].worker;
        let (turn, doing) = (worker.turn, worker.doing);
        match work {
            WorkerTask::Begin(of) if of == turn => self.begin(pod),
            WorkerTask::Follow(of) if of == turn => self.follow(pod),
            WorkerTask::Connected(of) if of == turn => self.connected(pod),
            WorkerTask::Copied(of) if of == turn => self.copied(pod),
            WorkerTask::Contribute(of) if of == turn => self.contribute(pod),
            WorkerTask::Heard(of) if of == turn => self.heard(pod),
            WorkerTask::Summed(of) if of == turn => self.summed(pod),
            WorkerTask::Break(generation) => {
                let waits = matches!(doing, Doing::Forming | Doing::Computing | Doing::Reducing | Doing::Summing);
                if waits && worker.generation == Some(generation) {
                    self.seal(pod, Some("a peer hung up".into()));
                }
            }
            WorkerTask::Unformed(of, rank) if of == turn => {
                let broken = Break { unreached: Some(rank), ..Break::from("not connected") };
                self.seal_for(pod, Some(broken));
            }
            WorkerTask::Notice => self.notice(pod),
            WorkerTask::Reload(of) if of == turn => {
                let held = Some(self.newest_checkpoint());
                self.processes[pod].worker.held = held;
                self.say(pod, Event::Sealed { held, broken: None });
            }
            WorkerTask::Saved(state) => self.saved(pod, state),
            WorkerTask::StopAtLast(generation) => {
                if worker.generation == Some(generation) {
                    self.leave_data_plane(pod);
                }
            }
            WorkerTask::Begin(_)
            | WorkerTask::Follow(_)
            | WorkerTask::Connected(_)
            | WorkerTask::Copied(_)
            | WorkerTask::Contribute(_)
            | WorkerTask::Heard(_)
            | WorkerTask::Summed(_)
            | WorkerTask::Unformed(..)
            | WorkerTask::Reload(_) => {}
        }
    }

    fn begin(&mut self, pod: usize) {
        let worker = &mut self.processes[pod].worker;
        let Some(group) = worker.next.take() else { return };
        let generation = group.generation;
        (worker.generation, worker.begun) = (Some(generation), Some(generation));
        (worker.stop, worker.stable, worker.doing) = (None, 0, Doing::Forming);
        let pods: Vec<usize> = group.pods.iter().map(|pod| index_of(pod)).collect();
        worker.group = Some(group);
        if worker.sealing == Some(false) {
            self.notice_later(pod);
        }
        if self.deserted.contains(&generation) || self.member_is_dead(generation) {
            let delay = self.dice.millis(5, 40);
            self.work_later(pod, delay, WorkerTask::Break(generation));
        }
        if let Some(rank) = pods.iter().position(|other| self.are_unconnected(pod, *other)) {
            self.next_turn(pod, FORMING, |turn| WorkerTask::Unformed(turn, rank as u32));
        } else {
            self.next_turn(pod, CONNECTING, WorkerTask::Connected);
        }
    }

    /// Connects to all ranks that are ready, and waits for the others.
    fn connected(&mut self, pod: usize) {
        let Some(group) = &self.processes[pod].worker.group else { return };
        let (generation, base, sources) = (group.generation, group.base, group.sources.clone());
        let copies = group.copiers.contains(&group.rank);
        let mut pods = group.pods.iter().map(|pod| index_of(pod));
        if pods.any(|other| self.processes[other].worker.begun < Some(generation)) {
            self.next_turn(pod, RETRYING, WorkerTask::Connected);
        } else if self.processes[pod].worker.held == Some(base) {
            self.entered(pod, base);
        } else if !copies {
            self.fail(format!("worker {pod} has to hold {base:?} in generation {generation}"));
        } else if sources.is_empty() {
            self.fail(format!("generation {generation} starts from {base:?}, which no process holds"));
        } else {
            let from = self.dice.one_of(&sources);
            let worker = &mut self.processes[pod].worker;
            (worker.doing, worker.held) = (Doing::Copying(from), None);
            let time = if self.dice.percent(70) { (1000, 30_000) } else { (30_000, 3_000_000) };
            self.next_turn(pod, time, WorkerTask::Copied);
        }
    }

    /// Cuts the connection of this pair until then. The two notice it when they train together.
    pub(crate) fn disconnect_pair(&mut self, one: usize, other: usize, until: Duration) {
        self.unconnected = Some(([one, other], until));
        let trains = self.processes[one].worker.generation;
        if let Some(generation) = trains.filter(|_| trains == self.processes[other].worker.generation) {
            let delay = self.dice.millis(100, 400);
            self.work_later(one, delay, WorkerTask::Break(generation));
        }
    }

    pub(crate) fn pair_is_unconnected(&self) -> bool {
        self.unconnected.is_some_and(|(_, until)| self.now < until)
    }

    pub(crate) fn are_unconnected(&self, one: usize, other: usize) -> bool {
        let both = |pair: [usize; 2]| one != other && pair.contains(&one) && pair.contains(&other);
        self.unconnected.is_some_and(|(pair, until)| self.now < until && both(pair))
    }

    fn member_is_dead(&self, generation: u64) -> bool {
        self.history.agreed[&generation].members.iter().any(|ranked| {
            let process = &self.processes[index_of(&ranked.pod)];
            !process.alive || process.id() != ranked.id()
        })
    }

    /// Completes a copy if its source held the base until now. It waits for a source that is not
    /// ready yet.
    fn copied(&mut self, pod: usize) {
        let worker = &self.processes[pod].worker;
        let (Doing::Copying(from), Some(group)) = (worker.doing, &worker.group) else { return };
        let (base, generation) = (group.base, group.generation);
        let ranked = &self.history.agreed[&generation].members[from as usize];
        let source = &self.processes[index_of(&ranked.pod)];
        let same = source.alive && source.id() == ranked.id();
        let there = source.worker.generation == Some(generation);
        let forms = source.worker.generation == Some(generation) && source.worker.doing == Doing::Forming;
        let there = there && !forms;
        let comes = (source.worker.generation < Some(generation) || forms) && !self.deserted.contains(&generation);
        if same && there && source.worker.held == Some(base) && !source.frozen {
            self.processes[pod].worker.held = Some(base);
            self.entered(pod, base);
        } else if same && (comes || source.frozen) {
            self.next_turn(pod, (10_000, 50_000), WorkerTask::Copied);
        } else {
            self.seal(pod, Some(format!("{} went while its state was copied", ranked.pod)));
        }
    }

    fn entered(&mut self, pod: usize, base: HeldState) {
        let process = &mut self.processes[pod];
        process.newcomer = false;
        process.worker.entered = process.worker.generation;
        if process.worker.held != Some(base) {
            let held = process.worker.held;
            self.fail(format!("worker {pod} enters with {held:?}, the base is {base:?}"));
        }
        self.say(pod, Event::Entered);
        self.agreed(pod, base.step);
        self.next_step(pod);
    }

    /// Agrees with all members on the plan after this step.
    fn agreed(&mut self, pod: usize, after: u64) {
        if let Some(generation) = self.processes[pod].worker.generation {
            self.say(pod, Event::Agreed(PlanAgreement { after, plan: plan(generation, after) }));
        }
    }

    /// Starts the next step, or the exchange after the last one.
    fn next_step(&mut self, pod: usize) {
        let time = if self.settles(pod) { (200, 2000) } else { (4000, 20_000) };
        self.processes[pod].worker.doing = Doing::Computing;
        self.next_turn(pod, time, WorkerTask::Contribute);
    }

    fn settles(&self, pod: usize) -> bool {
        let worker = &self.processes[pod].worker;
        let step = worker.held.map(|held| held.step);
        step == Some(self.script.total) || step.is_some_and(|step| worker.stop.is_some_and(|(stop, _)| stop == step))
    }

    fn contribute(&mut self, pod: usize) {
        self.add_share(pod);
        self.take_part(pod, Kind::Numbers);
    }

    /// Adds its share of the next step.
    fn add_share(&mut self, pod: usize) {
        let settles = self.settles(pod);
        let worker = &mut self.processes[pod].worker;
        let (Some(held), Some(group)) = (worker.held, worker.group.as_ref()) else { return };
        worker.doing = Doing::Reducing;
        let asked = worker.sealing.map(|_| Stop::Seal).max(worker.draining.then_some(Stop::Drain));
        let (generation, rank, world) = (group.generation, group.rank, group.world);
        let exchange = self.exchanges.entry((generation, held.step + 1)).or_default();
        let first = exchange.shares.is_empty();
        let agrees = first || exchange.settles == settles;
        exchange.settles = settles;
        exchange.stop = exchange.stop.max(asked);
        exchange.shares.insert(rank, share(held, rank, world, group.shards));
        if exchange.shares.len() < world as usize {
            if !agrees {
                self.fail(format!("rank {rank} of generation {generation} stops after step {} alone", held.step));
            }
            return;
        }
        let whole = batch(held.sampler);
        let mut at = whole.first;
        for share in exchange.shares.values() {
            if (share.epoch, share.first) != (whole.epoch, at) {
                self.violation.get_or_insert(format!("the samples of step {} do not add up: {share:?}", held.step + 1));
                return;
            }
            at += share.count;
        }
        if at != whole.first + whole.count {
            self.fail(format!("samples of step {} are missing", held.step + 1));
        }
    }

    /// Handles the numbers of all members: the step before is stable.
    fn heard(&mut self, pod: usize) {
        let worker = &mut self.processes[pod].worker;
        let (Some(held), Some(generation)) = (worker.held, worker.generation) else { return };
        let exchange = &self.exchanges[&(generation, held.step + 1)];
        let (settles, stop) = (exchange.settles, exchange.stop);
        worker.doing = Doing::Summing;
        worker.stable = held.step;
        let reports = worker.group.as_ref().is_some_and(lockstep_elastic::Assignment::reports);
        if let (Some(stop), None) = (stop, worker.stop) {
            worker.stop = Some(((held.step + 2).min(self.script.total), stop));
        }
        let known = self.history.stable_steps();
        let verdict = self.history.told(generation, held);
        self.check(verdict);
        if self.history.stable_steps() > known {
            self.stable_at = self.now;
            self.chaos.stepped();
        }
        if reports {
            self.say(pod, Event::Progress { step: held.step, payload: Vec::new() });
            if held.step % CHECKPOINT_EVERY == 0 && held.step > 0 {
                let delay = self.dice.millis(2, 80);
                self.work_later(pod, delay, WorkerTask::Saved(held));
            }
        }
        if settles {
            self.settled(pod, held);
        } else {
            self.take_part(pod, Kind::Gradient);
        }
    }

    fn summed(&mut self, pod: usize) {
        let worker = &self.processes[pod].worker;
        let (Some(held), Some(generation)) = (worker.held, worker.generation) else { return };
        let sum = self.exchanges[&(generation, held.step + 1)].sum;
        let sum = sum.unwrap_or_else(|| self.history.step(held, generation));
        self.exchanges.entry((generation, held.step + 1)).or_default().sum = Some(sum);
        self.processes[pod].worker.held = Some(sum);
        let far = self.processes.iter().find(|other| {
            let theirs = other.worker.held.filter(|_| other.alive && other.worker.entered == Some(generation));
            other.worker.generation == Some(generation) && theirs.is_some_and(|held| held.step.abs_diff(sum.step) > 1)
        });
        if let Some(far) = far {
            let message =
                format!("in generation {generation} one member has {sum:?}, another one {:?}", far.worker.held);
            self.fail(message);
        }
        let base = self.processes[pod].worker.group.as_ref().map(|group| group.base.step);
        if base.is_some_and(|base| base + ANEW == sum.step) {
            self.agreed(pod, sum.step);
        }
        self.next_step(pod);
    }

    /// Handles the end of a group: its last step is stable.
    fn settled(&mut self, pod: usize, held: HeldState) {
        let worker = &self.processes[pod].worker;
        let HeldState { step, digest, .. } = held;
        let word = match worker.stop {
            _ if step == self.script.total => FinalReport::Finished { step, digest, payload: Vec::new() },
            Some((_, Stop::Drain)) => FinalReport::Drained { step },
            Some((_, Stop::Seal)) | None => {
                self.processes[pod].worker.doing = Doing::Done;
                return self.seal(pod, None);
            }
        };
        if worker.group.as_ref().is_some_and(lockstep_elastic::Assignment::reports) {
            self.saved(pod, held);
        }
        self.processes[pod].worker.doing = Doing::Done;
        self.processes[pod].worker.turn += 1;
        if self.processes[pod].worker.sealing.is_some() {
            self.notice_later(pod);
        }
        self.say(pod, Event::FinalReport(word));
    }

    fn notice(&mut self, pod: usize) {
        let worker = &self.processes[pod].worker;
        let due = match worker.doing {
            Doing::Done => worker.sealing.is_some(),
            Doing::Following
            | Doing::Forming
            | Doing::Copying(_)
            | Doing::Computing
            | Doing::Reducing
            | Doing::Summing => worker.sealing == Some(false),
            Doing::Sealed | Doing::Gone => false,
        };
        let hasty = self.script.bug == Some(Bug::ReportsBeforeItStops);
        if let (true, true, Some(generation), Some(held)) = (due, hasty, worker.generation, worker.held) {
            self.processes[pod].worker.sealing = None;
            self.say(pod, Event::Sealed { held: Some(held), broken: None });
            let delay = self.dice.millis(20, 120);
            self.work_later(pod, delay, WorkerTask::StopAtLast(generation));
        } else if due {
            self.seal(pod, None);
        }
    }

    /// Stops every collective for good, then reports its state.
    pub(crate) fn seal(&mut self, pod: usize, broken: Option<String>) {
        self.seal_for(pod, broken.map(Break::from));
    }

    pub(crate) fn seal_for(&mut self, pod: usize, broken: Option<Break>) {
        self.leave_data_plane(pod);
        let held = self.processes[pod].worker.held;
        self.say(pod, Event::Sealed { held, broken });
        if held.is_none() {
            self.next_turn(pod, (5_000_000, 6_000_000), WorkerTask::Reload);
        }
    }

    fn leave_data_plane(&mut self, pod: usize) {
        let worker = &mut self.processes[pod].worker;
        let generation = worker.generation.take();
        let rank = worker.group.as_ref().map(|group| group.rank);
        // The others have received everything that it had to send.
        let settled = worker.doing == Doing::Done;
        (worker.doing, worker.group, worker.sealing, worker.stop) = (Doing::Sealed, None, None, None);
        worker.trail = None;
        worker.turn += 1;
        if let (Some(generation), Some(rank)) = (generation, rank) {
            self.take_part_no_more(generation, rank);
        }
        if let Some(generation) = generation.filter(|_| !settled) {
            self.desert(pod, generation);
        }
    }

    /// Closes its sockets, so that ranks that wait for it fail.
    pub(crate) fn desert(&mut self, pod: usize, generation: u64) {
        self.deserted.insert(generation);
        for peer in 0..self.processes.len() {
            if peer != pod && self.processes[peer].alive && self.processes[peer].worker.generation == Some(generation) {
                let delay = self.dice.micros(100, 25_000);
                self.work_later(peer, delay, WorkerTask::Break(generation));
            }
        }
    }

    /// Stores a checkpoint, unless its step was given up. The first writer of a step wins.
    fn saved(&mut self, pod: usize, state: HeldState) {
        if self.history.keeps(state) {
            self.checkpoints.entry(state.step).or_insert(state);
        }
        let mark = CheckpointMark { step: state.step, manifest_digest: state.digest };
        self.say(pod, Event::Checkpoint(mark));
    }
}

/// Returns a rank's samples of the next step: those of its virtual shards.
fn share(held: HeldState, rank: u32, world: u32, shards: u32) -> Batch {
    let Batch { epoch, first, count } = batch(held.sampler);
    let edge = |rank: u32| {
        let shard = u64::from(rank) * u64::from(shards) / u64::from(world);
        (first + shard * count / u64::from(shards)).min(SAMPLES)
    };
    Batch { epoch, first: edge(rank), count: edge(rank + 1) - edge(rank) }
}
