//! A newcomer that catches up with a group while it trains, and follows it.

use std::time::Duration;

use lockstep_elastic::{Break, FollowedGroup, HeldState, MemberId, member::Event};

use crate::{
    fixtures::index_of,
    process::Process,
    worker::{Doing, WorkerTask},
    world::World,
};

/// A newcomer waits this long for the members that should feed it.
const FEED_PATIENCE: Duration = Duration::from_secs(60);

/// The progress of a newcomer's catch-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CatchUp {
    generation: u64,
    since: Duration,
    /// The state that it receives, and the time when it is complete.
    taking: Option<(HeldState, Duration)>,
    caught_up: bool,
}

impl World {
    pub(crate) fn told_to_follow(&mut self, pod: usize, lead: &FollowedGroup) {
        let (generation, since) = (lead.generation, self.now);
        let worker = &mut self.processes[pod].worker;
        worker.trail = Some(CatchUp { generation, since, taking: None, caught_up: false });
        (worker.doing, worker.sealing) = (Doing::Following, None);
        self.next_turn(pod, (1000, 20_000), WorkerTask::Follow);
    }

    /// Lets the newcomer receive the members' state of one step, and every sum from then on, until
    /// the group changes. It waits for the part of every member.
    pub(crate) fn follow(&mut self, pod: usize) {
        let worker = &self.processes[pod].worker;
        let (Some(trail), held, sealing) = (worker.trail, worker.held, worker.sealing) else { return };
        let generation = trail.generation;
        let broken = self.deserted.contains(&generation);
        let over = broken || !self.processes.iter().any(|other| takes_part(other, generation));
        let unreached = self.unconnected_rank(pod, generation);
        let starves = !broken && (unreached.is_some() || self.member_is_frozen(generation));
        match trail.taking {
            _ if trail.caught_up => {
                let sum = held.and_then(|held| self.exchanges.get(&(generation, held.step + 1))?.sum);
                if sum.is_none() && over {
                    return self.seal(pod, None);
                }
                self.processes[pod].worker.held = sum.filter(|_| !starves).or(held);
            }
            Some((taken, until)) if self.now >= until && !starves => {
                let worker = &mut self.processes[pod].worker;
                (worker.held, worker.trail) = (Some(taken), Some(CatchUp { caught_up: true, ..trail }));
                self.say(pod, Event::TookOver);
                self.say(pod, Event::CaughtUp);
            }
            Some(_) if broken => return self.seal(pod, None),
            None if over || sealing.is_some() => return self.seal(pod, None),
            None if self.now > trail.since + FEED_PATIENCE => {
                let broken = Break { unreached, ..Break::from("the members feed nothing") };
                return self.seal_for(pod, Some(broken));
            }
            Some(_) => {}
            None if unreached.is_some() => {}
            None => {
                if let Some(states) = self.offered(generation, &self.processes[pod].id()) {
                    let lasts = self.dice.millis(1, 400);
                    let taken = (self.dice.one_of(&states), self.now + self.pace(pod, lasts));
                    self.processes[pod].worker.trail = Some(CatchUp { taking: Some(taken), ..trail });
                }
            }
        }
        self.next_turn(pod, (2000, 20_000), WorkerTask::Follow);
    }

    /// Returns the rank of a generation to which this worker has no connection.
    fn unconnected_rank(&self, pod: usize, generation: u64) -> Option<u32> {
        let ranked_members = &self.history.agreed.get(&generation)?.members;
        ranked_members.iter().find(|ranked| self.are_unconnected(pod, index_of(&ranked.pod))).map(|ranked| ranked.rank)
    }

    fn member_is_frozen(&self, generation: u64) -> bool {
        let agreed = self.history.agreed.get(&generation);
        let ranked_members = agreed.into_iter().flat_map(|agreed| &agreed.members);
        ranked_members
            .map(|ranked| &self.processes[index_of(&ranked.pod)])
            .any(|process| process.alive && process.frozen)
    }

    /// Returns the states of a generation's members, once all of them train and were asked to feed
    /// this newcomer.
    fn offered(&self, generation: u64, newcomer: &MemberId) -> Option<Vec<HeldState>> {
        let asked = (generation, newcomer.clone());
        let members = self.processes.iter().filter(|process| trains(process, generation));
        let states: Vec<HeldState> = members
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
