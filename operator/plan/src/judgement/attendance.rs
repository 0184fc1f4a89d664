//! Attendance: how many of the workers that a job needs have joined.

use lockstep_api::ValidJob;
use lockstep_lifecycle::Attendance;

use super::{pod_end::is_alive, situation::Situation};

/// The number of workers that have joined.
pub(crate) fn joined(situation: &Situation<'_>) -> u32 {
    situation.wanted_workers().filter(|(_, pod)| pod.ready && is_alive(pod)).count() as u32
}

/// The smallest number of workers with which the job trains.
pub(crate) fn least_workers(job: &ValidJob) -> u32 {
    job.elastic.min_replicas.min(job.replicas.get())
}

/// The attendance.
pub(crate) fn attendance(situation: &Situation<'_>) -> Attendance {
    let job = situation.job;
    Attendance { joined: joined(situation), all: job.replicas.get(), least: least_workers(job) }
}
