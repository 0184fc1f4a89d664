//! The sums of a step, frame by frame, by the trainer's own schedules. A rank that completes a sum
//! has the share of every rank, even if others die, freeze or seal on the way.

use std::{collections::BTreeMap, time::Duration};

use lockstep_collective::{
    Hosts,
    algorithm::{Algorithm, Arrival, MAX_FRAME, Schedule, all_reduce},
};

use crate::{
    fixtures::index_of,
    worker::{Doing, WorkerTask},
    world::{Delivery, World},
};

/// A length that every algorithm cuts into pieces.
const ELEMENTS: usize = 8;

/// The sums of a step, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The number of steps done, and requests to stop.
    Numbers,
    Gradient,
}

/// One sum of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sum {
    pub(crate) generation: u64,
    pub(crate) step: u64,
    pub(crate) kind: Kind,
}

/// The shares in an element: bit r for rank r.
type Shares = u32;

/// Elements in flight from one rank to another.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    sum: Sum,
    from: usize,
    to: usize,
    /// The number of earlier frames between these two ranks.
    number: usize,
    elements: Vec<Shares>,
}

/// One rank's side of a sum.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankSum {
    /// Set once the rank takes part.
    schedule: Option<Schedule>,
    sent: usize,
    taken: usize,
    elements: Vec<Shares>,
    /// The arrived frames by sender and number.
    arrived: BTreeMap<(usize, usize), Vec<Shares>>,
}

/// A rank's progress within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepProgress {
    /// It has not contributed.
    Computing,
    /// It is in the sum of the numbers.
    Exchanging,
    /// It has the numbers.
    Heard,
    /// It is in the sum of the gradients and waits for shares to add.
    Adding,
    /// It waits for summed elements.
    Spreading,
    /// It has the sum and has not applied it.
    Summed,
}

impl RankSum {
    /// Sends and receives as much as possible. Returns the sent frames, each with its receiver and
    /// the number of earlier ones.
    fn go_on(&mut self) -> Result<Vec<(usize, usize, Vec<Shares>)>, String> {
        let Some(schedule) = &self.schedule else { return Ok(Vec::new()) };
        let mut frames = Vec::new();
        loop {
            let send = schedule.sends.get(self.sent).filter(|send| send.after <= self.taken);
            if let Some(send) = send {
                let number = schedule.sends[..self.sent].iter().filter(|before| before.to == send.to).count();
                frames.push((send.to, number, self.elements[send.elements.clone()].to_vec()));
                self.sent += 1;
                continue;
            }
            let receive = schedule.receives.get(self.taken).filter(|receive| receive.after <= self.sent);
            let Some(receive) = receive else { return Ok(frames) };
            let before = schedule.receives[..self.taken].iter().filter(|before| before.from == receive.from).count();
            let Some(arrived) = self.arrived.remove(&(receive.from, before)) else { return Ok(frames) };
            for (element, arrived) in self.elements[receive.elements.clone()].iter_mut().zip(arrived) {
                *element = match receive.arrival {
                    Arrival::Copy => arrived,
                    Arrival::Reduce if *element & arrived == 0 => *element | arrived,
                    Arrival::Reduce => return Err(format!("shares {element:b} and {arrived:b} are added")),
                };
            }
            self.taken += 1;
        }
    }

    fn is_complete(&self) -> bool {
        let done = |schedule: &Schedule| self.sent == schedule.sends.len() && self.taken == schedule.receives.len();
        self.schedule.as_ref().is_some_and(done)
    }
}

/// Returns a generation's algorithm.
fn algorithm(generation: u64, world: usize) -> Algorithm {
    let kind = generation as usize % (Algorithm::PLAIN.len() + 1);
    Algorithm::PLAIN.get(kind).copied().unwrap_or(Algorithm::torus(world))
}

impl World {
    /// Adds a worker's share to a sum.
    pub(crate) fn take_part(&mut self, pod: usize, kind: Kind) {
        let worker = &self.processes[pod].worker;
        let (Some(held), Some(group)) = (worker.held, worker.group.as_ref()) else { return };
        let (rank, world) = (group.rank as usize, group.world as usize);
        let sum = Sum { generation: group.generation, step: held.step + 1, kind };
        let part = self.sums.entry((sum, rank)).or_default();
        let algorithm = algorithm(sum.generation, world);
        part.schedule = Some(all_reduce(algorithm, rank, &Hosts::apart(world), ELEMENTS, MAX_FRAME));
        part.elements = vec![1 << rank; ELEMENTS];
        self.go_on_with(pod, sum, rank);
    }

