//! Writes to the cluster, and is the only place that does. The status goes first, guarded by the version of the job that
//! the decision was made on: whoever decided on an old one writes nothing at all.

use std::{fmt::Debug, future::Future};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::Pod, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{NamespaceResourceScope, PartialObjectMeta, Request},
};
use lockstep_api::{TrainingGroup, TrainingJob, TrainingJobStatus, label};
use lockstep_plan::{Child, Deletion, Note, Plan};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::{info, warn};

/// Owner of the fields that the operator writes.
const FIELD_MANAGER: &str = "lockstep-operator";
/// Most requests of one job that are under way at once. Each waits for the API server's disk.
const MAX_PARALLEL: usize = 64;
/// Asks the API server to answer with an object's metadata.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Longest text that an event takes, in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The decision was made on an old version of the job.
    #[error("write the status of {job}: the job has changed meanwhile")]
    Outdated { job: String },
    /// The API server refuses an object for what it is: no retry helps before something else changes.
    #[error("make {kind} {name}: the API server refuses it: {message}")]
    Refused { kind: String, name: String, message: String },
    /// An object of the same name belongs to something else, most likely to an earlier job that is still being removed.
    #[error("make {kind} {name}: one that belongs to something else exists; it may still be in deletion")]
    Taken { kind: String, name: String },
    /// Anything else; trying again may help.
    #[error("{attempt}: {source}")]
    Request { attempt: String, source: kube::Error },
}

/// Carries out a plan; the version of the job after its status was written, if it was.
pub(crate) async fn apply(client: &Client, job: &TrainingJob, plan: Plan) -> Result<Option<String>, ApplyError> {
    let Plan { status, delete, create, events, check_again: _, delete_job } = plan;
    let namespace = job.namespace().unwrap_or_default();
    let version = match status {
        Some(status) => write_status(client, &job.metadata, status).await?,
        None => None,
    };
    let told = async {
        for note in &events {
            tell(client, job, note).await;
        }
    };
    let ((), done) = futures::future::join(told, delete_then_make(client, &namespace, job, delete, create)).await;
    done?;
    if delete_job {
        remove_job(client, job).await?;
    }
    Ok(version)
}

async fn delete_then_make(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    delete: Vec<Deletion>,
    create: Vec<Child>,
) -> Result<(), ApplyError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let deletions = delete.into_iter().map(|deletion| delete_pod(pods.clone(), deletion));
    stream::iter(deletions)
        .buffer_unordered(MAX_PARALLEL)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    make(client, namespace, job, create).await
}

/// Writes the status of an object of which perhaps only the metadata could be read.
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
    match api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(body)).await {
        Ok(written) => Ok(written.metadata.resource_version),
        // Deleted meanwhile: nothing is left to tell.
        Err(kube::Error::Api(refusal)) if refusal.code == 404 => Ok(None),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Err(ApplyError::Outdated { job: name }),
        Err(source) => Err(ApplyError::Request { attempt: format!("write the status of {name}"), source }),
    }
}

