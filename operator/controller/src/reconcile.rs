//! The loop: observe, plan and apply, whenever a job or one of its objects changes, or its time has
//! come.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, future::BoxFuture, stream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::error_boundary::InvalidObject,
    runtime::{
        WatchStreamExt,
        controller::{Action, Config, Error as ControllerError, applier},
        reflector::{self, ObjectRef},
        watcher,
        watcher::Event,
    },
};
use lockstep_api::{MANAGED_BY, Phase, TrainingJob, ValidJob};
use lockstep_launch::InvalidField;
use lockstep_plan::{DefaultImage, JobPlan, Observed, plan, refuse};
use tokio::sync::Semaphore;
use tracing::{error, warn};

use crate::{
    apply::{ApplyError, apply, write_status},
    metrics::{FailureReason, Metrics, ReconcileResult},
    observe::{StoredJob, Surroundings, is_unbegun, scoped},
    patient_watch::{WatchHistory, WatchState, WatchStates, patient},
};

/// Jobs that are reconciled at once, over all namespaces. So a large job does not delay a small
/// one.
const CONCURRENCY: u16 = 16;
/// First and longest pause after an error. Each pause is twice the one before.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));
/// Pause before a decision about an old version is made again. The new version usually comes first.
const OUTDATED: Duration = Duration::from_millis(500);

/// Longest time between two reconciliations of a job that goes on. No event tells of an object that
/// vanished while a watch was interrupted. A reconciliation from the cache costs the API server
/// nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The parts that all scopes share.
pub(crate) struct Operator {
    pub(crate) client: Client,
    pub(crate) default_image: DefaultImage,
    pub(crate) metrics: Arc<Metrics>,
    slots: Semaphore,
}

impl Operator {
    pub(crate) fn new(client: Client, default_image: DefaultImage, metrics: Arc<Metrics>) -> Self {
        Self { client, default_image, metrics, slots: Semaphore::new(CONCURRENCY.into()) }
    }

    /// Waits until no reconciliation is under way. None begins from then on.
    pub(crate) async fn rest(&self) {
        // The semaphore is never closed.
        if let Ok(all) = self.slots.acquire_many(CONCURRENCY.into()).await {
            all.forget();
        }
    }
}

/// One namespace, or all namespaces, as the reconciler sees it.
struct Scope {
    operator: Arc<Operator>,
    surroundings: Arc<Surroundings>,
    memory: Mutex<HashMap<String, JobMemory>>,
}

/// Notes about a job between two reconciliations. They decide only whether a cached job is current
/// and when to try again, never what is done.
#[derive(Default)]
struct JobMemory {
    /// Namespace and name.
    key: (String, String),
    /// Version of the job after this process last wrote its status.
    written: Option<u64>,
    /// Errors in a row.
    errors: u32,
    /// The API server's answer when it last refused an object of the job.
    refused: Option<String>,
    /// True if the status of an unreadable job says so.
    refused_as_unreadable: bool,
}

/// Works on the jobs of one scope until `stop`. `synced` gets the watches that must have listed
/// everything before the first decision.
pub(crate) async fn drive(
    operator: Arc<Operator>,
    namespace: Option<String>,
    synced: impl FnOnce(Vec<WatchStates>),
    stop: BoxFuture<'static, ()>,
) {
    let namespace = namespace.as_deref();
    let Operator { client, metrics, .. } = &*operator;
    let (surroundings, watches, touched) = Surroundings::watch(client, namespace, metrics);
    let scope = Arc::new(Scope { operator: Arc::clone(&operator), surroundings, memory: Mutex::new(HashMap::new()) });
    let (store, writer) = reflector::store::<StoredJob>();
    let jobs: Api<StoredJob> = scoped(client.clone(), namespace);
    let events = watcher(jobs, watcher::Config::default()).modify(trim).reflect(writer);
    let interrupted = {
        let metrics = Arc::clone(metrics);
        move || metrics.watch_restarted()
    };
    let history = WatchHistory::new(&TrainingJob::kind(&()), namespace, None);
    let changed = job_changes(patient(events, history, interrupted), Arc::clone(&scope));
    synced(watches.to_vec());
    // Nothing is decided before everything was listed once. A pod that is not seen yet would look
    // lost.
    let ready = stream::once(all_listed(watches)).filter_map(|()| async { None::<ObjectRef<StoredJob>> });
    let waiting = Arc::clone(metrics);
    let waits = move |job: &ObjectRef<StoredJob>| {
        waiting.has_news(job.namespace.clone().unwrap_or_default(), job.name.clone());
    };
    let news = ready.chain(stream::select(Box::pin(changed), touched)).inspect(waits);
    let queue = news.map(Ok::<_, watcher::Error>).take_until(stop);
    applier(
        |job, scope: Arc<Scope>| Box::pin(reconcile(job, scope)),
        after_error,
        scope,
        store,
        Box::pin(queue),
        Config::default().concurrency(CONCURRENCY),
    )
    .for_each(|result| async {
        match result {
            // Logged where it happened.
            Ok(_) | Err(ControllerError::ReconcilerFailed(..)) => {}
            Err(ControllerError::ObjectNotFound(gone)) => {
                metrics.takes_turn(gone.namespace.clone().unwrap_or_default(), gone.name.clone());
            }
            Err(error) => error!(%error, "queue"),
        }
    })
    .await;
}

