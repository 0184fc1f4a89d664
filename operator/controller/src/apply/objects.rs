//! Requests about one object: to make, correct, delete or publish it.

use std::{fmt::Debug, time::SystemTime};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Pod, Secret},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{NamespaceResourceScope, PartialObjectMeta, Request},
};
use lockstep_api::TrainingJob;
use lockstep_plan::{Deletion, JobEvent};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::{info, warn};

use super::ApplyError;

/// Owner of the fields that the operator writes.
pub(super) const FIELD_MANAGER: &str = "lockstep-operator";
/// Asks the API server to answer with an object's metadata.
pub(super) const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Longest text that an event takes, in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// An object that the operator makes. Its kind lies in namespaces.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

/// Makes an object that should not exist yet. If this job owns one, an earlier request was carried
/// out but not seen yet.
pub(super) async fn make_new<K: Object>(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    object: &K,
) -> Result<(), ApplyError> {
    make::<K>(client, namespace, job, &object.name_any(), object).await
}

/// Makes an object of kind `K` from its content, which may have fields that `K` lacks.
pub(super) async fn make<K: Object>(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    name: &str,
    content: &impl Serialize,
) -> Result<(), ApplyError> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = name.to_owned();
    match create::<K>(client, namespace, content).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => match owned(&api, job, &name).await? {
            Some(false) => Err(ApplyError::Taken { kind: K::kind(&()).into_owned(), name }),
            Some(true) | None => Ok(()),
        },
        Err(source) => Err(refused::<K>(name, source)),
    }
}

/// Makes a Secret of fresh credentials, unless it exists. The operator never reads it and has no
/// right to.
pub(super) async fn make_credentials(client: &Client, namespace: &str, metadata: ObjectMeta) -> Result<(), ApplyError> {
    let name = metadata.name.clone().unwrap_or_default();
    let files = lockstep_launch::make_credentials(SystemTime::now())
        .map_err(|source| ApplyError::Credentials { name: name.clone(), message: source.to_string() })?;
    let secret = Secret {
        metadata,
        immutable: Some(true),
        type_: Some("kubernetes.io/tls".to_owned()),
        string_data: Some(files.into_iter().map(|(file, text)| (file.name().to_owned(), text)).collect()),
        ..Secret::default()
    };
    match create::<Secret>(client, namespace, &secret).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(()),
        Err(source) => Err(refused::<Secret>(name, source)),
    }
}

/// Creates an object at the least cost to the API server. It need not look for unknown fields, and
/// it answers with metadata only.
async fn create<K: Object>(
    client: &Client,
    namespace: &str,
    object: &impl Serialize,
) -> Result<PartialObjectMeta<K>, kube::Error> {
    let how = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let mut request =
        Request::new(K::url_path(&(), Some(namespace))).create(&how, body).map_err(kube::Error::BuildRequest)?;
    let target = format!("{}&fieldValidation=Ignore", request.uri());
    *request.uri_mut() = target.parse().map_err(|error: http::uri::InvalidUri| kube::Error::HttpError(error.into()))?;
    request.headers_mut().insert(http::header::ACCEPT, http::HeaderValue::from_static(METADATA_ONLY));
    client.request(request).await
}

/// Makes an object of the job or corrects it.
pub(super) async fn put_own<K: Object>(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    object: &K,
) -> Result<(), ApplyError> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match owned(&api, job, &object.name_any()).await? {
        Some(true) => apply_as(&api, FIELD_MANAGER, &object.name_any(), object).await,
        Some(false) => Err(ApplyError::Taken { kind: K::kind(&()).into_owned(), name: object.name_any() }),
        None => make_new(client, namespace, job, object).await,
    }
}

