//! Objects in Amazon S3 and whatever speaks as it does, Google Cloud Storage and Azure Blob Storage, for `lockstep-checkpoint`.
//!
//! Callers wait: each call runs on a small runtime of its own, tries again what failed on the way, within [`Limits`], and says in the end
//! what was tried, on which object, why it failed and what to do. Endpoint and credentials come from variables that the stores' own tools
//! read too; they appear in no error.

mod problem;
mod service;
mod variables;

use std::{
    collections::BTreeMap,
    env, fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::TryStreamExt as _;
use lockstep_checkpoint::{Created, Objects, ObjectsError};
use lockstep_launch::ObjectUri;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, path::Path};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use tracing::info;

use crate::{
    problem::{Attempt, CREATING, Cause},
    service::Unusable,
};

/// How long is waited, and how long tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One request without its bytes.
    pub request: Duration,
    /// From the first request until no more is begun. Once at least is tried again.
    pub tries: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(20), tries: Duration::from_secs(60) }
    }
}

/// Whoever has no credentials hears of it in so much shorter a time.
const CREDENTIALS_SOONER: u32 = 3;
/// A line that is slower than this counts as cut.
const LEAST_BYTES_PER_SECOND: u64 = 256 << 10;
/// Between the first two tries; twice as long between the next two, each time a random part of it more.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A job's place in a bucket.
pub struct Bucket {
    uri: ObjectUri,
    home: Home,
    /// As the trait gives it.
    shown: String,
    store: Arc<dyn ObjectStore>,
    runtime: Runtime,
    limits: Limits,
    /// Whether any request went well.
    worked: AtomicBool,
}

/// Whose environment the variables come from: that decides how new ones get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A pod's, from its job's template.
    Pod,
    /// That of `lockstep run`, which its processes inherit.
    Run,
    /// A command's, which ends soon.
    Command,
}

/// Opens a place with endpoint and credentials from this process's environment. Nothing is sent yet.
///
/// # Errors
/// A variable that is missing or wrong.
pub fn open(uri: &ObjectUri, home: Home) -> Result<Arc<dyn Objects>, ObjectsError> {
    let bucket = Bucket::open(uri, &environment(), Limits::default())?;
    Ok(Arc::new(Bucket { home, ..bucket }))
}

/// Reads endpoint and credentials from this process's environment, and drops them.
///
/// # Errors
/// A variable that is missing or wrong.
pub fn check(uri: &ObjectUri) -> Result<(), ObjectsError> {
    Bucket::open(uri, &environment(), Limits::default()).map(drop)
}