/// Yields jobs that are new or changed. Jobs that are gone are forgotten.
fn job_changes(
    events: impl Stream<Item = Event<StoredJob>>,
    scope: Arc<Scope>,
) -> impl Stream<Item = ObjectRef<StoredJob>> {
    let mut listed = HashSet::new();
    events.filter_map(move |event| {
        let next = match event {
            Event::Apply(job) => Some(ObjectRef::from_obj(&job)),
            Event::InitApply(job) => {
                listed.insert(job.uid().unwrap_or_default());
                Some(ObjectRef::from_obj(&job))
            }
            Event::Delete(job) => {
                scope.forget(&job);
                None
            }
            Event::Init => {
                listed.clear();
                None
            }
            Event::InitDone => {
                scope.forget_all_but(&listed);
                None
            }
        };
        async { next }
    })
}

async fn all_listed(watches: impl IntoIterator<Item = WatchStates>) {
    for mut watch in watches {
        // A watch that ended never lists. Its task has panicked and the process is about to end.
        let _ = watch.wait_for(|state| *state == WatchState::Listed).await;
    }
}

/// Drops the parts of a job that nothing reads. They take the most memory.
fn trim(job: &mut StoredJob) {
    job.meta_mut().managed_fields = None;
    job.annotations_mut().remove("kubectl.kubernetes.io/last-applied-configuration");
}

async fn reconcile(job: Arc<StoredJob>, scope: Arc<Scope>) -> Result<Action, ApplyError> {
    let Ok(_slot) = scope.operator.slots.acquire().await else { return Ok(Action::await_change()) };
    scope.operator.metrics.takes_turn(job.namespace().unwrap_or_default(), job.name_any());
    let started = Instant::now();
    let result = observe_plan_apply(&job, &scope).await;
    let outcome = match &result {
        Ok(_) => ReconcileResult::Success,
        Err(ApplyError::Outdated { .. }) => ReconcileResult::Outdated,
        Err(_) => ReconcileResult::Error,
    };
    scope.operator.metrics.reconciled(outcome, started.elapsed());
    if let Some((error, reason)) = result.as_ref().err().and_then(|error| Some((error, reason(error)?))) {
        scope.operator.metrics.failed(reason);
        warn!(namespace = job.namespace(), job = job.name_any(), %error, "not reconciled");
    }
    result
}

async fn observe_plan_apply(job: &StoredJob, scope: &Scope) -> Result<Action, ApplyError> {
    let uid = job.uid().unwrap_or_default();
    if job.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let version = job.resource_version().and_then(|version| version.parse::<u64>().ok());
    let refused = {
        let mut memory = scope.memory();
        let key = (job.namespace().unwrap_or_default(), job.name_any());
        let memory = memory.entry(uid.clone()).or_insert_with(|| JobMemory { key, ..JobMemory::default() });
        if version.zip(memory.written).is_some_and(|(cached, written)| cached < written) {
            return Ok(Action::requeue(OUTDATED));
        }
        memory.refused.clone()
    };
    let job = match &job.0 {
        Ok(job) => job,
        Err(invalid) => return refuse_unreadable(invalid, &uid, scope).await,
    };
    if job.spec.managed_by != MANAGED_BY {
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let valid = ValidJob::from_object(job);
    let seen = scope.surroundings.of(job, valid.as_ref().ok(), refused);
    let next = match valid {
        Ok(valid) => plan(&valid, &seen, &scope.operator.default_image, now),
        Err(wrong) => refuse(&wrong, &seen, now),
    };
    let membership = seen.group.as_ref().map_or(&[][..], |group| &group.changes);
    scope.operator.metrics.saw(job, next.status.as_ref().unwrap_or(&seen.status), membership, now);
    let check_again = next.check_again;
    let finished = next.status.as_ref().unwrap_or(&seen.status).phase.is_some_and(Phase::is_finished);
    carry_out(job, &uid, scope, next).await?;
    let wait = check_again.and_then(|wait| Duration::try_from(wait).ok());
    Ok(match wait {
        Some(wait) if finished => Action::requeue(wait),
        None if finished => Action::await_change(),
        wait => Action::requeue(wait.map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))),
    })
}

