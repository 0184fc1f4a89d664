//! Coordinators, of which several may live at a time, and the store that lets one of them win.

use std::time::Duration;

use lockstep_elastic::{
    Active, AwakeClock, Coordinator, Message, Outcome, PlanAgreement, Record, Status,
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
pub(crate) struct CoordinatorProcess {
    pub(crate) machine: Option<Coordinator>,
    pub(crate) frozen: bool,
    pub(crate) backlog: Vec<Delivery>,
    pub(crate) slow: Slow,
    /// The record that it knows, with its version.
    known: (Option<Record>, u64),
    /// The swap in progress: its number, and its result as far as the store knows it.
    pub(crate) swap: Option<(u64, Record)>,
    requests: u64,
    clock: AwakeClock,
    /// The time by which its clock is ahead.
    ahead: Duration,
    wanted: Duration,
    alarm: Option<Duration>,
}

impl CoordinatorProcess {
    pub(crate) fn listens(&self) -> bool {
        self.machine.is_some()
    }

    /// Returns the membership that is being stored. It is `None` for an allocation or a checkpoint.
    pub(crate) fn activates(&self) -> Option<&Active> {
        let written = self.swap.as_ref().and_then(|(_, record)| record.active.as_ref());
        written.filter(|active| Some(*active) != self.active())
    }

    /// Returns the newest membership that it knows.
    pub(crate) fn active(&self) -> Option<&Active> {
        self.known.0.as_ref()?.active.as_ref()
    }

    pub(crate) fn allocates(&self) -> bool {
        let before = self.known.0.as_ref().map_or(0, |record| record.alloc_generation);
        self.swap.as_ref().is_some_and(|(_, record)| record.alloc_generation != before)
    }
}

/// Keeps the record. Requests and answers may be late, and answers may get lost.
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
        let mut clock = AwakeClock::default();
        let machine = Some(Coordinator::new(config, known.0.clone(), clock.look(self.now)));
        self.coordinators.push(CoordinatorProcess { machine, known, clock, ..CoordinatorProcess::default() });
        self.after(Duration::ZERO, Delivery::WakeCoordinator(self.coordinators.len() - 1));
    }

    pub(crate) fn wake_coordinator(&mut self, index: usize) {
        let coordinator = &mut self.coordinators[index];
        coordinator.alarm = None;
        if coordinator.wanted > self.now {
            let wanted = coordinator.wanted;
            self.set_alarm(index, wanted);
        } else {
            self.coordinate(index, Event::Tick);
        }
    }

    /// Moves the coordinator's clock ahead, as after a sleep of the machine. All its alarms are
    /// due.
    pub(crate) fn coordinators_clock_jumps(&mut self, index: usize, ahead: Duration) {
        self.coordinators[index].ahead += ahead;
        if !self.coordinators[index].frozen {
            self.coordinate(index, Event::Tick);
        }
    }

    pub(crate) fn status(&self, index: usize) -> Option<Status> {
        let CoordinatorProcess { machine, clock, ahead, .. } = &self.coordinators[index];
        machine.as_ref().map(|machine| machine.status(clock.clone().look(self.now + *ahead)))
    }

    fn set_alarm(&mut self, index: usize, wanted: Duration) {
        let coordinator = &mut self.coordinators[index];
        coordinator.wanted = wanted;
        if coordinator.alarm.is_none_or(|alarm| alarm > wanted) {
            coordinator.alarm = Some(wanted);
            self.at(wanted, Delivery::WakeCoordinator(index));
        }
    }

    pub(crate) fn coordinate(&mut self, index: usize, event: Event) {
        let CoordinatorProcess { machine: Some(machine), clock, ahead, .. } = &mut self.coordinators[index] else {
            return;
        };
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
                    let CoordinatorProcess { clock, ahead, .. } = &self.coordinators[index];
                    let wanted = clock.real(time).saturating_sub(*ahead);
                    self.set_alarm(index, wanted);
                }
                Command::End(outcome) => self.ended(index, outcome),
            }
        }
    }

    /// Checks that a commit belongs to a recorded membership.
    fn check_commit(&mut self, message: &Message) {
        if let Message::Commit { active, .. } = message
            && self.history.agreed.get(&active.generation) != Some(active)
        {
            self.fail(format!("a commit to a membership that was never recorded: {active:?}"));
        }
    }

    /// Handles the end of a coordinator. If another one has replaced it by name, its outcome does
    /// not count.
    fn ended(&mut self, index: usize, outcome: Outcome) {
        if index + 1 < self.coordinators.len() {
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
                    self.fail(format!(
                        "drained at step {step}, but {} steps are announced",
                        self.history.stable_steps()
                    ));
                }
                self.start_anew();
            }
            Outcome::Superseded | Outcome::Deserted | Outcome::Stopped => self.kill_coordinator(index),
            other @ (Outcome::Fatal { .. } | Outcome::Diverged { .. } | Outcome::StoreFailed { .. }) => {
                self.fail(format!("no reason for {other:?}: {}", self.picture()));
            }
        }
    }

    /// Starts every process of the job again, as the operator does after a drain.
    fn start_anew(&mut self) {
        for pod in 0..self.processes.len() {
            self.end_process(pod);
        }
        for coordinator in 0..self.coordinators.len() {
            self.coordinators[coordinator].machine = None;
        }
        self.attempt += 1;
        self.trouble(Duration::ZERO);
        self.start_job();
    }

    pub(crate) fn kill_coordinator(&mut self, index: usize) {
        if self.coordinators[index].machine.take().is_none() {
            return;
        }
        self.coordinators[index].frozen = false;
        self.coordinators[index].backlog.clear();
        for connection in 0..self.connections.len() {
            if self.connections[connection].coordinator == index {
                self.close_here(connection);
            }
        }
        if !self.coordinators.iter().any(CoordinatorProcess::listens) {
            let delay = self.dice.millis(30, 800);
            self.after(delay, Delivery::StartCoordinator);
        }
    }

    /// Starts a new coordinator while the old one lives on for a while.
    pub(crate) fn double_coordinator(&mut self, old: usize) {
        self.start_coordinator();
        for connection in 0..self.connections.len() {
            if self.connections[connection].coordinator == old
                && self.connections[connection].open_there
                && self.dice.percent(60)
            {
                let delay = self.dice.millis(0, 1500);
                self.after(delay, Delivery::MemberLearnsOfClose(connection));
            }
        }
        let lives = self.dice.millis(100, 5000);
        self.trouble(lives);
        self.after(lives, Delivery::KillCoordinator(old));
    }

    pub(crate) fn thaw_coordinator(&mut self, index: usize) {
        self.coordinators[index].frozen = false;
        for delivery in std::mem::take(&mut self.coordinators[index].backlog) {
            let delay = if self.script.ordered { Duration::ZERO } else { self.dice.micros(0, 2000) };
            self.after(delay, delivery);
        }
    }

    fn request(&mut self, coordinator: usize, record: Record) {
        self.coordinators[coordinator].requests += 1;
        let request = self.coordinators[coordinator].requests;
        self.coordinators[coordinator].swap = Some((request, record));
        let asking = self.dice.micros(50, 500);
        let delay = self.coordinators[coordinator].slow.pace(self.now, asking) + self.store_takes();
        self.after(delay, Delivery::Apply { coordinator, request });
    }

    fn store_takes(&mut self) -> Duration {
        let late = self.store.late_until > self.now && self.dice.percent(60);
        if late { self.dice.millis(200, 2500) } else { self.dice.micros(300, 8000) }
    }

    /// Delivers a request to the store, even if its coordinator is gone.
    pub(crate) fn apply(&mut self, index: usize, request: u64) {
        let Some((_, record)) = self.coordinators[index].swap.clone().filter(|(number, _)| *number == request) else {
            return;
        };
        let heedless = self.script.bug == Some(Bug::StoreIgnoresTheVersion);
        let known = self.coordinators[index].known.1;
        let (is_away, arrives) = (self.store.away_until > self.now, self.dice.percent(50));
        let event = if is_away && !arrives {
            Event::StoreAway
        } else if known == self.store.version || heedless {
            self.put(index, record);
            Event::Swapped
        } else if self.store.record.as_ref() == Some(&record) {
            self.coordinators[index].known.1 = self.store.version;
            Event::Swapped
        } else {
            Event::Conflict
        };
        if is_away {
            // No coordinator hears the result any more.
            self.coordinators[index].known.1 = known;
            let delay = self.store_takes();
            self.after(delay, Delivery::Answer { coordinator: index, event: Event::StoreAway });
            return;
        }
        if self.store.deaf_until > self.now && self.dice.percent(60) {
            let delay = self.dice.millis(250, 700);
            self.after(delay, Delivery::LookAgain { coordinator: index, request });
        } else {
            let delay = self.store_takes();
            self.after(delay, Delivery::Answer { coordinator: index, event });
        }
    }

    fn put(&mut self, index: usize, record: Record) {
        if let Some(active) = record.active.as_ref().filter(|active| self.history.newest() != Some(*active)) {
            if active.rollback {
                self.check_rollback(active);
                // Steps that were given up must not be found by processes that start later.
                self.checkpoints.retain(|step, _| *step <= active.base_step);
            }
            let verdict = self.history.stored(active).and_then(|()| self.linked(&record, active));
            self.check(verdict);
        }
        self.store.record = Some(record);
        self.store.version += 1;
        self.coordinators[index].known.1 = self.store.version;
    }

    /// Checks that a record's chain continues the previous one with the announced plans of its
    /// newest membership.
    fn linked(&self, record: &Record, active: &Active) -> Verdict {
        let Some((before, last)) =
            self.store.record.as_ref().and_then(|before| Some((before, before.active.as_ref()?)))
        else {
            return Ok(());
        };
        let [first, anew] = [last.base_step, last.base_step + ANEW]
            .map(|after| PlanAgreement { after, plan: plan(last.generation, after) });
        let after = |plans: &[PlanAgreement]| {
            let summed = plans.iter().fold(before.clone(), |record, plan| record.summed_by(plan));
            summed.activate(active.clone()).history
        };
        if [after(&[]), after(&[first]), after(&[anew]), after(&[first, anew])].contains(&record.history) {
            Ok(())
        } else {
            Err(format!(
                "the history of generation {} does not continue that of {}",
                active.generation, last.generation
            ))
        }
    }

    pub(crate) fn answer(&mut self, index: usize, event: Event) {
        let Some((_, record)) = self.coordinators[index].swap.take() else { return };
        if event == Event::Swapped {
            self.coordinators[index].known.0 = Some(record);
        }
        self.coordinate(index, event);
    }

    /// Reads the store again like the shell: its content decides which coordinator won.
    pub(crate) fn look_again(&mut self, index: usize, request: u64) {
        let Some((_, record)) = self.coordinators[index].swap.clone().filter(|(number, _)| *number == request) else {
            return;
        };
        if self.store.record.as_ref() == Some(&record) {
            self.coordinators[index].known.1 = self.store.version;
            self.answer(index, Event::Swapped);
        } else if self.store.record == self.coordinators[index].known.0 {
            self.coordinators[index].known.1 = self.store.version;
            let delay = self.store_takes();
            self.after(delay, Delivery::Apply { coordinator: index, request });
        } else {
            self.answer(index, Event::Conflict);
        }
    }

    /// Checks that steps are given up only if no reachable process and no recorded checkpoint holds
    /// them.
    fn check_rollback(&mut self, active: &Active) {
        let recorded = self.store.record.as_ref().and_then(|record| record.last_durable_checkpoint);
        if let Some(mark) = recorded.filter(|mark| mark.step > active.base_step) {
            self.fail(format!("generation {} begins before the checkpoint of step {}", active.generation, mark.step));
        }
        let Some(newest) = self.history.newest().cloned() else { return };
        let witness = newest.members.iter().find(|ranked| {
            let process = &self.processes[crate::fixtures::index_of(&ranked.pod)];
            let qualified = process.worker.held.is_some_and(|held| {
                // It may have read its state just now. Nothing is given up as long as the new
                // generation starts with the same state.
                let base = (held.step, held.digest) == (newest.base_step, newest.base_digest)
                    && (held.step, held.digest) != (active.base_step, active.base_digest);
                base || process.worker.entered == Some(newest.generation)
            });
            process.alive && process.id() == ranked.id() && qualified
        });
        if let Some(ranked) = witness {
            self.fail(format!("generation {} is given up although {} holds its state", newest.generation, ranked.pod));
        }
    }
}