    pub(crate) fn arrived(&mut self, pod: usize, frame: Frame) {
        let Frame { sum, from, to, number, elements } = frame;
        self.sums.entry((sum, to)).or_default().arrived.insert((from, number), elements);
        self.go_on_with(pod, sum, to);
    }

    /// Removes a rank that leaves a generation: it completes none of its sums.
    pub(crate) fn take_part_no_more(&mut self, generation: u64, rank: u32) {
        self.sums.retain(|(sum, of), _| sum.generation != generation || *of != rank as usize);
    }

    /// Returns the step that a worker is at, and its progress within it.
    pub(crate) fn progress(&self, pod: usize) -> Option<(u64, StepProgress)> {
        let worker = &self.processes[pod].worker;
        let (step, group) = (worker.held?.step + 1, worker.group.as_ref()?);
        let part = |kind| {
            let sum = Sum { generation: group.generation, step, kind };
            self.sums.get(&(sum, group.rank as usize)).and_then(|part| Some((part.taken, part.schedule.as_ref()?)))
        };
        let progress = match worker.doing {
            Doing::Computing => StepProgress::Computing,
            Doing::Reducing if part(Kind::Numbers).is_some() => StepProgress::Exchanging,
            Doing::Reducing => StepProgress::Heard,
            Doing::Summing => match part(Kind::Gradient) {
                None => StepProgress::Summed,
                Some((taken, schedule)) => match schedule.receives.get(taken).map(|receive| receive.arrival) {
                    Some(Arrival::Reduce) => StepProgress::Adding,
                    Some(Arrival::Copy) | None => StepProgress::Spreading,
                },
            },
            Doing::Sealed | Doing::Following | Doing::Forming | Doing::Copying(_) | Doing::Done | Doing::Gone => {
                return None;
            }
        };
        Some((step, progress))
    }

    fn go_on_with(&mut self, pod: usize, sum: Sum, rank: usize) {
        let Some(part) = self.sums.get_mut(&(sum, rank)) else { return };
        let frames = match part.go_on() {
            Ok(frames) => frames,
            Err(error) => return self.fail(format!("rank {rank} in {sum:?}: {error}")),
        };
        let complete = part.is_complete().then(|| part.elements.clone());
        for (to, number, elements) in frames {
            self.send_frame(pod, Frame { sum, from: rank, to, number, elements });
        }
        let Some(elements) = complete else { return };
        self.sums.remove(&(sum, rank));
        let ranked_members = self.history.agreed[&sum.generation].members.len();
        if elements.iter().any(|shares| *shares != (1 << ranked_members) - 1) {
            self.fail(format!("rank {rank} has completed {sum:?} with the shares {elements:?} of {ranked_members}"));
        }
        match (sum.kind, self.processes[pod].worker.doing) {
            (Kind::Numbers, Doing::Reducing) => self.next_turn(pod, (100, 3000), WorkerTask::Heard),
            (Kind::Gradient, Doing::Summing) => self.next_turn(pod, (300, 4000), WorkerTask::Summed),
            (kind, doing) => self.fail(format!("rank {rank} completes the {kind:?} of a step while it is {doing:?}")),
        }
    }

    /// Sends a frame over a connection that loses nothing, but may be interrupted for a while.
    fn send_frame(&mut self, pod: usize, frame: Frame) {
        let Sum { generation, .. } = frame.sum;
        let ranked = &self.history.agreed[&generation].members[frame.to];
        let (other, member) = (index_of(&ranked.pod), ranked.id());
        if self.processes[other].id() != member {
            return;
        }
        let delay = if self.dice.percent(95) { self.dice.micros(20, 300) } else { self.dice.micros(300, 5000) };
        let cut = match self.unconnected {
            Some((_, Duration::MAX)) | None => Duration::ZERO,
            Some((_, until)) => {
                if self.are_unconnected(pod, other) {
                    until
                } else {
                    Duration::ZERO
                }
            }
        };
        let whole = cut.max(self.processes[pod].mute_until).max(self.processes[other].deaf_until);
        let delay = self.pace(pod, delay);
        let incarnation = self.processes[other].incarnation;
        self.at(whole.max(self.now) + delay, Delivery::Frame { pod: other, incarnation, frame });
    }
}
