//! Decides what a failed request means: if it may succeed later, and what a person can do.

use std::{fmt, time::Duration};

use lockstep_checkpoint::ObjectsError;
use lockstep_launch::{ObjectService, ObjectUri};
use object_store::Error;

use crate::Home;

/// A cloud's machine asks for credentials at this address if the environment has none.
const METADATA_SERVICE: &str = "169.254.169.254";
/// The most characters of an answer that an error repeats.
const MAX_ANSWER_CHARS: usize = 300;

/// The verb of a request that makes an object only if there is none.
pub(crate) const CREATING: &str = "creating";

/// A request that has failed.
pub(crate) struct FailedRequest<'a> {
    pub(crate) uri: &'a ObjectUri,
    pub(crate) home: Home,
    pub(crate) verb: &'static str,
    pub(crate) key: &'a str,
    pub(crate) tries: u32,
    pub(crate) duration: Duration,
    /// True if any request to this prefix succeeded before.
    pub(crate) succeeded_before: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    NoBucket(String),
    NoCredentials(String),
    Denied(String),
    /// The clocks of this host and of the store differ by more than signatures allow.
    Clock(String),
    /// The quota or the store's disks are used up.
    Full(String),
    /// The store does not know the request.
    Unsupported(String),
    /// This host does not trust the store's certificate.
    Untrusted(String),
    /// The store understands the request and refuses it.
    Refused(String),
    /// No connection was made.
    Unreachable(String),
    /// There was no answer within this time.
    Slow(Duration),
    /// The store or the network failed.
    Failed(String),
}

impl FailureCause {
    pub(crate) fn of(error: Error) -> Self {
        let text = chain(&error);
        let said = said(&text);
        if text.contains(METADATA_SERVICE) || text.contains("metadata.google.internal") {
            return Self::NoCredentials(said);
        }
        if blames_clock(&text) {
            let theirs = between(&text, "ServerTime").map(|time| format!("; the store's clock says {time}"));
            return Self::Clock(said + &theirs.unwrap_or_default());
        }
        if text.contains("invalid peer certificate") {
            return Self::Untrusted(said);
        }
        match code(&text) {
            Some(code) if means_full(code) => return Self::Full(said),
            // S3 uses status 400 for these.
            Some("RequestTimeout" | "IncompleteBody" | "Throttling" | "SlowDown") => return Self::Failed(said),
            Some("ExpiredToken" | "InvalidToken") => return Self::Denied(said),
            _ => {}
        }
        match (&error, status(&text)) {
            // Callers handle a missing object. Some stores answer so to an unknown user.
            (Error::NotFound { .. }, _) | (_, Some(404)) if code(&text).is_none_or(means_missing_bucket) => {
                Self::NoBucket(said)
            }
            (Error::NotFound { .. }, _) | (_, Some(404)) => Self::Denied(said),
            (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, _) | (_, Some(401 | 403)) => {
                Self::Denied(said)
            }
            (Error::NotSupported { .. } | Error::InvalidPath { .. }, _) => Self::Refused(said),
            (_, Some(408 | 409 | 412 | 429)) => Self::Failed(said),
            (Error::NotImplemented { .. }, _) | (_, Some(501)) => Self::Unsupported(said),
            (_, Some(507)) => Self::Full(said),
            (_, Some(300..=499)) => Self::Refused(said),
            _ if ["redirect without LOCATION", "builder error"].iter().any(|word| text.contains(word)) => {
                Self::Refused(said)
            }
            _ if text.contains("(Connect)") => Self::Unreachable(said),
            _ => Self::Failed(said),
        }
    }

    /// True if the same request may succeed later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::NoBucket(_) | Self::NoCredentials(_) | Self::Denied(_) | Self::Refused(_) => false,
            Self::Unsupported(_) | Self::Untrusted(_) => false,
            Self::Clock(_) | Self::Full(_) | Self::Unreachable(_) | Self::Slow(_) | Self::Failed(_) => true,
        }
    }

    /// True if the same request may succeed soon. A new machine may learn its credentials a little
    /// later. A wrong clock or a full quota needs a person.
    pub(crate) fn may_pass_soon(&self) -> bool {
        match self {
            Self::NoCredentials(_) => true,
            Self::Clock(_) | Self::Full(_) => false,
            _ => self.is_passing(),
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBucket(said) => write!(f, "the bucket does not exist ({said})"),
            Self::NoCredentials(said) => write!(f, "there are no credentials ({said})"),
            Self::Denied(said) => write!(f, "access denied ({said})"),
            Self::Clock(said) => write!(f, "this host's clock is wrong ({said})"),
            Self::Full(said) => write!(f, "no space is left ({said})"),
            Self::Unsupported(said) => write!(f, "the store cannot do that ({said})"),
            Self::Untrusted(said) => write!(f, "the store's certificate is not trusted ({said})"),
            Self::Refused(said) => write!(f, "refused ({said})"),
            Self::Unreachable(said) => write!(f, "the store cannot be reached ({said})"),
            Self::Slow(waited) => write!(f, "no answer within {} s", waited.as_secs_f64()),
            Self::Failed(said) => write!(f, "failed ({said})"),
        }
    }
}

