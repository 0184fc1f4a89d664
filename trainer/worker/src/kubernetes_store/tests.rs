//! The record is swapped over HTTP. The server guards one object by its `resourceVersion`, as an
//! API server does.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    routing::{get, put},
};
use kube::Config;
use lockstep_elastic::RecordError;
use lockstep_launch::Job;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

const PATH: &str = "/apis/lockstep.dev/v1alpha1/namespaces/default/traininggroups/lenet";

/// The events before the writes, one for each; none once they are used up.
#[derive(Clone, Debug)]
enum Between {
    /// A report changes the status of the object before the write.
    Report,
    /// Another coordinator swaps the record before the write.
    Swap(Box<Record>),
    /// The server does the write and answers too late.
    LostAnswer,
}

#[derive(Debug, Default)]
struct Server {
    /// The job that owns the object.
    owner: Option<&'static str>,
    record: Value,
    resource_version: u64,
    writes: u32,
    between: Vec<Between>,
}

type Shared = Arc<Mutex<Server>>;
type Answer = (StatusCode, Json<Value>);

impl Server {
    fn object(&self) -> Value {
        let owner =
            |uid| json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob", "name": "lenet", "uid": uid});
        let owners: Vec<Value> = self.owner.map(owner).into_iter().collect();
        json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "TrainingGroup",
            "metadata": {"name": "lenet", "namespace": "default", "resourceVersion": self.resource_version.to_string(), "ownerReferences": owners},
            "spec": {"record": self.record},
        })
    }

    fn write(&mut self, object: &Value) -> Answer {
        self.writes += 1;
        let between = if self.between.is_empty() { None } else { Some(self.between.remove(0)) };
        match &between {
            Some(Between::Report) => self.resource_version += 1,
            Some(Between::Swap(record)) => {
                self.record = value(record);
                self.resource_version += 1;
            }
            Some(Between::LostAnswer) | None => {}
        }
        if object["metadata"]["resourceVersion"].as_str() != Some(&self.resource_version.to_string()) {
            return refused(StatusCode::CONFLICT, "the object has been modified");
        }
        self.record = object["spec"]["record"].clone();
        self.resource_version += 1;
        match between {
            Some(Between::LostAnswer) => refused(StatusCode::GATEWAY_TIMEOUT, "the request timed out"),
            _ => (StatusCode::OK, Json(self.object())),
        }
    }
}

fn refused(code: StatusCode, message: &str) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "message": message, "code": code.as_u16()});
    (code, Json(status))
}

fn value(record: &Record) -> Value {
    serde_json::from_str(&record.to_json()).expect("JSON")
}

fn locked(server: &Shared) -> std::sync::MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the record that the server holds, and the number of writes that reached it.
fn written(server: &Shared) -> (Value, u32) {
    let server = locked(server);
    (server.record.clone(), server.writes)
}

/// Starts a server that holds `record`. Returns it with a store that uses it.
async fn holding(record: &Record, between: Vec<Between>) -> (Shared, KubernetesStore) {
    let server: Shared = Arc::new(Mutex::new(Server {
        owner: Some("job-1"),
        record: value(record),
        resource_version: 7,
        writes: 0,
        between,
    }));
    let reads = get(|State(server): State<Shared>| async move { Json(locked(&server).object()) });
    let writes =
        put(|State(server): State<Shared>, Json(object): Json<Value>| async move { locked(&server).write(&object) });
    let routes = Router::new().route(PATH, reads.merge(writes)).with_state(Arc::clone(&server));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let url = format!("http://{address}").parse().expect("a URL");
    let client = Client::try_from(Config::new(url)).expect("a client");
    let job = Job { namespace: "default".to_owned(), name: "lenet".to_owned(), uid: "job-1".to_owned() };
    (server, KubernetesStore::new(client, &job))
}

fn records() -> [Record; 3] {
    let first = Record::empty().allocate("coordinator-a");
    let [ours, theirs] = ["coordinator-a", "coordinator-b"].map(|coordinator| first.allocate(coordinator));
    [first, ours, theirs]
}

#[tokio::test]
async fn a_record_is_swapped_although_reports_change_the_resource_version() {
    let [first, ours, _] = records();
    let (server, store) = holding(&first, vec![Between::Report; 3]).await;
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    assert!(matches!(&swap, Ok(Swap::Swapped(version)) if *version == version_of(&ours)), "{swap:?}");
    assert_eq!(written(&server), (value(&ours), 4));
}

