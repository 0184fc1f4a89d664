//! What goes wrong, when, and whom it hits.

use std::time::Duration;

use lockstep_elastic::{coordinator, member};

use crate::{
    chair::Chair,
    coverage::{Coverage, Fault, Moment, Victim, impossible},
    worker::Doing,
    world::{MIN_GENERATIONS, World},
};

/// Faults of one run at most, and the time after which there are none, so that every run ends.
const MAX_FAULTS: u64 = 60;
/// Faults that come before the last one is mended.
const MAX_CHAIN: u64 = 4;
const FAULTY: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Default)]
pub(crate) struct Chaos {
    /// Stable steps since the last fault, and faults without one.
    steps: u64,
    chain: u64,
    pub(crate) count: u64,
    pub(crate) coverage: Coverage,
}

impl Chaos {
    /// Somebody knew a further step to be stable.
    pub(crate) fn stepped(&mut self) {
        self.steps += 1;
        self.chain = 0;
    }
}

impl World {
    pub(crate) fn is_faulty(&self) -> bool {
        let stable = self.history.stable_steps();
        stable < self.script.quiet_from
            && self.chaos.count < MAX_FAULTS
            && self.now < FAULTY
            && self.script.quiet_from > 0
    }

    /// Something may go wrong now. What rarely holds is looked for first.
    pub(crate) fn tempt(&mut self) {
        let overdue = self.chaos.steps >= 2;
        if !overdue && (self.chaos.chain >= MAX_CHAIN || !self.dice.percent(5)) {
            return;
        }
        let holding: Vec<Moment> = Moment::ALL.into_iter().filter(|moment| self.holds(*moment)).collect();
        let rare: Vec<Moment> =
            holding.iter().copied().filter(|moment| !matches!(moment, Moment::Stepping | Moment::Done)).collect();
        let moment = match (rare.as_slice(), holding.as_slice()) {
            (_, []) => return,
            ([], _) if !overdue && self.dice.percent(70) => return,
            ([], often) => self.dice.one_of(often),
            (rare, _) => self.dice.one_of(rare),
        };
        let member = self.dice.one_of(&[Victim::RankZero, Victim::OtherRank]);
        let (fault, victim) = if self.has_few_generations() {
            (Fault::Kill, member)
        } else if self.chaos.steps >= 3 {
            (self.dice.one_of(&[Fault::Freeze, Fault::Jump]), member)
        } else {
            (self.dice.one_of(&Fault::ALL), self.dice.one_of(&Victim::ALL))
        };
        let disaster = fault == Fault::KillAll && self.dice.percent(80);
        if impossible(fault, victim).is_none() && !disaster {
            self.strike(fault, moment, victim);
        }
    }

    /// For so many steps: a run is to have as many as [`Run::shortfall`] asks for.
    fn has_few_generations(&self) -> bool {
        let generations = self.history.agreed.len() as u64;
        generations < MIN_GENERATIONS && generations * 10 <= self.history.stable_steps()
    }

    /// Whether this pod can be this fault's victim.
    fn fits(&self, pod: usize, fault: Fault, victim: Victim) -> bool {
        let process = &self.processes[pod];
        if fault == Fault::Join {
            return !process.alive;
        }
        let able = match fault {
            Fault::Kill | Fault::KillAll => true,
            Fault::Freeze | Fault::Jump => !process.frozen,
            Fault::Stick => !process.frozen && process.stuck_until <= self.now,
            Fault::Cut => process.line.is_some() && !process.frozen,
            Fault::Partition => process.deaf_until.max(process.mute_until) <= self.now,
            Fault::Part => !self.somebody_is_parted(),
            Fault::Leave => !process.leaving && !process.frozen,
            Fault::Join | Fault::Double | Fault::StoreLate | Fault::StoreDeaf | Fault::StoreAway => false,
        };
        process.alive && able && self.is(pod, victim)
    }

