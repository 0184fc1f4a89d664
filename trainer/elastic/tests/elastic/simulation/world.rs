use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use lockstep_elastic::{
    Active, Coordinator, Digest, Hello, Member, Message, Outcome, Record,
    coordinator::{self, Connection},
    member::{self, LastWord},
};

use crate::given::{config, hello, ms};

/// Faults happen until then; afterwards messages are only late.
const FAULTY: Duration = Duration::from_secs(4);
/// By then every run has come to an end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Far more than any run takes: time that stands still is noticed.
const MAX_DELIVERIES: u64 = 500_000;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Lost,
}

/// What a run showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) ending: Ending,
    pub(crate) generation: u64,
    pub(crate) coordinators: usize,
    pub(crate) superseded: usize,
    pub(crate) returned: usize,
    /// How many deliveries it took, so that a replay that differs is noticed.
    deliveries: u64,
    clock: Duration,
}

/// One simulated job.
pub(crate) struct World {
    dice: Dice,
    now: Duration,
    order: u64,
    agenda: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    deliveries: Vec<Option<Delivery>>,
    faulty: Faults,
    processes: Vec<Process>,
    coordinators: Vec<Option<Coordinator>>,
    alarms: Vec<u64>,
    lines: BTreeMap<Connection, Line>,
    store: (Option<Record>, u64),
    versions: Vec<u64>,
    /// Every membership that ever won its swap.
    agreed: BTreeMap<u64, Active>,
    /// Who entered which generation at which rank.
    entered: BTreeMap<(u64, u32), Hello>,
    superseded: usize,
    returned: usize,
    ending: Option<Ending>,
}

#[derive(Clone, Copy)]
struct Faults {
    lost_percent: u64,
    repeated_percent: u64,
    late_percent: u64,
    crash_percent: u64,
    replace_percent: u64,
}

struct Process {
    index: usize,
    incarnation: u128,
    member: Option<Member>,
    line: Option<Connection>,
    alarm: u64,
}

/// A connection: either end may have closed it.
struct Line {
    process: usize,
    incarnation: u128,
    coordinator: usize,
    open_there: bool,
    open_here: bool,
}

