//! Where the durable record lies. Leader election is no fence; this compare-and-swap is.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    future::Future,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{Digest, Record, RecordError};

/// How long another process may hold the file's lock.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// A record of a thousand members is a tenth of this.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Keeps the record and changes it only when nobody else did.
pub trait GenerationStore: Send + Sync + 'static {
    /// The record and its version; `None` before the first one.
    fn load(&self) -> impl Future<Output = Result<Option<(Record, Version)>, StoreError>> + Send;

    /// Replaces the record if its version is still `expected`, where `None` means that there must be no record yet.
    fn compare_and_swap(
        &self,
        expected: Option<&Version>,
        record: &Record,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}

/// What identifies one state of the record: a file's content, or an object's `resourceVersion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// What became of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The record is the new one, under this version.
    Swapped(Version),
    /// Somebody else changed it first.
    Conflict,
}

/// A store that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Out of reach for now; trying again may help.
    #[error("the membership record at {place} is out of reach: {cause}")]
    Unavailable {
        /// File or object.
        place: String,
        /// Why.
        cause: String,
    },
    /// Refused until somebody mends what holds the record; that may never be, as while a job and its rights are being deleted.
    #[error("the membership record at {place} is out of reach: {cause}; {advice}")]
    Forbidden {
        /// File or object.
        place: String,
        /// Why.
        cause: String,
        /// What to do.
        advice: &'static str,
    },
    /// Refused; trying again does not help.
    #[error("the membership record at {place} is refused: {cause}; {advice}")]
    Refused {
        /// File or object.
        place: String,
        /// Why.
        cause: String,
        /// What to do.
        advice: &'static str,
    },
    /// What lies there is no record that can be used.
    #[error("{place}: {source}")]
    Record {
        /// File or object.
        place: String,
        /// Why.
        source: RecordError,
    },
    /// Not permitted, or not possible; trying again does not help.
    #[error("cannot {attempt} the membership record at {place}: {source}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// File or object.
        place: String,
        /// Why.
        source: io::Error,
    },
}

/// Keeps the record in a local file, for groups without a cluster. Processes exclude each other by a lock beside it.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// Keeps the record at `path`; its folder must exist.
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

    /// The lock's own file stays: a file that is deleted while others wait for it excludes nobody.
    fn lock(&self) -> Result<File, StoreError> {
        let path = beside(&self.path, ".lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|source| self.failed("lock", source))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_LIMIT => thread::sleep(LOCK_RETRY),
                Err(TryLockError::WouldBlock) => {
                    let cause = format!("another process holds its lock for {LOCK_LIMIT:?}");
                    return Err(StoreError::Unavailable { place: self.place(), cause });
                }
                Err(TryLockError::Error(source)) => return Err(self.failed("lock", source)),
            }
        }
    }

    fn failed(&self, attempt: &'static str, source: io::Error) -> StoreError {
        let place = self.place();
        match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidData => StoreError::Io { attempt, place, source },
            // Disks are full, read-only or out of reach for a while.
            _ => StoreError::Unavailable { place, cause: format!("cannot {attempt} it: {source}") },
        }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

impl GenerationStore for FileStore {
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let store = self.clone();
        off_the_runtime(move || store.load_now()).await
    }

    async fn compare_and_swap(&self, expected: Option<&Version>, record: &Record) -> Result<Swap, StoreError> {
        let (store, expected, record) = (self.clone(), expected.cloned(), record.clone());
        off_the_runtime(move || store.swap_now(expected.as_ref(), &record)).await
    }
}

async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(StoreError::Unavailable { place: "local file".to_owned(), cause: error.to_string() })
    })
}

/// Content decides: two equal records are the same state of the job.
fn version_of(text: &str) -> Version {
    Version(Digest::of(text.as_bytes()).to_string())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
