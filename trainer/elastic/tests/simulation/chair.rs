//! Coordinators, of which several may live at a time, and the store that lets one of them win.

use std::time::Duration;

use lockstep_elastic::{
    Active, Awake, Coordinator, Message, Outcome, Record, Status, Summing,
    coordinator::{Command, Event},
};

use crate::{
    history::Verdict,
    slow::Slow,
    worker::{ANEW, plan},
    world::{Bug, Delivery, World},
};

/// One coordinator process.
#[derive(Default)]
pub(crate) struct Chair {
    pub(crate) machine: Option<Coordinator>,
    pub(crate) frozen: bool,
    pub(crate) backlog: Vec<Delivery>,
    pub(crate) slow: Slow,
    /// The record as it knows it, with its version.
    known: (Option<Record>, u64),
    /// The swap under way, with its number and what came of it as far as the store knows.
    pub(crate) swap: Option<(u64, Record)>,
    requests: u64,
    clock: Awake,
    /// By how much time is ahead for it.
    ahead: Duration,
    wanted: Duration,
    alarm: Option<Duration>,
}

impl Chair {
    pub(crate) fn listens(&self) -> bool {
        self.machine.is_some()
    }

    /// The membership that is being written, where it is not only a number allocated or a checkpoint noted.
    pub(crate) fn activates(&self) -> Option<&Active> {
        let written = self.swap.as_ref().and_then(|(_, record)| record.active.as_ref());
        written.filter(|active| Some(*active) != self.active())
    }

    /// The newest membership that it knows of.
    pub(crate) fn active(&self) -> Option<&Active> {
        self.known.0.as_ref()?.active.as_ref()
    }

    pub(crate) fn allocates(&self) -> bool {
        let before = self.known.0.as_ref().map_or(0, |record| record.alloc_generation);
        self.swap.as_ref().is_some_and(|(_, record)| record.alloc_generation != before)
    }
}

/// Keeps the record. Requests and answers may be late, and answers may be lost.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) record: Option<Record>,
    version: u64,
    pub(crate) late_until: Duration,
    pub(crate) deaf_until: Duration,
    pub(crate) away_until: Duration,
}

impl World {
    pub(crate) fn start_coordinator(&mut self) {
        if self.over {
            return;
        }
        let config = self.config();
        let known = (self.store.record.clone(), self.store.version);
        let mut clock = Awake::default();
        let machine = Some(Coordinator::new(config, known.0.clone(), clock.look(self.now)));
        self.chairs.push(Chair { machine, known, clock, ..Chair::default() });
        self.after(Duration::ZERO, Delivery::WakeCoordinator(self.chairs.len() - 1));
    }

    pub(crate) fn wake_coordinator(&mut self, index: usize) {
        let chair = &mut self.chairs[index];
        chair.alarm = None;
        if chair.wanted > self.now {
            let wanted = chair.wanted;
            self.set_alarm(index, wanted);
        } else {
            self.coordinate(index, Event::Tick);
        }
    }

    /// As after a machine slept; whatever it wanted to wake for is due.
    pub(crate) fn coordinators_clock_jumps(&mut self, index: usize, ahead: Duration) {
        self.chairs[index].ahead += ahead;
        if !self.chairs[index].frozen {
            self.coordinate(index, Event::Tick);
        }
    }

    pub(crate) fn status(&self, index: usize) -> Option<Status> {
        let Chair { machine, clock, ahead, .. } = &self.chairs[index];
        machine.as_ref().map(|machine| machine.status(clock.clone().look(self.now + *ahead)))
    }

    fn set_alarm(&mut self, index: usize, wanted: Duration) {
        let chair = &mut self.chairs[index];
        chair.wanted = wanted;
        if chair.alarm.is_none_or(|alarm| alarm > wanted) {
            chair.alarm = Some(wanted);
            self.at(wanted, Delivery::WakeCoordinator(index));
        }
    }

    pub(crate) fn coordinate(&mut self, index: usize, event: Event) {
        let Chair { machine: Some(machine), clock, ahead, .. } = &mut self.chairs[index] else { return };
        for command in machine.handle(event, clock.look(self.now + *ahead)) {
            match command {
                Command::Send(connection, message) => {
                    self.check_commit(&message);
                    self.send_to_member(connection.0 as usize, message);
                }
                Command::Close(connection) => self.close_here(connection.0 as usize),
                Command::Swap(record) => self.request(index, record),
                Command::Publish { .. } | Command::Changed(_) => {}
                Command::WakeAt(time) => {
                    let Chair { clock, ahead, .. } = &self.chairs[index];
                    let wanted = clock.real(time).saturating_sub(*ahead);
                    self.set_alarm(index, wanted);
                }
                Command::End(outcome) => self.ended(index, outcome),
            }
        }
    }

