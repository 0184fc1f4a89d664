//! One state of the job, what may happen next, and the rules.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    fmt::{self, Debug, Formatter, Write},
    net::SocketAddr,
    ops::Deref,
    rc::Rc,
    time::Duration,
};

use lockstep_elastic::{
    Active, Coordinator, Digest, Hello, Incarnation, Member, MemberId, Message, Record, Sampler, State,
    coordinator::{self, Config, Connection},
    member,
};

use crate::worker::{Deed, Worker, base, state};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 0, epoch: 0, cursor: 0 };
const NOW: Duration = Duration::ZERO;
/// All waits are over: for members that join, for those that may return, and for those that may hold the last steps. To a coordinator
/// that nobody woke meanwhile, nobody was silent.
const LATER: Duration = Duration::from_secs(31);

/// How far the exploration goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) workers: usize,
    /// Processes of workers that die; each may be started anew.
    pub(crate) kills: u8,
    /// Connections that break although both ends live.
    pub(crate) moves: u8,
    /// Coordinators that are started beside or after the first; any may die.
    pub(crate) coordinators: u8,
    /// Whether time may pass for a coordinator, so that planned changes come due.
    pub(crate) later: bool,
    pub(crate) generations: u64,
    pub(crate) steps: u64,
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// M1: a worker reports and goes on.
    ReportsBeforeSealing,
    /// M2: whoever holds most steps counts, whether or not it took part in the last generation.
    CountsEverybody,
    /// M3: a step is told when it is done here, not when it is done by all.
    ToldAtLocalCompletion,
    /// M4: a membership is recorded without looking at the version.
    RecordsWithoutVersion,
    /// M5: a new process takes itself for the one before.
    KeepsItsIncarnation,
    /// M7: who holds the last generation's first state counts, member or not.
    BaseInForeignHands,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: MemberId,
    incarnation: u128,
    member: Part<Member>,
    line: Option<u64>,
    /// The newest generation that it was committed to.
    pub(crate) entered: u64,
    pub(crate) worker: Worker,
}

#[derive(Clone, Debug)]
struct Chair {
    machine: Part<Coordinator>,
    known: u64,
    record: Part<Record>,
    swap: Option<Part<Record>>,
    /// Whether the time has passed after which those that wait are let in.
    later: bool,
}

#[derive(Clone, Debug)]
struct Line {
    worker: usize,
    incarnation: u128,
    chair: usize,
    open_here: bool,
    open_there: bool,
}

/// A message on its way, for ever.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    line: u64,
    down: bool,
    message: Message,
}

/// A part of the state that most transitions leave alone, with its digest once that was asked for.
pub(crate) struct Part<T> {
    value: Rc<T>,
    digest: Cell<Option<u128>>,
}

impl<T: Clone + Debug> Part<T> {
    fn new(value: T) -> Self {
        Self { value: Rc::new(value), digest: Cell::new(None) }
    }

    fn change(&mut self) -> &mut T {
        self.digest.set(None);
        Rc::make_mut(&mut self.value)
    }

    fn digest(&self) -> u128 {
        let digest = self.digest.get().unwrap_or_else(|| digest(&*self.value));
        self.digest.set(Some(digest));
        digest
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { value: Rc::clone(&self.value), digest: self.digest.clone() }
    }
}

impl<T: Clone + Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.digest())
    }
}

/// What a state machine becomes by an event, and what it asks for. The same one is met again and again.
type Handled<T, C> = HashMap<(u128, u128), (Part<T>, Rc<Vec<C>>)>;

thread_local! {
    static MEMBERS: RefCell<Handled<Member, member::Command>> = RefCell::default();
    static COORDINATORS: RefCell<Handled<Coordinator, coordinator::Command>> = RefCell::default();
}

fn member_after(before: &Part<Member>, event: member::Event, name: u128) -> (Part<Member>, Rc<Vec<member::Command>>) {
    MEMBERS.with_borrow_mut(|known| {
        let handled = known.entry((before.digest(), name)).or_insert_with(|| {
            let mut after = before.clone();
            let commands = after.change().handle(event, NOW);
            (after, Rc::new(commands))
        });
        handled.0.digest();
        handled.clone()
    })
}

