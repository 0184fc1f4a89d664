//! One simulated job: its processes, coordinators, connections and store, and the agenda that
//! drives them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use lockstep_elastic::{
    HeldState, Message,
    coordinator::{self, Config},
};

use crate::{
    chaos::Chaos,
    coordinators::CoordinatorProcess,
    coverage::Coverage,
    dice::Dice,
    fixtures::pod,
    history::{History, Verdict},
    network::Connection,
    process::Process,
    sums::{Frame, RankSum, Sum},
    worker::{Exchange, WorkerTask},
};

/// With enough workers and an intact network, a step is done or the job ends within this time.
const WEDGED_AFTER: Duration = Duration::from_secs(100);
/// Far more than any run takes, so that time without an end is noticed.
const MAX_DELIVERIES: u64 = 2_000_000;

/// A mistake that the simulation makes on purpose, to prove that it finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A worker reports that it has sealed, and goes on for a while.
    ReportsBeforeItStops,
    /// The last swap wins.
    StoreIgnoresTheVersion,
    /// A restarted process takes itself for the previous one.
    KeepsItsIncarnation,
}

/// The parameters that a seed decides in advance.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) bug: Option<Bug>,
    /// The pods that may belong to the group, and the number that starts.
    pub(crate) pods: usize,
    pub(crate) replicas: usize,
    pub(crate) least: usize,
    pub(crate) total: u64,
    /// Faults happen until this step is done, and never during a wait for the last step.
    pub(crate) quiet_from: u64,
    /// True if messages of a connection arrive in order and get lost only with it. Otherwise each
    /// may arrive alone, twice or never.
    pub(crate) ordered: bool,
    pub(crate) lost_percent: u64,
    pub(crate) repeated_percent: u64,
    pub(crate) late_percent: u64,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) steps: u64,
    pub(crate) generations: u64,
    pub(crate) faults: u64,
    /// The steps until the faults ended.
    pub(crate) faulty_steps: u64,
    pub(crate) rollbacks: u64,
    pub(crate) given_up: u64,
    pub(crate) attempts: u32,
    pub(crate) coordinators: u64,
    pub(crate) clock: Duration,
    /// A hash of all deliveries, so that a replay that differs anywhere is noticed.
    pub(crate) trace: u64,
    pub(crate) deliveries: u64,
    pub(crate) coverage: Coverage,
}

/// The minimum of a run: steps, generations, faults, and a fault in every third step.
const MIN_STEPS: u64 = 50;
pub(crate) const MIN_GENERATIONS: u64 = 3;

impl Run {
    /// Returns the minimum that the run missed.
    pub(crate) fn shortfall(&self) -> Option<String> {
        let Self { steps, generations, faults, faulty_steps, .. } = self;
        let enough = *steps >= MIN_STEPS && *generations >= MIN_GENERATIONS && 3 * faults >= *faulty_steps;
        (!enough).then(|| format!("only {steps} steps, {generations} generations, {faults} faults in {faulty_steps}"))
    }
}