    /// Nobody is told of a membership that is not recorded.
    fn check_commit(&mut self, message: &Message) {
        if let Message::Commit { active, .. } = message
            && self.history.agreed.get(&active.generation) != Some(active)
        {
            self.fail(format!("a commit to a membership that was never recorded: {active:?}"));
        }
    }

    /// Pods have one coordinator by name: how one ended that another took the place of is asked by nobody.
    fn ended(&mut self, index: usize, outcome: Outcome) {
        if index + 1 < self.chairs.len() {
            return self.kill_coordinator(index);
        }
        match outcome {
            Outcome::Finished { step, digest, .. } => {
                let verdict = self.history.finished(step, digest, self.script.total);
                self.check(verdict);
                self.over = true;
            }
            Outcome::Drained { step } => {
                if step < self.history.stable_steps() {
                    self.fail(format!("drained at step {step}, told were {}", self.history.stable_steps()));
                }
                self.start_anew();
            }
            Outcome::Superseded | Outcome::Deserted | Outcome::Stopped => self.kill_coordinator(index),
            other @ (Outcome::Fatal { .. } | Outcome::Diverged { .. } | Outcome::StoreFailed { .. }) => {
                self.fail(format!("no reason for {other:?}: {}", self.picture()));
            }
        }
    }

    /// All stopped as was asked: the operator starts every process of the job anew.
    fn start_anew(&mut self) {
        for pod in 0..self.processes.len() {
            self.end_process(pod);
        }
        for chair in 0..self.chairs.len() {
            self.chairs[chair].machine = None;
        }
        self.attempt += 1;
        self.trouble(Duration::ZERO);
        self.start_job();
    }

    pub(crate) fn kill_coordinator(&mut self, index: usize) {
        if self.chairs[index].machine.take().is_none() {
            return;
        }
        self.chairs[index].frozen = false;
        self.chairs[index].backlog.clear();
        for line in 0..self.lines.len() {
            if self.lines[line].chair == index {
                self.close_here(line);
            }
        }
        if !self.chairs.iter().any(Chair::listens) {
            let delay = self.dice.millis(30, 800);
            self.after(delay, Delivery::StartCoordinator);
        }
    }

    /// A new one starts while the old one lives on for a while.
    pub(crate) fn double_coordinator(&mut self, old: usize) {
        self.start_coordinator();
        for line in 0..self.lines.len() {
            if self.lines[line].chair == old && self.lines[line].open_there && self.dice.percent(60) {
                let delay = self.dice.millis(0, 1500);
                self.after(delay, Delivery::MemberLearnsOfClose(line));
            }
        }
        let lives = self.dice.millis(100, 5000);
        self.trouble(lives);
        self.after(lives, Delivery::KillCoordinator(old));
    }

    pub(crate) fn thaw_coordinator(&mut self, index: usize) {
        self.chairs[index].frozen = false;
        for delivery in std::mem::take(&mut self.chairs[index].backlog) {
            let delay = if self.script.ordered { Duration::ZERO } else { self.dice.micros(0, 2000) };
            self.after(delay, delivery);
        }
    }

    fn request(&mut self, chair: usize, record: Record) {
        self.chairs[chair].requests += 1;
        let request = self.chairs[chair].requests;
        self.chairs[chair].swap = Some((request, record));
        let asking = self.dice.micros(50, 500);
        let delay = self.chairs[chair].slow.pace(self.now, asking) + self.store_takes();
        self.after(delay, Delivery::Apply { chair, request });
    }

    fn store_takes(&mut self) -> Duration {
        let late = self.store.late_until > self.now && self.dice.percent(60);
        if late { self.dice.millis(200, 2500) } else { self.dice.micros(300, 8000) }
    }

