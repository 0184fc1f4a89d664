//! Names of a job's processes; in a cluster those of its pods. And the name under which it keeps what outlives them.

/// Of a uid in a name.
const UID_CHARACTERS: usize = 8;

/// Worker `index` of a job.
#[must_use]
pub fn worker(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// The name of a job that no other has: one that is made anew under the same name gets another.
#[must_use]
pub fn unique(job: &str, uid: &str) -> String {
    let short: String = uid.chars().take(UID_CHARACTERS).collect();
    format!("{job}-{short}")
}

/// The coordinator of a job.
#[must_use]
pub fn coordinator(job: &str) -> String {
    format!("{job}-coordinator")
}