enum Delivery {
    ToCoordinator(Connection, Message),
    ToMember(Connection, Message),
    CoordinatorLearnsOfClose(Connection),
    MemberLearnsOfClose(Connection),
    Connect { process: usize, incarnation: u128 },
    WakeCoordinator { coordinator: usize, alarm: u64 },
    WakeMember { process: usize, alarm: u64 },
    Swap { coordinator: usize, record: Record },
    Crash { process: usize },
    Start { process: usize },
    Finish { process: usize, incarnation: u128 },
    ReplaceCoordinator { old_lives_on: bool },
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let faulty = Faults {
            lost_percent: [0, 3, 20][dice.below(3) as usize],
            repeated_percent: [0, 10, 30][dice.below(3) as usize],
            late_percent: [0, 10, 30][dice.below(3) as usize],
            crash_percent: [0, 30, 60][dice.below(3) as usize],
            replace_percent: [0, 50, 100][dice.below(3) as usize],
        };
        Self::with(dice, faulty)
    }

    pub(crate) fn without_faults(seed: u64) -> Self {
        let none =
            Faults { lost_percent: 0, repeated_percent: 0, late_percent: 0, crash_percent: 0, replace_percent: 0 };
        Self::with(Dice(seed), none)
    }

    fn with(mut dice: Dice, faulty: Faults) -> Self {
        let members = 3 + dice.below(3) as usize;
        let process = |index| Process { index, incarnation: 0, member: None, line: None, alarm: 0 };
        let mut world = Self {
            dice,
            now: Duration::ZERO,
            order: 0,
            agenda: BinaryHeap::new(),
            deliveries: Vec::new(),
            faulty,
            processes: (0..members).map(process).collect(),
            coordinators: Vec::new(),
            alarms: Vec::new(),
            lines: BTreeMap::new(),
            store: (None, 0),
            versions: Vec::new(),
            agreed: BTreeMap::new(),
            entered: BTreeMap::new(),
            superseded: 0,
            returned: 0,
            ending: None,
        };
        world.start_coordinator();
        for process in 0..members {
            let at = ms(world.dice.below(1500));
            world.at(at, Delivery::Start { process });
            if world.dice.percent(faulty.crash_percent) {
                let at = ms(world.dice.below(FAULTY.as_millis() as u64));
                world.at(at, Delivery::Crash { process });
            }
        }
        for _ in 0..2 {
            if world.dice.percent(faulty.replace_percent) {
                let at = ms(world.dice.below(FAULTY.as_millis() as u64));
                let old_lives_on = world.dice.percent(50);
                world.at(at, Delivery::ReplaceCoordinator { old_lives_on });
            }
        }
        world
    }

    /// Runs to an end, with every rule checked on the way.
    pub(crate) fn run(mut self) -> Run {
        let mut deliveries = 0;
        let ending = loop {
            if let Some(ending) = self.ending {
                break ending;
            }
            let Reverse((time, _, slot)) = self.agenda.pop().expect("somebody always wants to be woken");
            assert!(time <= PATIENCE, "no end after {PATIENCE:?}: {:?}", self.statuses());
            self.now = time;
            deliveries += 1;
            assert!(deliveries < MAX_DELIVERIES, "no end at {:?}: {:?}", self.now, self.statuses());
            let delivery = self.deliveries[slot].take().expect("delivered once");
            self.deliver(delivery);
        };
        Run {
            ending,
            generation: self.store.0.as_ref().map_or(0, |record| record.alloc_generation),
            coordinators: self.coordinators.len(),
            superseded: self.superseded,
            returned: self.returned,
            deliveries,
            clock: self.now,
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::ToCoordinator(connection, message) => {
                let line = &self.lines[&connection];
                if line.open_here {
                    let here = line.coordinator;
                    if let Message::Hello(Hello { entered_generation: Some(_), .. }) = &message {
                        self.returned += 1;
                    }
                    self.coordinate(here, coordinator::Event::Received(connection, message));
                }
            }
            Delivery::ToMember(connection, message) => {
                let line = &self.lines[&connection];
                if line.open_there {
                    self.act(line.process, member::Event::Received(message));
                }
            }
            Delivery::CoordinatorLearnsOfClose(connection) => {
                let line = self.lines.get_mut(&connection).expect("known");
                if std::mem::replace(&mut line.open_here, false) {
                    let here = line.coordinator;
                    let closed = coordinator::Event::Closed(connection, "closed its connection".into());
                    self.coordinate(here, closed);
                }
            }
            Delivery::MemberLearnsOfClose(connection) => self.hang_up(connection),
            Delivery::Connect { process, incarnation } => self.connect(process, incarnation),
            Delivery::WakeCoordinator { coordinator, alarm } => {
                if self.alarms[coordinator] == alarm {
                    self.coordinate(coordinator, coordinator::Event::Tick);
                }
            }
            Delivery::WakeMember { process, alarm } => {
                if self.processes[process].alarm == alarm {
                    self.act(process, member::Event::Tick);
                }
            }
            Delivery::Swap { coordinator, record } => self.swap(coordinator, record),
            Delivery::Crash { process } => self.crash(process),
            Delivery::Start { process } => self.start(process),
            Delivery::Finish { process, incarnation } => {
                if self.processes[process].incarnation == incarnation {
                    let (step, digest, payload) = (90, Digest::of(b"model"), Vec::new());
                    let word = LastWord::Finished { step, digest, payload };
                    self.act(process, member::Event::LastWord(word));
                }
            }
            Delivery::ReplaceCoordinator { old_lives_on } => self.replace_coordinator(old_lives_on),
        }
    }

    fn coordinate(&mut self, index: usize, event: coordinator::Event) {
        let Some(coordinator) = &mut self.coordinators[index] else { return };
        for command in coordinator.handle(event, self.now) {
            match command {
                coordinator::Command::Send(connection, message) => {
                    self.check_commit(&message);
                    if self.lines[&connection].open_here {
                        self.post(|message| Delivery::ToMember(connection, message), message);
                    }
                }
                coordinator::Command::Close(connection) => {
                    self.lines.get_mut(&connection).expect("known").open_here = false;
                    self.soon(Delivery::MemberLearnsOfClose(connection));
                }
                coordinator::Command::Swap(record) => self.soon(Delivery::Swap { coordinator: index, record }),
                coordinator::Command::Publish { .. } => {}
                coordinator::Command::WakeAt(time) => {
                    self.alarms[index] += 1;
                    let alarm = self.alarms[index];
                    self.at(time, Delivery::WakeCoordinator { coordinator: index, alarm });
                }
                coordinator::Command::End(outcome) => self.ended(index, &outcome),
            }
        }
    }

    fn ended(&mut self, index: usize, outcome: &Outcome) {
        match outcome {
            Outcome::Finished { step: 90, .. } => self.ending = Some(Ending::Finished),
            Outcome::Lost { member, .. } => {
                let blameless = self.faulty.lost_percent + self.faulty.crash_percent + self.faulty.replace_percent == 0;
                assert!(!blameless, "{member} is said to be lost and nothing happened");
                self.ending = Some(Ending::Lost);
            }
            Outcome::Superseded => {
                self.superseded += 1;
                self.coordinators[index] = None;
                if index + 1 == self.coordinators.len() {
                    self.start_coordinator();
                }
            }
            other => panic!("no reason for {other:?}"),
        }
    }

    fn act(&mut self, index: usize, event: member::Event) {
        let process = &mut self.processes[index];
        let (incarnation, line) = (process.incarnation, process.line);
        let Some(member) = &mut process.member else { return };
        for command in member.handle(event, self.now) {
            match command {
                member::Command::Send(message) => {
                    if let Some(connection) = line {
                        self.post(|message| Delivery::ToCoordinator(connection, message), message);
                    }
                }
                member::Command::Reconnect => {
                    if let Some(connection) = line {
                        self.soon(Delivery::CoordinatorLearnsOfClose(connection));
                        self.hang_up(connection);
                    }
                }
                member::Command::Enter(group) => {
                    self.check_entry(index, &group);
                    let at = self.now + ms(self.dice.below(3000));
                    self.at(at, Delivery::Finish { process: index, incarnation });
                }
                member::Command::WakeAt(time) => {
                    self.processes[index].alarm += 1;
                    let alarm = self.processes[index].alarm;
                    self.at(time, Delivery::WakeMember { process: index, alarm });
                }
                member::Command::Abort { .. } | member::Command::Refused { .. } => self.crash(index),
                member::Command::Seal { .. } | member::Command::Drain { .. } | member::Command::Released => {}
            }
        }
    }

    /// Of one generation there is one membership, and it is the one that won its swap.
    fn check_commit(&self, message: &Message) {
        if let Message::Commit { active, .. } = message {
            let agreed = self.agreed.get(&active.generation);
            assert_eq!(agreed, Some(active), "a commit that was never recorded");
        }
    }

    /// Nobody sits where somebody else sat, and nobody sits in a group that it does not belong to.
    fn check_entry(&mut self, index: usize, group: &member::Group) {
        let active = &self.agreed[&group.generation];
        let this = hello(index, self.processes[index].incarnation);
        let seat = active.seat(&this.member).unwrap_or_else(|| panic!("{} entered a foreign group", this.member));
        assert_eq!((seat.rank, group.world as usize), (group.rank, active.members.len()));
        let before = self.entered.insert((group.generation, group.rank), this.clone());
        assert!(before.is_none_or(|before| before == this), "two processes at rank {}", group.rank);
        let latest = self.entered.keys().filter(|(_, rank)| *rank == group.rank).map(|(g, _)| *g).max();
        assert_eq!(latest, Some(group.generation), "an older generation was entered after a newer one");
    }

    fn swap(&mut self, index: usize, record: Record) {
        if self.coordinators[index].is_none() {
            return;
        }
        if self.versions[index] != self.store.1 {
            self.coordinate(index, coordinator::Event::Conflict);
            return;
        }
        if let Some(active) = &record.active {
            let newest = self.agreed.keys().max().copied().unwrap_or(0);
            assert!(active.generation >= newest, "generation {} after {newest}", active.generation);
            let known = self.agreed.entry(active.generation).or_insert_with(|| active.clone());
            assert_eq!(known, active, "two memberships of one generation");
        }
        self.store = (Some(record), self.store.1 + 1);
        self.versions[index] = self.store.1;
        self.coordinate(index, coordinator::Event::Swapped);
    }

    fn start_coordinator(&mut self) {
        let mut config = config(self.processes.len());
        config.name = format!("coordinator-{}", self.coordinators.len());
        self.coordinators.push(Some(Coordinator::new(config, self.store.0.clone(), self.now)));
        self.versions.push(self.store.1);
        self.alarms.push(0);
    }

    /// All connections to the old one break; if it lives on, it learns that bit by bit.
    fn replace_coordinator(&mut self, old_lives_on: bool) {
        let old = self.coordinators.len() - 1;
        let connections: BTreeSet<_> =
            self.lines.iter().filter(|(_, l)| l.coordinator == old).map(|(c, _)| *c).collect();
        for connection in connections {
            self.soon(Delivery::MemberLearnsOfClose(connection));
            if old_lives_on {
                let at = self.now + ms(self.dice.below(3000));
                self.at(at, Delivery::CoordinatorLearnsOfClose(connection));
            }
        }
        if !old_lives_on {
            self.coordinators[old] = None;
        }
        self.start_coordinator();
    }

    fn start(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.member.is_some() {
            return;
        }
        process.incarnation += 1;
        let incarnation = process.incarnation;
        process.member = Some(Member::new(hello(process.index, incarnation)));
        self.soon(Delivery::Connect { process: index, incarnation });
    }

    fn crash(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.member.take().is_none() {
            return;
        }
        if let Some(connection) = process.line.take() {
            self.lines.get_mut(&connection).expect("known").open_there = false;
            self.soon(Delivery::CoordinatorLearnsOfClose(connection));
        }
        let at = self.now + ms(100 + self.dice.below(2000));
        self.at(at, Delivery::Start { process: index });
    }

    fn connect(&mut self, index: usize, incarnation: u128) {
        let process = &mut self.processes[index];
        if process.incarnation != incarnation || process.member.is_none() || process.line.is_some() {
            return;
        }
        let coordinator = self.coordinators.len() - 1;
        let connection = Connection(self.lines.len() as u64);
        process.line = Some(connection);
        let line = Line { process: index, incarnation, coordinator, open_there: true, open_here: true };
        self.lines.insert(connection, line);
        self.act(index, member::Event::Connected);
    }

    /// The member's end of a connection closes.
    fn hang_up(&mut self, connection: Connection) {
        let line = self.lines.get_mut(&connection).expect("known");
        let (index, incarnation) = (line.process, line.incarnation);
        if !std::mem::replace(&mut line.open_there, false) {
            return;
        }
        self.processes[index].line = None;
        self.act(index, member::Event::Disconnected);
        let at = self.now + ms(50 + self.dice.below(200));
        self.at(at, Delivery::Connect { process: index, incarnation });
    }

    /// Sends over the network, whatever that does with it.
    fn post(&mut self, delivery: impl Fn(Message) -> Delivery, message: Message) {
        let Faults { lost_percent, repeated_percent, late_percent, .. } = self.faulty;
        let faulty = self.now < FAULTY;
        if faulty && self.dice.percent(lost_percent) {
            return;
        }
        let copies = if faulty && self.dice.percent(repeated_percent) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if faulty && self.dice.percent(late_percent) { self.dice.below(900) } else { 0 };
            let at = self.now + ms(late) + Duration::from_micros(self.dice.below(3000));
            self.at(at, delivery(message.clone()));
        }
    }

    fn soon(&mut self, delivery: Delivery) {
        let at = self.now + Duration::from_micros(500 + self.dice.below(20_000));
        self.at(at, delivery);
    }

    fn at(&mut self, time: Duration, delivery: Delivery) {
        self.order += 1;
        self.deliveries.push(Some(delivery));
        self.agenda.push(Reverse((time.max(self.now), self.order, self.deliveries.len() - 1)));
    }

    fn statuses(&self) -> Vec<String> {
        self.coordinators.iter().flatten().map(|c| c.status(self.now).to_string()).collect()
    }
}

/// SplitMix64 (Steele et al., 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}
