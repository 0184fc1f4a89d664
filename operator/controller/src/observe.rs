//! Reads the cluster. Nothing else does. Four watches run, and only the facts that decisions need
//! are kept.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{Stream, StreamExt, channel::mpsc};
use k8s_openapi::{
    api::{core::v1::Pod, networking::v1::NetworkPolicy},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DeserializeGuard, DynamicObject},
    runtime::{reflector::ObjectRef, watcher, watcher::Event},
};
use lockstep_api::{MANAGED_BY, TrainingGroup, TrainingJob, ValidJob, label};
use lockstep_plan::{EgressDenied, GroupSeen, Observed, PodSeen, labels_of_pods};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    metrics::Metrics,
    patient_watch::{WatchHistory, WatchState, WatchStates, patient},
};

/// A job as the API server stores it. A job that cannot be parsed must not hide the others.
pub(crate) type StoredJob = DeserializeGuard<TrainingJob>;

/// Requests that wait for the reconciler. A full queue holds the watches back.
const QUEUE: usize = 1024;
/// Objects in one page of a list. This bounds the memory that a list takes.
const PAGE: u32 = 200;

/// Everything that is known of the objects of the jobs in one scope: a namespace, or all.
pub(crate) struct Surroundings {
    pods: Mutex<Pods>,
    groups: Mutex<Groups>,
    policies: Mutex<Policies>,
}

/// Pods by the namespace and uid of their job, then by name.
type Pods = HashMap<(String, String), BTreeMap<String, PodSeen>>;
/// Records by namespace and name: the uid of the owning job, and the coordinator's reports.
type Groups = HashMap<(String, String), (String, GroupSeen)>;

/// Policies that deny egress, by namespace and name.
type Policies = HashMap<(String, String), EgressDenied>;

