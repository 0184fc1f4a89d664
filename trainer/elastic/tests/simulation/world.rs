//! One simulated job: its processes, coordinators, connections and store, and the agenda that moves them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use lockstep_elastic::{
    Message, State,
    coordinator::{self, Config},
};

use crate::{
    chair::Chair,
    chaos::Chaos,
    coverage::Coverage,
    dice::Dice,
    given::pod,
    history::{History, Verdict},
    network::Line,
    process::Process,
    sums::{Frame, Part, Sum},
    worker::{Exchange, Work},
};

/// With enough workers and a whole network, a step is done, or the job ends, within this time.
const WEDGED_AFTER: Duration = Duration::from_secs(100);
/// Far more than any run takes: time that stands still is noticed.
const MAX_DELIVERIES: u64 = 2_000_000;

/// A mistake that the simulation makes on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A worker says that it stands, and goes on for a while.
    ReportsBeforeItStops,
    /// Whoever swaps last wins.
    StoreIgnoresTheVersion,
    /// A process that was started anew takes itself for the one before.
    KeepsItsIncarnation,
}

/// What a seed decides beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) bug: Option<Bug>,
    /// Pods that may belong to the group, and how many begin.
    pub(crate) pods: usize,
    pub(crate) replicas: usize,
    pub(crate) least: usize,
    pub(crate) total: u64,
    /// Faults happen until this step is done; after the last step there are none that it could wait for.
    pub(crate) quiet_from: u64,
    /// Messages of a connection arrive in order and are lost only with it. Otherwise each goes its own way, or is lost or repeated.
    pub(crate) ordered: bool,
    pub(crate) lost_percent: u64,
    pub(crate) repeated_percent: u64,
    pub(crate) late_percent: u64,
}

/// What a run showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) steps: u64,
    pub(crate) generations: u64,
    pub(crate) faults: u64,
    /// Steps until the faults ended.
    pub(crate) faulty_steps: u64,
    pub(crate) rollbacks: u64,
    pub(crate) given_up: u64,
    pub(crate) attempts: u32,
    pub(crate) coordinators: u64,
    pub(crate) clock: Duration,
    /// So that a replay that differs anywhere is noticed.
    pub(crate) trace: u64,
    pub(crate) deliveries: u64,
    pub(crate) coverage: Coverage,
}

/// What has to happen in a run, and a fault in every third step.
const MIN_STEPS: u64 = 50;
pub(crate) const MIN_GENERATIONS: u64 = 3;

impl Run {
    /// What happened too little of for the run to count.
    pub(crate) fn shortfall(&self) -> Option<String> {
        let Self { steps, generations, faults, faulty_steps, .. } = self;
        let enough = *steps >= MIN_STEPS && *generations >= MIN_GENERATIONS && 3 * faults >= *faulty_steps;
        (!enough).then(|| format!("only {steps} steps, {generations} generations, {faults} faults in {faulty_steps}"))
    }
}

/// What happens next, to whom.
#[derive(Clone, Debug)]
pub(crate) enum Delivery {
    ToCoordinator(usize, Message),
    ToMember(usize, Message),
    CoordinatorLearnsOfClose(usize),
    MemberLearnsOfClose(usize),
    Connect {
        pod: usize,
        incarnation: u128,
    },
    WakeCoordinator(usize),
    WakeMember {
        pod: usize,
        incarnation: u128,
    },
    /// The worker's news reach its membership thread.
    Flush {
        pod: usize,
        incarnation: u128,
    },
    Work {
        pod: usize,
        incarnation: u128,
        work: Work,
    },
    /// A part of a sum reaches a rank.
    Frame {
        pod: usize,
        incarnation: u128,
        frame: Frame,
    },
    /// The store takes a request.
    Apply {
        chair: usize,
        request: u64,
    },
    /// Its answer arrives.
    Answer {
        chair: usize,
        event: coordinator::Event,
    },
    /// The answer was lost: what does the store hold?
    LookAgain {
        chair: usize,
        request: u64,
    },
    Start {
        pod: usize,
    },
    Thaw {
        pod: usize,
        incarnation: u128,
    },
    /// A training thread did nothing for a while.
    Stuck {
        pod: usize,
        incarnation: u128,
    },
    Kill {
        pod: usize,
        incarnation: u128,
    },
    StartCoordinator,
    KillCoordinator(usize),
    ThawCoordinator(usize),
}

