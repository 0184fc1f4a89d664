//! Writes to the cluster. Nothing else does. The status goes first, guarded by the version of the
//! job that the decision was about. A decision about an old version writes nothing at all.

mod gang;
mod objects;
mod status;

use std::future::Future;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use lockstep_api::{TrainingGroup, TrainingJob, label};
use lockstep_plan::{Child, Deletion, JobPlan};

pub(crate) use status::write_status;

use gang::{make_pod, put_pod_group};
use objects::{delete_pod, make_credentials, make_new, publish, put_own, put_shared, remove_job};

/// Greatest number of requests of one job at once. Each waits for the API server's disk.
const MAX_PARALLEL: usize = 32;

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The decision was about an old version of the job.
    #[error("write the status of {job}: the job has changed meanwhile")]
    Outdated { job: String },
    /// The API server refuses an object for its content. No retry helps before something else
    /// changes.
    #[error("make {kind} {name}: the API server refuses it: {message}")]
    Refused { kind: String, name: String, message: String },
    /// An object of the same name belongs to something else, most likely to an earlier job that is
    /// still being removed.
    #[error("make {kind} {name}: one that belongs to something else exists; it may still be in deletion")]
    Taken { kind: String, name: String },
    /// The cluster has no objects of the job's back end of gang scheduling.
    #[error(
        "spec.schedulingPolicy.gang: {gang}: the cluster has no PodGroups of {api_group}; {missing}, or create the job \
         again with another gang"
    )]
    NoGang { gang: &'static str, api_group: &'static str, missing: &'static str },
    /// The system grants no randomness.
    #[error("make the credentials of Secret {name}: {message}")]
    Credentials { name: String, message: String },
    /// Anything else. Another try may help.
    #[error("{attempt}: {source}")]
    Request { attempt: String, source: kube::Error },
}

/// Carries out a plan. Returns the version of the job after its status was written, if it was.
pub(crate) async fn apply(client: &Client, job: &TrainingJob, plan: JobPlan) -> Result<Option<String>, ApplyError> {
    let JobPlan { status, delete, create, events, check_again: _, delete_job } = plan;
    let namespace = job.namespace().unwrap_or_default();
    let version = match status {
        Some(status) => write_status(client, &job.metadata, status).await?,
        None => None,
    };
    let published = async {
        for event in &events {
            publish(client, job, event).await;
        }
    };
    let ((), done) = futures::future::join(published, delete_then_make(client, &namespace, job, delete, create)).await;
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
    together(delete.into_iter().map(|deletion| delete_pod(pods.clone(), deletion))).await?;
    make(client, namespace, job, create).await
}

/// Makes objects in parallel, except for those that need another one first. Pods come last, and the
/// coordinator before the workers.
async fn make(client: &Client, namespace: &str, job: &TrainingJob, children: Vec<Child>) -> Result<(), ApplyError> {
    type Requests<'a> = Vec<BoxFuture<'a, Result<(), ApplyError>>>;
    let (mut accounts, mut roles, mut bindings, mut others) =
        (Requests::new(), Requests::new(), Requests::new(), Requests::new());
    let (mut coordinators, mut workers) = (Vec::new(), Vec::new());
    for child in children {
        match child {
            Child::Pod(pod) if is_coordinator(&pod) => coordinators.push(pod),
            Child::Pod(pod) => workers.push(pod),
            Child::ServiceAccount(account) => {
                accounts.push(async move { put_shared(client, namespace, job, &*account).await }.boxed());
            }
            Child::Credentials(metadata) => {
                accounts.push(async move { make_credentials(client, namespace, *metadata).await }.boxed());
            }
            Child::Role(role) => roles.push(async move { put_shared(client, namespace, job, &*role).await }.boxed()),
            Child::RoleBinding(binding) => {
                bindings.push(async move { put_shared(client, namespace, job, &*binding).await }.boxed());
            }
            Child::Group(group) => {
                let request = async move { make_new::<TrainingGroup>(client, namespace, job, &group).await };
                others.push(request.boxed());
            }
            Child::Service(service) => {
                others.push(async move { put_own(client, namespace, job, &*service).await }.boxed());
            }
            Child::PodGroup(group) => {
                others.push(async move { put_pod_group(client, namespace, job, &group).await }.boxed());
            }
            Child::NetworkPolicy(policy) => {
                others.push(async move { put_own(client, namespace, job, &*policy).await }.boxed());
            }
        }
    }
    // A role must exist before it can be bound.
    let rights = async {
        together(roles).await?;
        together(bindings).await
    };
    let (accounts, rights, others) = futures::join!(together(accounts), rights, together(others));
    accounts.and(rights).and(others)?;
    // A pod needs its account and its volumes first. While there is no coordinator, the objects
    // that it needs are made again. No worker begins without it, so it must not wait behind them.
    let new_pod = |pod: Box<Pod>| async move { make_pod(client, namespace, job, &pod).await };
    together(coordinators.into_iter().map(new_pod)).await?;
    in_growing_batches(workers, new_pod).await
}

