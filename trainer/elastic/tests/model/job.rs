//! One state of the job, what may happen next, and the rules.

use std::{collections::BTreeMap, net::SocketAddr, rc::Rc, time::Duration};

use lockstep_elastic::{
    Coordinator, Digest, Hello, Incarnation, Member, MemberId, Message, Record, Sampler,
    coordinator::{self, Config, Connection},
    member,
};

use crate::{
    part::{Part, digest},
    rules::Mutant,
    worker::{Deed, Worker, state},
};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 0, epoch: 0, cursor: 0 };
pub(crate) const NOW: Duration = Duration::ZERO;
/// All waits are over: for members that join, for those that may return, and for those that may hold the last steps. Nobody was silent.
pub(crate) const LATER: Duration = Duration::from_secs(31);
/// Time in which everybody who is connected says something.
const SHORT: u64 = 2;

/// How far the exploration goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) workers: usize,
    /// Processes of workers that die; each comes back as a new one.
    pub(crate) kills: u8,
    /// Connections that break although both ends live, and are made anew.
    pub(crate) moves: u8,
    /// Coordinators, the first included; another one starts at any moment.
    pub(crate) coordinators: u8,
    /// Whether time may pass for a coordinator, so that planned changes come due.
    pub(crate) later: bool,
    pub(crate) generations: u64,
    pub(crate) steps: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: MemberId,
    pub(crate) incarnation: u128,
    pub(crate) member: Part<Member>,
    pub(crate) line: Option<u64>,
    /// The newest generation that it was committed to.
    pub(crate) entered: u64,
    pub(crate) worker: Worker,
}

#[derive(Clone, Debug)]
pub(crate) struct Chair {
    pub(crate) machine: Part<Coordinator>,
    pub(crate) known: u64,
    pub(crate) record: Part<Record>,
    pub(crate) swap: Option<Part<Record>>,
    pub(crate) now: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) worker: usize,
    pub(crate) incarnation: u128,
    pub(crate) chair: usize,
    pub(crate) open_here: bool,
    pub(crate) open_there: bool,
}

/// A message on its way, for ever.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packet {
    pub(crate) line: u64,
    pub(crate) down: bool,
    pub(crate) message: Message,
}

/// Memberships and who said what, apart from the processes.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) bounds: Bounds,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) processes: Vec<Part<Process>>,
    pub(crate) chairs: Vec<Part<Option<Chair>>>,
    pub(crate) lines: Part<BTreeMap<u64, Line>>,
    /// Each with the hash that stands for it.
    pub(crate) packets: Vec<Rc<(u128, Packet)>>,
    pub(crate) store: Part<(Option<Record>, u64)>,
    pub(crate) contributed: BTreeMap<(u64, u64), u8>,
    pub(crate) done: BTreeMap<(u64, u64), u8>,
    /// The generation of each step that somebody was told of.
    pub(crate) told: Vec<u64>,
    kills: u8,
    moves: u8,
    pub(crate) violation: Option<String>,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Deliver(usize),
    LearnClose(u64),
    Swap(usize),
    /// A process without a connection finds a coordinator.
    Connect(usize, usize),
    /// A connection breaks, and the process finds a coordinator.
    Move(usize, usize),
    /// A process dies, and a new one of its pod starts.
    Kill(usize),
    StartCoordinator,
    /// A coordinator finds that those that wait have waited long enough.
    Later(usize),
    Work(usize, Deed),
}

fn hello(index: usize, incarnation: u128) -> Hello {
    Hello {
        job: "job".into(),
        attempt: 0,
        member: MemberId { pod: format!("w-{index}"), incarnation: Incarnation::from_u128(incarnation) },
        address: SocketAddr::from(([10, 0, 0, 1], 7000 + index as u16)),
        workload: Digest::NONE,
        data: Digest::NONE,
        committed_generation: None,
        stands: true,
    }
}

fn config(name: usize, workers: usize) -> Config {
    Config {
        job: "job".into(),
        attempt: 0,
        name: format!("c-{name}"),
        members: (0..workers).map(|index| format!("w-{index}")).collect(),
        replicas: workers,
        least: 1,
        shards: 64,
        drain_limit: Duration::from_secs(20),
    }
}

impl Process {
    fn new(index: usize, incarnation: u128) -> Self {
        let held = Vec::new();
        let member = Part::new(Member::new(hello(index, incarnation), state(&held)));
        let worker = Worker { held: Some(held), ..Worker::default() };
        let id = hello(index, incarnation).member;
        Self { id, incarnation, member, line: None, entered: 0, worker }
    }
}

