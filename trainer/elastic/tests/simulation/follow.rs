//! A newcomer that takes over what a group holds while that trains, and follows it.

use std::time::Duration;

use lockstep_elastic::{Break, Lead, MemberId, State, member::Event};

use crate::{
    given::index_of,
    process::Process,
    worker::{Doing, Work},
    world::World,
};

/// How long a newcomer waits for those that are to hand their state over.
const FEED_PATIENCE: Duration = Duration::from_secs(60);

/// How far a newcomer follows a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trail {
    generation: u64,
    since: Duration,
    /// What it takes over, and when it has it.
    taking: Option<(State, Duration)>,
    caught_up: bool,
}

impl World {
    pub(crate) fn told_to_follow(&mut self, pod: usize, lead: &Lead) {
        let (generation, since) = (lead.generation, self.now);
        let worker = &mut self.processes[pod].worker;
        worker.trail = Some(Trail { generation, since, taking: None, caught_up: false });
        (worker.doing, worker.sealing) = (Doing::Following, None);
        self.next_turn(pod, (1000, 20_000), Work::Follow);
    }

    /// All members hand over what they hold after the same step, and every sum from then on, until the group changes: what one of them
    /// does not hand over is waited for.
    pub(crate) fn follow(&mut self, pod: usize) {
        let worker = &self.processes[pod].worker;
        let (Some(trail), held, sealing) = (worker.trail, worker.held, worker.sealing) else { return };
        let generation = trail.generation;
        let broken = self.deserted.contains(&generation);
        let over = broken || !self.processes.iter().any(|other| takes_part(other, generation));
        let unreached = self.parted_from(pod, generation);
        let starves = !broken && (unreached.is_some() || self.somebody_is_frozen(generation));
        match trail.taking {
            _ if trail.caught_up => {
                let sum = held.and_then(|held| self.exchanges.get(&(generation, held.step + 1))?.sum);
                if sum.is_none() && over {
                    return self.stand(pod, None);
                }
                self.processes[pod].worker.held = sum.filter(|_| !starves).or(held);
            }
            Some((taken, until)) if self.now >= until && !starves => {
                let worker = &mut self.processes[pod].worker;
                (worker.held, worker.trail) = (Some(taken), Some(Trail { caught_up: true, ..trail }));
                self.say(pod, Event::TookOver);
                self.say(pod, Event::CaughtUp);
            }
            Some(_) if broken => return self.stand(pod, None),
            None if over || sealing.is_some() => return self.stand(pod, None),
            None if self.now > trail.since + FEED_PATIENCE => {
                let broken = Break { unreached, ..Break::from("nothing is handed over") };
                return self.stand_for(pod, Some(broken));
            }
            Some(_) => {}
            None if unreached.is_some() => {}
            None => {
                if let Some(states) = self.offered(generation, &self.processes[pod].id()) {
                    let lasts = self.dice.millis(1, 400);
                    let taken = (self.dice.one_of(&states), self.now + self.pace(pod, lasts));
                    self.processes[pod].worker.trail = Some(Trail { taking: Some(taken), ..trail });
                }
            }
        }
        self.next_turn(pod, (2000, 20_000), Work::Follow);
    }

    /// The rank of a generation with which this worker is not connected.
    fn parted_from(&self, pod: usize, generation: u64) -> Option<u32> {
        let seats = &self.history.agreed.get(&generation)?.members;
        seats.iter().find(|seat| self.are_parted(pod, index_of(&seat.pod))).map(|seat| seat.rank)
    }

    fn somebody_is_frozen(&self, generation: u64) -> bool {
        let agreed = self.history.agreed.get(&generation);
        let seats = agreed.into_iter().flat_map(|agreed| &agreed.members);
        seats.map(|seat| &self.processes[index_of(&seat.pod)]).any(|process| process.alive && process.frozen)
    }

    /// What the members of a generation hold, once all of them train and were asked to hand it to this newcomer.
    fn offered(&self, generation: u64, newcomer: &MemberId) -> Option<Vec<State>> {
        let asked = (generation, newcomer.clone());
        let members = self.processes.iter().filter(|process| trains(process, generation));
        let states: Vec<State> = members
            .filter(|member| member.worker.fed.contains(&asked))
            .filter_map(|member| member.worker.held)
            .collect();
        (states.len() == self.history.agreed.get(&generation)?.members.len()).then_some(states)
    }
}

fn takes_part(process: &Process, generation: u64) -> bool {
    process.alive && process.worker.generation == Some(generation)
}

fn trains(process: &Process, generation: u64) -> bool {
    takes_part(process, generation) && process.worker.entered == Some(generation)
}
