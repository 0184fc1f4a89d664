//! Names of a job's processes; in a cluster those of its pods.

/// Worker `index` of a job.
#[must_use]
pub fn worker(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// The coordinator of a job.
#[must_use]
pub fn coordinator(job: &str) -> String {
    format!("{job}-coordinator")
}
