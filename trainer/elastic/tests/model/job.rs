//! One state of the job, and what may happen next.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use lockstep_elastic::{
    Coordinator, Digest, Hello, Incarnation, Member, MemberId, Record, Sampler, coordinator, coordinator::Config,
    member,
};

use crate::{
    names::{EXCHANGES, PODS, all, mix},
    packet::Packet,
    part::Part,
    rules::Mutant,
    worker::{Deed, Worker, state},
};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 0, epoch: 0, cursor: 0 };
pub(crate) const NOW: Duration = Duration::ZERO;
/// All waits are over: for members that join, for those that may return, and for those that may hold the last steps. Nobody was silent.
pub(crate) const LATER: Duration = Duration::from_secs(31);

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
    /// Whether an older state may be taken while somebody who is alive is not connected.
    pub(crate) absent: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: MemberId,
    /// Which process of its pod.
    pub(crate) incarnation: u128,
    pub(crate) member: Part<Member>,
    pub(crate) line: Option<u64>,
    /// The newest generation that it was committed to.
    pub(crate) entered: u64,
    /// The newest generation that it was asked to report for.
    pub(crate) promised: u64,
    /// No coordinator ever told it anything.
    pub(crate) untold: bool,
    pub(crate) worker: Worker,
}

#[derive(Clone, Debug)]
pub(crate) struct Chair {
    pub(crate) machine: Part<Coordinator>,
    pub(crate) known: u64,
    pub(crate) record: Part<Record>,
    pub(crate) swap: Option<Part<Record>>,
    pub(crate) now: Duration,
    /// It has just started: nothing has happened since.
    pub(crate) fresh: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) worker: usize,
    pub(crate) incarnation: u128,
    pub(crate) chair: usize,
    pub(crate) open_here: bool,
    pub(crate) open_there: bool,
    /// The coordinator knows who is at the other end.
    pub(crate) greeted: bool,
}

/// Memberships and who said what, apart from the processes.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) bounds: Bounds,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) processes: Vec<Arc<Process>>,
    pub(crate) chairs: Vec<Option<Arc<Chair>>>,
    pub(crate) lines: Arc<BTreeMap<u64, Line>>,
    /// On their way, for ever.
    pub(crate) packets: Vec<Arc<Packet>>,
    pub(crate) store: (Option<Part<Record>>, u64),
    /// Who of a generation contributed to a step, by the steps before it.
    pub(crate) contributed: BTreeMap<(u64, u64), u8>,
    pub(crate) done: BTreeMap<(u64, u64), u8>,
    /// The generation of each step that somebody was told of.
    pub(crate) told: Vec<u64>,
    pub(crate) kills: u8,
    pub(crate) moves: u8,
    /// An older state was taken while somebody alive was not connected, which is beyond the bounds.
    pub(crate) beyond: bool,
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
        Self { id, incarnation, member, line: None, entered: 0, promised: 0, untold: true, worker }
    }
}

impl Job {
    /// All workers trained in generation 1 and have done nothing yet.
    pub(crate) fn begin(bounds: Bounds, mutant: Option<Mutant>) -> Self {
        let processes = (0..bounds.workers).map(|index| Arc::new(Process::new(index, 1))).collect();
        let mut job = Self {
            bounds,
            mutant: None,
            processes,
            chairs: Vec::new(),
            lines: Arc::default(),
            packets: Vec::new(),
            store: (None, 0),
            contributed: BTreeMap::new(),
            done: BTreeMap::new(),
            told: Vec::new(),
            kills: 0,
            moves: 0,
            beyond: false,
            violation: None,
        };
        job.take(&Action::StartCoordinator);
        for worker in 0..bounds.workers {
            job.take(&Action::Connect(worker, 0));
        }
        let brings_it_about = |action: &Action| matches!(action, Action::Deliver(_) | Action::Swap(_));
        while let Some(action) = job.actions().into_iter().find(brings_it_about) {
            job.take(&action);
        }
        assert!(job.processes.iter().all(|process| process.worker.group.is_some()), "generation 1 was not formed");
        job.packets = Vec::new();
        job.mutant = mutant;
        job
    }

    pub(crate) fn process(&mut self, index: usize) -> &mut Process {
        Arc::make_mut(&mut self.processes[index])
    }

    pub(crate) fn violated(&mut self, rule: String) {
        self.violation.get_or_insert(rule);
    }

