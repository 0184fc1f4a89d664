//! One state of the job, and the actions that are possible in it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use lockstep_elastic::{
    Coordinator, Digest, Hello, Incarnation, Member, MemberId, Record, Sampler, coordinator, coordinator::Config,
    member,
};

use crate::{
    interned::Interned,
    names::{EXCHANGES, PODS, all, mix},
    packet::Packet,
    rules::Mutant,
    worker::{Worker, WorkerAction, state},
};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 0, epoch: 0, cursor: 0 };
pub(crate) const NOW: Duration = Duration::ZERO;
/// A time at which all waits are over: for joining members, for returning members and for holders
/// of the last steps. No member was silent.
pub(crate) const LATER: Duration = Duration::from_secs(31);

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) workers: usize,
    /// The number of worker processes that die. A new process replaces each of them.
    pub(crate) kills: u8,
    /// The number of connections that break between living ends and are made again.
    pub(crate) moves: u8,
    /// The number of coordinators, including the first. Each further one starts at any moment.
    pub(crate) coordinators: u8,
    /// True if time may pass for a coordinator, so that planned changes come due.
    pub(crate) later: bool,
    pub(crate) generations: u64,
    pub(crate) steps: u64,
    /// True if an older state may be chosen while a living process is not connected.
    pub(crate) absent: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: MemberId,
    /// The number of the process within its pod.
    pub(crate) incarnation: u128,
    pub(crate) member: Interned<Member>,
    pub(crate) connection: Option<u64>,
    /// The newest generation that it was committed to.
    pub(crate) entered: u64,
    /// The newest generation that it was asked to report for.
    pub(crate) promised: u64,
    /// True while no coordinator has told it anything.
    pub(crate) untold: bool,
    pub(crate) worker: Worker,
}

#[derive(Clone, Debug)]
pub(crate) struct CoordinatorProcess {
    pub(crate) machine: Interned<Coordinator>,
    pub(crate) known: u64,
    pub(crate) record: Interned<Record>,
    pub(crate) swap: Option<Interned<Record>>,
    pub(crate) now: Duration,
    /// True if it has just started and nothing has happened since.
    pub(crate) fresh: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) worker: usize,
    pub(crate) incarnation: u128,
    pub(crate) coordinator: usize,
    pub(crate) open_here: bool,
    pub(crate) open_there: bool,
    /// True once the coordinator knows the process at the other end.
    pub(crate) greeted: bool,
}

/// The whole job: processes, coordinators, connections, messages, record and announcements.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) bounds: Bounds,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) processes: Vec<Arc<Process>>,
    pub(crate) coordinators: Vec<Option<Arc<CoordinatorProcess>>>,
    pub(crate) connections: Arc<BTreeMap<u64, Connection>>,
    /// The messages in flight, which stay for ever.
    pub(crate) packets: Vec<Arc<Packet>>,
    pub(crate) store: (Option<Interned<Record>>, u64),
    /// The members of a generation that contributed to a step, by the number of steps before it.
    pub(crate) contributed: BTreeMap<(u64, u64), u8>,
    pub(crate) done: BTreeMap<(u64, u64), u8>,
    /// The generation of each announced step.
    pub(crate) told: Vec<u64>,
    pub(crate) kills: u8,
    pub(crate) moves: u8,
    /// True once an older state was chosen while a living process was not connected. This is beyond
    /// the bounds.
    pub(crate) beyond: bool,
    pub(crate) violation: Option<String>,
}

/// A possible action.
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
    /// A coordinator finds that its waits are over.
    Later(usize),
    Work(usize, WorkerAction),
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
        sealed: true,
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
        let member = Interned::new(Member::new(hello(index, incarnation), state(&held)));
        let worker = Worker { held: Some(held), ..Worker::default() };
        let id = hello(index, incarnation).member;
        Self { id, incarnation, member, connection: None, entered: 0, promised: 0, untold: true, worker }
    }
}

