//! Reads the cluster, and is the only place that does: four watches, kept as what decisions need of
//! them.

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
    patience::{Patience, Seen, Sight, patient},
};

/// A job as it came; one that cannot be read must not hide the others.
pub(crate) type Job = DeserializeGuard<TrainingJob>;

/// Requests that wait for the reconciler; a full queue holds the watches back.
const QUEUE: usize = 1024;
/// Objects that one page of a list holds: bounds the memory that a list takes.
const PAGE: u32 = 200;

/// What is known of everything that belongs to the jobs of one scope: a namespace, or all.
pub(crate) struct Surroundings {
    pods: Mutex<Pods>,
    groups: Mutex<Groups>,
    policies: Mutex<Policies>,
}

/// Pods by the namespace and uid of their job, then by name.
type Pods = HashMap<(String, String), BTreeMap<String, PodSeen>>;
/// Records by namespace and name: the uid of the owning job, and what the coordinator reported.
type Groups = HashMap<(String, String), (String, GroupSeen)>;

/// Policies that deny egress, by namespace and name.
type Policies = HashMap<(String, String), EgressDenied>;

/// Objects of a kind in one namespace, or in all.
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
    /// Begins to watch pods and records; yields the jobs to look at whenever one of theirs changes.
    pub(crate) fn watch(
        client: &Client,
        namespace: Option<&str>,
        metrics: &Arc<Metrics>,
    ) -> (Arc<Self>, [Seen; 2], impl Stream<Item = ObjectRef<Job>> + use<>) {
        let surroundings =
            Arc::new(Self { pods: Mutex::default(), groups: Mutex::default(), policies: Mutex::default() });
        let (tell, told) = mpsc::channel(QUEUE);
        let (pods_done, pods_seen) = watch::channel(Sight::None);
        let (groups_done, groups_seen) = watch::channel(Sight::None);
        let ours = watcher::Config::default().labels(label::JOB_UID).page_size(PAGE);
        let pods = follow(
            scoped::<Pod>(client.clone(), namespace),
            ours,
            Arc::clone(&surroundings),
            (tell.clone(), pods_done.clone(), Patience::new("Pod", namespace, Some(pods_done)), Arc::clone(metrics)),
        );
        let groups = follow(
            scoped::<DeserializeGuard<TrainingGroup>>(client.clone(), namespace),
            watcher::Config::default().page_size(PAGE),
            Arc::clone(&surroundings),
            (
                tell.clone(),
                groups_done.clone(),
                Patience::new("TrainingGroup", namespace, Some(groups_done)),
                Arc::clone(metrics),
            ),
        );
        // Jobs do not wait for it: where it is refused they are as they are in most clusters, where
        // nothing denies egress.
        let policies_done = watch::Sender::new(Sight::None);
        let policies = follow(
            scoped::<NetworkPolicy>(client.clone(), namespace),
            watcher::Config::default().page_size(PAGE),
            Arc::clone(&surroundings),
            (tell, policies_done, Patience::new("NetworkPolicy", namespace, None), Arc::clone(metrics)),
        );
        tokio::spawn(policies);
        tokio::spawn(pods);
        tokio::spawn(groups);
        (surroundings, [pods_seen, groups_seen], told)
    }

    /// What was seen of a job.
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

/// Whether a job that this version cannot read is for this operator and was never begun. One that has a phase was readable once: a
/// newer operator, whose CRD is here before it, will read it again.
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

/// What is watched beside the jobs.
trait Watched: Resource<DynamicType = ()> {
    /// All that is known of the kind.
    type Known: Default;
    /// Where that is kept.
    fn known(surroundings: &Surroundings) -> &Mutex<Self::Known>;
    /// Takes over an object, or that it is gone.
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

/// A coordinator runs the user's image: whatever it writes, it must not hide the records of others.
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

/// Follows one watch for the life of the process. A list that starts anew is collected first and replaces what was known
/// in one piece, so that nobody sees half of it.
async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    surroundings: Arc<Surroundings>,
    (mut tell, sight, patience, metrics): (mpsc::Sender<ObjectRef<Job>>, watch::Sender<Sight>, Patience, Arc<Metrics>),
) where
    K: Watched + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut listed: Vec<K> = Vec::new();
    let events = patient(watcher(api, config), patience, move || metrics.watch_restarted());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let changed: Vec<ObjectRef<Job>> = match event {
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
                sight.send_replace(Sight::Listed);
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
            if futures::SinkExt::send(&mut tell, job).await.is_err() {
                return;
            }
        }
    }
}

/// The job that an object belongs to.
fn job_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Job>> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == TrainingJob::kind(&()))?;
    Some(ObjectRef::new(&owner.name).within(object.meta().namespace.as_deref()?))
}

/// Each change under these locks is one insertion, removal or replacement: what a panicking thread left behind is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