    /// The request is at the store, even if the coordinator that sent it is gone.
    pub(crate) fn apply(&mut self, index: usize, request: u64) {
        let Some((_, record)) = self.chairs[index].swap.clone().filter(|(number, _)| *number == request) else {
            return;
        };
        let heedless = self.script.bug == Some(Bug::StoreIgnoresTheVersion);
        let known = self.chairs[index].known.1;
        let (is_away, arrives) = (self.store.away_until > self.now, self.dice.percent(50));
        let event = if is_away && !arrives {
            Event::StoreAway
        } else if known == self.store.version || heedless {
            self.put(index, record);
            Event::Swapped
        } else if self.store.record.as_ref() == Some(&record) {
            self.chairs[index].known.1 = self.store.version;
            Event::Swapped
        } else {
            Event::Conflict
        };
        if is_away {
            // Whatever came of it, nobody hears.
            self.chairs[index].known.1 = known;
            let delay = self.store_takes();
            self.after(delay, Delivery::Answer { chair: index, event: Event::StoreAway });
            return;
        }
        if self.store.deaf_until > self.now && self.dice.percent(60) {
            let delay = self.dice.millis(250, 700);
            self.after(delay, Delivery::LookAgain { chair: index, request });
        } else {
            let delay = self.store_takes();
            self.after(delay, Delivery::Answer { chair: index, event });
        }
    }

    fn put(&mut self, index: usize, record: Record) {
        if let Some(active) = record.active.as_ref().filter(|active| self.history.newest() != Some(*active)) {
            if active.rollback {
                self.check_rollback(active);
                // What was given up must not be found by those that start later.
                self.checkpoints.retain(|step, _| *step <= active.base_step);
            }
            let verdict = self.history.stored(active).and_then(|()| self.linked(&record, active));
            self.check(verdict);
        }
        self.store.record = Some(record);
        self.store.version += 1;
        self.chairs[index].known.1 = self.store.version;
    }

    /// The chain of a record goes on from the one before it, by what was told of how its newest membership summed.
    fn linked(&self, record: &Record, active: &Active) -> Verdict {
        let Some((before, last)) =
            self.store.record.as_ref().and_then(|before| Some((before, before.active.as_ref()?)))
        else {
            return Ok(());
        };
        let [first, anew] =
            [last.base_step, last.base_step + ANEW].map(|after| Summing { after, plan: plan(last.generation, after) });
        let after = |plans: &[Summing]| {
            let summed = plans.iter().fold(before.clone(), |record, plan| record.summed_by(plan));
            summed.activate(active.clone()).history
        };
        if [after(&[]), after(&[first]), after(&[anew]), after(&[first, anew])].contains(&record.history) {
            Ok(())
        } else {
            Err(format!(
                "the history of generation {} does not go on from that of {}",
                active.generation, last.generation
            ))
        }
    }

    pub(crate) fn answer(&mut self, index: usize, event: Event) {
        let Some((_, record)) = self.chairs[index].swap.take() else { return };
        if event == Event::Swapped {
            self.chairs[index].known.0 = Some(record);
        }
        self.coordinate(index, event);
    }

    /// As the shell does: what the store holds decides who won.
    pub(crate) fn look_again(&mut self, index: usize, request: u64) {
        let Some((_, record)) = self.chairs[index].swap.clone().filter(|(number, _)| *number == request) else {
            return;
        };
        if self.store.record.as_ref() == Some(&record) {
            self.chairs[index].known.1 = self.store.version;
            self.answer(index, Event::Swapped);
        } else if self.store.record == self.chairs[index].known.0 {
            self.chairs[index].known.1 = self.store.version;
            let delay = self.store_takes();
            self.after(delay, Delivery::Apply { chair: index, request });
        } else {
            self.answer(index, Event::Conflict);
        }
    }

    /// Steps are given up only when nobody that could be asked holds them, and none that a recorded checkpoint holds.
    fn check_rollback(&mut self, active: &Active) {
        let recorded = self.store.record.as_ref().and_then(|record| record.last_durable_checkpoint);
        if let Some(mark) = recorded.filter(|mark| mark.step > active.base_step) {
            self.fail(format!("generation {} begins before the checkpoint of step {}", active.generation, mark.step));
        }
        let Some(newest) = self.history.newest().cloned() else { return };
        let witness = newest.members.iter().find(|seat| {
            let process = &self.processes[crate::given::index_of(&seat.pod)];
            let qualified = process.worker.held.is_some_and(|held| {
                // It may have read what it holds just now; as long as the new one begins with the same, nothing is given up.
                let base = (held.step, held.digest) == (newest.base_step, newest.base_digest)
                    && (held.step, held.digest) != (active.base_step, active.base_digest);
                base || process.worker.entered == Some(newest.generation)
            });
            process.alive && process.id() == seat.id() && qualified
        });
        if let Some(seat) = witness {
            self.fail(format!("generation {} is given up although {} holds its state", newest.generation, seat.pod));
        }
    }
}