impl FailedRequest<'_> {
    /// Makes the final error.
    pub(crate) fn error(&self, cause: &FailureCause) -> ObjectsError {
        let Self { uri, home, verb, key, tries, duration, succeeded_before } = self;
        let variables = variables(uri.service());
        let advice = match cause {
            FailureCause::NoBucket(_) => "make it, or set spec.checkpoint.uri to one that exists".to_owned(),
            FailureCause::NoCredentials(_) => {
                format!("set {}, in a cluster by envFrom from a Secret", variables.credentials)
            }
            FailureCause::Denied(_) => format!(
                "check that {} are right and may read, write, list and delete objects there{}",
                variables.credentials,
                if *succeeded_before { how_to_renew(*home) } else { "" }
            ),
            FailureCause::Clock(_) => "set the clock of this host, for example by NTP".to_owned(),
            FailureCause::Full(_) => {
                "raise the quota, or free space: `lockstep checkpoints prune`, a lower spec.checkpoint.keepLast"
                    .to_owned()
            }
            FailureCause::Unsupported(_) if *verb == CREATING => {
                "checkpoints need a store that knows `If-None-Match: *`, as S3, R2, MinIO and versitygw do".to_owned()
            }
            FailureCause::Unsupported(_) => {
                "checkpoints need a store that can: update it, or choose another".to_owned()
            }
            FailureCause::Untrusted(_) => {
                format!(
                    "let SSL_CERT_FILE name the certificate authority of the store, or check {}",
                    variables.endpoint
                )
            }
            FailureCause::Refused(_) => format!("check spec.checkpoint.uri and {}", variables.endpoint),
            FailureCause::Unreachable(_) => format!("check {} and the network", variables.endpoint),
            FailureCause::Slow(_) | FailureCause::Failed(_) => "check the object store and the network".to_owned(),
        };
        let tried = match tries {
            1 => String::new(),
            tries => format!(", tried {tries} times in {:.0} s", duration.as_secs_f64()),
        };
        let problem = format!("{verb} {uri}/{key}: {cause}{tried}; {advice}");
        // A request succeeded before, so the credentials have changed since. A restarted process
        // may have the new ones.
        if *succeeded_before || cause.is_passing() {
            ObjectsError::passing(problem)
        } else {
            ObjectsError::lasting(problem)
        }
    }
}

/// Says how a process gets the current credentials.
const fn how_to_renew(home: Home) -> &'static str {
    match home {
        Home::Pod => {
            "; a worker keeps the credentials that it began with: delete the pods one by one once they are right"
        }
        Home::Run => {
            "; a run keeps the credentials that it began with: stop it with Ctrl-C and continue it with the right ones"
        }
        Home::Command => "",
    }
}

/// True if an answer blames the time of the signature or of a certificate.
fn blames_clock(text: &str) -> bool {
    let codes = ["RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired"];
    let words = ["Request date header too old", "Check your iat and exp values", "certificate not valid yet"];
    code(text).is_some_and(|code| codes.contains(&code)) || words.iter().any(|word| text.contains(word))
}

fn means_full(code: &str) -> bool {
    matches!(code, "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" | "XMinioStorageFull" | "InsufficientCapacity")
}

/// Succeeds if only the object is missing. Fails if the bucket is missing.
pub(crate) fn only_the_object_is_missing(error: Error) -> Result<(), Error> {
    match code(&chain(&error)) {
        None | Some("NoSuchKey" | "BlobNotFound") => Ok(()),
        Some(_) => Err(error),
    }
}

fn means_missing_bucket(code: &str) -> bool {
    matches!(code, "NoSuchBucket" | "ContainerNotFound")
}

/// Returns the store's code for the error.
fn code(text: &str) -> Option<&str> {
    between(text, "Code")
}

fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("<{tag}>"))?;
    after.split_once("</").map(|(inner, _)| inner)
}

/// Returns the error of variables that do not make a store.
pub(crate) fn settings_error(uri: &ObjectUri, error: &Error) -> String {
    let Variables { credentials, endpoint } = variables(uri.service());
    format!("{uri}: {}; check {credentials} and {endpoint}", said(&chain(error)))
}

/// The variables that a user sets.
pub(crate) struct Variables {
    pub(crate) credentials: &'static str,
    pub(crate) endpoint: &'static str,
}

pub(crate) fn variables(service: ObjectService) -> Variables {
    match service {
        ObjectService::S3 => Variables {
            credentials: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            endpoint: "AWS_REGION, AWS_ENDPOINT_URL and, for http, AWS_ALLOW_HTTP=true",
        },
        ObjectService::GoogleCloud => Variables { credentials: "GOOGLE_SERVICE_ACCOUNT", endpoint: "GOOGLE_BASE_URL" },
        ObjectService::Azure => Variables {
            credentials: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            endpoint: "AZURE_STORAGE_ENDPOINT",
        },
    }
}

/// Returns an error with all its causes, each once.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let said = deeper.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = deeper.source();
    }
    text
}

/// Returns the status of the answer in the text of an error.
fn status(text: &str) -> Option<u16> {
    let (_, after) = text.split_once("status code: ")?;
    after.get(..3)?.parse().ok()
}