/// The next event with its receiver.
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
    /// The worker's events reach its membership thread.
    Flush {
        pod: usize,
        incarnation: u128,
    },
    WorkerTask {
        pod: usize,
        incarnation: u128,
        work: WorkerTask,
    },
    /// A frame of a sum reaches a rank.
    Frame {
        pod: usize,
        incarnation: u128,
        frame: Frame,
    },
    /// The store receives a request.
    Apply {
        coordinator: usize,
        request: u64,
    },
    /// The store's answer arrives.
    Answer {
        coordinator: usize,
        event: coordinator::Event,
    },
    /// The answer got lost, so the coordinator reads the store.
    LookAgain {
        coordinator: usize,
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
    /// Returns true if the delivery is more than another look at the same state.
    const fn matters(&self) -> bool {
        match self {
            Self::ToCoordinator(_, Message::Heartbeat)
            | Self::ToMember(_, Message::Heartbeat)
            | Self::WakeCoordinator(_)
            | Self::WakeMember { .. }
            | Self::WorkerTask { work: WorkerTask::Follow(_), .. } => false,
            Self::ToCoordinator(..)
            | Self::ToMember(..)
            | Self::CoordinatorLearnsOfClose(_)
            | Self::MemberLearnsOfClose(_)
            | Self::Connect { .. }
            | Self::Flush { .. }
            | Self::WorkerTask { .. }
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
    pub(crate) coordinators: Vec<CoordinatorProcess>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) store: crate::coordinators::Store,
    pub(crate) exchanges: BTreeMap<(u64, u64), Exchange>,
    /// The sums in progress, by rank.
    pub(crate) sums: BTreeMap<(Sum, usize), RankSum>,
    /// An unconnected pair, and the end of that fault.
    pub(crate) unconnected: Option<([usize; 2], Duration)>,
    /// The ranks of a generation that left it without the others' consent.
    pub(crate) deserted: BTreeSet<u64>,
    pub(crate) checkpoints: BTreeMap<u64, HeldState>,
    pub(crate) history: History,
    pub(crate) chaos: Chaos,
    /// The time until which a fault lasts.
    pub(crate) troubled_until: Duration,
    pub(crate) stable_at: Duration,
    faulty_steps: u64,
    trace: u64,
    /// True to print every delivery.
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

    /// Returns a world without faults, except that two of at least three workers are never
    /// connected.
    pub(crate) fn with_unconnected_pair(seed: u64) -> Self {
        let mut world = Self::without_faults(seed);
        world.script = Script { pods: 5, replicas: world.script.replicas.max(3), least: 2, ..world.script };
        world.processes = (0..world.script.pods).map(|_| Process::absent()).collect();
        let one = world.dice.below(world.script.replicas as u64) as usize;
        let other = (one + 1) % world.script.replicas;
        world.disconnect_pair(one, other, Duration::MAX);
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
            coordinators: Vec::new(),
            connections: Vec::new(),
            store: crate::coordinators::Store::default(),
            exchanges: BTreeMap::new(),
            sums: BTreeMap::new(),
            unconnected: None,
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

    /// Starts a coordinator and the workers, as the operator does.
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
            name: format!("coordinator-{}", self.coordinators.len()),
            members: (0..self.script.pods).map(pod).collect(),
            replicas: self.script.replicas,
            least: self.script.least.min(self.script.replicas),
            shards: 64,
            drain_limit: Duration::from_secs(20),
        }
    }

    /// Runs to the end and checks every rule on the way.
    pub(crate) fn run(mut self) -> Result<Run, String> {
        let mut deliveries = 0;
        while !self.over {
            let Some(Reverse((time, _, slot))) = self.agenda.pop() else { return Err("no event is left".into()) };
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
            coordinators: self.coordinators.len() as u64,
            clock: self.now,
            trace: self.trace,
            deliveries,
            coverage: self.chaos.coverage,
        })
    }

    /// Adds a delivery to the FNV-1a hash of times and kinds. A replay has to repeat only these.
    fn remember(&mut self, delivery: &Delivery) {
        let kind = match delivery {
            Delivery::ToCoordinator(connection, message) | Delivery::ToMember(connection, message) => {
                (*connection as u64) << 8 | crate::network::kind(message)
            }
            Delivery::CoordinatorLearnsOfClose(connection) | Delivery::MemberLearnsOfClose(connection) => {
                *connection as u64
            }
            Delivery::WorkerTask { pod, .. }
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
            Delivery::ToCoordinator(connection, message) => self.arrived_at_coordinator(connection, message),
            Delivery::ToMember(connection, message) => self.arrived_at_member(connection, message),
            Delivery::CoordinatorLearnsOfClose(connection) => self.coordinator_learns_of_close(connection),
            Delivery::MemberLearnsOfClose(connection) => self.hang_up(connection),
            Delivery::Connect { pod, incarnation } => self.connect(pod, incarnation),
            Delivery::WakeCoordinator(coordinator) => self.wake_coordinator(coordinator),
            Delivery::WakeMember { pod, incarnation } => self.wake_member(pod, incarnation),
            Delivery::Flush { pod, incarnation } => {
                if self.is_alive(pod, incarnation) {
                    self.flush(pod);
                }
            }
            Delivery::WorkerTask { pod, incarnation, work } => {
                if self.is_alive(pod, incarnation) {
                    let later = self.processes[pod].stuck_until.saturating_sub(self.now);
                    if later.is_zero() {
                        self.work(pod, work);
                    } else {
                        self.after(later, Delivery::WorkerTask { pod, incarnation, work });
                    }
                }
            }
            Delivery::Frame { pod, incarnation, frame } => {
                if self.is_alive(pod, incarnation) {
                    self.arrived(pod, frame);
                }
            }
            Delivery::Apply { coordinator, request } => self.apply(coordinator, request),
            Delivery::Answer { coordinator, event } => self.answer(coordinator, event),
            Delivery::LookAgain { coordinator, request } => self.look_again(coordinator, request),
            Delivery::Start { pod } => self.start(pod),
            Delivery::Thaw { pod, incarnation } => self.thaw(pod, incarnation),
            Delivery::Stuck { pod, incarnation } => self.found_stuck(pod, incarnation),
            Delivery::Kill { pod, incarnation } => {
                if self.is_alive(pod, incarnation) {
                    self.kill(pod);
                }
            }
            Delivery::StartCoordinator => self.start_coordinator(),
            Delivery::KillCoordinator(coordinator) => self.kill_coordinator(coordinator),
            Delivery::ThawCoordinator(coordinator) => self.thaw_coordinator(coordinator),
        }
    }

    /// Holds a delivery to a frozen process back until it continues.
    fn unless_frozen(&mut self, delivery: Delivery) -> Option<Delivery> {
        let pod = match &delivery {
            Delivery::ToMember(connection, _) | Delivery::MemberLearnsOfClose(connection) => {
                Some(self.connections[*connection].pod)
            }
            Delivery::Connect { pod, .. }
            | Delivery::WakeMember { pod, .. }
            | Delivery::Flush { pod, .. }
            | Delivery::Stuck { pod, .. }
            | Delivery::Frame { pod, .. }
            | Delivery::WorkerTask { pod, .. } => Some(*pod),
            _ => None,
        };
        let coordinator = match &delivery {
            Delivery::ToCoordinator(connection, _) | Delivery::CoordinatorLearnsOfClose(connection) => {
                Some(self.connections[*connection].coordinator)
            }
            Delivery::WakeCoordinator(coordinator)
            | Delivery::Answer { coordinator, .. }
            | Delivery::LookAgain { coordinator, .. } => Some(*coordinator),
            _ => None,
        };
        let backlog = match (pod, coordinator) {
            (Some(pod), _) if self.processes[pod].frozen => &mut self.processes[pod].backlog,
            (_, Some(coordinator)) if self.coordinators[coordinator].frozen => {
                &mut self.coordinators[coordinator].backlog
            }
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

    /// Describes the position of every process, for a failure message.
    pub(crate) fn picture(&self) -> String {
        let coordinators = (0..self.coordinators.len()).filter_map(|index| {
            let status = self.status(index)?;
            Some(format!("\n  coordinator {index}: {status}; {status:?}"))
        });
        let processes = self.processes.iter().enumerate().map(|(index, process)| {
            format!("\n  worker {index} (alive {}): {:?} {:?}", process.alive, process.worker, process.member)
        });
        coordinators.chain(processes).collect()
    }
}