impl Delivery {
    /// Whether it is more than another look at the same.
    const fn matters(&self) -> bool {
        match self {
            Self::ToCoordinator(_, Message::Heartbeat)
            | Self::ToMember(_, Message::Heartbeat)
            | Self::WakeCoordinator(_)
            | Self::WakeMember { .. }
            | Self::Work { work: Work::Follow(_), .. } => false,
            Self::ToCoordinator(..)
            | Self::ToMember(..)
            | Self::CoordinatorLearnsOfClose(_)
            | Self::MemberLearnsOfClose(_)
            | Self::Connect { .. }
            | Self::Flush { .. }
            | Self::Work { .. }
            | Self::Frame { .. }
            | Self::Apply { .. }
            | Self::Answer { .. }
            | Self::LookAgain { .. }
            | Self::Start { .. }
            | Self::Thaw { .. }
            | Self::Stuck { .. }
            | Self::Kill { .. }
            | Self::StartCoordinator
            | Self::KillCoordinator(_)
            | Self::ThawCoordinator(_) => true,
        }
    }
}

pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) dice: Dice,
    pub(crate) now: Duration,
    order: u64,
    agenda: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    slots: Vec<Option<Delivery>>,
    free: Vec<usize>,
    pub(crate) processes: Vec<Process>,
    pub(crate) incarnations: u128,
    pub(crate) attempt: u32,
    pub(crate) chairs: Vec<Chair>,
    pub(crate) lines: Vec<Line>,
    pub(crate) store: crate::chair::Store,
    pub(crate) exchanges: BTreeMap<(u64, u64), Exchange>,
    /// The sums under way, by rank.
    pub(crate) sums: BTreeMap<(Sum, usize), Part>,
    /// Two that are not connected with each other, and until when.
    pub(crate) parted: Option<([usize; 2], Duration)>,
    /// Ranks of a generation that left it without the others' consent.
    pub(crate) deserted: BTreeSet<u64>,
    pub(crate) checkpoints: BTreeMap<u64, State>,
    pub(crate) history: History,
    pub(crate) chaos: Chaos,
    /// Until then something is out of order on purpose.
    pub(crate) troubled_until: Duration,
    pub(crate) stable_at: Duration,
    faulty_steps: u64,
    trace: u64,
    /// Prints every delivery.
    pub(crate) traced: bool,
    pub(crate) over: bool,
    pub(crate) violation: Option<String>,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut dice = Dice(seed);
        let pods = 3 + dice.below(3) as usize;
        let replicas = 2 + dice.below(pods as u64 - 1) as usize;
        let total = 50 + dice.below(12);
        let script = Script {
            bug,
            pods,
            replicas,
            least: 1 + dice.below(2) as usize,
            total,
            quiet_from: if dice.percent(50) { u64::MAX } else { total - dice.below(20) },
            ordered: dice.percent(50),
            lost_percent: dice.one_of(&[0, 2, 10]),
            repeated_percent: dice.one_of(&[0, 5, 20]),
            late_percent: dice.one_of(&[0, 10, 30]),
        };
        Self::with(script, dice)
    }

    pub(crate) fn without_faults(seed: u64) -> Self {
        let mut world = Self::new(seed, None);
        world.script = Script { quiet_from: 0, ordered: true, late_percent: 0, ..world.script };
        world
    }

    /// Without faults, but that two of at least three workers are never connected.
    pub(crate) fn parted(seed: u64) -> Self {
        let mut world = Self::without_faults(seed);
        world.script = Script { pods: 5, replicas: world.script.replicas.max(3), least: 2, ..world.script };
        world.processes = (0..world.script.pods).map(|_| Process::absent()).collect();
        let one = world.dice.below(world.script.replicas as u64) as usize;
        let other = (one + 1) % world.script.replicas;
        world.part(one, other, Duration::MAX);
        world
    }

    /// Prints every delivery.
    pub(crate) fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    fn with(script: Script, dice: Dice) -> Self {
        let mut world = Self {
            processes: (0..script.pods).map(|_| Process::absent()).collect(),
            script,
            dice,
            now: Duration::ZERO,
            order: 0,
            agenda: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            incarnations: 0,
            attempt: 0,
            chairs: Vec::new(),
            lines: Vec::new(),
            store: crate::chair::Store::default(),
            exchanges: BTreeMap::new(),
            sums: BTreeMap::new(),
            parted: None,
            deserted: BTreeSet::new(),
            checkpoints: BTreeMap::new(),
            history: History::default(),
            chaos: Chaos::default(),
            troubled_until: Duration::ZERO,
            stable_at: Duration::ZERO,
            faulty_steps: 0,
            trace: 0,
            traced: false,
            over: false,
            violation: None,
        };
        world.start_job();
        world
    }

    /// The operator starts a coordinator and the workers.
    pub(crate) fn start_job(&mut self) {
        self.after(Duration::ZERO, Delivery::StartCoordinator);
        for pod in 0..self.script.replicas {
            let delay = self.dice.millis(0, 400);
            self.after(delay, Delivery::Start { pod });
        }
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            job: "uid".into(),
            attempt: self.attempt,
            name: format!("coordinator-{}", self.chairs.len()),
            members: (0..self.script.pods).map(pod).collect(),
            replicas: self.script.replicas,
            least: self.script.least.min(self.script.replicas),
            shards: 64,
            drain_limit: Duration::from_secs(20),
        }
    }

    /// Runs to the end, with every rule checked on the way.
    pub(crate) fn run(mut self) -> Result<Run, String> {
        let mut deliveries = 0;
        while !self.over {
            let Some(Reverse((time, _, slot))) = self.agenda.pop() else { return Err("nothing is left to do".into()) };
            self.now = time;
            deliveries += 1;
            let delivery = self.slots[slot].take().expect("delivered once");
            let matters = delivery.matters();
            self.free.push(slot);
            self.remember(&delivery);
            self.deliver(delivery);
            if matters && self.violation.is_none() && self.is_faulty() {
                self.faulty_steps = self.faulty_steps.max(self.history.stable_steps());
                self.tempt();
            }
            self.restore();
            let wedged = self.now > self.stable_at.max(self.troubled_until) + WEDGED_AFTER;
            if wedged || deliveries > MAX_DELIVERIES {
                self.fail(format!("no stable step since {:?}: {}", self.stable_at, self.picture()));
            }
            if let Some(violation) = self.violation {
                return Err(format!("at {:?}, after {deliveries} deliveries: {violation}", self.now));
            }
        }
        Ok(Run {
            steps: self.history.stable_steps(),
            generations: self.history.agreed.len() as u64,
            faults: self.chaos.count,
            faulty_steps: self.faulty_steps,
            rollbacks: self.history.rollbacks,
            given_up: self.history.given_up,
            attempts: self.attempt + 1,
            coordinators: self.chairs.len() as u64,
            clock: self.now,
            trace: self.trace,
            deliveries,
            coverage: self.chaos.coverage,
        })
    }

    /// FNV-1a over what happened when, which is all that a replay has to repeat.
    fn remember(&mut self, delivery: &Delivery) {
        let kind = match delivery {
            Delivery::ToCoordinator(line, message) | Delivery::ToMember(line, message) => {
                (*line as u64) << 8 | crate::network::kind(message)
            }
            Delivery::CoordinatorLearnsOfClose(line) | Delivery::MemberLearnsOfClose(line) => *line as u64,
            Delivery::Work { pod, .. }
            | Delivery::Frame { pod, .. }
            | Delivery::Connect { pod, .. }
            | Delivery::WakeMember { pod, .. } => *pod as u64,
            Delivery::Flush { .. }
            | Delivery::WakeCoordinator(_)
            | Delivery::Apply { .. }
            | Delivery::Answer { .. }
            | Delivery::LookAgain { .. }
            | Delivery::Start { .. }
            | Delivery::Thaw { .. }
            | Delivery::Stuck { .. }
            | Delivery::Kill { .. }
            | Delivery::StartCoordinator
            | Delivery::KillCoordinator(_)
            | Delivery::ThawCoordinator(_) => 0,
        };
        for number in [self.now.as_micros() as u64, kind] {
            self.trace = (self.trace ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Some(delivery) = self.unless_frozen(delivery) else { return };
        if self.traced {
            println!("{:?} {delivery:?}", self.now);
        }
        match delivery {
            Delivery::ToCoordinator(line, message) => self.arrived_at_coordinator(line, message),
            Delivery::ToMember(line, message) => self.arrived_at_member(line, message),
            Delivery::CoordinatorLearnsOfClose(line) => self.coordinator_learns_of_close(line),
            Delivery::MemberLearnsOfClose(line) => self.hang_up(line),
            Delivery::Connect { pod, incarnation } => self.connect(pod, incarnation),
            Delivery::WakeCoordinator(chair) => self.wake_coordinator(chair),
            Delivery::WakeMember { pod, incarnation } => self.wake_member(pod, incarnation),
            Delivery::Flush { pod, incarnation } => {
                if self.is_alive(pod, incarnation) {
                    self.flush(pod);
                }
            }
            Delivery::Work { pod, incarnation, work } => {
                if self.is_alive(pod, incarnation) {
                    let later = self.processes[pod].stuck_until.saturating_sub(self.now);
                    if later.is_zero() {
                        self.work(pod, work);
                    } else {
                        self.after(later, Delivery::Work { pod, incarnation, work });
                    }
                }
            }
            Delivery::Frame { pod, incarnation, frame } => {
                if self.is_alive(pod, incarnation) {
                    self.arrived(pod, frame);
                }
            }
            Delivery::Apply { chair, request } => self.apply(chair, request),
            Delivery::Answer { chair, event } => self.answer(chair, event),
            Delivery::LookAgain { chair, request } => self.look_again(chair, request),
            Delivery::Start { pod } => self.start(pod),
            Delivery::Thaw { pod, incarnation } => self.thaw(pod, incarnation),
            Delivery::Stuck { pod, incarnation } => self.found_stuck(pod, incarnation),
            Delivery::Kill { pod, incarnation } => {
                if self.is_alive(pod, incarnation) {
                    self.kill(pod);
                }
            }
            Delivery::StartCoordinator => self.start_coordinator(),
            Delivery::KillCoordinator(chair) => self.kill_coordinator(chair),
            Delivery::ThawCoordinator(chair) => self.thaw_coordinator(chair),
        }
    }

    /// What reaches a stopped process waits for it.
    fn unless_frozen(&mut self, delivery: Delivery) -> Option<Delivery> {
        let pod = match &delivery {
            Delivery::ToMember(line, _) | Delivery::MemberLearnsOfClose(line) => Some(self.lines[*line].pod),
            Delivery::Connect { pod, .. }
            | Delivery::WakeMember { pod, .. }
            | Delivery::Flush { pod, .. }
            | Delivery::Stuck { pod, .. }
            | Delivery::Frame { pod, .. }
            | Delivery::Work { pod, .. } => Some(*pod),
            _ => None,
        };
        let chair = match &delivery {
            Delivery::ToCoordinator(line, _) | Delivery::CoordinatorLearnsOfClose(line) => {
                Some(self.lines[*line].chair)
            }
            Delivery::WakeCoordinator(chair) | Delivery::Answer { chair, .. } | Delivery::LookAgain { chair, .. } => {
                Some(*chair)
            }
            _ => None,
        };
        let backlog = match (pod, chair) {
            (Some(pod), _) if self.processes[pod].frozen => &mut self.processes[pod].backlog,
            (_, Some(chair)) if self.chairs[chair].frozen => &mut self.chairs[chair].backlog,
            _ => return Some(delivery),
        };
        backlog.push(delivery);
        None
    }

    pub(crate) fn after(&mut self, delay: Duration, delivery: Delivery) {
        self.at(self.now + delay, delivery);
    }

    pub(crate) fn at(&mut self, time: Duration, delivery: Delivery) {
        self.order += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(delivery);
        self.agenda.push(Reverse((time.max(self.now), self.order, slot)));
    }

    pub(crate) fn trouble(&mut self, lasts: Duration) {
        self.troubled_until = self.troubled_until.max(self.now + lasts);
    }

    pub(crate) fn check(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.fail(violation);
        }
    }

    pub(crate) fn fail(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    /// Where everybody is, for a failure.
    pub(crate) fn picture(&self) -> String {
        let chairs = (0..self.chairs.len()).filter_map(|index| {
            let status = self.status(index)?;
            Some(format!("\n  coordinator {index}: {status}; {status:?}"))
        });
        let processes = self.processes.iter().enumerate().map(|(index, process)| {
            format!("\n  worker {index} (alive {}): {:?} {:?}", process.alive, process.worker, process.member)
        });
        chairs.chain(processes).collect()
    }
}
