//! The lock of a run's folder, so that only one `lockstep run` at a time is at work in it. A file
//! system without locks gets a file that names the process instead.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::display::eprint_line;

/// File that the process at work locks.
pub(super) const LOCK: &str = "lock";
/// File that names that process if files cannot be locked.
pub(super) const OWNER: &str = "lock-owner.json";
/// Error code of NFS without a lock daemon.
const NO_LOCKS: i32 = 37;

/// Keeps other runs out of a folder until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
    owner: Option<PathBuf>,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// Another run is at work in `folder`, or may be.
    pub(super) fn take(folder: &Path) -> anyhow::Result<Self> {
        Self::take_by(File::try_lock, folder)
    }

    fn take_by(try_lock: impl Fn(&File) -> Result<(), TryLockError>, folder: &Path) -> anyhow::Result<Self> {
        let file = File::create(folder.join(LOCK)).context("create its lock")?;
        match try_lock(&file) {
            Ok(()) => Ok(Self { _file: file, owner: None }),
            Err(TryLockError::WouldBlock) => bail!("another `lockstep run` is at work in it"),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => {
                let owner = own(folder)?;
                eprint_line(&format!(
                    "{}: its file system has no file locks ({error}): {OWNER} there keeps other runs out instead. \
                     For locks, mount Lustre with -o flock, NFS with a lock daemon or -o local_lock=flock",
                    folder.display()
                ));
                Ok(Self { _file: file, owner: Some(owner) })
            }
            Err(TryLockError::Error(error)) => Err(error).context("lock it"),
        }
    }

    /// Returns true if a run is at work in `folder`, as far as this process can see.
    pub(super) fn is_held(folder: &Path) -> bool {
        Self::is_held_by(File::try_lock, folder)
    }

    fn is_held_by(try_lock: impl Fn(&File) -> Result<(), TryLockError>, folder: &Path) -> bool {
        let Ok(file) = File::open(folder.join(LOCK)) else { return false };
        match try_lock(&file) {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => match fs::read(folder.join(OWNER)) {
                Ok(text) => LockOwner::read(&text).is_none_or(|owner| owner.state() != OwnerState::Gone),
                Err(_) => false,
            },
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that is left behind names a process that has ended.
        self.owner.take().into_iter().for_each(|owner| drop(fs::remove_file(owner)));
    }
}

/// Returns true if the file system cannot lock files at all.
fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(NO_LOCKS)
}

/// Makes the file that names this process. It replaces one whose process has ended.
fn own(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(OWNER);
    let text = serde_json::to_vec(&LockOwner::this_process())?;
    loop {
        match File::create_new(&path) {
            Ok(mut file) => {
                file.write_all(&text).with_context(|| format!("write {}", path.display()))?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(&path)?,
            Err(error) => return Err(error).with_context(|| format!("create {}", path.display())),
        }
    }
}

/// Removes a file whose process has ended.
///
/// # Errors
/// The process in the file runs, or may run.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let found = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("read {}", path.display()))?,
    };
    let Some(owner) = LockOwner::read(&found) else {
        bail!("{} does not say who is at work in it; if nobody is, delete that file", path.display());
    };
    let LockOwner { host, process, .. } = &owner;
    match owner.state() {
        OwnerState::Runs => bail!("another `lockstep run` is at work in it, process {process}"),
        OwnerState::Unknown => bail!(
            "another `lockstep run` may be at work in it, process {process} on {host}; if that has ended, delete {}",
            path.display()
        ),
        OwnerState::Gone => {
            // Another run may replace the file at the same moment, so the moved file must be the
            // one that was read.
            let aside = path.with_added_extension(process::id().to_string());
            fs::rename(path, &aside).with_context(|| format!("move {}", path.display()))?;
            if fs::read(&aside).is_ok_and(|moved| moved == found) {
                return fs::remove_file(&aside).with_context(|| format!("remove {}", aside.display()));
            }
            fs::rename(&aside, path).with_context(|| format!("move {} back", path.display()))?;
            bail!("another `lockstep run` has just begun in it")
        }
    }
}

/// Identifies one process among all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LockOwner {
    /// Host name, for people.
    host: String,
    /// Identity of one boot of one machine.
    boot: String,
    /// Namespace in which the process id counts.
    namespace: String,
    process: u32,
    /// Start time of the process, because ids are used again.
    began: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerState {
    Runs,
    Gone,
    /// The process belongs to another machine, an earlier boot of this one, or another container.
    Unknown,
}

impl LockOwner {
    fn this_process() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let process = process::id();
        Self {
            host: line("/proc/sys/kernel/hostname"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            process,
            began: began(process).unwrap_or_default(),
        }
    }

    fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    fn state(&self) -> OwnerState {
        self.state_as_seen_by(&Self::this_process(), began(self.process).as_deref())
    }

    /// Compares the owner with this process. `began` is the start time of the process that has the
    /// owner's id now, if there is one.
    fn state_as_seen_by(&self, me: &Self, began: Option<&str>) -> OwnerState {
        if (&self.boot, &self.namespace) != (&me.boot, &me.namespace) {
            OwnerState::Unknown
        } else if began == Some(&self.began) {
            OwnerState::Runs
        } else {
            OwnerState::Gone
        }
    }
}

/// Returns the start time of a process, in ticks since boot.
fn began(process: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold any characters. The start time is the twentieth word after
    // it.
    text.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error codes of Lustre without `-o flock`, and of NFS without a lock daemon.
    const UNSUPPORTED: [i32; 2] = [38, NO_LOCKS];

    fn without_locks(code: i32) -> impl Fn(&File) -> Result<(), TryLockError> {
        move |_| Err(TryLockError::Error(io::Error::from_raw_os_error(code)))
    }

    #[test]
    fn without_file_locks_a_second_run_is_refused_until_the_first_ends() {
        for code in UNSUPPORTED {
            let folder = tempfile::tempdir().expect("a folder");
            let take = || Lock::take_by(without_locks(code), folder.path());
            let is_held = || Lock::is_held_by(without_locks(code), folder.path());
            let first = take().expect("free");
            let refused = format!("{:#}", take().expect_err("held"));
            assert!(refused.contains("at work in it, process"), "{refused}");
            assert!(is_held());
            drop(first);
            assert!(!is_held() && take().is_ok());
        }
    }

    #[test]
    fn the_file_of_a_killed_run_refuses_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let killed = LockOwner { began: "0".into(), ..LockOwner::this_process() };
        fs::write(folder.path().join(OWNER), serde_json::to_vec(&killed).expect("JSON")).expect("written");
        let held = Lock::take_by(without_locks(NO_LOCKS), folder.path()).expect("free");
        let names: Vec<_> =
            folder.path().read_dir().expect("listed").map(|file| file.expect("there").file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        drop(held);
    }

    #[test]
    fn the_refusal_for_a_run_on_another_machine_names_the_file_to_delete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(OWNER);
        let other =
            LockOwner { host: "node-b".into(), boot: "another".into(), process: 7, ..LockOwner::this_process() };
        fs::write(&path, serde_json::to_vec(&other).expect("JSON")).expect("written");
        let refused = Lock::take_by(without_locks(NO_LOCKS), folder.path()).expect_err("held").to_string();
        assert!(refused.contains("process 7 on node-b") && refused.ends_with(&format!("delete {}", path.display())));
        assert!(path.exists());
    }

    #[test]
    fn any_other_failure_to_lock_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let failed = Lock::take_by(without_locks(5), folder.path()).expect_err("an error of the disk");
        assert!(format!("{failed:#}").starts_with("lock it"), "{failed:#}");
    }
}
