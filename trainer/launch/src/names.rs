//! Names of a job's processes, which in a cluster are those of its pods, and of its folder in a
//! storage.

/// Characters of a uid in a name.
const UID_CHARACTERS: usize = 8;

/// Returns the name of a job's worker `index`.
#[must_use]
pub fn worker(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// Returns a name that belongs to one job only. A new job with the same `TrainingJob` name gets
/// another one.
#[must_use]
pub fn unique(job: &str, uid: &str) -> String {
    let short: String = uid.chars().take(UID_CHARACTERS).collect();
    format!("{job}-{short}")
}

/// Returns the name of a job's coordinator.
#[must_use]
pub fn coordinator(job: &str) -> String {
    format!("{job}-coordinator")
}