    pub(crate) fn describe(&self, action: &Action) -> String {
        match action {
            Action::Deliver(index) => {
                let Packet { line, down, message, .. } = &*self.packets[*index];
                let Line { worker, chair, .. } = self.lines[line];
                let direction = if *down { "to" } else { "from" };
                format!("coordinator {chair} {direction} worker {worker}: {:?}", **message)
            }
            other => format!("{other:?}"),
        }
    }

    /// What may happen next. A coordinator starts just before the first thing that makes a difference to it: a newer record, or a
    /// process that finds it.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = self.possible();
        let fresh = |chair: usize| self.chairs[chair].as_ref().is_some_and(|chair| chair.fresh);
        if (0..self.chairs.len()).any(fresh) {
            actions.retain(|action| match action {
                Action::Swap(_) => true,
                Action::Connect(_, chair) | Action::Move(_, chair) => fresh(*chair),
                Action::Deliver(_)
                | Action::LearnClose(_)
                | Action::Kill(_)
                | Action::StartCoordinator
                | Action::Later(_)
                | Action::Work(..) => false,
            });
        }
        actions
    }

    fn possible(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        actions.extend((0..self.packets.len()).filter(|packet| self.changes(*packet)).map(Action::Deliver));
        for (number, line) in self.lines.iter() {
            if line.open_here && !line.open_there && self.chairs[line.chair].is_some() {
                actions.push(Action::LearnClose(*number));
            }
        }
        for (index, chair) in self.chairs.iter().enumerate() {
            let Some(chair) = chair else { continue };
            if chair.swap.as_ref().is_some_and(|record| record.alloc_generation <= self.bounds.generations) {
                actions.push(Action::Swap(index));
            }
            if self.bounds.later && chair.now == NOW && self.comes_due(index) {
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

    /// One action, and what can only add to what may go wrong: a contribution that nobody has to use, the knowledge that all have
    /// done a step, which is told at once, and messages that nobody has to receive.
    pub(crate) fn take(&mut self, action: &Action) {
        self.act_out(action);
        while let Some((worker, deed)) = self.harmless() {
            self.work(worker, deed);
        }
        self.forget();
        self.say_all();
    }

    fn harmless(&self) -> Option<(usize, Deed)> {
        (0..self.bounds.workers).find_map(|worker| {
            let deed =
                self.deeds(worker).into_iter().find(|deed| matches!(deed, Deed::Contribute | Deed::LearnStable))?;
            Some((worker, deed))
        })
    }

    fn act_out(&mut self, action: &Action) {
        match *action {
            Action::Deliver(index) => self.deliver(index),
            Action::LearnClose(line) => {
                let chair = self.lines[&line].chair;
                self.line(line).open_here = false;
                self.coordinate(chair, coordinator::Event::Closed(coordinator::Connection(line), "gone".into()));
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
                let incarnation = if kept { incarnation } else { incarnation + 1 };
                *self.process(worker) = Process::new(worker, incarnation);
            }
            Action::StartCoordinator => {
                let (record, known) = self.store.clone();
                let stored = record.as_deref().cloned();
                let machine = Part::new(Coordinator::new(config(self.chairs.len(), self.bounds.workers), stored, NOW));
                let record = record.unwrap_or_else(|| Part::new(Record::empty()));
                self.chairs.push(Some(Arc::new(Chair { machine, known, record, swap: None, now: NOW, fresh: true })));
            }
            Action::Later(index) => self.time_passes(index),
            Action::Work(worker, deed) => self.work(worker, deed),
        }
    }

    pub(crate) fn line(&mut self, line: u64) -> &mut Line {
        Arc::make_mut(&mut self.lines).get_mut(&line).expect("a line")
    }

    /// Numbers of lines that both ends have forgotten are given anew.
    fn connect(&mut self, worker: usize, chair: usize) {
        let numbers = (0..).map(|place| (worker + PODS * place) as u64);
        let line = numbers.into_iter().find(|line| !self.lines.contains_key(line)).expect("there is always another");
        let incarnation = self.processes[worker].incarnation;
        let (open_here, open_there, greeted) = (true, true, false);
        if let Some(chair) = self.chairs[chair].as_mut() {
            Arc::make_mut(chair).fresh = false;
        }
        let opened = Line { worker, incarnation, chair, open_here, open_there, greeted };
        Arc::make_mut(&mut self.lines).insert(line, opened);
        self.process(worker).line = Some(line);
        self.act(worker, member::Event::Connected);
        // Until a coordinator hears of it, and tells it something, it changes nothing and nothing changes it.
        let hello = self.packets.iter().position(|packet| packet.line == line);
        if let Some(hello) = hello.filter(|_| self.processes[worker].untold) {
            self.deliver(hello);
        }
    }

    pub(crate) fn hang_up(&mut self, worker: usize) {
        if let Some(line) = self.process(worker).line.take() {
            self.line(line).open_there = false;
            self.act(worker, member::Event::Disconnected);
        }
    }

    pub(crate) fn end_chair(&mut self, chair: usize) {
        self.chairs[chair] = None;
        for worker in 0..self.bounds.workers {
            let line = self.processes[worker].line;
            if line.is_some_and(|line| self.lines[&line].chair == chair) {
                self.hang_up(worker);
            }
        }
    }

    /// What tells this state from all others, apart from its packets, and these: of the states that differ in which pod is which the
    /// same ones for all. Of a version of the record counts only whether it is the newest.
    pub(crate) fn key(&self) -> (u128, Box<[u32]>) {
        let names: Vec<u128> = (0..(1..=self.bounds.workers).product()).map(|exchange| self.name(exchange)).collect();
        let least = names.iter().copied().min().unwrap_or_default();
        let exchanges = (0..names.len()).filter(|exchange| names[*exchange] == least);
        let packets = exchanges.map(|exchange| {
            let mut numbers: Vec<u32> = self.packets.iter().map(|packet| packet.numbers[exchange]).collect();
            numbers.sort_unstable();
            numbers
        });
        (least, packets.min().unwrap_or_default().into())
    }

    fn name(&self, exchange: usize) -> u128 {
        let places = &EXCHANGES[exchange];
        let processes = self.processes.iter().enumerate().map(|(index, process)| {
            let Process { id: _, incarnation, member, line, entered, promised: _, untold: _, worker } = &**process;
            let Worker { held, group, copying, contributed, stable, sealing, trail } = worker;
            let flags = [*copying, *contributed, *stable, *sealing].map(u128::from);
            let held = held.iter().flatten().map(|generation| u128::from(*generation) + 1);
            let line = line.map_or(0, |line| line / PODS as u64 + 1);
            let group = group.as_ref().map_or(0, |group| group.names()[exchange]);
            let numbers = [u128::from(line), u128::from(*entered), u128::from(trail.unwrap_or_default()), *incarnation];
            let holds = u128::from(worker.held.is_some());
            mix(
                places[index] as u128,
                all([member.names()[exchange], group, holds].into_iter().chain(numbers).chain(flags).chain(held)),
            )
        });
        let chairs = self.chairs.iter().map(|chair| {
            chair.as_ref().map_or(0, |chair| {
                let Chair { machine, known, record: _, swap: _, now, fresh } = &**chair;
                let known = *known == self.store.1;
                all([machine.names()[exchange], u128::from(known), u128::from(*fresh), now.as_millis()])
            })
        });
        let lines = self.lines.iter().map(|(number, line)| {
            let Line { worker, incarnation, chair, open_here, open_there, greeted } = line;
            let flags = [*open_here, *open_there, *greeted].map(u128::from);
            let number = number / PODS as u64;
            all([places[*worker] as u128, u128::from(number), *incarnation, *chair as u128].into_iter().chain(flags))
        });
        let exchanged = |mask: u8| {
            places.iter().enumerate().fold(0_u128, |to, (bit, place)| to | u128::from(mask >> bit & 1) << place)
        };
        let said = self.contributed.iter().map(|said| (1, said)).chain(self.done.iter().map(|said| (2, said)));
        let said = said.map(|(what, ((generation, step), mask))| {
            all([what, u128::from(*generation), u128::from(*step), exchanged(*mask)])
        });
        let sum = |names: &mut dyn Iterator<Item = u128>| names.fold(0_u128, u128::wrapping_add);
        let told = all(self.told.iter().map(|generation| u128::from(*generation) + 1));
        let store = self.store.0.as_ref().map_or(0, |record| record.names()[exchange]);
        let counts = [u128::from(self.kills), u128::from(self.moves), store, told];
        let unordered = [sum(&mut processes.into_iter()), sum(&mut lines.into_iter()), sum(&mut said.into_iter())];
        all(counts.into_iter().chain(unordered).chain(chairs))
    }
}
