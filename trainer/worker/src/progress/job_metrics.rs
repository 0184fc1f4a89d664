//! The metrics that the coordinator serves: those of its process, and under `lockstep run` those of
//! the job. In a cluster the operator has the job's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_launch::{GroupChange, Job, Progress, RecordStore};
use lockstep_metrics::{Exporter, JobSeries, changes, progress};
use prometheus::{Registry, TextEncoder};

use super::metrics::process_registry;

/// The metrics of a coordinator.
pub(crate) struct JobMetrics {
    process: Registry,
    /// `None` in a cluster.
    job: Option<OfJob>,
}

struct OfJob {
    name: Job,
    registry: Registry,
    series: JobSeries,
    newest: Mutex<Newest>,
}

#[derive(Default)]
struct Newest {
    report: Option<Progress>,
    /// Ranks of the newest group.
    world: Option<u32>,
}

impl JobMetrics {
    pub(crate) fn new(job: &Job, store: &RecordStore) -> prometheus::Result<Self> {
        let process = process_registry(job)?;
        let job = match store {
            RecordStore::Kubernetes => None,
            RecordStore::File(_) => {
                let registry = Registry::new();
                let series = JobSeries::new(&registry, &[Exporter::Job])?;
                Some(OfJob { name: job.clone(), registry, series, newest: Mutex::default() })
            }
        };
        Ok(Self { process, job })
    }

    /// Takes over a report.
    pub(crate) fn report(&self, report: &Progress) {
        if let Some(job) = &self.job {
            job.newest().report = Some(report.clone());
        }
    }

    /// Counts a change of the membership.
    pub(crate) fn changed(&self, change: &GroupChange) {
        if let Some(job) = &self.job {
            let before = job.newest().world.replace(change.workers);
            job.series.write(&job.name.namespace, &job.name.name, &changes(before, change));
        }
    }

    /// Returns all series in the Prometheus text format.
    pub(crate) fn text(&self) -> prometheus::Result<String> {
        let mut families = self.process.gather();
        if let Some(job) = &self.job {
            let newest = job.newest();
            job.series.clear_gauges();
            let samples: Vec<_> = newest.report.iter().flat_map(progress).collect();
            job.series.write(&job.name.namespace, &job.name.name, &samples);
            families.extend(job.registry.gather());
        }
        TextEncoder::new().encode_to_string(&families)
    }
}

impl OfJob {
    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
