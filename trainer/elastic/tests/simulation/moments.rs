//! The current moments of the group and of each worker.

use lockstep_elastic::coordinator::Stage;

use crate::{
    coordinators::CoordinatorProcess,
    coverage::{Moment, Victim},
    fixtures::index_of,
    sums::StepProgress,
    worker::Doing,
    world::World,
};

/// A set of moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments(u32);

impl Moments {
    pub(crate) fn has(self, moment: Moment) -> bool {
        self.0 & 1 << moment as u32 != 0
    }

    pub(crate) fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    fn put(&mut self, moment: Moment, holds: bool) {
        self.0 = self.0 & !(1 << moment as u32) | u32::from(holds) << moment as u32;
    }
}

impl World {
    /// Returns the coordinator that members look for.
    pub(crate) fn active_coordinator(&self) -> Option<usize> {
        self.coordinators.iter().rposition(CoordinatorProcess::listens)
    }

    /// Returns the moments of the group, for any victim.
    pub(crate) fn group_moments(&self) -> Moments {
        let mut moments = Moments::default();
        let Some(active_coordinator) = self.active_coordinator() else { return moments };
        let coordinator = &self.coordinators[active_coordinator];
        let stage = self.status(active_coordinator).map(|status| status.stage);
        let written = coordinator.activates();
        let recorded = written.is_some() && written == self.history.newest();
        moments.put(Moment::Gathering, stage == Some(Stage::Gathering));
        moments.put(Moment::Preparing, coordinator.allocates() || stage == Some(Stage::Forming) && written.is_none());
        moments.put(Moment::Activating, written.is_some() && !recorded);
        moments.put(Moment::Recorded, recorded);
        moments
    }

    /// Returns the moments of this worker.
    pub(crate) fn own_moments(&self, pod: usize) -> Moments {
        let process = &self.processes[pod];
        let worker = &process.worker;
        let mut moments = Moments::default();
        let newest = self.history.newest();
        let is_committed = newest.is_some_and(|newest| {
            worker.begun < Some(newest.generation)
                && worker.generation.is_none()
                && newest.member(&process.id()).is_some()
        });
        let feeds = || worker.generation.is_some_and(|generation| self.is_followed(pod, generation));
        let sealing = worker.sealing.filter(|_| !matches!(worker.doing, Doing::Sealed | Doing::Gone));
        moments.put(Moment::Committed, is_committed);
        moments.put(Moment::Forming, worker.doing == Doing::Forming);
        moments.put(Moment::Following, worker.doing == Doing::Following || feeds());
        moments.put(Moment::Copying, matches!(worker.doing, Doing::Copying(_)));
        moments.put(Moment::Sealing, sealing == Some(false));
        let stops = worker.generation.is_some() && (worker.stop.is_some() || worker.draining);
        moments.put(Moment::Pausing, sealing == Some(true) || stops);
        moments.put(Moment::Finishing, worker.doing == Doing::Done);
        if let Some((step, progress)) = self.progress(pod) {
            let ahead = |than: StepProgress| {
                let peers = (0..self.processes.len()).filter(|peer| {
                    let peer = &self.processes[*peer];
                    peer.alive && peer.worker.generation == worker.generation
                });
                peers.filter_map(|peer| self.progress(peer)).any(|theirs| theirs >= (step, than))
            };
            let moment = match progress {
                StepProgress::Computing => Some(Moment::Computing),
                StepProgress::Exchanging if ahead(StepProgress::Heard) => Some(Moment::Unheard),
                StepProgress::Exchanging => Some(Moment::Exchanging),
                StepProgress::Heard => None,
                StepProgress::Adding | StepProgress::Spreading if ahead(StepProgress::Summed) => Some(Moment::Lagging),
                StepProgress::Adding => Some(Moment::Adding),
                StepProgress::Spreading => Some(Moment::Spreading),
                StepProgress::Summed => Some(Moment::Summed),
            };
            moment.into_iter().for_each(|moment| moments.put(moment, true));
            let base = worker.group.as_ref().map(|group| group.base.step);
            let is_done = progress <= StepProgress::Heard && Some(step - 1) > base.max(Some(worker.stable));
            moments.put(Moment::Done, is_done);
        }
        moments
    }

    /// Returns the moments of this worker as such a victim. A source copies nothing, and a newcomer
    /// feeds no follower.
    pub(crate) fn moments_as(&self, pod: usize, own: Moments, victim: Victim) -> Moments {
        let mut moments = own;
        match victim {
            Victim::Source => moments.put(Moment::Copying, self.is_copied_from(pod)),
            Victim::Newcomer => {
                moments.put(Moment::Following, self.processes[pod].worker.doing == Doing::Following);
            }
            Victim::RankZero | Victim::OtherRank | Victim::Leaver | Victim::Coordinator => {}
        }
        moments
    }

    /// Returns its rank in the newest membership.
    pub(crate) fn rank(&self, pod: usize) -> Option<u32> {
        Some(self.history.newest()?.member(&self.processes[pod].id())?.rank)
    }

    /// Returns true if the pod with this rank is this victim.
    pub(crate) fn is(&self, pod: usize, rank: Option<u32>, victim: Victim) -> bool {
        match victim {
            Victim::RankZero => rank == Some(0),
            Victim::OtherRank => rank.is_some_and(|rank| rank > 0),
            Victim::Source => self.history.newest().is_some_and(|newest| {
                let lacks = |rank: &u32| {
                    let ranked = &newest.members[*rank as usize];
                    let copier = &self.processes[index_of(&ranked.pod)];
                    let enters = copier.alive && copier.worker.entered < Some(newest.generation);
                    enters && copier.id() == ranked.id()
                };
                rank.is_some_and(|rank| newest.sources.contains(&rank)) && newest.copiers.iter().any(lacks)
            }),
            Victim::Newcomer => self.processes[pod].newcomer,
            Victim::Leaver => self.processes[pod].leaving,
            Victim::Coordinator => false,
        }
    }

    /// Returns true if this worker feeds a newcomer that receives its state.
    fn is_followed(&self, pod: usize, generation: u64) -> bool {
        let fed = &self.processes[pod].worker.fed;
        !fed.is_empty()
            && self.processes.iter().any(|other| {
                other.alive && other.worker.doing == Doing::Following && fed.contains(&(generation, other.id()))
            })
    }

    fn is_copied_from(&self, pod: usize) -> bool {
        let worker = &self.processes[pod].worker;
        let Some(rank) = worker.group.as_ref().map(|group| group.rank) else { return false };
        let copies = |other: &Doing| *other == Doing::Copying(rank);
        self.processes
            .iter()
            .any(|other| other.alive && other.worker.generation == worker.generation && copies(&other.worker.doing))
    }
}
