//! Why a data set cannot be fetched, and what a person can do.

use std::{io, path::Path, time::Duration};

use lockstep_launch::ObjectService;

use super::sums::{HOW_TO_SUM, SUMS};
use crate::failure::{FailureCause, variables};

/// A data set that cannot be fetched. It shows no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct FetchError {
    problem: String,
    is_passing: bool,
}

impl FetchError {
    /// Makes an error that may pass by itself.
    pub(super) fn passing(problem: String) -> Self {
        Self { problem, is_passing: true }
    }

    /// Makes an error that stays until a person acts.
    pub(super) fn lasting(problem: String) -> Self {
        Self { problem, is_passing: false }
    }

    /// Returns true if the same may succeed later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.is_passing
    }
}

/// Makes the error of the cache's disk.
pub(super) fn disk_error(verb: &str, path: &Path, error: &io::Error) -> FetchError {
    use io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let shown = path.display();
    match error.kind() {
        StorageFull | QuotaExceeded => FetchError::lasting(format!(
            "{verb} {shown}: {error}; free space there, or set spec.dataset.cache to a folder on a larger disk"
        )),
        PermissionDenied | ReadOnlyFilesystem | NotADirectory => FetchError::lasting(format!(
            "{verb} {shown}: {error}; set spec.dataset.cache to a folder that the workers can write"
        )),
        _ => FetchError::passing(format!("{verb} {shown}: {error}; check the disk of spec.dataset.cache")),
    }
}

/// Why a request for a file failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The request failed.
    Request(FailureCause),
    /// There is no such file.
    Missing,
    /// The file is another than when it was listed.
    Changed(String),
    /// The file cannot be used, whatever is tried.
    Refused(String),
    /// The cache cannot be written.
    Disk(FetchError),
}

impl Trouble {
    pub(super) fn failed(said: impl ToString) -> Self {
        Self::Request(FailureCause::Failed(said.to_string()))
    }

    /// True if the same request may succeed soon.
    pub(super) fn may_pass_soon(&self) -> bool {
        match self {
            Self::Request(cause) => cause.may_pass_soon(),
            Self::Missing | Self::Changed(_) | Self::Refused(_) | Self::Disk(_) => false,
        }
    }

    /// Makes the final error. `service` is none for a web server.
    pub(super) fn error(self, verb: &str, at: &str, service: Option<ObjectService>, tries: Tries) -> FetchError {
        let cause = match self {
            Self::Request(cause) => cause,
            Self::Missing => {
                let advice = match at.rsplit('/').next() {
                    Some(SUMS) => HOW_TO_SUM,
                    _ => "upload it, or set spec.dataset.uri to a place that exists",
                };
                return FetchError::lasting(format!("{verb} {at}: it does not exist; {advice}"));
            }
            Self::Changed(said) => {
                return FetchError::passing(format!(
                    "{verb} {at}: it changed while it was fetched ({said}); let nobody change the data set of a run"
                ));
            }
            Self::Refused(said) => return FetchError::lasting(format!("{verb} {at}: {said}")),
            Self::Disk(error) => return error,
        };
        let advice = advice(&cause, service);
        let tried = match tries.count {
            0 | 1 => String::new(),
            count => format!(", tried {count} times in {:.0} s", tries.duration.as_secs_f64()),
        };
        let problem = format!("{verb} {at}: {cause}{tried}; {advice}");
        if cause.is_passing() { FetchError::passing(problem) } else { FetchError::lasting(problem) }
    }
}

/// How often and how long a request was tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    pub(super) count: u32,
    pub(super) duration: Duration,
}

fn advice(cause: &FailureCause, service: Option<ObjectService>) -> String {
    let Some(service) = service else {
        return match cause {
            FailureCause::Denied(_) | FailureCause::NoCredentials(_) => {
                "the server must give it to anybody: workers have no user and no password for it"
            }
            FailureCause::Untrusted(_) => "let SSL_CERT_FILE name the certificate authority of the server",
            FailureCause::Refused(_) | FailureCause::Unsupported(_) | FailureCause::NoBucket(_) => {
                "check spec.dataset.uri"
            }
            FailureCause::Clock(_) => "set the clock of this host, for example by NTP",
            FailureCause::Unreachable(_) => "check spec.dataset.uri and the network",
            FailureCause::Full(_) | FailureCause::Slow(_) | FailureCause::Failed(_) => {
                "check the server and the network"
            }
        }
        .to_owned();
    };
    let variables = variables(service);
    match cause {
        FailureCause::NoBucket(_) => "make it, or set spec.dataset.uri to one that exists".to_owned(),
        FailureCause::NoCredentials(_) => {
            format!("set {}, in a cluster by envFrom from a Secret", variables.credentials)
        }
        FailureCause::Denied(_) => {
            format!("check that {} are right and may list and read objects there", variables.credentials)
        }
        FailureCause::Clock(_) => "set the clock of this host, for example by NTP".to_owned(),
        FailureCause::Untrusted(_) => {
            format!("let SSL_CERT_FILE name the certificate authority of the store, or check {}", variables.endpoint)
        }
        FailureCause::Refused(_) | FailureCause::Unsupported(_) => {
            format!("check spec.dataset.uri and {}", variables.endpoint)
        }
        FailureCause::Unreachable(_) => format!("check {} and the network", variables.endpoint),
        FailureCause::Full(_) | FailureCause::Slow(_) | FailureCause::Failed(_) => {
            "check the object store and the network".to_owned()
        }
    }
}