impl Job {
    /// All workers trained in generation 1 and have done nothing yet.
    pub(crate) fn begin(bounds: Bounds, mutant: Option<Mutant>) -> Self {
        let processes = (0..bounds.workers).map(|index| Part::new(Process::new(index, index as u128 + 1))).collect();
        let mut job = Self {
            bounds,
            mutant: None,
            processes,
            chairs: Vec::new(),
            lines: Part::new(BTreeMap::new()),
            packets: Vec::new(),
            store: Part::new((None, 0)),
            contributed: BTreeMap::new(),
            done: BTreeMap::new(),
            told: Vec::new(),
            kills: 0,
            moves: 0,
            violation: None,
        };
        job.take(&Action::StartCoordinator);
        for worker in 0..bounds.workers {
            job.take(&Action::Connect(worker, 0));
        }
        loop {
            let all = job.actions();
            let Some(action) = all.into_iter().find(|action| job.moves_on(action)) else { break };
            job.take(&action);
        }
        assert!(job.processes.iter().all(|process| process.worker.group.is_some()), "generation 1 was not formed");
        job.packets = Vec::new();
        job.mutant = mutant;
        job
    }

    /// Whether this brings the first generation about: no worker of it trains yet.
    fn moves_on(&self, action: &Action) -> bool {
        match action {
            Action::Deliver(index) => {
                let mut after = self.clone();
                after.take(action);
                after.key() != self.key() && !matches!(self.packets[*index].1.message, Message::Heartbeat)
            }
            Action::Swap(_) => true,
            _ => false,
        }
    }

    pub(crate) fn process(&mut self, index: usize) -> &mut Process {
        self.processes[index].change()
    }

    pub(crate) fn violated(&mut self, rule: String) {
        self.violation.get_or_insert(rule);
    }

    pub(crate) fn describe(&self, action: &Action) -> String {
        match action {
            Action::Deliver(index) => {
                let Packet { line, down, message } = &self.packets[*index].1;
                let Line { worker, chair, .. } = self.lines[line];
                let direction = if *down { "to" } else { "from" };
                format!("coordinator {chair} {direction} worker {worker}: {message:?}")
            }
            other => format!("{other:?}"),
        }
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        actions.extend((0..self.packets.len()).map(Action::Deliver));
        for (number, line) in self.lines.iter() {
            if line.open_here && !line.open_there && self.chairs[line.chair].is_some() {
                actions.push(Action::LearnClose(*number));
            }
        }
        for (index, chair) in self.chairs.iter().enumerate() {
            let Some(chair) = &**chair else { continue };
            if chair.swap.as_ref().is_some_and(|record| record.alloc_generation <= self.bounds.generations) {
                actions.push(Action::Swap(index));
            }
            if self.bounds.later && chair.now == NOW {
                actions.push(Action::Later(index));
            }
        }
        if self.chairs.len() < usize::from(self.bounds.coordinators) {
            actions.push(Action::StartCoordinator);
        }
        for (index, process) in self.processes.iter().enumerate() {
            let listening = (0..self.chairs.len()).filter(|chair| self.chairs[*chair].is_some());
            match process.line {
                None => actions.extend(listening.map(|chair| Action::Connect(index, chair))),
                Some(_) if self.moves < self.bounds.moves => {
                    actions.extend(listening.map(|chair| Action::Move(index, chair)));
                }
                Some(_) => {}
            }
            if self.kills < self.bounds.kills {
                actions.push(Action::Kill(index));
            }
            actions.extend(self.deeds(index).into_iter().map(|deed| Action::Work(index, deed)));
        }
        actions
    }

    /// One action, and what can only add to what may go wrong: a contribution that nobody has to use, and the knowledge that all have
    /// done a step, which is told at once. Messages that nobody can receive any more are forgotten.
    pub(crate) fn take(&mut self, action: &Action) {
        self.act_out(action);
        while let Some((worker, deed)) = self.harmless() {
            self.work(worker, deed);
        }
        if (0..self.packets.len()).any(|packet| !self.arrives(packet)) {
            let kept = (0..self.packets.len()).filter(|packet| self.arrives(*packet));
            self.packets = kept.map(|packet| Rc::clone(&self.packets[packet])).collect();
        }
    }

