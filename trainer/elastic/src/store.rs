//! Storage of the durable record. Leader election cannot fence a coordinator off; this
//! compare-and-swap can.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    future::Future,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tracing::warn;

use crate::{Digest, Record, RecordError};

/// Another process may hold the lock of the file this long.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// The error of NFS without a lock daemon, `ENOLCK`.
const NO_LOCKS: i32 = 37;
/// A record of a thousand members takes a tenth of this.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Stores the record and replaces it only if nobody else has changed it.
pub trait GenerationStore: Send + Sync + 'static {
    /// Returns the record and its version, or `None` before the first record.
    fn load(&self) -> impl Future<Output = Result<Option<(Record, Version)>, StoreError>> + Send;

    /// Replaces the record if its version is still `expected`. `None` means that no record may
    /// exist yet.
    fn compare_and_swap(
        &self,
        expected: Option<&Version>,
        record: &Record,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}

/// Identifies one state of the record: a digest of the file's content, or an object's
/// `resourceVersion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// The result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The new record is stored under this version.
    Swapped(Version),
    /// Another process changed the record first.
    Conflict,
}

/// A failure to read or write the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is out of reach for now. A retry may help.
    #[error("the membership record at {place} is out of reach: {cause}")]
    Unavailable {
        /// The file or the object.
        place: String,
        /// The cause.
        cause: String,
    },
    /// The store refuses access until a person repairs its permissions. That may never happen, for
    /// example while the job is being deleted.
    #[error("the membership record at {place} is out of reach: {cause}; {advice}")]
    Forbidden {
        /// The file or the object.
        place: String,
        /// The cause.
        cause: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The store refuses the record. A retry does not help.
    #[error("the membership record at {place} is refused: {cause}; {advice}")]
    Refused {
        /// The file or the object.
        place: String,
        /// The cause.
        cause: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The stored text is not a record that this build can use.
    #[error("{place}: {source}")]
    Record {
        /// The file or the object.
        place: String,
        /// The cause.
        source: RecordError,
    },
    /// The operating system does not permit the access, or it is impossible. A retry does not help.
    #[error("cannot {attempt} the membership record at {place}: {source}")]
    Io {
        /// The operation that was attempted.
        attempt: &'static str,
        /// The file or the object.
        place: String,
        /// The cause.
        source: io::Error,
    },
}

/// Keeps the record in a local file, for groups outside a cluster. A lock file beside it serialises
/// the processes.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// Returns a store for the record at `path`. Its folder must exist.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn load_now(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let _lock = self.lock()?;
        self.read()
    }

    fn swap_now(&self, expected: Option<&Version>, record: &Record) -> Result<Swap, StoreError> {
        let _lock = self.lock()?;
        let found = self.read()?.map(|(_, version)| version);
        if found.as_ref() != expected {
            return Ok(Swap::Conflict);
        }
        let text = record.to_json();
        self.replace(text.as_bytes()).map_err(|source| self.failed("write", source))?;
        Ok(Swap::Swapped(version_of(&text)))
    }

    fn read(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("open", error)),
        };
        let mut text = String::new();
        file.take(MAX_RECORD_BYTES).read_to_string(&mut text).map_err(|source| self.failed("read", source))?;
        let record = Record::from_json(&text).map_err(|source| StoreError::Record { place: self.place(), source })?;
        Ok(Some((record, version_of(&text))))
    }

    /// A crash at any moment leaves the old record or the new one.
    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = beside(&self.path, ".tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// The lock file is never deleted. A deleted file would exclude nobody while other processes
    /// still wait for it.
    fn lock(&self) -> Result<Held, StoreError> {
        self.lock_by(File::try_lock)
    }

    fn lock_by(&self, try_lock: impl Fn(&File) -> Result<(), TryLockError>) -> Result<Held, StoreError> {
        let path = beside(&self.path, ".lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|source| self.failed("lock", source))?;
        let begun = Instant::now();
        loop {
            match try_lock(&file) {
                Ok(()) => return Ok(Held { _file: file, _alone: None }),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_LIMIT => thread::sleep(LOCK_RETRY),
                Err(TryLockError::WouldBlock) => {
                    let cause = format!("another process holds its lock for {LOCK_LIMIT:?}");
                    return Err(StoreError::Unavailable { place: self.place(), cause });
                }
                Err(TryLockError::Error(source)) if is_unsupported(&source) => {
                    self.warn_of_no_locks(&source);
                    let alone = WITHOUT_LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
                    return Ok(Held { _file: file, _alone: Some(alone) });
                }
                Err(TryLockError::Error(source)) => return Err(self.failed("lock", source)),
            }
        }
    }

    fn warn_of_no_locks(&self, error: &io::Error) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            warn!(
                place = self.place(),
                %error,
                "the file system has no file locks: no other process may keep the record there at the same time"
            );
        });
    }

    fn failed(&self, attempt: &'static str, source: io::Error) -> StoreError {
        let place = self.place();
        match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidData => StoreError::Io { attempt, place, source },
            // A disk may be full, read-only or unreachable for a while.
            _ => StoreError::Unavailable { place, cause: format!("cannot {attempt} it: {source}") },
        }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// Serialises the threads of this process where files cannot be locked.
static WITHOUT_LOCKS: Mutex<()> = Mutex::new(());

/// Excludes others from the record until it is dropped.
struct Held {
    _file: File,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// True if the file system cannot lock files at all, as Lustre without `-o flock`.
fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(NO_LOCKS)
}

impl GenerationStore for FileStore {
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let store = self.clone();
        run_blocking(move || store.load_now()).await
    }

    async fn compare_and_swap(&self, expected: Option<&Version>, record: &Record) -> Result<Swap, StoreError> {
        let (store, expected, record) = (self.clone(), expected.cloned(), record.clone());
        run_blocking(move || store.swap_now(expected.as_ref(), &record)).await
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(StoreError::Unavailable { place: "local file".to_owned(), cause: error.to_string() })
    })
}

/// The content decides the version: two equal records are the same state of the job.
fn version_of(text: &str) -> Version {
    Version(Digest::of(text.as_bytes()).to_string())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_keeps_the_record_all_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = FileStore::new(folder.path().join("record.json"));
        let fails_by = |code| move |_: &File| Err(TryLockError::Error(io::Error::from_raw_os_error(code)));
        for no_locks in [38, NO_LOCKS] {
            assert!(store.lock_by(fails_by(no_locks)).is_ok(), "{no_locks}");
        }
        assert!(store.lock_by(fails_by(5)).is_err(), "an error of the disk");
    }
}
