//! Chooses the faults of a run, their moments and their victims.

use std::time::Duration;

use lockstep_elastic::{coordinator, member};

use crate::{
    coverage::{Coverage, Fault, Moment, Victim, impossible},
    moments::Moments,
    slow::Slow,
    worker::Worker,
    world::{MIN_GENERATIONS, World},
};

/// The largest number of faults in a run, and the time after which there are none, so that every
/// run ends.
const MAX_FAULTS: u64 = 60;
/// The number of faults that may come before the last one is repaired.
const MAX_CHAIN: u64 = 4;
const FAULTY: Duration = Duration::from_secs(240);
/// In this many of a hundred relevant events the run looks for a fault; the second number holds
/// during short moments.
const USUALLY: u64 = 8;
const BRIEFLY: u64 = 40;
/// Faults and moments that few runs reach, so that a run does not miss them.
const RARE: [(Moment, Victim); 3] =
    [(Moment::Sealing, Victim::Source), (Moment::Pausing, Victim::Source), (Moment::Copying, Victim::Leaver)];

#[derive(Clone, Debug, Default)]
pub(crate) struct Chaos {
    /// The stable steps since the last fault, and the faults without a step.
    steps: u64,
    chain: u64,
    pub(crate) count: u64,
    /// The number of faults at each moment, by victim.
    met: [[u64; Victim::ALL.len()]; Moment::ALL.len()],
    pub(crate) coverage: Coverage,
}

impl Chaos {
    /// Notes that a process learned of a further stable step.
    pub(crate) fn stepped(&mut self) {
        self.steps += 1;
        self.chain = 0;
    }

    /// Returns how little is left to see of this case. A rare or short one wears off more slowly.
    fn worn(&self, moment: Moment, victim: Victim) -> u64 {
        let wear = match (moment, victim) {
            (_, Victim::Source) | (Moment::Copying, _) => 1,
            (
                Moment::Recorded
                | Moment::Committed
                | Moment::Forming
                | Moment::Following
                | Moment::Unheard
                | Moment::Lagging
                | Moment::Finishing,
                Victim::Leaver,
            ) => 1,
            (Moment::Activating | Moment::Recorded | Moment::Committed | Moment::Forming | Moment::Sealing, _) => 3,
            _ => 6,
        };
        wear * (1 + self.met[moment as usize][victim as usize])
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

    /// Injects a fault of a kind that this run met least, if one is possible now.
    pub(crate) fn tempt(&mut self) {
        let overdue = self.chaos.steps >= 2;
        let often = if self.is_brief() { BRIEFLY } else { USUALLY };
        if !overdue && (self.chaos.chain >= MAX_CHAIN || !self.dice.percent(often)) {
            return;
        }
        let needs = self.needed();
        let mut openings = self.openings();
        if !needs.is_empty() {
            openings.retain(|(_, victim)| matches!(victim, Victim::RankZero | Victim::OtherRank));
        }
        if openings.iter().any(|opening| RARE.contains(opening)) {
            openings.retain(|opening| RARE.contains(opening));
        }
        let worn = |(moment, victim): &(Moment, Victim)| self.chaos.worn(*moment, *victim);
        let Some(least) = openings.iter().map(worn).min() else { return };
        openings.retain(|opening| worn(opening) == least);
        if !overdue && !self.dice.percent(100 / least) {
            return;
        }
        let (moment, victim) = self.dice.one_of(&openings);
        let fault = if !needs.is_empty() {
            self.dice.one_of(needs)
        } else if moment == Moment::Copying && self.dice.percent(35) {
            // A join of this kind makes the group plan a change while it is incomplete.
            Fault::Leave
        } else if RARE.contains(&(moment, victim)) {
            let fits = |fault: &Fault| (0..self.processes.len()).any(|pod| self.fits(pod, *fault, moment, victim));
            self.dice.one_of(&Fault::ALL.into_iter().filter(fits).collect::<Vec<_>>())
        } else {
            self.dice.one_of(&Fault::ALL)
        };
        let victim = if fault == Fault::Join { Victim::Newcomer } else { victim };
        let disaster = fault == Fault::KillAll && self.dice.percent(80);
        if impossible(fault, moment, victim).is_none() && !disaster {
            self.strike(fault, moment, victim);
        }
    }

    /// Returns the faults that a member must meet before
    /// [`Run::shortfall`](crate::world::Run::shortfall) is satisfied.
    fn needed(&self) -> &'static [Fault] {
        let (generations, stable) = (self.history.agreed.len() as u64, self.history.stable_steps());
        if generations < MIN_GENERATIONS && generations * 10 <= stable {
            &[Fault::Kill]
        } else if self.chaos.steps >= 3 {
            &[Fault::Freeze, Fault::Jump]
        } else {
            &[]
        }
    }