/// Makes an object that several jobs share, or corrects it. One manager owns its content, so that
/// it does not grow with the jobs. Each job is a manager of its own entry among the owners, so that
/// all owners stay.
pub(super) async fn put_shared<K: Object>(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    object: &K,
) -> Result<(), ApplyError> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = object.name_any();
    let mut content = object.clone();
    let owners = content.meta_mut().owner_references.take();
    apply_as(&api, FIELD_MANAGER, &name, &content).await?;
    let manager = format!("{FIELD_MANAGER}-{}", job.uid().unwrap_or_default());
    let owner = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name, "ownerReferences": owners},
    });
    apply_as(&api, &manager, &name, &owner).await
}

async fn apply_as<K: Object>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    object: &(impl Serialize + Debug),
) -> Result<(), ApplyError> {
    match api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(refused::<K>(name.to_owned(), source)),
    }
}

/// Returns whether the job owns the object; `None` if there is no object.
async fn owned<K: Object>(api: &Api<K>, job: &TrainingJob, name: &str) -> Result<Option<bool>, ApplyError> {
    let there = api.get_metadata_opt(name).await;
    let there = there.map_err(|source| ApplyError::Request { attempt: format!("read {name}"), source })?;
    let uid = job.metadata.uid.as_ref();
    Ok(there.map(|there| there.owner_references().iter().any(|owner| Some(&owner.uid) == uid)))
}

fn refused<K: Resource<DynamicType = ()>>(name: String, source: kube::Error) -> ApplyError {
    refused_kind(K::kind(&()).into_owned(), name, source)
}

pub(super) fn refused_kind(kind: String, name: String, source: kube::Error) -> ApplyError {
    match source {
        // Forbidden (a quota, an admission policy) or invalid; 429 and 5xx pass.
        kube::Error::Api(refusal) if matches!(refusal.code, 400 | 403 | 422) => {
            ApplyError::Refused { kind, name, message: refusal.message.clone() }
        }
        source => ApplyError::Request { attempt: format!("make {kind} {name}"), source },
    }
}

pub(super) async fn delete_pod(pods: Api<Pod>, deletion: Deletion) -> Result<(), ApplyError> {
    let Deletion { pod, uid, by_force } = deletion;
    let only_this = Preconditions { uid: Some(uid), resource_version: None };
    let mut how = DeleteParams::default().preconditions(only_this);
    if by_force {
        how = how.grace_period(0);
    }
    match pods.delete(&pod, &how).await {
        Ok(_) => Ok(()),
        // The pod is gone, or another one has its name.
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
        Err(source) => Err(ApplyError::Request { attempt: format!("delete pod {pod}"), source }),
    }
}

pub(super) async fn remove_job(client: &Client, job: &TrainingJob) -> Result<(), ApplyError> {
    let api: Api<TrainingJob> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    let only_this = Preconditions { uid: job.uid(), resource_version: None };
    let how = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    info!(job = job.name_any(), "time to live is over; deleting the job");
    match api.delete(&job.name_any(), &how.preconditions(only_this)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
        Err(source) => Err(ApplyError::Request { attempt: format!("delete job {}", job.name_any()), source }),
    }
}

/// Publishes an event. A failure to do so stops nothing.
pub(super) async fn publish(client: &Client, job: &TrainingJob, event: &JobEvent) {
    let JobEvent { warning, reason, text } = event;
    let now = Timestamp::now();
    let api: Api<Event> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", job.name_any(), now.as_nanosecond())),
            namespace: job.namespace(),
            ..ObjectMeta::default()
        },
        type_: Some(if *warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some((*reason).to_owned()),
        note: Some(clip(text).to_owned()),
        action: Some((*reason).to_owned()),
        event_time: Some(MicroTime(now)),
        regarding: Some(job.object_ref(&())),
        reporting_controller: Some("lockstep.dev/operator".to_owned()),
        reporting_instance: Some(FIELD_MANAGER.to_owned()),
        ..Event::default()
    };
    info!(namespace = job.namespace(), job = job.name_any(), reason, "{text}");
    if let Err(error) = api.create(&PostParams::default(), &event).await {
        warn!(job = job.name_any(), reason, %error, "event not published");
    }
}

fn clip(text: &str) -> &str {
    let mut end = text.len().min(MAX_NOTE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
