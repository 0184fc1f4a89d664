//! The identity of a run in its folder: its uid, and the number of its attempt.

use std::{fs, io, path::Path, str::FromStr};

use anyhow::bail;

use super::{RECORD, replace};

/// File with the number of the newest attempt.
pub(super) const ATTEMPT: &str = "attempt";
/// File with the uid.
pub(super) const UID: &str = "uid";

/// Returns the number of earlier runs in the folder.
///
/// # Errors
/// The number is lost. A smaller one would mix up the workers with those of an earlier run.
pub(super) fn next_attempt(path: &Path) -> anyhow::Result<u32> {
    let advice = "write the number of earlier runs into it, at least active.attempt in record.json";
    let attempt = kept::<u32>(path, ATTEMPT, advice)?.map_or(0, |before| before.saturating_add(1));
    replace(&path.join(ATTEMPT), &attempt.to_string())?;
    Ok(attempt)
}

/// Returns the uid of the run.
///
/// # Errors
/// The uid is lost. Another one would not lead to the checkpoints in an object store.
pub(super) fn uid(path: &Path) -> anyhow::Result<String> {
    let advice = "write the run's UUID into it; if its checkpoints are in an object store, write one that begins with \
                  the 8 characters at the end of their folder's name";
    if let Some(uid) = kept::<uuid::Uuid>(path, UID, advice)? {
        return Ok(uid.to_string());
    }
    let uid = uuid::Uuid::new_v4().to_string();
    replace(&path.join(UID), &uid)?;
    Ok(uid)
}

/// Reads the file `name` of a run's folder. Returns `None` if the file is missing and no group was
/// formed yet.
///
/// # Errors
/// The file is missing although a group was formed, cannot be read, or holds something else.
/// `advice` states what belongs there.
fn kept<T: FromStr>(path: &Path, name: &str, advice: &str) -> anyhow::Result<Option<T>> {
    let found = match fs::read(path.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.join(RECORD).exists() => return Ok(None),
        Err(error) => error.to_string(),
        Ok(text) => match text.parse() {
            Ok(value) => return Ok(Some(value)),
            Err(_) => format!("{text:?}"),
        },
    };
    bail!("its file {name} is unusable ({found}): {advice}")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::run::folder::RunFolder;

    #[test]
    fn a_run_with_a_lost_attempt_or_uid_is_refused() {
        let all: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"-1"), Some(&[0xff; 36])];
        for name in [ATTEMPT, UID] {
            for damaged in all {
                let parent = tempfile::tempdir().expect("a temporary folder");
                let open = || RunFolder::open(Some(parent.path()), "lenet", Timestamp::UNIX_EPOCH);
                let first = open().expect("new");
                for formed in [first.manifest(), first.record()] {
                    fs::write(formed, "").expect("write");
                }
                drop(first);
                assert_eq!(open().expect("goes on").attempt, 1);
                let path = parent.path().join(name);
                fs::remove_file(&path).expect("there");
                if let Some(damaged) = damaged {
                    fs::write(&path, damaged).expect("write");
                }
                let error = format!("{:#}", open().expect_err("refused"));
                assert!(error.contains(&format!("its file {name} is unusable")), "{error}");
                assert_eq!(fs::read(&path).ok().as_deref(), damaged, "left as it was");
            }
        }
    }
}