/// What is no text keeps a mark where it is none, and is refused by name if it is needed.
fn environment() -> Vec<(String, String)> {
    env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

impl Bucket {
    /// Opens a place with endpoint and credentials from these variables, as in a pod. Nothing is
    /// sent yet.
    ///
    /// # Errors
    /// A variable that is missing or wrong.
    pub fn open(uri: &ObjectUri, variables: &[(String, String)], limits: Limits) -> Result<Self, ObjectsError> {
        let store = service::connect(uri, variables).map_err(|unusable| {
            ObjectsError::lasting(match unusable {
                Unusable::Variable(wrong) => wrong.to_string(),
                Unusable::Settings(error) => problem::of_setting(uri, &error),
            })
        })?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| ObjectsError::passing(format!("{uri}: starting the runtime: {error}")))?;
        let worked = AtomicBool::new(false);
        Ok(Self { uri: uri.clone(), home: Home::Pod, shown: uri.to_string(), store, runtime, limits, worked })
    }

    fn path(&self, key: &str) -> Path {
        match self.uri.prefix() {
            "" => Path::from(key),
            prefix => Path::from(format!("{prefix}/{key}")),
        }
    }

    /// Does something, as often as it may help. `bytes` are those that travel.
    fn attempt<T>(
        &self,
        verb: &'static str,
        key: &str,
        bytes: u64,
        act: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, ObjectsError> {
        let patience = self.limits.request + Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND);
        let attempt = |tries, begun: Instant| {
            let worked = self.worked.load(Ordering::Relaxed);
            Attempt { uri: &self.uri, home: self.home, verb, key, tries, lasted: begun.elapsed(), worked }
        };
        self.runtime.block_on(async {
            let begun = Instant::now();
            let mut pause = FIRST_PAUSE;
            for tries in 1.. {
                let cause = match timeout(patience, act()).await {
                    Ok(Ok(done)) => {
                        self.worked.store(true, Ordering::Relaxed);
                        return Ok(done);
                    }
                    Ok(Err(error)) => Cause::of(error),
                    Err(_) => Cause::Slow(patience),
                };
                let limit = self.limits.tries / if cause.is_passing() { 1 } else { CREDENTIALS_SOONER };
                if !cause.may_pass_soon() || tries > 1 && begun.elapsed() > limit {
                    return Err(attempt(tries, begun).ended(&cause));
                }
                info!(verb, key, tries, %cause, "the object store is asked again");
                sleep(pause.mul_f64(1.0 + random_part())).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            unreachable!("tries are numbers without an end")
        })
    }

    async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>, Error> {
        match self.store.head(path).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Objects for Bucket {
    fn uri(&self) -> &str {
        &self.shown
    }

    fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError> {
        let (path, length, payload) = (self.path(key), bytes.len() as u64, PutPayload::from(bytes));
        self.attempt("writing", key, length, async || self.store.put(&path, payload.clone()).await.map(drop))
    }

    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError> {
        let (path, length, payload) = (self.path(key), bytes.len() as u64, PutPayload::from(bytes));
        self.attempt(CREATING, key, length, async || {
            let options = PutOptions::from(PutMode::Create);
            match self.store.put_opts(&path, payload.clone(), options).await {
                Ok(_) => Ok(Created::Now),
                // S3 answers so too where the object that another one was creating came to nothing: then there is none.
                Err(error @ Error::AlreadyExists { .. }) => match self.head(&path).await? {
                    Some(_) => Ok(Created::Before),
                    None => Err(Error::Generic { store: "conflict", source: Box::new(error) }),
                },
                Err(error) => Err(error),
            }
        })
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, ObjectsError> {
        let path = self.path(key);
        self.attempt("reading", key, most, async || {
            let found = match self.store.get(&path).await {
                Ok(found) => found,
                Err(error @ Error::NotFound { .. }) => return problem::absence(error).map(|()| None),
                Err(error) => return Err(error),
            };
            let length = found.meta.size;
            if length > most {
                let longer = io::Error::other(format!("it has {length} bytes, at most {most} are read"));
                return Err(Error::NotSupported { source: Box::new(longer) });
            }
            let bytes = found.bytes().await?;
            if bytes.len() as u64 != length {
                let cut = io::Error::other(format!("{} of {length} bytes came", bytes.len()));
                return Err(Error::Generic { store: "length", source: Box::new(cut) });
            }
            Ok(Some(bytes.into()))
        })
    }

    fn length(&self, key: &str) -> Result<Option<u64>, ObjectsError> {
        let path = self.path(key);
        self.attempt("looking at", key, 0, async || Ok(self.head(&path).await?.map(|found| found.size)))
    }

    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError> {
        let (path, whole) = (self.path(folder), self.path(""));
        self.attempt("listing", folder, 0, async || {
            let found: Vec<ObjectMeta> = self.store.list(Some(&path)).try_collect().await?;
            let key = |found: ObjectMeta| {
                let location = found.location.as_ref();
                let below = location.strip_prefix(whole.as_ref())?;
                Some((below.trim_start_matches('/').to_owned(), found.size))
            };
            Ok(found.into_iter().filter_map(key).collect())
        })
    }

    fn delete(&self, key: &str) -> Result<(), ObjectsError> {
        let path = self.path(key);
        self.attempt("deleting", key, 0, async || match self.store.delete(&path).await {
            Err(error @ Error::NotFound { .. }) => problem::absence(error),
            other => other,
        })
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("uri", &self.shown).finish_non_exhaustive()
    }
}

/// 0 to 1: those that failed together do not try again together.
fn random_part() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}
