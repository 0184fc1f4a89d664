//! Objects in Amazon S3 and compatible stores, Google Cloud Storage and Azure Blob Storage, for
//! `lockstep-checkpoint`. [`fetch()`] brings data sets from there, and from web servers.
//!
//! Callers block: each call runs on a small runtime of its own. A call repeats a failed request
//! within [`Limits`]. Its error names the request, the object, the cause and the remedy. Endpoint
//! and credentials come from variables that the stores' own tools read too. No error shows a
//! credential.

mod connect;
mod failure;
mod fetch;
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

pub use crate::fetch::{FetchError, Fetched, TarFile, fetch, fetch_with};
use crate::{
    connect::ConnectError,
    failure::{CREATING, FailedRequest, FailureCause},
};

/// How long a call waits and how long it repeats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit for one request, without the time for its bytes.
    pub request: Duration,
    /// The time from the first request until no new one begins. A failed request is repeated at
    /// least once.
    pub tries: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(20), tries: Duration::from_secs(60) }
    }
}

/// A call without credentials fails after this fraction of the time.
const CREDENTIALS_FRACTION: u32 = 3;
/// A connection slower than this counts as broken.
const LEAST_BYTES_PER_SECOND: u64 = 256 << 10;
/// The pause before the first repetition. Each pause doubles and gets a random part added.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A job's prefix in a bucket.
pub struct JobObjects {
    uri: ObjectUri,
    home: Home,
    /// The URI as text, for the trait.
    uri_text: String,
    store: Arc<dyn ObjectStore>,
    runtime: Runtime,
    limits: Limits,
    /// True once a request succeeded.
    succeeded_before: AtomicBool,
}

/// The origin of the environment. It decides how new credentials reach the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A pod has it from its job's template.
    Pod,
    /// The processes of `lockstep run` inherit it.
    Run,
    /// A command has it from its shell and ends soon.
    Command,
}

/// Opens a prefix with endpoint and credentials from this process's environment. Sends nothing yet.
///
/// # Errors
/// A variable is missing or wrong.
pub fn open(uri: &ObjectUri, home: Home) -> Result<Arc<dyn Objects>, ObjectsError> {
    let bucket = JobObjects::open(uri, &environment(), Limits::default())?;
    Ok(Arc::new(JobObjects { home, ..bucket }))
}

/// Checks endpoint and credentials in this process's environment. Sends nothing.
///
/// # Errors
/// A variable is missing or wrong.
pub fn check(uri: &ObjectUri) -> Result<(), ObjectsError> {
    JobObjects::open(uri, &environment(), Limits::default()).map(drop)
}

/// Returns the environment as text. Bytes that are not UTF-8 become a mark, so that a needed
/// variable is refused by name.
fn environment() -> Vec<(String, String)> {
    env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

impl JobObjects {
    /// Opens a prefix with endpoint and credentials from these variables, as in a pod. Sends
    /// nothing yet.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn open(uri: &ObjectUri, variables: &[(String, String)], limits: Limits) -> Result<Self, ObjectsError> {
        let store = connect::connect(uri, variables).map_err(|unusable| {
            ObjectsError::lasting(match unusable {
                ConnectError::Variable(wrong) => wrong.to_string(),
                ConnectError::Settings(error) => failure::settings_error(uri, &error),
            })
        })?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| ObjectsError::passing(format!("{uri}: starting the runtime: {error}")))?;
        let succeeded_before = AtomicBool::new(false);
        Ok(Self {
            uri: uri.clone(),
            home: Home::Pod,
            uri_text: uri.to_string(),
            store,
            runtime,
            limits,
            succeeded_before,
        })
    }

    fn path(&self, key: &str) -> Path {
        match self.uri.prefix() {
            "" => Path::from(key),
            prefix => Path::from(format!("{prefix}/{key}")),
        }
    }

    /// Calls `act` until it succeeds or another try is no use. `bytes` is the length of the
    /// content.
    fn request<T>(
        &self,
        verb: &'static str,
        key: &str,
        bytes: u64,
        act: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, ObjectsError> {
        let patience = self.limits.request + Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND);
        let failed = |tries, begun: Instant| {
            let succeeded_before = self.succeeded_before.load(Ordering::Relaxed);
            FailedRequest {
                uri: &self.uri,
                home: self.home,
                verb,
                key,
                tries,
                duration: begun.elapsed(),
                succeeded_before,
            }
        };
        self.runtime.block_on(async {
            let begun = Instant::now();
            let mut pause = FIRST_PAUSE;
            for tries in 1.. {
                let cause = match timeout(patience, act()).await {
                    Ok(Ok(done)) => {
                        self.succeeded_before.store(true, Ordering::Relaxed);
                        return Ok(done);
                    }
                    Ok(Err(error)) => FailureCause::of(error),
                    Err(_) => FailureCause::Slow(patience),
                };
                let limit = self.limits.tries / if cause.is_passing() { 1 } else { CREDENTIALS_FRACTION };
                if !cause.may_pass_soon() || tries > 1 && begun.elapsed() > limit {
                    return Err(failed(tries, begun).error(&cause));
                }
                info!(verb, key, tries, %cause, "repeating a request to the object store");
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

impl Objects for JobObjects {
    fn uri(&self) -> &str {
        &self.uri_text
    }

    fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError> {
        let (path, length, payload) = (self.path(key), bytes.len() as u64, PutPayload::from(bytes));
        self.request("writing", key, length, async || self.store.put(&path, payload.clone()).await.map(drop))
    }

    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError> {
        let (path, length, payload) = (self.path(key), bytes.len() as u64, PutPayload::from(bytes));
        self.request(CREATING, key, length, async || {
            let options = PutOptions::from(PutMode::Create);
            match self.store.put_opts(&path, payload.clone(), options).await {
                Ok(_) => Ok(Created::Now),
                // S3 also answers so if another creation of the object failed. There is no object
                // then.
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
        self.request("reading", key, most, async || {
            let found = match self.store.get(&path).await {
                Ok(found) => found,
                Err(error @ Error::NotFound { .. }) => {
                    return failure::only_the_object_is_missing(error).map(|()| None);
                }
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
        self.request("looking at", key, 0, async || Ok(self.head(&path).await?.map(|found| found.size)))
    }

    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError> {
        let (path, whole) = (self.path(folder), self.path(""));
        self.request("listing", folder, 0, async || {
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
        self.request("deleting", key, 0, async || match self.store.delete(&path).await {
            Err(error @ Error::NotFound { .. }) => failure::only_the_object_is_missing(error),
            other => other,
        })
    }
}

impl fmt::Debug for JobObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobObjects").field("uri", &self.uri_text).finish_non_exhaustive()
    }
}

/// Returns a number from 0 to 1, so that requests that failed together are not repeated together.
fn random_part() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}