/// The coordinator's pod comes after what it needs; the workers' pods, the bulk, meanwhile.
async fn make(client: &Client, namespace: &str, job: &TrainingJob, children: Vec<Child>) -> Result<(), ApplyError> {
    let (mut coordinators, mut workers, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
    let mut surroundings = Vec::<BoxFuture<'_, Result<(), ApplyError>>>::new();
    for child in children {
        match child {
            Child::Pod(pod) if is_coordinator(&pod) => coordinators.push(pod),
            Child::Pod(pod) => workers.push(pod),
            // Nobody may bind a role that is not there.
            Child::RoleBinding(binding) => bindings.push(binding),
            Child::Group(group) => {
                let request = async move { make_new::<TrainingGroup>(client, namespace, job, &group).await };
                surroundings.push(request.boxed());
            }
            Child::ServiceAccount(account) => {
                surroundings.push(async move { put_shared(client, namespace, job, &*account).await }.boxed());
            }
            Child::Role(role) => {
                surroundings.push(async move { put_shared(client, namespace, job, &*role).await }.boxed())
            }
            Child::Service(service) => {
                surroundings.push(async move { put_own(client, namespace, job, &*service).await }.boxed());
            }
            Child::NetworkPolicy(policy) => {
                surroundings.push(async move { put_own(client, namespace, job, &*policy).await }.boxed());
            }
        }
    }
    let new_pod = |pod: Box<Pod>| async move { make_new::<Pod>(client, namespace, job, &pod).await };
    let coordinator = async {
        together(surroundings).await?;
        together(bindings.iter().map(|binding| put_shared(client, namespace, job, &**binding))).await?;
        together(coordinators.into_iter().map(new_pod)).await
    };
    let (coordinator, workers) = futures::future::join(coordinator, in_growing_batches(workers, new_pod)).await;
    coordinator.and(workers)
}

fn is_coordinator(pod: &Pod) -> bool {
    pod.labels().get(label::ROLE).is_some_and(|role| role == label::COORDINATOR)
}

/// 1, 4, 16 … at once: the first refusal stops a job that no pod of which would be accepted.
async fn in_growing_batches<T, F>(items: Vec<T>, make: impl Fn(T) -> F) -> Result<(), ApplyError>
where
    F: Future<Output = Result<(), ApplyError>>,
{
    let mut items = items.into_iter();
    let mut size = 1;
    while items.len() > 0 {
        together(items.by_ref().take(size).map(&make)).await?;
        size = (4 * size).min(MAX_PARALLEL);
    }
    Ok(())
}

/// Waits for all of them, since a request that is dropped may be carried out or not; the first error.
async fn together<F>(requests: impl IntoIterator<Item = F>) -> Result<(), ApplyError>
where
    F: Future<Output = Result<(), ApplyError>>,
{
    futures::future::join_all(requests).await.into_iter().collect()
}

/// Makes an object that must not be there yet. One of this job is: an earlier attempt was carried out but not seen yet.
async fn make_new<K>(client: &Client, namespace: &str, job: &TrainingJob, object: &K) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = object.name_any();
    match create(client, namespace, object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => match owned(&api, job, &name).await? {
            Some(false) => Err(ApplyError::Taken { kind: K::kind(&()).into_owned(), name }),
            Some(true) | None => Ok(()),
        },
        Err(source) => Err(refused::<K>(name, source)),
    }
}

/// Creates an object at the least cost to the API server: it need not look for unknown fields, nor write out what is known here.
async fn create<K>(client: &Client, namespace: &str, object: &K) -> Result<PartialObjectMeta<K>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
{
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
async fn put_own<K>(client: &Client, namespace: &str, job: &TrainingJob, object: &K) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match owned(&api, job, &object.name_any()).await? {
        Some(true) => apply_as(&api, FIELD_MANAGER, &object.name_any(), object).await,
        Some(false) => Err(ApplyError::Taken { kind: K::kind(&()).into_owned(), name: object.name_any() }),
        None => make_new(client, namespace, job, object).await,
    }
}

/// Makes an object that several jobs share, or corrects it. What it says has one manager, so that the object does not grow with the
/// jobs; that a job owns it too has a manager of that job's own, so that it keeps all its owners.
async fn put_shared<K>(client: &Client, namespace: &str, job: &TrainingJob, object: &K) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
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

async fn apply_as<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    object: &(impl Serialize + Debug),
) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    match api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(refused::<K>(name.to_owned(), source)),
    }
}

/// Whether an object is the job's; `None` when there is none.
async fn owned<K>(api: &Api<K>, job: &TrainingJob, name: &str) -> Result<Option<bool>, ApplyError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let there = api.get_metadata_opt(name).await;
    let there = there.map_err(|source| ApplyError::Request { attempt: format!("read {name}"), source })?;
    let uid = job.metadata.uid.as_ref();
    Ok(there.map(|there| there.owner_references().iter().any(|owner| Some(&owner.uid) == uid)))
}

fn refused<K: Resource<DynamicType = ()>>(name: String, source: kube::Error) -> ApplyError {
    let kind = K::kind(&()).into_owned();
    match source {
        // Forbidden (a quota, an admission policy) or invalid; 429 and 5xx pass.
        kube::Error::Api(refusal) if matches!(refusal.code, 400 | 403 | 422) => {
            ApplyError::Refused { kind, name, message: refusal.message.clone() }
        }
        source => ApplyError::Request { attempt: format!("make {kind} {name}"), source },
    }
}

async fn delete_pod(pods: Api<Pod>, deletion: Deletion) -> Result<(), ApplyError> {
    let Deletion { pod, uid, by_force } = deletion;
    let only_this = Preconditions { uid: Some(uid), resource_version: None };
    let mut how = DeleteParams::default().preconditions(only_this);
    if by_force {
        how = how.grace_period(0);
    }
    match pods.delete(&pod, &how).await {
        Ok(_) => Ok(()),
        // Gone, or another pod by now.
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
        Err(source) => Err(ApplyError::Request { attempt: format!("delete pod {pod}"), source }),
    }
}

async fn remove_job(client: &Client, job: &TrainingJob) -> Result<(), ApplyError> {
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

/// Tells an event. One that cannot be told is no reason to stop.
async fn tell(client: &Client, job: &TrainingJob, note: &Note) {
    let Note { warning, reason, text } = note;
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
        warn!(job = job.name_any(), reason, %error, "event not told");
    }
}

