//! The record in a cluster: `spec.record` of the job's `TrainingGroup`, guarded by its
//! `resourceVersion`.

use std::time::Duration;

use kube::{
    Api, Client,
    api::PostParams,
    core::{ApiResource, DynamicObject, GroupVersionKind, Status},
};
use lockstep_elastic::{GenerationStore, Record, StoreError, Swap, Version};
use lockstep_launch::{Job, training_group};
use tokio::time::timeout;

/// The HTTP status of a write that was guarded by an older `resourceVersion`.
pub(crate) const CONFLICT: u16 = 409;
/// The writes that may conflict with others before the group counts as out of reach.
pub(crate) const MAX_ATTEMPTS: u32 = 10;

/// An API server that takes longer counts as out of reach: the client itself would wait forever.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The `TrainingGroup` of one job.
pub(crate) struct KubernetesStore {
    groups: Api<DynamicObject>,
    job: Job,
}

/// Returns the API of the groups in the job's namespace.
pub(crate) fn groups(client: Client, job: &Job) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(training_group::API_GROUP, training_group::VERSION, training_group::KIND);
    Api::namespaced_with(client, &job.namespace, &ApiResource::from_gvk_with_plural(&kind, training_group::PLURAL))
}

impl KubernetesStore {
    pub(crate) fn new(client: Client, job: &Job) -> Self {
        Self { groups: groups(client, job), job: job.clone() }
    }

    fn place(&self) -> String {
        format!("{} {}", training_group::KIND, self.job.name)
    }

    fn unavailable(&self, cause: impl ToString) -> StoreError {
        StoreError::Unavailable { place: self.place(), cause: cause.to_string() }
    }

    fn failed(&self, error: kube::Error) -> StoreError {
        let kube::Error::Api(status) = &error else { return self.unavailable(error) };
        let cause = format!("{} ({})", status.message, status.code);
        match refusal(status) {
            Refusal::Passing => self.unavailable(error),
            Refusal::Mendable { advice } => StoreError::Forbidden { place: self.place(), cause, advice },
            Refusal::Final { advice } => StoreError::Refused { place: self.place(), cause, advice },
        }
    }

    async fn get(&self) -> Result<DynamicObject, StoreError> {
        let answer = timeout(ANSWER_LIMIT, self.groups.get(&self.job.name)).await;
        let object = answer.map_err(|_| self.unavailable("no answer"))?.map_err(|error| self.failed(error))?;
        if is_of_another(&object, &self.job) {
            let cause = "it is of another job of this name".to_owned();
            let advice = "this job was deleted: what it saved is in its folder of checkpoints";
            return Err(StoreError::Refused { place: self.place(), cause, advice });
        }
        Ok(object)
    }

    fn record(&self, object: &DynamicObject) -> Result<Option<Record>, StoreError> {
        match object.data.get("spec").and_then(|spec| spec.get(training_group::RECORD)) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => Record::from_json(&value.to_string())
                .map(Some)
                .map_err(|source| StoreError::Record { place: self.place(), source }),
        }
    }
}

impl GenerationStore for KubernetesStore {
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let object = self.get().await?;
        Ok(self.record(&object)?.map(|record| (record.clone(), version_of(&record))))
    }

    async fn compare_and_swap(&self, expected: Option<&Version>, record: &Record) -> Result<Swap, StoreError> {
        let written: serde_json::Value =
            serde_json::from_str(&record.to_json()).map_err(|error| self.unavailable(error))?;
        for _ in 0..MAX_ATTEMPTS {
            let mut object = self.get().await?;
            if self.record(&object)?.as_ref().map(version_of).as_ref() != expected {
                return Ok(Swap::Conflict);
            }
            object.data["spec"][training_group::RECORD] = written.clone();
            let how = PostParams::default();
            let replaced = self.groups.replace(&self.job.name, &how, &object);
            match timeout(ANSWER_LIMIT, replaced).await.map_err(|_| self.unavailable("no answer"))? {
                Ok(_) => return Ok(Swap::Swapped(version_of(record))),
                // A report changed the status of the object, and its `resourceVersion`: read it
                // again.
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Err(self.unavailable(format!("{MAX_ATTEMPTS} writes in a row met somebody else's")))
    }
}

/// Returns true if a group belongs to a later job of the same name. Only that job's coordinators
/// may write into it.
pub(crate) fn is_of_another(group: &DynamicObject, job: &Job) -> bool {
    let owners = group.metadata.owner_references.as_deref().unwrap_or_default();
    !owners.is_empty() && owners.iter().all(|owner| owner.uid != job.uid)
}

/// Returns the version of a record: its content, as in a file.
fn version_of(record: &Record) -> Version {
    Version(record.to_json())
}

/// The meaning of an API server's refusal for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The server may accept the write soon.
    Passing,
    /// The server accepts the write once somebody has repaired the cluster. Until then training
    /// goes on, and changes of the group wait.
    Mendable {
        /// The remedy.
        advice: &'static str,
    },
    /// The server will never accept the write.
    Final {
        /// The remedy.
        advice: &'static str,
    },
}

fn refusal(status: &Status) -> Refusal {
    let names_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    match status.code {
        401 => {
            Refusal::Mendable { advice: "have the API server accept the token of the coordinator's service account" }
        }
        403 => Refusal::Mendable {
            advice: "give the service account lockstep-coordinator its rights to traininggroups back, which the operator made, or change \
                     the policy that forbids it",
        },
        404 if !names_object => Refusal::Mendable { advice: "install Lockstep's CRDs again" },
        404 | 410 => Refusal::Final {
            advice: "it was deleted: the job begins another one, and goes on from its newest checkpoint",
        },
        _ if status.code == 413 || status.message.contains("request is too large") => {
            Refusal::Final { advice: "lower spec.elastic.maxReplicas, or raise etcd's --max-request-bytes" }
        }
        // Timeouts, conflicts, and an overloaded server.
        408 | 409 | 429 => Refusal::Passing,
        400..500 => Refusal::Mendable {
            advice: "see to it that CRDs, operator and trainer are of one version and that no policy refuses the job's TrainingGroup",
        },
        _ => Refusal::Passing,
    }
}

#[cfg(test)]
mod tests;