    fn is(&self, pod: usize, victim: Victim) -> bool {
        let process = &self.processes[pod];
        let newest = self.history.newest();
        let rank = newest.and_then(|newest| newest.seat(&process.id())).map(|seat| seat.rank);
        match victim {
            Victim::RankZero => rank == Some(0),
            Victim::OtherRank => rank.is_some_and(|rank| rank > 0),
            Victim::Source => newest.is_some_and(|newest| {
                let hands_over = !newest.copiers.is_empty();
                hands_over && rank.is_some_and(|rank| newest.sources.contains(&rank))
            }),
            Victim::Newcomer => process.newcomer,
            Victim::Leaver => process.leaving,
            Victim::Coordinator => false,
        }
    }

    /// The coordinator that members look for.
    fn seated(&self) -> Option<usize> {
        self.chairs.iter().rposition(Chair::listens)
    }

    pub(crate) fn holds(&self, moment: Moment) -> bool {
        let chair = self.seated().map(|seated| &self.chairs[seated]);
        let any = |test: &dyn Fn(Doing) -> bool| {
            self.processes.iter().any(|process| process.alive && test(process.worker.doing))
        };
        let stage = || self.seated().and_then(|seated| self.status(seated)).map(|status| status.stage);
        match moment {
            Moment::Gathering => stage() == Some(coordinator::Stage::Gathering),
            Moment::Preparing => {
                chair.is_some_and(Chair::allocates)
                    || stage() == Some(coordinator::Stage::Forming) && !chair.is_some_and(Chair::activates)
            }
            Moment::Activating => chair.is_some_and(Chair::activates),
            Moment::Committed => self.history.newest().is_some_and(|newest| {
                self.processes.iter().any(|process| {
                    let worker = &process.worker;
                    let begun = worker.generation >= Some(newest.generation) || worker.next.is_some();
                    process.alive
                        && !begun
                        && worker.entered < Some(newest.generation)
                        && newest.seat(&process.id()).is_some()
                })
            }),
            Moment::Following => any(&|doing| doing == Doing::Following),
            Moment::Copying => any(&|doing| matches!(doing, Doing::Copying(_))),
            Moment::Stepping => any(&|doing| matches!(doing, Doing::Computing | Doing::Reducing | Doing::Summing)),
            Moment::Done => self.processes.iter().any(|process| {
                let worker = &process.worker;
                let trains = matches!(worker.doing, Doing::Computing | Doing::Reducing);
                let base = worker.group.as_ref().map(|group| group.base.step);
                process.alive && trains && worker.held.map(|held| held.step) > base.max(Some(worker.stable))
            }),
            Moment::Pausing => self.processes.iter().any(|process| {
                let worker = &process.worker;
                process.alive && worker.generation.is_some() && (worker.sealing == Some(true) || worker.stop.is_some())
            }),
            Moment::Finishing => any(&|doing| doing == Doing::Done),
        }
    }

    fn strike(&mut self, fault: Fault, moment: Moment, victim: Victim) {
        let struck = if victim == Victim::Coordinator {
            self.seated().inspect(|seated| self.strike_coordinator(fault, *seated))
        } else {
            let fitting: Vec<usize> = (0..self.processes.len()).filter(|pod| self.fits(*pod, fault, victim)).collect();
            let others = self.processes.iter().filter(|process| process.alive && !process.leaving).count();
            if fault == Fault::Leave && others <= self.script.least && self.dice.percent(90) {
                return;
            }
            let chosen = (!fitting.is_empty()).then(|| self.dice.one_of(&fitting));
            chosen.inspect(|pod| self.strike_process(fault, *pod))
        };
        if struck.is_some() {
            self.chaos.coverage.hit(fault, moment, victim);
            self.chaos.count += 1;
            self.chaos.chain += 1;
            self.chaos.steps = 0;
            self.trouble(Duration::ZERO);
        }
    }

