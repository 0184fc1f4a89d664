//! How far the group is, and how far each worker.

use lockstep_elastic::coordinator::Stage;

use crate::{
    chair::Chair,
    coverage::{Moment, Victim},
    given::index_of,
    sums::Progress,
    worker::Doing,
    world::World,
};

/// Some of all moments.
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
    /// The coordinator that members look for.
    pub(crate) fn seated(&self) -> Option<usize> {
        self.chairs.iter().rposition(Chair::listens)
    }

    /// What the coordinator is at, whoever is hit.
    pub(crate) fn group_moments(&self) -> Moments {
        let mut moments = Moments::default();
        let Some(seated) = self.seated() else { return moments };
        let chair = &self.chairs[seated];
        let stage = self.status(seated).map(|status| status.stage);
        let written = chair.activates();
        let recorded = written.is_some() && written == self.history.newest();
        moments.put(Moment::Gathering, stage == Some(Stage::Gathering));
        moments.put(Moment::Preparing, chair.allocates() || stage == Some(Stage::Forming) && written.is_none());
        moments.put(Moment::Activating, written.is_some() && !recorded);
        moments.put(Moment::Recorded, recorded);
        moments
    }

    /// What this worker itself is at.
    pub(crate) fn own_moments(&self, pod: usize) -> Moments {
        let process = &self.processes[pod];
        let worker = &process.worker;
        let mut moments = Moments::default();
        let newest = self.history.newest();
        let is_committed = newest.is_some_and(|newest| {
            worker.begun < Some(newest.generation)
                && worker.generation.is_none()
                && newest.seat(&process.id()).is_some()
        });
        let feeds = || worker.generation.is_some_and(|generation| self.is_followed(pod, generation));
        let sealing = worker.sealing.filter(|_| !matches!(worker.doing, Doing::Standing | Doing::Gone));
        moments.put(Moment::Committed, is_committed);
        moments.put(Moment::Forming, worker.doing == Doing::Forming);
        moments.put(Moment::Following, worker.doing == Doing::Following || feeds());
        moments.put(Moment::Copying, matches!(worker.doing, Doing::Copying(_)));
        moments.put(Moment::Sealing, sealing == Some(false));
        let stops = worker.generation.is_some() && (worker.stop.is_some() || worker.draining);
        moments.put(Moment::Pausing, sealing == Some(true) || stops);
        moments.put(Moment::Finishing, worker.doing == Doing::Done);
        if let Some((step, progress)) = self.progress(pod) {
            let ahead = |than: Progress| {
                let peers = (0..self.processes.len()).filter(|peer| {
                    let peer = &self.processes[*peer];
                    peer.alive && peer.worker.generation == worker.generation
                });
                peers.filter_map(|peer| self.progress(peer)).any(|theirs| theirs >= (step, than))
            };
            let moment = match progress {
                Progress::Computing => Some(Moment::Computing),
                Progress::Exchanging if ahead(Progress::Heard) => Some(Moment::Unheard),
                Progress::Exchanging => Some(Moment::Exchanging),
                Progress::Heard => None,
                Progress::Adding | Progress::Spreading if ahead(Progress::Summed) => Some(Moment::Lagging),
                Progress::Adding => Some(Moment::Adding),
                Progress::Spreading => Some(Moment::Spreading),
                Progress::Summed => Some(Moment::Summed),
            };
            moment.into_iter().for_each(|moment| moments.put(moment, true));
            let base = worker.group.as_ref().map(|group| group.base.step);
            let is_done = progress <= Progress::Heard && Some(step - 1) > base.max(Some(worker.stable));
            moments.put(Moment::Done, is_done);
        }
        moments
    }

    /// What this worker is at as such a victim: a source copies nothing, and a newcomer hands nothing over.
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

    /// Its rank in the newest membership.
    pub(crate) fn rank(&self, pod: usize) -> Option<u32> {
        Some(self.history.newest()?.seat(&self.processes[pod].id())?.rank)
    }

    /// Whether the pod of this rank is this victim.
    pub(crate) fn is(&self, pod: usize, rank: Option<u32>, victim: Victim) -> bool {
        match victim {
            Victim::RankZero => rank == Some(0),
            Victim::OtherRank => rank.is_some_and(|rank| rank > 0),
            Victim::Source => self.history.newest().is_some_and(|newest| {
                let lacks = |rank: &u32| {
                    let seat = &newest.members[*rank as usize];
                    let copier = &self.processes[index_of(&seat.pod)];
                    let enters = copier.alive && copier.worker.entered < Some(newest.generation);
                    enters && copier.id() == seat.id()
                };
                rank.is_some_and(|rank| newest.sources.contains(&rank)) && newest.copiers.iter().any(lacks)
            }),
            Victim::Newcomer => self.processes[pod].newcomer,
            Victim::Leaver => self.processes[pod].leaving,
            Victim::Coordinator => false,
        }
    }

    /// Whether this worker hands over what it holds to somebody who takes it.
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