    fn harmless(&self) -> Option<(usize, Deed)> {
        (0..self.bounds.workers).find_map(|worker| {
            let deed =
                self.deeds(worker).into_iter().find(|deed| matches!(deed, Deed::Contribute | Deed::LearnStable))?;
            Some((worker, deed))
        })
    }

    fn arrives(&self, packet: usize) -> bool {
        let Packet { line, down, .. } = &self.packets[packet].1;
        let Line { worker, incarnation, chair, open_here, open_there } = self.lines[line];
        if *down {
            open_there && self.processes[worker].incarnation == incarnation
        } else {
            open_here && self.chairs[chair].is_some()
        }
    }

    fn act_out(&mut self, action: &Action) {
        match *action {
            Action::Deliver(index) => {
                let packet = Rc::clone(&self.packets[index]);
                let (name, Packet { line, down, message }) = (packet.0, packet.1.clone());
                let Line { worker, chair, .. } = self.lines[&line];
                if down {
                    self.act_on(worker, member::Event::Received(message), name);
                } else {
                    let said = self.twisted(chair, message);
                    let name = if self.mutant.is_some() { digest(&(line, &said)) } else { name };
                    self.coordinate_on(chair, coordinator::Event::Received(Connection(line), said), name);
                }
            }
            Action::LearnClose(line) => {
                let chair = self.lines[&line].chair;
                self.line(line).open_here = false;
                self.coordinate(chair, coordinator::Event::Closed(Connection(line), "gone".into()));
            }
            Action::Swap(chair) => self.swap(chair),
            Action::Connect(worker, chair) => self.connect(worker, chair),
            Action::Move(worker, chair) => {
                self.moves += 1;
                self.hang_up(worker);
                self.connect(worker, chair);
            }
            Action::Kill(worker) => {
                self.kills += 1;
                self.hang_up(worker);
                let incarnation = self.processes[worker].incarnation;
                let kept = self.mutant == Some(Mutant::KeepsItsIncarnation);
                let incarnation = if kept { incarnation } else { incarnation + 10 };
                *self.process(worker) = Process::new(worker, incarnation);
            }
            Action::StartCoordinator => {
                let (record, known) = (*self.store).clone();
                let machine =
                    Part::new(Coordinator::new(config(self.chairs.len(), self.bounds.workers), record.clone(), NOW));
                let record = Part::new(record.unwrap_or_else(Record::empty));
                self.chairs.push(Part::new(Some(Chair { machine, known, record, swap: None, now: NOW })));
            }
            Action::Later(index) => {
                for now in (SHORT..=LATER.as_secs()).step_by(SHORT as usize).map(Duration::from_secs).chain([LATER]) {
                    self.passed(index, now);
                }
            }
            Action::Work(worker, deed) => self.work(worker, deed),
        }
    }

    pub(crate) fn line(&mut self, line: u64) -> &mut Line {
        self.lines.change().get_mut(&line).expect("a line")
    }

    fn connect(&mut self, worker: usize, chair: usize) {
        let before = self.lines.values().filter(|line| line.worker == worker).count();
        let line = (worker + self.bounds.workers * before) as u64;
        let incarnation = self.processes[worker].incarnation;
        let (open_here, open_there) = (true, true);
        self.lines.change().insert(line, Line { worker, incarnation, chair, open_here, open_there });
        self.process(worker).line = Some(line);
        self.act(worker, member::Event::Connected);
    }

    pub(crate) fn hang_up(&mut self, worker: usize) {
        if let Some(line) = self.process(worker).line.take() {
            self.line(line).open_there = false;
            self.act(worker, member::Event::Disconnected);
        }
    }

    pub(crate) fn end_chair(&mut self, chair: usize) {
        self.chairs[chair] = Part::new(None);
        for worker in 0..self.bounds.workers {
            let line = self.processes[worker].line;
            if line.is_some_and(|line| self.lines[&line].chair == chair) {
                self.hang_up(worker);
            }
        }
    }

    /// What tells this state from all others: 128 bits of it.
    pub(crate) fn key(&self) -> u128 {
        let rest = (&self.contributed, &self.done, &self.told, self.kills, self.moves);
        let parts = self.processes.iter().map(Part::digest).chain(self.chairs.iter().map(Part::digest));
        let parts = parts.chain([self.lines.digest(), self.store.digest(), digest(&rest)]);
        let ordered = parts.fold(0_u128, |key, part| (key.rotate_left(1) ^ part).wrapping_mul(MIX));
        self.packets.iter().fold(ordered, |key, packet| key.wrapping_add(packet.0.wrapping_mul(MIX)))
    }
}

const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