impl Job {
    /// Returns a job whose workers are all in generation 1 and have done no step.
    pub(crate) fn begin(bounds: Bounds, mutant: Option<Mutant>) -> Self {
        let processes = (0..bounds.workers).map(|index| Arc::new(Process::new(index, 1))).collect();
        let mut job = Self {
            bounds,
            mutant: None,
            processes,
            coordinators: Vec::new(),
            connections: Arc::default(),
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
        let forms_the_group = |action: &Action| matches!(action, Action::Deliver(_) | Action::Swap(_));
        while let Some(action) = job.actions().into_iter().find(forms_the_group) {
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
                let Packet { connection, down, message, .. } = &*self.packets[*index];
                let Connection { worker, coordinator, .. } = self.connections[connection];
                let direction = if *down { "to" } else { "from" };
                format!("coordinator {coordinator} {direction} worker {worker}: {:?}", **message)
            }
            other => format!("{other:?}"),
        }
    }

    /// Returns the possible actions. A coordinator starts just before the first action that makes a
    /// difference to it: a newer record, or a process that finds it.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = self.possible();
        let fresh =
            |coordinator: usize| self.coordinators[coordinator].as_ref().is_some_and(|coordinator| coordinator.fresh);
        if (0..self.coordinators.len()).any(fresh) {
            actions.retain(|action| match action {
                Action::Swap(_) => true,
                Action::Connect(_, coordinator) | Action::Move(_, coordinator) => fresh(*coordinator),
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
        for (number, connection) in self.connections.iter() {
            if connection.open_here && !connection.open_there && self.coordinators[connection.coordinator].is_some() {
                actions.push(Action::LearnClose(*number));
            }
        }
        for (index, coordinator) in self.coordinators.iter().enumerate() {
            let Some(coordinator) = coordinator else { continue };
            if coordinator.swap.as_ref().is_some_and(|record| record.alloc_generation <= self.bounds.generations) {
                actions.push(Action::Swap(index));
            }
            if self.bounds.later && coordinator.now == NOW && self.comes_due(index) {
                actions.push(Action::Later(index));
            }
        }
        if self.coordinators.len() < usize::from(self.bounds.coordinators) {
            actions.push(Action::StartCoordinator);
        }
        for (index, process) in self.processes.iter().enumerate() {
            let listening =
                (0..self.coordinators.len()).filter(|coordinator| self.coordinators[*coordinator].is_some());
            match process.connection {
                None => actions.extend(listening.map(|coordinator| Action::Connect(index, coordinator))),
                Some(_) if self.moves < self.bounds.moves => {
                    actions.extend(listening.map(|coordinator| Action::Move(index, coordinator)));
                }
                Some(_) => {}
            }
            if self.kills < self.bounds.kills {
                actions.push(Action::Kill(index));
            }
            actions.extend(self.worker_actions(index).into_iter().map(|action| Action::Work(index, action)));
        }
        actions
    }

    /// Executes one action and everything that can only add possibilities. This is a contribution
    /// that no rank has to use, the knowledge that all have done a step (announced at once), and
    /// messages that no process has to receive.
    pub(crate) fn take(&mut self, action: &Action) {
        self.act_out(action);
        while let Some((worker, action)) = self.harmless() {
            self.work(worker, action);
        }
        self.forget();
        self.say_all();
    }

    fn harmless(&self) -> Option<(usize, WorkerAction)> {
        (0..self.bounds.workers).find_map(|worker| {
            let action = self
                .worker_actions(worker)
                .into_iter()
                .find(|action| matches!(action, WorkerAction::Contribute | WorkerAction::LearnStable))?;
            Some((worker, action))
        })
    }

    fn act_out(&mut self, action: &Action) {
        match *action {
            Action::Deliver(index) => self.deliver(index),
            Action::LearnClose(connection) => {
                let coordinator = self.connections[&connection].coordinator;
                self.connection(connection).open_here = false;
                self.coordinate(
                    coordinator,
                    coordinator::Event::Closed(coordinator::ConnectionId(connection), "gone".into()),
                );
            }
            Action::Swap(coordinator) => self.swap(coordinator),
            Action::Connect(worker, coordinator) => self.connect(worker, coordinator),
            Action::Move(worker, coordinator) => {
                self.moves += 1;
                self.hang_up(worker);
                self.connect(worker, coordinator);
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
                let machine =
                    Interned::new(Coordinator::new(config(self.coordinators.len(), self.bounds.workers), stored, NOW));
                let record = record.unwrap_or_else(|| Interned::new(Record::empty()));
                self.coordinators.push(Some(Arc::new(CoordinatorProcess {
                    machine,
                    known,
                    record,
                    swap: None,
                    now: NOW,
                    fresh: true,
                })));
            }
            Action::Later(index) => self.time_passes(index),
            Action::Work(worker, action) => self.work(worker, action),
        }
    }

    pub(crate) fn connection(&mut self, connection: u64) -> &mut Connection {
        Arc::make_mut(&mut self.connections).get_mut(&connection).expect("a connection")
    }

    /// Opens a connection. The numbers of connections that both ends have forgotten are used again.
    fn connect(&mut self, worker: usize, coordinator: usize) {
        let numbers = (0..).map(|place| (worker + PODS * place) as u64);
        let connection = numbers
            .into_iter()
            .find(|connection| !self.connections.contains_key(connection))
            .expect("there is always a free number");
        let incarnation = self.processes[worker].incarnation;
        let (open_here, open_there, greeted) = (true, true, false);
        if let Some(coordinator) = self.coordinators[coordinator].as_mut() {
            Arc::make_mut(coordinator).fresh = false;
        }
        let opened = Connection { worker, incarnation, coordinator, open_here, open_there, greeted };
        Arc::make_mut(&mut self.connections).insert(connection, opened);
        self.process(worker).connection = Some(connection);
        self.act(worker, member::Event::Connected);
        // Before a coordinator hears the process and answers, nothing else can happen to it.
        let hello = self.packets.iter().position(|packet| packet.connection == connection);
        if let Some(hello) = hello.filter(|_| self.processes[worker].untold) {
            self.deliver(hello);
        }
    }

    pub(crate) fn hang_up(&mut self, worker: usize) {
        if let Some(connection) = self.process(worker).connection.take() {
            self.connection(connection).open_there = false;
            self.act(worker, member::Event::Disconnected);
        }
    }

    pub(crate) fn end_coordinator(&mut self, coordinator: usize) {
        self.coordinators[coordinator] = None;
        for worker in 0..self.bounds.workers {
            let connection = self.processes[worker].connection;
            if connection.is_some_and(|connection| self.connections[&connection].coordinator == coordinator) {
                self.hang_up(worker);
            }
        }
    }

    /// Returns the identity of this state: its name without messages, and its messages. States that
    /// differ only by an exchange of pods get the same identity. Of a record's version only its
    /// being the newest counts.
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
            let Process { id: _, incarnation, member, connection, entered, promised: _, untold: _, worker } =
                &**process;
            let Worker { held, group, copying, contributed, stable, sealing, trail } = worker;
            let flags = [*copying, *contributed, *stable, *sealing].map(u128::from);
            let held = held.iter().flatten().map(|generation| u128::from(*generation) + 1);
            let connection = connection.map_or(0, |connection| connection / PODS as u64 + 1);
            let group = group.as_ref().map_or(0, |group| group.names()[exchange]);
            let numbers =
                [u128::from(connection), u128::from(*entered), u128::from(trail.unwrap_or_default()), *incarnation];
            let holds = u128::from(worker.held.is_some());
            mix(
                places[index] as u128,
                all([member.names()[exchange], group, holds].into_iter().chain(numbers).chain(flags).chain(held)),
            )
        });
        let coordinators = self.coordinators.iter().map(|coordinator| {
            coordinator.as_ref().map_or(0, |coordinator| {
                let CoordinatorProcess { machine, known, record: _, swap: _, now, fresh } = &**coordinator;
                let known = *known == self.store.1;
                all([machine.names()[exchange], u128::from(known), u128::from(*fresh), now.as_millis()])
            })
        });
        let connections = self.connections.iter().map(|(number, connection)| {
            let Connection { worker, incarnation, coordinator, open_here, open_there, greeted } = connection;
            let flags = [*open_here, *open_there, *greeted].map(u128::from);
            let number = number / PODS as u64;
            all([places[*worker] as u128, u128::from(number), *incarnation, *coordinator as u128]
                .into_iter()
                .chain(flags))
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
        let unordered =
            [sum(&mut processes.into_iter()), sum(&mut connections.into_iter()), sum(&mut said.into_iter())];
        all(counts.into_iter().chain(unordered).chain(coordinators))
    }
}