/// Returns what the store answered: its code and message, or else the last cause. Leaves out what
/// it repeats of the request.
fn said(text: &str) -> String {
    let answer = match (code(text), between(text, "Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => match text.split_once("status code: ") {
            Some((_, after)) => after.split(": ").next().unwrap_or(after).to_owned(),
            None => text.rsplit(" - ").next().unwrap_or(text).to_owned(),
        },
    };
    let plain: String = answer.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_ANSWER_CHARS).collect();
    plain.trim().trim_end_matches([':', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(text: &str) -> Error {
        Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn passing_and_lasting_failures_are_told_apart() {
        let answer = |code: u16| {
            failed(&format!(
                "Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: {code} X: "
            ))
        };
        for (code, passing) in
            [(503, true), (500, true), (429, true), (408, true), (412, true), (400, false), (405, false), (501, false)]
        {
            assert_eq!(FailureCause::of(answer(code)).is_passing(), passing, "{code}");
        }
        let coded = |code: &str| {
            let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
            FailureCause::of(failed(&format!("Server returned non-2xx status code: 400 Bad Request: {body}")))
        };
        assert!(coded("RequestTimeout").is_passing() && coded("IncompleteBody").is_passing());
        assert!(
            matches!(coded("ExpiredToken"), FailureCause::Denied(_)) && matches!(coded("X"), FailureCause::Refused(_))
        );
        assert!(FailureCause::of(failed("connection closed before message completed")).is_passing());
        let bare = "Received redirect without LOCATION, this normally indicates an incorrectly configured region";
        assert!(!FailureCause::of(failed(bare)).is_passing());
        assert!(
            matches!(FailureCause::of(answer(404)), FailureCause::NoBucket(_))
                && matches!(FailureCause::of(answer(403)), FailureCause::Denied(_))
        );
        let longer = Error::NotSupported { source: "it has 9 bytes, at most 8 are read".into() };
        assert!(!FailureCause::of(longer).is_passing(), "it will not be shorter the next time");
    }

    fn error_text(home: Home, verb: &'static str, succeeded_before: bool, cause: &FailureCause) -> String {
        let uri: ObjectUri = "s3://bucket/job".parse().expect("a URI");
        let request =
            FailedRequest { uri: &uri, home, verb, key: "k", tries: 1, duration: Duration::ZERO, succeeded_before };
        request.error(cause).to_string()
    }

    #[test]
    fn a_denial_after_success_names_the_way_to_new_credentials() {
        let error_text = |home, succeeded_before| {
            error_text(home, "writing", succeeded_before, &FailureCause::Denied("ExpiredToken".to_owned()))
        };
        assert!(error_text(Home::Pod, true).contains("delete the pods"), "{}", error_text(Home::Pod, true));
        assert!(error_text(Home::Run, true).contains("stop it with Ctrl-C"), "{}", error_text(Home::Run, true));
        for (home, succeeded_before) in
            [(Home::Run, true), (Home::Command, true), (Home::Pod, false), (Home::Run, false)]
        {
            assert!(!error_text(home, succeeded_before).contains("pods"), "{}", error_text(home, succeeded_before));
        }
    }

    #[test]
    fn advice_fits_its_cause() {
        let answer = |status: &str, code: &str| {
            let body =
                format!("<Error><Code>{code}</Code><Message>m</Message><ServerTime>2026-11-22</ServerTime></Error>");
            failed(&format!("Server returned non-2xx status code: {status}: {body}"))
        };
        for (error, verb, wanted, unwanted) in [
            (answer("403 Forbidden", "RequestTimeTooSkewed"), "writing", "clock of this host", "AWS_ACCESS_KEY_ID"),
            (answer("403 Forbidden", "RequestTimeTooSkewed"), "writing", "store's clock says 2026-11-22", "AWS_"),
            (answer("403 Forbidden", "QuotaExceeded"), "writing", "raise the quota", "AWS_ACCESS_KEY_ID"),
            (answer("501 Not Implemented", "NotImplemented"), CREATING, "`If-None-Match: *`", "AWS_REGION"),
            (answer("501 Not Implemented", "NotImplemented"), "deleting", "choose another", "AWS_REGION"),
            (failed("(Connect): invalid peer certificate: UnknownIssuer"), "reading", "SSL_CERT_FILE", "the network"),
            (answer("403 Forbidden", "InvalidAccessKeyId"), "reading", "AWS_ACCESS_KEY_ID", "clock"),
        ] {
            let said = error_text(Home::Run, verb, false, &FailureCause::of(error));
            assert!(said.contains(wanted) && !said.contains(unwanted), "{said}");
        }
    }

    #[test]
    fn an_error_repeats_only_code_and_message_of_an_answer() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>SignatureDoesNotMatch</Code>\
                    <Message>The signature does not match.</Message><StringToSign>AWS4 secret</StringToSign></Error>";
        assert_eq!(said(body), "SignatureDoesNotMatch: The signature does not match");
        assert_eq!(
            said("Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: 503 Busy: "),
            "503 Busy"
        );
    }
}