fn is_coordinator(pod: &Pod) -> bool {
    pod.labels().get(label::ROLE).is_some_and(|role| role == label::COORDINATOR)
}

/// Makes 1, 10, 100 … pods, each batch after the one before. If no pod of a job would be accepted,
/// the first refusal stops it.
async fn in_growing_batches<T, F>(items: Vec<T>, make: impl Fn(T) -> F) -> Result<(), ApplyError>
where
    F: Future<Output = Result<(), ApplyError>>,
{
    let mut items = items.into_iter();
    let mut size = 1;
    while items.len() > 0 {
        together(items.by_ref().take(size).map(&make)).await?;
        size *= 10;
    }
    Ok(())
}

/// Waits for all requests, because a dropped request may still be carried out. Returns the first
/// error.
async fn together<F>(requests: impl IntoIterator<Item = F>) -> Result<(), ApplyError>
where
    F: Future<Output = Result<(), ApplyError>>,
{
    stream::iter(requests).buffer_unordered(MAX_PARALLEL).collect::<Vec<_>>().await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::client::Body;
    use lockstep_api::{Phase, TrainingJobStatus};
    use lockstep_launch::CredentialFile;
    use lockstep_plan::PodGroup;
    use serde_json::{Value, json};
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

    fn plan() -> JobPlan {
        JobPlan {
            status: Some(TrainingJobStatus { phase: Some(Phase::Running), ..TrainingJobStatus::default() }),
            delete: vec![Deletion { pod: "lenet-worker-0".into(), uid: "p".into(), by_force: true }],
            ..JobPlan::default()
        }
    }

    /// Answers one request. Returns its method, path and body.
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
    async fn the_status_goes_first_and_is_guarded_by_the_version_of_the_decision() {
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
    async fn a_crd_that_lacks_a_field_gets_the_rest_of_the_status() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let applied =
            tokio::spawn(async move { apply(&client, &job(), JobPlan { delete: Vec::new(), ..plan() }).await });
        answer(&mut server, 500, refusal(500, "(x): .status.resizes: field not declared in schema")).await;
        let (method, path, body) = answer(&mut server, 200, written()).await;
        assert_eq!((method.as_str(), path.rsplit('/').next()), ("PATCH", Some("status")));
        assert_eq!(body[1], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
        assert_eq!((&body[2]["path"], &body[2]["value"]["phase"]), (&json!("/status"), &json!("Running")));
        assert_eq!(applied.await.expect("no panic").expect("applied").as_deref(), Some("8"));
    }

    #[tokio::test]
    async fn a_decision_about_an_old_version_deletes_nothing() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let applied = tokio::spawn(async move { apply(&client, &job(), plan()).await });
        answer(&mut server, 409, refusal(409, "conflict")).await;
        assert!(matches!(applied.await.expect("no panic"), Err(ApplyError::Outdated { .. })));
        assert!(server.next_request().await.is_none(), "another request after the conflict");
    }

    #[tokio::test]
    async fn an_exceeded_quota_is_reported_in_the_servers_words_and_stops_the_batch() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let pod = |name: &str| {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            Child::Pod(Box::new(Pod { metadata, ..Pod::default() }))
        };
        let create = vec![pod("a"), pod("b"), pod("c")];
        let plan = JobPlan { create, ..JobPlan::default() };
        let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
        answer(&mut server, 403, refusal(403, "exceeded quota: pods")).await;
        let error = applied.await.expect("no panic").expect_err("refused").to_string();
        assert_eq!(error, "make Pod a: the API server refuses it: exceeded quota: pods");
        assert!(server.next_request().await.is_none(), "another pod after the refusal");
    }

    #[tokio::test]
    async fn credentials_are_made_before_the_pods_and_never_read() {
        for code in [201, 409] {
            let (service, mut server) = pair();
            let client = Client::new(service, "team");
            let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let pod = Child::Pod(Box::new(Pod { metadata: named("a"), ..Pod::default() }));
            let create = vec![Child::Credentials(Box::new(named("lenet-tls"))), pod];
            let plan = JobPlan { create, ..JobPlan::default() };
            let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
            let there = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {}});
            let reply = if code == 201 { there.clone() } else { refusal(409, "exists") };
            let (method, path, body) = answer(&mut server, code, reply).await;
            assert_eq!((method.as_str(), path.as_str()), ("POST", "/api/v1/namespaces/team/secrets"));
            assert_eq!((&body["immutable"], &body["metadata"]["name"]), (&json!(true), &json!("lenet-tls")));
            for file in CredentialFile::ALL {
                assert!(body["stringData"][file.name()].as_str().is_some_and(|text| text.starts_with("-----BEGIN")));
            }
            let (method, path, _) = answer(&mut server, 201, there).await;
            assert_eq!((method.as_str(), path.as_str()), ("POST", "/api/v1/namespaces/team/pods"));
            applied.await.expect("no panic").expect("applied");
            assert!(server.next_request().await.is_none(), "another request");
        }
    }

    fn native_group() -> Child {
        Child::PodGroup(Box::new(PodGroup {
            gang: "native",
            api_group: "scheduling.k8s.io",
            versions: &["v1beta1", "v1alpha2"],
            missing: "use a newer Kubernetes",
            metadata: ObjectMeta { name: Some("lenet".into()), ..ObjectMeta::default() },
            spec: json!({"schedulingPolicy": {"gang": {"minCount": 3}}}),
        }))
    }

    #[tokio::test]
    async fn the_group_of_a_gang_is_made_before_its_pods_which_name_it() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let annotations = Some([(label::SCHEDULING_GROUP.to_owned(), "lenet".to_owned())].into());
        let metadata = ObjectMeta { name: Some("a".into()), annotations, ..ObjectMeta::default() };
        let pod = Child::Pod(Box::new(Pod { metadata, ..Pod::default() }));
        let plan = JobPlan { create: vec![native_group(), pod], ..JobPlan::default() };
        let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
        let unknown = || refusal(404, "the server could not find the requested resource");
        let there = json!({"kind": "PodGroup", "apiVersion": "x/v1", "metadata": {"name": "lenet"}});
        for (version, code) in [("v1beta1", 404), ("v1alpha2", 200)] {
            let path = format!("/apis/scheduling.k8s.io/{version}/namespaces/team/podgroups/lenet");
            let (method, asked, _) = answer(&mut server, 404, unknown()).await;
            assert_eq!((method.as_str(), &asked), ("GET", &path));
            let reply = if code == 404 { unknown() } else { there.clone() };
            let (method, asked, body) = answer(&mut server, code, reply).await;
            assert_eq!((method.as_str(), &asked), ("PATCH", &path));
            assert_eq!(body.pointer("/spec/schedulingPolicy/gang/minCount"), Some(&json!(3)));
        }
        let made = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {}});
        let (method, path, body) = answer(&mut server, 201, made).await;
        assert_eq!((method.as_str(), path.as_str()), ("POST", "/api/v1/namespaces/team/pods"));
        assert_eq!(body["spec"]["schedulingGroup"]["podGroupName"], "lenet");
        applied.await.expect("no panic").expect("applied");
    }

    #[tokio::test]
    async fn a_cluster_without_the_back_end_of_a_gang_is_told_what_it_lacks_and_gets_no_pod() {
        let (service, mut server) = pair();
        let client = Client::new(service, "team");
        let pod = Child::Pod(Box::default());
        let plan = JobPlan { create: vec![native_group(), pod], ..JobPlan::default() };
        let applied = tokio::spawn(async move { apply(&client, &job(), plan).await });
        for _ in 0..4 {
            answer(&mut server, 404, refusal(404, "the server could not find the requested resource")).await;
        }
        let error = applied.await.expect("no panic").expect_err("no such kind").to_string();
        assert_eq!(
            error,
            "spec.schedulingPolicy.gang: native: the cluster has no PodGroups of scheduling.k8s.io; use a newer \
             Kubernetes, or create the job again with another gang"
        );
        assert!(server.next_request().await.is_none(), "a pod");
    }

    #[tokio::test]
    async fn a_pod_of_an_earlier_job_is_not_taken_for_one_of_this_job() {
        for (owner, ours) in [("u", true), ("other", false)] {
            let (service, mut server) = pair();
            let client = Client::new(service, "team");
            let metadata = ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() };
            let create = vec![Child::Pod(Box::new(Pod { metadata, ..Pod::default() }))];
            let plan = JobPlan { create, ..JobPlan::default() };
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