/// Returns the API of a kind in one namespace, or in all.
pub(crate) fn scoped<K>(client: Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

impl Surroundings {
    /// Begins to watch pods, records and policies. The stream yields a job when one of its objects
    /// changes.
    pub(crate) fn watch(
        client: &Client,
        namespace: Option<&str>,
        metrics: &Arc<Metrics>,
    ) -> (Arc<Self>, [WatchStates; 2], impl Stream<Item = ObjectRef<StoredJob>> + use<>) {
        let surroundings =
            Arc::new(Self { pods: Mutex::default(), groups: Mutex::default(), policies: Mutex::default() });
        let (announce, announced) = mpsc::channel(QUEUE);
        let (pods_done, pods_seen) = watch::channel(WatchState::Nothing);
        let (groups_done, groups_seen) = watch::channel(WatchState::Nothing);
        let ours = watcher::Config::default().labels(label::JOB_UID).page_size(PAGE);
        let pods = follow(
            scoped::<Pod>(client.clone(), namespace),
            ours,
            Arc::clone(&surroundings),
            (
                announce.clone(),
                pods_done.clone(),
                WatchHistory::new("Pod", namespace, Some(pods_done)),
                Arc::clone(metrics),
            ),
        );
        let groups = follow(
            scoped::<DeserializeGuard<TrainingGroup>>(client.clone(), namespace),
            watcher::Config::default().page_size(PAGE),
            Arc::clone(&surroundings),
            (
                announce.clone(),
                groups_done.clone(),
                WatchHistory::new("TrainingGroup", namespace, Some(groups_done)),
                Arc::clone(metrics),
            ),
        );
        // Jobs do not wait for policies. If the watch is refused, jobs run as in most clusters,
        // where nothing denies egress.
        let policies_done = watch::Sender::new(WatchState::Nothing);
        let policies = follow(
            scoped::<NetworkPolicy>(client.clone(), namespace),
            watcher::Config::default().page_size(PAGE),
            Arc::clone(&surroundings),
            (announce, policies_done, WatchHistory::new("NetworkPolicy", namespace, None), Arc::clone(metrics)),
        );
        tokio::spawn(policies);
        tokio::spawn(pods);
        tokio::spawn(groups);
        (surroundings, [pods_seen, groups_seen], announced)
    }

    /// Returns the facts about a job.
    pub(crate) fn of(&self, job: &TrainingJob, valid: Option<&ValidJob>, refused: Option<String>) -> Observed {
        let uid = job.uid().unwrap_or_default();
        let key = (job.namespace().unwrap_or_default(), job.name_any());
        let of_job = (key.0.clone(), uid.clone());
        let pods = locked(&self.pods).get(&of_job).map(|pods| pods.values().cloned().collect()).unwrap_or_default();
        let group = locked(&self.groups).get(&key).filter(|(owner, _)| *owner == uid).map(|(_, group)| group.clone());
        let status = job.status.clone().unwrap_or_default();
        let egress_denied = valid.is_some_and(|valid| self.denies_egress(&of_job.0, &labels_of_pods(valid)));
        Observed { generation: job.metadata.generation, status, pods, group, refused, egress_denied }
    }

    fn denies_egress(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        locked(&self.policies).iter().any(|((of, _), denied)| of == namespace && denied.selects(labels))
    }
}

/// True if a job that this version cannot parse is for this operator and never began. A job with a
/// phase could be parsed once. A newer operator, whose CRD came before it, will parse it again.
pub(crate) async fn is_unbegun(client: &Client, metadata: &ObjectMeta) -> Result<bool, kube::Error> {
    let kind = ApiResource::erase::<TrainingJob>(&());
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let there = api.get_opt(metadata.name.as_deref().unwrap_or_default()).await?;
    Ok(there.is_some_and(|job| {
        job.data["status"]["phase"].is_null()
            && job.data["spec"]["managedBy"].as_str().unwrap_or(MANAGED_BY) == MANAGED_BY
    }))
}

/// A kind of object that is watched beside the jobs.
trait Watched: Resource<DynamicType = ()> {
    /// Everything that is known of the kind.
    type Known: Default;
    /// Returns the place of that knowledge.
    fn known(surroundings: &Surroundings) -> &Mutex<Self::Known>;
    /// Takes an object over, or forgets it if it does not exist any more.
    fn see(&self, known: &mut Self::Known, exists: bool);
}

impl Watched for Pod {
    type Known = Pods;

    fn known(surroundings: &Surroundings) -> &Mutex<Pods> {
        &surroundings.pods
    }

    fn see(&self, known: &mut Pods, exists: bool) {
        let Some(uid) = self.labels().get(label::JOB_UID) else { return };
        let job = (self.namespace().unwrap_or_default(), uid.clone());
        let of_job = known.entry(job.clone()).or_default();
        match PodSeen::of(self).filter(|_| exists) {
            Some(seen) => drop(of_job.insert(seen.name.clone(), seen)),
            None => drop(of_job.remove(&self.name_any())),
        }
        if of_job.is_empty() {
            known.remove(&job);
        }
    }
}

impl Watched for NetworkPolicy {
    type Known = Policies;

    fn known(surroundings: &Surroundings) -> &Mutex<Policies> {
        &surroundings.policies
    }

    fn see(&self, known: &mut Policies, exists: bool) {
        let key = (self.namespace().unwrap_or_default(), self.name_any());
        match EgressDenied::of(self).filter(|_| exists) {
            Some(denied) => drop(known.insert(key, denied)),
            None => drop(known.remove(&key)),
        }
    }
}

/// A coordinator runs the user's image. A record that it broke must not hide the records of others.
impl Watched for DeserializeGuard<TrainingGroup> {
    type Known = Groups;

    fn known(surroundings: &Surroundings) -> &Mutex<Groups> {
        &surroundings.groups
    }

    fn see(&self, known: &mut Groups, exists: bool) {
        let key = (self.namespace().unwrap_or_default(), self.name_any());
        let owner = self.owner_references().iter().find(|owner| owner.controller == Some(true));
        let status = self.0.as_ref().ok().and_then(|group| group.status.clone()).unwrap_or_default();
        match owner.filter(|_| exists) {
            Some(owner) => {
                let seen = GroupSeen { progress: status.progress, changes: status.changes, ending: status.ending };
                known.insert(key, (owner.uid.clone(), seen));
            }
            None => drop(known.remove(&key)),
        }
    }
}

/// Follows one watch for the life of the process. A new list is collected first. Then it replaces
/// the old one at once, so that no reader sees half of it.
async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    surroundings: Arc<Surroundings>,
    (mut announce, state, history, metrics): (
        mpsc::Sender<ObjectRef<StoredJob>>,
        watch::Sender<WatchState>,
        WatchHistory,
        Arc<Metrics>,
    ),
) where
    K: Watched + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut listed: Vec<K> = Vec::new();
    let events = patient(watcher(api, config), history, move || metrics.watch_restarted());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let changed: Vec<ObjectRef<StoredJob>> = match event {
            Event::Init => {
                listed.clear();
                continue;
            }
            Event::InitApply(object) => {
                listed.push(object);
                continue;
            }
            Event::InitDone => {
                let mut fresh = K::Known::default();
                listed.iter().for_each(|object| object.see(&mut fresh, true));
                *locked(K::known(&surroundings)) = fresh;
                state.send_replace(WatchState::Listed);
                let touched: HashSet<_> = mem::take(&mut listed).iter().filter_map(job_of).collect();
                touched.into_iter().collect()
            }
            Event::Apply(object) => {
                object.see(&mut locked(K::known(&surroundings)), true);
                job_of(&object).into_iter().collect()
            }
            Event::Delete(object) => {
                object.see(&mut locked(K::known(&surroundings)), false);
                job_of(&object).into_iter().collect()
            }
        };
        for job in changed {
            if futures::SinkExt::send(&mut announce, job).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the job that owns an object.
fn job_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<StoredJob>> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == TrainingJob::kind(&()))?;
    Some(ObjectRef::new(&owner.name).within(object.meta().namespace.as_deref()?))
}

/// Locks a mutex, also after a panic. Each change under these locks is one insertion, removal or
/// replacement, so the data is always whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