    /// Returns true during a moment that is soon over.
    fn is_brief(&self) -> bool {
        let stops = |worker: &Worker| worker.sealing == Some(false) && worker.generation.is_some();
        self.processes.iter().any(|process| process.alive && stops(&process.worker))
            || self.coordinators.last().is_some_and(|coordinator| coordinator.swap.is_some())
    }

    /// Returns the possible victims, each with the current moment.
    fn openings(&self) -> Vec<(Moment, Victim)> {
        let group = self.group_moments();
        let mut by_victim = [Moments::default(); Victim::ALL.len()];
        by_victim[Victim::Coordinator as usize] = group;
        for pod in (0..self.processes.len()).filter(|pod| self.processes[*pod].alive) {
            let own = self.own_moments(pod).and(group);
            let rank = self.rank(pod);
            for victim in Victim::ALL.into_iter().filter(|victim| self.is(pod, rank, *victim)) {
                let known = &mut by_victim[victim as usize];
                *known = known.and(self.moments_as(pod, own, victim));
            }
            let anybody = &mut by_victim[Victim::Coordinator as usize];
            *anybody = anybody.and(own);
        }
        let of = |victim: Victim| Moment::ALL.into_iter().map(move |moment| (moment, victim));
        let is_open = |(moment, victim): &(Moment, Victim)| by_victim[*victim as usize].has(*moment);
        Victim::ALL.into_iter().flat_map(of).filter(is_open).collect()
    }

    /// Returns true if this pod can be this fault's victim at this moment.
    fn fits(&self, pod: usize, fault: Fault, moment: Moment, victim: Victim) -> bool {
        let process = &self.processes[pod];
        if fault == Fault::Join {
            return !process.alive;
        }
        let able = match fault {
            Fault::Kill | Fault::KillAll => true,
            Fault::Freeze | Fault::Jump => !process.frozen,
            Fault::Stick => !process.frozen && process.stuck_until <= self.now,
            Fault::Slow => !process.slow.holds(self.now),
            Fault::Cut => process.connection.is_some() && !process.frozen,
            Fault::Partition | Fault::Deafen | Fault::Mute => process.deaf_until.max(process.mute_until) <= self.now,
            Fault::UnconnectedPair => !self.pair_is_unconnected(),
            Fault::Leave => !process.leaving && !process.frozen,
            Fault::Return => self.outlived(pod).is_some(),
            Fault::Join | Fault::Double | Fault::StoreLate | Fault::StoreDeaf | Fault::StoreAway => false,
        };
        let is_there = || {
            let moments = self.own_moments(pod).and(self.group_moments());
            self.moments_as(pod, moments, victim).has(moment)
        };
        process.alive && able && self.is(pod, self.rank(pod), victim) && is_there()
    }

