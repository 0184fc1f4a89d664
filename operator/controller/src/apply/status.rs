//! Writes the status of a job. The CRD may be older than this operator. Then it lacks fields, and
//! the status says so.

use http::{HeaderValue, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use lockstep_api::{ConditionType, TrainingJob, TrainingJobStatus};
use serde_json::json;
use tracing::warn;

use super::{
    ApplyError,
    objects::{FIELD_MANAGER, METADATA_ONLY},
};

/// The API server's words about a field that the CRD lacks.
const NO_SUCH_FIELD: &str = "field not declared in schema";

/// Its words about a patch whose test failed.
const TEST_FAILED: &str = "the server rejected our request";

/// Writes the status of an object. Its metadata may be the only part that could be parsed.
pub(crate) async fn write_status(
    client: &Client,
    metadata: &ObjectMeta,
    status: TrainingJobStatus,
) -> Result<Option<String>, ApplyError> {
    let (namespace, name) =
        (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
    let api: Api<PartialObjectMeta<TrainingJob>> = Api::namespaced(client.clone(), namespace);
    let body = json!({
        "apiVersion": TrainingJob::api_version(&()),
        "kind": TrainingJob::kind(&()),
        "metadata": {"name": name, "uid": metadata.uid, "resourceVersion": metadata.resource_version},
        "status": status,
    });
    let written = api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(body)).await;
    let written = match written {
        Err(kube::Error::Api(refusal)) if refusal.message.contains(NO_SUCH_FIELD) => {
            warn!(namespace, job = name, error = refusal.message, "the CRD is older than this operator");
            replace_status(client, metadata, with_advice(status, &refusal.message)).await
        }
        written => written,
    };
    match written {
        Ok(written) => Ok(written.metadata.resource_version),
        // The job was deleted meanwhile.
        Err(kube::Error::Api(refusal)) if refusal.code == 404 => Ok(None),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Err(ApplyError::Outdated { job: name }),
        Err(source) => Err(ApplyError::Request { attempt: format!("write the status of {name}"), source }),
    }
}

/// Puts the advice into the condition that people read first.
fn with_advice(mut status: TrainingJobStatus, refusal: &str) -> TrainingJobStatus {
    let refused =
        refusal.split_whitespace().find_map(|word| word.strip_suffix(':').filter(|word| word.starts_with('.')));
    let lacks = refused.map(|field| format!(" and lacks {field}")).unwrap_or_default();
    let advice = format!(
        "; the CRD of TrainingJobs is older than this operator{lacks}: apply the CRDs of the operator's version (crds/, or \
         the chart with crds.install=true)"
    );
    let first = [ConditionType::Failed, ConditionType::Running].map(|type_| type_.to_string());
    for type_ in first {
        if let Some(condition) = status.conditions.iter_mut().find(|condition| condition.type_ == type_) {
            condition.message.push_str(&advice);
            break;
        }
    }
    status
}

/// Replaces the whole status. The API server drops what the CRD lacks. A test of the version takes
/// the place of a precondition.
async fn replace_status(
    client: &Client,
    metadata: &ObjectMeta,
    status: TrainingJobStatus,
) -> Result<PartialObjectMeta<TrainingJob>, kube::Error> {
    let url = format!(
        "{}/{}/status?fieldManager={FIELD_MANAGER}",
        TrainingJob::url_path(&(), metadata.namespace.as_deref()),
        metadata.name.as_deref().unwrap_or_default()
    );
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
        {"op": "add", "path": "/status", "value": status},
    ]);
    let body = serde_json::to_vec(&patch).map_err(kube::Error::SerdeError)?;
    let request = http::Request::patch(url)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json-patch+json"))
        .header(header::ACCEPT, HeaderValue::from_static(METADATA_ONLY))
        .body(body)
        .map_err(kube::Error::HttpError)?;
    match client.request::<PartialObjectMeta<TrainingJob>>(request).await {
        // A test failed: the job has changed.
        Err(kube::Error::Api(mut refusal)) if refusal.code == 422 && refusal.message.starts_with(TEST_FAILED) => {
            refusal.code = 409;
            Err(kube::Error::Api(refusal))
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;

    #[test]
    fn the_advice_names_the_field_that_an_old_crd_lacks() {
        let condition = |type_: &str| Condition {
            type_: type_.into(),
            status: "True".into(),
            reason: "Training".into(),
            message: "2 workers train".into(),
            observed_generation: None,
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        };
        let conditions = vec![condition("Degraded"), condition("Running")];
        let refusal = "failed to create typed patch object (team/lenet; lockstep.dev/v1alpha1, Kind=TrainingJob): \
                       .status.resizes: field not declared in schema";
        let told = with_advice(TrainingJobStatus { conditions, ..TrainingJobStatus::default() }, refusal);
        assert_eq!(told.conditions[0].message, "2 workers train");
        let expected =
            "2 workers train; the CRD of TrainingJobs is older than this operator and lacks .status.resizes: apply";
        assert!(told.conditions[1].message.starts_with(expected), "{}", told.conditions[1].message);
    }
}