#[tokio::test]
async fn a_coordinator_of_a_deleted_job_writes_nothing_into_the_group_of_the_next_one_of_its_name() {
    let [first, ours, _] = records();
    let (server, store) = holding(&first, Vec::new()).await;
    locked(&server).owner = Some("job-2");
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    assert!(matches!(&swap, Err(StoreError::Refused { .. })), "{swap:?}");
    assert!(matches!(store.load().await, Err(StoreError::Refused { .. })));
    assert_eq!(written(&server), (value(&first), 0));
}

#[tokio::test]
async fn the_later_of_two_coordinators_that_swap_at_once_changes_nothing() {
    let [first, ours, theirs] = records();
    let (server, store) = holding(&first, vec![Between::Swap(Box::new(theirs.clone()))]).await;
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    assert!(matches!(swap, Ok(Swap::Conflict)), "{swap:?}");
    assert_eq!(written(&server), (value(&theirs), 1));
    // A later swap of the same version changes nothing either.
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    assert!(matches!(swap, Ok(Swap::Conflict)), "{swap:?}");
    assert_eq!(written(&server), (value(&theirs), 1));
}

#[tokio::test]
async fn a_swap_whose_answer_was_lost_is_found_in_the_record() {
    let [first, ours, _] = records();
    let (_server, store) = holding(&first, vec![Between::LostAnswer]).await;
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    // The client may have tried again, and met its own write.
    assert!(matches!(swap, Err(StoreError::Unavailable { .. }) | Ok(Swap::Conflict)), "{swap:?}");
    let (found, _) = store.load().await.expect("an answer").expect("a record");
    assert_eq!(found, ours);
}

#[tokio::test]
async fn a_store_in_which_every_write_conflicts_counts_as_away_and_keeps_its_record() {
    let [first, ours, _] = records();
    let (server, store) = holding(&first, vec![Between::Report; 2 * MAX_ATTEMPTS as usize]).await;
    let swap = store.compare_and_swap(Some(&version_of(&first)), &ours).await;
    assert!(matches!(swap, Err(StoreError::Unavailable { .. })), "{swap:?}");
    assert_eq!(written(&server), (value(&first), MAX_ATTEMPTS));
}

#[tokio::test]
async fn a_newer_or_foreign_record_is_refused_and_never_overwritten() {
    let [first, ours, _] = records();
    let mut newer = value(&first);
    newer["version"] = (newer["version"].as_u64().expect("a number") + 1).into();
    for (record, is_newer) in [(newer, true), (json!({"replicas": 3}), false)] {
        let (server, store) = holding(&first, Vec::new()).await;
        locked(&server).record = record.clone();
        let loaded = store.load().await.map(drop);
        let swapped = store.compare_and_swap(Some(&version_of(&first)), &ours).await.map(drop);
        for refused in [loaded, swapped] {
            let Err(StoreError::Record { place, source }) = refused else { panic!("{refused:?}") };
            assert_eq!(matches!(source, RecordError::Newer { .. }), is_newer, "{source}");
            assert_eq!(place, "TrainingGroup lenet");
        }
        assert_eq!(written(&server), (record, 0));
    }
}

/// Returns the fate of a write that the API server answers like this.
fn fate(answer: Value) -> &'static str {
    match refusal(&serde_json::from_value(answer).expect("a status")) {
        Refusal::Passing => "passes",
        Refusal::Mendable { .. } => "mendable",
        Refusal::Final { .. } => "final",
    }
}

#[test]
fn the_api_servers_answer_shows_if_waiting_helps() {
    for (code, expected) in [
        (400, "mendable"),
        (401, "mendable"),
        (403, "mendable"),
        (404, "mendable"),
        (405, "mendable"),
        (408, "passes"),
        (409, "passes"),
        (410, "final"),
        (413, "final"),
        (415, "mendable"),
        (422, "mendable"),
        (429, "passes"),
        (500, "passes"),
        (502, "passes"),
        (503, "passes"),
        (504, "passes"),
        (0, "passes"),
    ] {
        assert_eq!(fate(json!({ "code": code })), expected, "{code}");
    }
    let gone = json!({"code": 404, "reason": "NotFound", "details": {"name": "lenet", "kind": "traininggroups"}});
    assert_eq!(fate(gone), "final", "the object is gone, not its kind");
    let too_large = json!({"code": 500, "message": "etcdserver: request is too large"});
    assert_eq!(fate(too_large), "final", "as etcd says it");
}