    fn strike(&mut self, fault: Fault, moment: Moment, victim: Victim) {
        let struck = if victim == Victim::Coordinator {
            self.active_coordinator().inspect(|active_coordinator| self.strike_coordinator(fault, *active_coordinator))
        } else {
            let fitting: Vec<usize> =
                (0..self.processes.len()).filter(|pod| self.fits(*pod, fault, moment, victim)).collect();
            let others = self.processes.iter().filter(|process| process.alive && !process.leaving).count();
            let drains = self.processes.iter().any(|process| process.alive && process.worker.draining);
            if fault == Fault::Leave && others <= self.script.least && !drains && self.dice.percent(90) {
                return;
            }
            let chosen = (!fitting.is_empty()).then(|| self.dice.one_of(&fitting));
            chosen.inspect(|pod| self.strike_process(fault, *pod))
        };
        if struck.is_some() {
            self.chaos.coverage.hit(fault, moment, victim);
            self.chaos.met[moment as usize][victim as usize] += 1;
            self.chaos.count += 1;
            self.chaos.chain += 1;
            self.chaos.steps = 0;
            self.trouble(Duration::ZERO);
        }
    }

    fn strike_coordinator(&mut self, fault: Fault, active_coordinator: usize) {
        let lasts = if self.dice.percent(85) { self.dice.millis(50, 1500) } else { self.dice.millis(1500, 4000) };
        match fault {
            Fault::Kill if self.dice.percent(20) => self.coordinate(active_coordinator, coordinator::Event::Stop),
            Fault::Kill => self.kill_coordinator(active_coordinator),
            Fault::Freeze => {
                if !std::mem::replace(&mut self.coordinators[active_coordinator].frozen, true) {
                    self.trouble(lasts);
                    self.after(lasts, crate::world::Delivery::ThawCoordinator(active_coordinator));
                }
            }
            Fault::Slow => {
                self.coordinators[active_coordinator].slow = self.slow_down();
            }
            Fault::Jump => {
                let ahead = self.jump();
                self.coordinators_clock_jumps(active_coordinator, ahead);
            }
            Fault::Double => self.double_coordinator(active_coordinator),
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
            | Fault::Deafen
            | Fault::Mute
            | Fault::UnconnectedPair
            | Fault::Leave
            | Fault::Return
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
            Fault::Slow => self.processes[pod].slow = self.slow_down(),
            Fault::Cut => self.cut(pod),
            Fault::Partition | Fault::Deafen | Fault::Mute => {
                let until = self.now
                    + if self.dice.percent(70) { self.dice.millis(20, 1200) } else { self.dice.millis(1200, 5000) };
                let process = &mut self.processes[pod];
                if fault != Fault::Mute {
                    process.deaf_until = until;
                }
                if fault != Fault::Deafen {
                    process.mute_until = until;
                }
                self.trouble(until.saturating_sub(self.now));
            }
            Fault::UnconnectedPair => {
                let lasts =
                    if self.dice.percent(70) { self.dice.millis(20, 1500) } else { self.dice.millis(1500, 20_000) };
                let others: Vec<usize> = (0..self.processes.len()).filter(|other| *other != pod).collect();
                let other = self.dice.one_of(&others);
                self.disconnect_pair(pod, other, self.now + lasts);
                self.trouble(lasts);
            }
            Fault::Leave => self.leave(pod),
            Fault::Return => self.come_back(pod),
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

    /// Makes a process slow, but no step so slow that it counts as stuck.
    fn slow_down(&mut self) -> Slow {
        let lasts = if self.dice.percent(70) { self.dice.millis(50, 1000) } else { self.dice.millis(1000, 5000) };
        self.trouble(lasts);
        Slow::down(10 + self.dice.below(41) as u32, self.now + lasts)
    }

    /// Asks the pod to end, and kills it after its grace period.
    fn leave(&mut self, pod: usize) {
        self.processes[pod].leaving = true;
        let incarnation = self.processes[pod].incarnation;
        self.say(pod, member::Event::Leave { reason: "its node is drained".into() });
        let grace = self.dice.millis(8000, 30_000);
        self.trouble(Duration::ZERO);
        self.after(grace, crate::world::Delivery::Kill { pod, incarnation });
    }

    /// Starts the missing processes after the faults, or if too few are left, as the operator does.
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