    fn strike_coordinator(&mut self, fault: Fault, seated: usize) {
        let lasts = if self.dice.percent(85) { self.dice.millis(50, 1500) } else { self.dice.millis(1500, 4000) };
        match fault {
            Fault::Kill if self.dice.percent(20) => self.coordinate(seated, coordinator::Event::Stop),
            Fault::Kill => self.kill_coordinator(seated),
            Fault::Freeze => {
                if !std::mem::replace(&mut self.chairs[seated].frozen, true) {
                    self.trouble(lasts);
                    self.after(lasts, crate::world::Delivery::ThawCoordinator(seated));
                }
            }
            Fault::Jump => {
                let ahead = self.jump();
                self.coordinators_clock_jumps(seated, ahead);
            }
            Fault::Double => self.double_coordinator(seated),
            Fault::StoreLate => {
                self.store.late_until = self.now + lasts;
                self.trouble(lasts);
            }
            Fault::StoreDeaf => {
                self.store.deaf_until = self.now + lasts;
                self.trouble(lasts);
            }
            Fault::StoreAway => {
                self.store.away_until = self.now + lasts;
                self.trouble(lasts);
            }
            Fault::Stick
            | Fault::Cut
            | Fault::Partition
            | Fault::Part
            | Fault::Leave
            | Fault::Join
            | Fault::KillAll => {}
        }
    }

    fn strike_process(&mut self, fault: Fault, pod: usize) {
        match fault {
            Fault::Kill => self.kill(pod),
            Fault::Freeze => {
                let lasts = match self.dice.below(10) {
                    0..5 => self.dice.millis(5, 300),
                    5..8 => self.dice.millis(300, 2300),
                    _ => self.dice.millis(2300, 4500),
                };
                self.trouble(lasts);
                self.freeze(pod, lasts);
            }
            Fault::Stick => {
                let lasts =
                    if self.dice.percent(30) { self.dice.millis(5, 1000) } else { self.dice.millis(1000, 4500) };
                self.trouble(lasts);
                self.stick(pod, lasts);
            }
            Fault::Jump => {
                let ahead = self.jump();
                self.clock_jumps(pod, ahead);
            }
            Fault::Cut => self.cut(pod),
            Fault::Partition => {
                let until = self.now
                    + if self.dice.percent(70) { self.dice.millis(20, 1200) } else { self.dice.millis(1200, 5000) };
                let ways = self.dice.below(3);
                let process = &mut self.processes[pod];
                (process.deaf_until, process.mute_until) = match ways {
                    0 => (until, until),
                    1 => (until, self.now),
                    _ => (self.now, until),
                };
                self.trouble(until.saturating_sub(self.now));
            }
            Fault::Part => {
                let lasts =
                    if self.dice.percent(70) { self.dice.millis(20, 1500) } else { self.dice.millis(1500, 20_000) };
                let others: Vec<usize> = (0..self.processes.len()).filter(|other| *other != pod).collect();
                let other = self.dice.one_of(&others);
                self.part(pod, other, self.now + lasts);
                self.trouble(lasts);
            }
            Fault::Leave => self.leave(pod),
            Fault::Join => self.start_later(pod, Duration::ZERO),
            Fault::KillAll => {
                for pod in 0..self.processes.len() {
                    self.kill(pod);
                }
            }
            Fault::Double | Fault::StoreLate | Fault::StoreDeaf | Fault::StoreAway => {}
        }
    }

    fn jump(&mut self) -> Duration {
        if self.dice.percent(70) { self.dice.millis(100, 5000) } else { self.dice.millis(5000, 3_600_000) }
    }

    /// The pod is told to end, and killed when its grace is over.
    fn leave(&mut self, pod: usize) {
        self.processes[pod].leaving = true;
        let incarnation = self.processes[pod].incarnation;
        self.say(pod, member::Event::Leave { reason: "its node is drained".into() });
        let grace = self.dice.millis(8000, 30_000);
        self.trouble(Duration::ZERO);
        self.after(grace, crate::world::Delivery::Kill { pod, incarnation });
    }

    /// After the faults, and where too few are left, the operator starts what is missing.
    pub(crate) fn restore(&mut self) {
        let here = self.processes.iter().filter(|process| process.alive || process.due).count();
        let wanted = if self.is_faulty() { self.script.least } else { self.script.replicas };
        if here < wanted {
            for pod in 0..self.script.replicas {
                if !self.processes[pod].alive {
                    let delay = self.dice.millis(100, 1500);
                    self.start_later(pod, delay);
                }
            }
        }
    }
}