fn clip(text: &str) -> &str {
    let mut end = text.len().min(MAX_NOTE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use lockstep_api::Phase;
    use serde_json::Value;
    use tower_test::mock::{Handle, pair};

    use super::*;

    type Server = Handle<Request<Body>, Response<Body>>;

    fn job() -> TrainingJob {
        serde_json::from_value(json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "lenet", "namespace": "team", "uid": "u", "resourceVersion": "7"},
            "spec": {"model": {"name": "lenet5"}, "dataset": {"format": "glyphs"}, "checkpoint": {"uri": "file:///c"}},
        }))
        .expect("a job")
    }

    fn plan() -> Plan {
        Plan {
            status: Some(TrainingJobStatus { phase: Some(Phase::Running), ..TrainingJobStatus::default() }),
            delete: vec![Deletion { pod: "lenet-worker-0".into(), uid: "p".into(), by_force: true }],
            ..Plan::default()
        }
    }

    /// Answers one request; its method, path and body.
    async fn answer(server: &mut Server, code: u16, reply: Value) -> (String, String, Value) {
        let (request, send) = server.next_request().await.expect("a request");
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a body");
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        send.send_response(
            Response::builder().status(code).body(Body::from(reply.to_string().into_bytes())).expect("a response"),
        );
        (head.method.to_string(), head.uri.path().to_owned(), body)
    }

    fn refusal(code: u16, message: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "X", "code": code})
    }

    fn written() -> Value {
        json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
               "metadata": {"name": "lenet", "namespace": "team", "resourceVersion": "8"}})
    }

    #[tokio::test]
    async fn the_status_goes_first_and_is_guarded_by_the_version_decided_on() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let applied = tokio::spawn(async move { apply(&client, &job(), plan()).await });
        let (method, path, body) = answer(&mut server, 200, written()).await;
        assert_eq!((method.as_str(), path.rsplit('/').next()), ("PATCH", Some("status")));
        assert_eq!(body["metadata"]["resourceVersion"], "7");
        assert_eq!(body["status"]["phase"], "Running");
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        let (method, path, body) = answer(&mut server, 200, gone).await;
        assert_eq!((method.as_str(), path.as_str()), ("DELETE", "/api/v1/namespaces/team/pods/lenet-worker-0"));
        assert_eq!((&body["preconditions"]["uid"], &body["gracePeriodSeconds"]), (&json!("p"), &json!(0)));
        assert_eq!(applied.await.expect("no panic").expect("applied").as_deref(), Some("8"));
    }

    #[tokio::test]
    async fn a_decision_on_an_old_version_deletes_nothing() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let applied = tokio::spawn(async move { apply(&client, &job(), plan()).await });
        answer(&mut server, 409, refusal(409, "conflict")).await;
        assert!(matches!(applied.await.expect("no panic"), Err(ApplyError::Outdated { .. })));
        assert!(server.next_request().await.is_none(), "another request after the conflict");
    }

    #[tokio::test]
    async fn a_quota_is_told_in_the_servers_words_and_stops_the_batch() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let pod = |name: &str| {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            Child::Pod(Box::new(Pod { metadata, ..Pod::default() }))
        };
        let create = vec![pod("a"), pod("b"), pod("c")];
        let plan = Plan { create, ..Plan::default() };
        let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
        answer(&mut server, 403, refusal(403, "exceeded quota: pods")).await;
        let error = applied.await.expect("no panic").expect_err("refused").to_string();
        assert_eq!(error, "make Pod a: the API server refuses it: exceeded quota: pods");
        assert!(server.next_request().await.is_none(), "another pod after the refusal");
    }

    #[tokio::test]
    async fn a_pod_of_an_earlier_job_is_not_taken_for_this_ones() {
        for (owner, ours) in [("u", true), ("other", false)] {
            let (service, mut server) = pair();
            let client = Client::new(service, "team");
            let metadata = ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() };
            let create = vec![Child::Pod(Box::new(Pod { metadata, ..Pod::default() }))];
            let plan = Plan { create, ..Plan::default() };
            let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
            answer(&mut server, 409, refusal(409, "exists")).await;
            let owners =
                json!([{"apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob", "name": "lenet", "uid": owner}]);
            let there = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                               "metadata": {"name": "a", "ownerReferences": owners}});
            answer(&mut server, 200, there).await;
            let result = applied.await.expect("no panic");
            assert_eq!(result.is_ok(), ours, "{result:?}");
        }
    }
}
