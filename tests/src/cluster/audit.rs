//! The requests in the API server's audit log.

use std::fs;

use anyhow::Context as _;
use serde_json::Value;

use super::Cluster;

/// A request that an account made, as the API server noted it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The account, such as `system:serviceaccount:team:default`.
    pub account: String,
    /// The verb, as RBAC names it.
    pub verb: String,
    /// The group of the API; empty for that of pods.
    pub group: String,
    /// The resource, with its subresource behind a slash. Empty if the request was about none.
    pub resource: String,
    /// The namespace of the object; empty if it lies in none, or if the request was about all.
    pub namespace: String,
    /// The name of the object; empty if the request was about several.
    pub name: String,
    /// The status code of the answer.
    pub code: u64,
    /// True if RBAC denied the request. A quota or a policy that refuses it denies no right.
    pub is_denied: bool,
    /// The time at which the request came in, in a form whose order is that of the times.
    pub received: String,
    /// The time at which the answer was sent, in the same form.
    pub answered: String,
}

impl Cluster {
    /// Returns the requests of all accounts that are no part of Kubernetes, in the order of their
    /// answers. A watch is there twice: when it begins and when it ends.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn requests(&self) -> anyhow::Result<Vec<Request>> {
        let path = self.audit_log();
        let log = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // The API server may be in the middle of the last line.
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut requests: Vec<Request> = events.map(|event| request(&event)).collect();
        requests.sort_by(|one, other| one.answered.cmp(&other.answered));
        Ok(requests)
    }
}

/// Reads an event of `audit.k8s.io/v1`.
fn request(event: &Value) -> Request {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (resource, subresource) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    Request {
        account: text("/user/username"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        is_denied: text("/annotations/authorization.k8s.io~1decision") == "forbid",
        received: text("/requestReceivedTimestamp"),
        answered: text("/stageTimestamp"),
    }
}