async fn carry_out(job: &TrainingJob, uid: &str, scope: &Scope, next: JobPlan) -> Result<(), ApplyError> {
    let result = apply(&scope.operator.client, job, next).await;
    // A job that is gone by now has no notes any more.
    if let Some(memory) = scope.memory().get_mut(uid) {
        match &result {
            Ok(version) => {
                memory.errors = 0;
                memory.refused = None;
                let written = version.as_ref().and_then(|version| version.parse().ok());
                memory.written = written.or(memory.written);
            }
            Err(error @ (ApplyError::Refused { .. } | ApplyError::Taken { .. } | ApplyError::NoGang { .. })) => {
                memory.refused = Some(error.to_string());
            }
            Err(_) => {}
        }
    }
    result.map(drop)
}

/// Fails an object that is no `TrainingJob` at all, stored before the CRD refused it, once.
async fn refuse_unreadable(invalid: &InvalidObject, uid: &str, scope: &Scope) -> Result<Action, ApplyError> {
    let is_known = scope.memory().get(uid).is_some_and(|memory| memory.refused_as_unreadable);
    if !is_known {
        let wrong = InvalidField::new("spec", "not readable", &invalid.error);
        let unbegun = is_unbegun(&scope.operator.client, &invalid.metadata).await;
        let name = invalid.metadata.name.clone().unwrap_or_default();
        if !unbegun.map_err(|source| ApplyError::Request { attempt: format!("read {name}"), source })? {
            warn!(job = name, error = invalid.error, "this version cannot read the job; it is left alone");
            return Ok(Action::await_change());
        }
        let seen = Observed { generation: invalid.metadata.generation, ..Observed::default() };
        if let Some(status) = refuse(&[wrong], &seen, Timestamp::now()).status {
            write_status(&scope.operator.client, &invalid.metadata, status).await?;
        }
        if let Some(memory) = scope.memory().get_mut(uid) {
            memory.refused_as_unreadable = true;
        }
    }
    Ok(Action::await_change())
}

fn after_error(job: Arc<StoredJob>, error: &ApplyError, scope: Arc<Scope>) -> Action {
    if let ApplyError::Outdated { .. } = error {
        return Action::requeue(OUTDATED);
    }
    let uid = job.uid().unwrap_or_default();
    let errors = scope.memory().get_mut(&uid).map_or(1, |memory| {
        memory.errors = memory.errors.saturating_add(1);
        memory.errors
    });
    let (first, longest) = BACKOFF;
    Action::requeue(first.saturating_mul(1 << (errors - 1).min(16)).min(longest))
}

/// Returns why a reconciliation failed; none if the job only changed meanwhile.
fn reason(error: &ApplyError) -> Option<FailureReason> {
    Some(match error {
        ApplyError::Outdated { .. } => return None,
        ApplyError::Refused { .. } | ApplyError::NoGang { .. } => FailureReason::Refused,
        ApplyError::Taken { .. } => FailureReason::Taken,
        ApplyError::Credentials { .. } => FailureReason::Credentials,
        ApplyError::Request { .. } => FailureReason::Request,
    })
}

impl Scope {
    fn memory(&self) -> MutexGuard<'_, HashMap<String, JobMemory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, job: &StoredJob) {
        self.memory().remove(&job.uid().unwrap_or_default());
        self.operator.metrics.forget(&job.namespace().unwrap_or_default(), &job.name_any());
    }

    /// Forgets the jobs that a new list lacks. They were deleted while the watch was interrupted.
    fn forget_all_but(&self, listed: &HashSet<String>) {
        self.memory().retain(|uid, JobMemory { key: (namespace, name), .. }| {
            let exists = listed.contains(uid);
            if !exists {
                self.operator.metrics.forget(namespace, name);
            }
            exists
        });
    }
}