fn coordinator_after(
    before: &Part<Coordinator>,
    event: coordinator::Event,
    now: Duration,
    name: u128,
) -> (Part<Coordinator>, Rc<Vec<coordinator::Command>>) {
    let name = name.wrapping_add(now.as_millis());
    COORDINATORS.with_borrow_mut(|known| {
        let handled = known.entry((before.digest(), name)).or_insert_with(|| {
            let mut after = before.clone();
            let commands = after.change().handle(event, now);
            (after, Rc::new(commands))
        });
        handled.0.digest();
        handled.clone()
    })
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Memberships and who said what, apart from the processes.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) bounds: Bounds,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) processes: Vec<Part<Process>>,
    chairs: Vec<Part<Option<Chair>>>,
    lines: Part<BTreeMap<u64, Line>>,
    /// Each with the hash that stands for it.
    packets: Vec<Rc<(u128, Packet)>>,
    store: Part<(Option<Record>, u64)>,
    pub(crate) contributed: BTreeMap<(u64, u64), u8>,
    pub(crate) done: BTreeMap<(u64, u64), u8>,
    /// The generation of each step that somebody was told of.
    told: Vec<u64>,
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

    pub(crate) fn told(&self) -> usize {
        self.told.len()
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
            if self.bounds.later && !chair.later {
                actions.push(Action::Later(index));
            }
        }
        if self.chairs.len() <= usize::from(self.bounds.coordinators) {
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
                self.chairs.push(Part::new(Some(Chair { machine, known, record, swap: None, later: false })));
            }
            Action::Later(index) => {
                if let Some(chair) = self.chairs[index].change() {
                    chair.later = true;
                    self.coordinate(index, coordinator::Event::Tick);
                }
            }
            Action::Work(worker, deed) => self.work(worker, deed),
        }
    }

    fn line(&mut self, line: u64) -> &mut Line {
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

    fn hang_up(&mut self, worker: usize) {
        if let Some(line) = self.process(worker).line.take() {
            self.line(line).open_there = false;
            self.act(worker, member::Event::Disconnected);
        }
    }

    fn end_chair(&mut self, chair: usize) {
        self.chairs[chair] = Part::new(None);
        for worker in 0..self.bounds.workers {
            let line = self.processes[worker].line;
            if line.is_some_and(|line| self.lines[&line].chair == chair) {
                self.hang_up(worker);
            }
        }
    }

    fn post(&mut self, packet: Packet) {
        let closed = matches!(packet.message, Message::Heartbeat | Message::Checkpoint(_) | Message::Progress { .. });
        if !closed && !self.packets.iter().any(|known| known.1 == packet) {
            let hash = digest(&packet);
            self.packets.push(Rc::new((hash, packet)));
        }
    }

    pub(crate) fn act(&mut self, worker: usize, event: member::Event) {
        let name = digest(&event);
        self.act_on(worker, event, name);
    }

    /// An event, and what tells it from all others.
    fn act_on(&mut self, worker: usize, event: member::Event, name: u128) {
        let (after, commands) = member_after(&self.processes[worker].member, event, name);
        if after.digest() != self.processes[worker].member.digest() {
            self.process(worker).member = after;
        }
        for command in commands.iter().cloned() {
            match command {
                member::Command::Send(message) => {
                    if let Some(line) = self.processes[worker].line {
                        self.post(Packet { line, down: false, message });
                    }
                }
                member::Command::Seal { .. } => {
                    let hasty = self.mutant == Some(Mutant::ReportsBeforeSealing);
                    let process = self.process(worker);
                    if hasty && !process.worker.copying {
                        let held = process.worker.held.as_deref().map(state);
                        self.act(worker, member::Event::Stand { held, broken: None });
                    } else {
                        process.worker.sealing = true;
                    }
                }
                member::Command::Enter(group) => self.enter(worker, group.generation),
                member::Command::Reconnect
                | member::Command::Drain { .. }
                | member::Command::Abort { .. }
                | member::Command::Refused { .. }
                | member::Command::Released
                | member::Command::WakeAt(_) => {}
            }
        }
    }

    fn enter(&mut self, worker: usize, generation: u64) {
        let Some(active) = self.store.0.as_ref().and_then(|record| record.active.clone()) else { return };
        // A later one may be recorded already: what it was committed to is in the message, which the chairs keep.
        let recorded = self.chairs.iter().filter_map(|chair| chair.as_ref()?.record.active.clone());
        let Some(active) = recorded.chain([active]).find(|active| active.generation == generation) else { return };
        let process = self.process(worker);
        process.entered = generation;
        let copying = process.worker.held.as_deref().map(state) != Some(base(&active));
        process.worker =
            Worker { held: process.worker.held.clone(), group: Some(Part::new(active)), copying, ..Worker::default() };
        if !copying {
            self.act(worker, member::Event::Entered);
        }
    }

    fn coordinate(&mut self, index: usize, event: coordinator::Event) {
        let name = digest(&event);
        self.coordinate_on(index, event, name);
    }

    fn coordinate_on(&mut self, index: usize, event: coordinator::Event, name: u128) {
        let Some(chair) = self.chairs[index].as_ref() else { return };
        let now = if chair.later { LATER } else { NOW };
        let (after, commands) = coordinator_after(&chair.machine, event, now, name);
        if after.digest() != chair.machine.digest()
            && let Some(chair) = self.chairs[index].change()
        {
            chair.machine = after;
        }
        for command in commands.iter().cloned() {
            match command {
                coordinator::Command::Send(Connection(line), message) => {
                    if self.lines[&line].open_here {
                        self.post(Packet { line, down: true, message });
                    }
                }
                coordinator::Command::Close(Connection(line)) => {
                    self.line(line).open_here = false;
                    let Line { worker, incarnation, .. } = self.lines[&line];
                    let process = &self.processes[worker];
                    if process.incarnation == incarnation && process.line == Some(line) {
                        self.hang_up(worker);
                    }
                }
                coordinator::Command::Swap(record) => {
                    if let Some(chair) = self.chairs[index].change() {
                        chair.swap = Some(Part::new(record.clone()));
                    }
                }
                coordinator::Command::End(_) => self.end_chair(index),
                coordinator::Command::Publish { .. }
                | coordinator::Command::Changed(_)
                | coordinator::Command::WakeAt(_) => {}
            }
        }
    }

    fn swap(&mut self, index: usize) {
        let Some(chair) = self.chairs[index].change() else { return };
        let Some(record) = chair.swap.take() else { return };
        let activates = record.active != chair.record.active;
        let heedless = activates && self.mutant == Some(Mutant::RecordsWithoutVersion);
        if chair.known != self.store.1 && !heedless {
            return self.coordinate(index, coordinator::Event::Conflict);
        }
        let version = self.store.1 + 1;
        (chair.known, chair.record) = (version, record.clone());
        self.store = Part::new((Some((*record).clone()), version));
        if let (true, Some(active)) = (activates, &record.active) {
            self.check_base(active);
        }
        self.coordinate(index, coordinator::Event::Swapped);
    }

    /// No step that anybody was told of is missing where a generation begins, unless all who held it are gone and the record says so.
    fn check_base(&mut self, active: &Active) {
        let lineage = self.lineage(&base(active));
        let shared = self.told.iter().zip(&lineage).take_while(|(told, held)| told == held).count();
        if shared < self.told.len() {
            let holder = self
                .processes
                .iter()
                .any(|process| process.worker.held.as_ref().is_some_and(|held| held.starts_with(&self.told)));
            if holder || !active.rollback {
                let told = &self.told;
                let rule = format!("generation {} starts from {lineage:?}, told were {told:?}", active.generation);
                self.violated(rule);
            }
            self.told.truncate(shared);
        }
    }

    pub(crate) fn tell(&mut self, held: &[u64]) {
        let shared = self.told.len().min(held.len());
        if self.told[..shared] != held[..shared] {
            let rule = format!("told were {:?}, now {held:?} is told", self.told);
            self.violated(rule);
        } else if held.len() > self.told.len() {
            self.told = held.to_vec();
        }
    }

    /// The steps that a state came from: every lineage is a list of at most two generations.
    pub(crate) fn lineage(&self, of: &State) -> Vec<u64> {
        let generations = 1..=self.bounds.generations;
        let ones = generations.clone().map(|one| vec![one]);
        let twos = generations.clone().flat_map(|one| generations.clone().map(move |two| vec![one, two]));
        let mut all = std::iter::once(Vec::new()).chain(ones).chain(twos);
        all.find(|lineage| state(lineage) == *of).unwrap_or_else(|| panic!("{of:?} was never computed"))
    }

    /// What a coordinator without one of its rules would make of a report.
    fn twisted(&self, chair: usize, message: Message) -> Message {
        let last = self.chairs[chair].as_ref().and_then(|chair| chair.record.active.as_ref());
        match (message, last, self.mutant) {
            (Message::Report(mut report), Some(last), Some(Mutant::CountsEverybody)) => {
                report.entered_generation = Some(last.generation);
                Message::Report(report)
            }
            (Message::Report(mut report), Some(last), Some(Mutant::BaseInForeignHands))
                if report.state == Some(base(last)) =>
            {
                report.entered_generation = Some(last.generation);
                Message::Report(report)
            }
            (message, _, _) => message,
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

/// 128 bits of blake3 over what the derived `Debug` prints, which is everything that a value holds.
fn digest(value: &impl Debug) -> u128 {
    struct Digesting(blake3::Hasher);
    impl Write for Digesting {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut digesting = Digesting(blake3::Hasher::new());
    write!(digesting, "{value:?}").expect("hashing cannot fail");
    let bytes = digesting.0.finalize();
    bytes.as_bytes()[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
