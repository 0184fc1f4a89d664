//! Where the coordinator publishes the job's reports: the `TrainingGroup` in a cluster, standard output for `lockstep run`.

use std::{future::Future, io::Write as _, time::Duration};

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use lockstep_launch::{Ending, GroupChange, Job, Progress, Reached, RecordStore, training_group};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::kubernetes_store::{self, ANSWER_LIMIT, CONFLICT, MAX_ATTEMPTS};

/// A cluster's API server is told at most this often.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(5);
/// `lockstep run` is told at most this often.
const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);
/// So many changes of the membership are kept in a cluster, where an object has to stay small.
const KEPT_CHANGES: usize = 20;

/// Takes the newest report; passes on as many as its readers can use.
pub(crate) struct Board {
    place: Place,
    newest: Option<Progress>,
    published: Option<Instant>,
    /// By what was told here.
    reached: Reached,
}

enum Place {
    Output,
    Cluster(Box<Status>),
}

/// The status of a job's `TrainingGroup`.
struct Status {
    groups: Api<DynamicObject>,
    job: Job,
    /// What coordinators before this one told, once it could be read.
    before: Option<Before>,
    /// The newest that this one knows of, oldest first.
    changes: Vec<GroupChange>,
    /// Whether all of them are there.
    all_told: bool,
}

/// What was told before.
#[derive(Debug, Default)]
struct Before {
    /// The newest changes, oldest first.
    changes: Vec<GroupChange>,
    /// The last report.
    progress: Option<Progress>,
}

impl Board {
    pub(crate) fn open(store: &RecordStore, job: &Job, client: Option<&Client>) -> Self {
        let place = match (store, client) {
            (RecordStore::Kubernetes, Some(client)) => {
                let groups = kubernetes_store::groups(client.clone(), job);
                let (job, changes) = (job.clone(), Vec::new());
                Place::Cluster(Box::new(Status { groups, job, before: None, changes, all_told: true }))
            }
            (RecordStore::Kubernetes | RecordStore::File(_), _) => Place::Output,
        };
        Self { place, newest: None, published: None, reached: Reached::default() }
    }

    /// The newest report that was posted.
    pub(crate) fn newest(&self) -> Option<&Progress> {
        self.newest.as_ref()
    }

    /// Keeps a report and publishes it unless one was published just before.
    pub(crate) async fn post(&mut self, progress: Progress) {
        let interval = match self.place {
            Place::Output => OUTPUT_INTERVAL,
            Place::Cluster(_) => CLUSTER_INTERVAL,
        };
        let due = self.published.is_none_or(|at| at.elapsed() >= interval);
        // An evaluation and the end of the work are never held back.
        let evaluated = |progress: &Progress| progress.accuracy_step;
        let news =
            progress.step == progress.total_steps || evaluated(&progress) != self.newest.as_ref().and_then(evaluated);
        self.reached.reported(&progress);
        self.newest = Some(progress);
        if due || news {
            self.flush().await;
        }
    }

    /// Publishes the newest report now.
    pub(crate) async fn flush(&mut self) {
        let Some(progress) = &self.newest else { return };
        self.publish(training_group::PROGRESS, json!(progress)).await;
        self.published = Some(Instant::now());
    }

    /// Publishes how the job ended.
    pub(crate) async fn end(&mut self, ending: &Ending) {
        self.publish(training_group::ENDING, json!(ending)).await;
    }

    /// Tells `lockstep run` where the coordinator listens.
    pub(crate) fn listening(&self, address: std::net::SocketAddr) {
        if let Place::Output = self.place {
            print_line(&json!({"listening": address.to_string()}));
        }
    }

    /// Tells `lockstep run` that a worker has come up.
    pub(crate) fn joined(&self, member: &str) {
        if let Place::Output = self.place {
            print_line(&json!({ "joined": member }));
        }
    }

    /// Tells `lockstep run` who belongs to the group now.
    pub(crate) fn members(&self, members: &[String]) {
        if let Place::Output = self.place {
            print_line(&json!({ "members": members }));
        }
    }

    /// Tells that the membership changed.
    pub(crate) async fn changed(&mut self, change: GroupChange) {
        self.tell(change, "change").await;
    }

    /// Tells of a membership that another coordinator recorded, unless that one has told of it.
    pub(crate) async fn found(&mut self, change: GroupChange) {
        self.tell(change, "found").await;
    }

    async fn tell(&mut self, mut change: GroupChange, how: &str) {
        self.reached.changed(&mut change);
        match &mut self.place {
            Place::Output => print_line(&json!({ how: change })),
            Place::Cluster(status) => {
                status.keep(change);
                status.publish(None).await;
            }
        }
    }

    async fn publish(&mut self, field: &str, value: Value) {
        match &mut self.place {
            Place::Output => print_line(&json!({ field: value })),
            Place::Cluster(status) => status.publish(Some((field, value))).await,
        }
    }
}

impl Status {
    fn keep(&mut self, mut change: GroupChange) {
        if let (Some(before), []) = (&self.before, &*self.changes) {
            before.reached().changed(&mut change);
        }
        self.changes.push(change);
        self.changes.drain(..self.changes.len().saturating_sub(KEPT_CHANGES));
        self.all_told = false;
    }

    /// Writes a field that is news, and the changes that are not there yet.
    async fn publish(&mut self, news: Option<(&str, Value)>) {
        if self.before.is_none() {
            let read = self.read().await;
            if !self.is_published("status", read) {
                return;
            }
        }
        if let Some((field, value)) = news {
            // Of reports the next one makes up for one that was lost.
            self.apply(field, value).await;
        }
        if let (false, Some(before)) = (self.all_told, &self.before) {
            self.all_told = self.apply(training_group::CHANGES, json!(before.and(&self.changes))).await;
        }
    }

    /// Puts a value in the place of a field's former one, of which nothing stays: each field has a manager of its own, whose last word
    /// is the whole of it. Whether that was taken.
    async fn apply(&mut self, field: &str, value: Value) -> bool {
        for _ in 1..MAX_ATTEMPTS {
            match self.apply_once(field, &value).await {
                // The record was swapped, or a report written, since it was read: look again.
                Err(Unpublished::Overtaken) => {}
                outcome => return self.is_published(field, outcome),
            }
        }
        let outcome = self.apply_once(field, &value).await;
        self.is_published(field, outcome)
    }

    /// What went wrong is logged.
    fn is_published<T>(&self, field: &str, outcome: Result<T, Unpublished>) -> bool {
        let cause = match outcome {
            Ok(_) => return true,
            Err(Unpublished::Overtaken) => "others write into the group all the time".to_owned(),
            Err(Unpublished::Refused(cause)) => cause,
        };
        warn!(cause, group = self.job.name, field, "report not published");
        false
    }

    /// Into the group as it was read just before, which makes sure that it is not another one by then: of a status the API server compares
    /// the `resourceVersion` only.
    async fn apply_once(&mut self, field: &str, value: &Value) -> Result<(), Unpublished> {
        let read = self.read().await?;
        let name = &self.job.name;
        let manager = PatchParams::apply(&format!("lockstep-{field}")).force();
        let patch = Patch::Apply(json!({
            "apiVersion": format!("{}/{}", training_group::API_GROUP, training_group::VERSION),
            "kind": training_group::KIND,
            "metadata": {"name": name, "resourceVersion": read},
            "status": {field: value},
        }));
        answered(self.groups.patch_status(name, &manager, &patch)).await.map(drop)
    }

    /// The version of the job's own group; at the first time what was told before is kept, of which what cannot be understood counts as not
    /// told.
    async fn read(&mut self) -> Result<Option<String>, Unpublished> {
        let group = answered(self.groups.get_status(&self.job.name)).await?;
        if kubernetes_store::is_of_another(&group, &self.job) {
            return Err(Unpublished::Refused("the group is of another job of this name".to_owned()));
        }
        if self.before.is_none() {
            let before = Before::of(group.data.get("status").unwrap_or(&Value::Null));
            self.changes.first_mut().into_iter().for_each(|first| before.reached().changed(first));
            self.before = Some(before);
        }
        Ok(group.metadata.resource_version)
    }
}

impl Before {
    /// As the status of a group has it.
    fn of(status: &Value) -> Self {
        let changes = serde_json::from_value(status[training_group::CHANGES].clone()).unwrap_or_default();
        Self { changes, progress: serde_json::from_value(status[training_group::PROGRESS].clone()).ok() }
    }

    /// The newest of all changes, oldest first. Each is there once, as it was told first.
    fn and(&self, since: &[GroupChange]) -> Vec<GroupChange> {
        let known = self.changes.last().map(|change| change.generation);
        let news = since.iter().filter(|change| Some(change.generation) > known);
        let all: Vec<_> = self.changes.iter().chain(news).cloned().collect();
        all[all.len().saturating_sub(KEPT_CHANGES)..].to_vec()
    }

    /// How far that tells.
    fn reached(&self) -> Reached {
        let mut reached = Reached::default();
        self.changes.last().cloned().iter_mut().for_each(|last| reached.changed(last));
        self.progress.iter().for_each(|progress| reached.reported(progress));
        reached
    }
}

/// Why a report is not in the group's status.
enum Unpublished {
    /// Somebody wrote into the group since it was read.
    Overtaken,
    Refused(String),
}

async fn answered<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Unpublished> {
    match timeout(ANSWER_LIMIT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == CONFLICT => Err(Unpublished::Overtaken),
        Ok(Err(error)) => Err(Unpublished::Refused(error.to_string())),
        Err(_) => Err(Unpublished::Refused("no answer".to_owned())),
    }
}

fn print_line(news: &serde_json::Value) {
    let mut output = std::io::stdout().lock();
    // When nobody reads any more there is nobody to tell.
    if writeln!(output, "{news}").and_then(|()| output.flush()).is_err() {
        tracing::debug!("standard output is closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_changes_the_newest_are_kept_and_none_is_told_twice() {
        let changes = |generations: &[u64]| -> Vec<GroupChange> {
            generations
                .iter()
                .map(|generation| GroupChange { generation: *generation, ..GroupChange::default() })
                .collect()
        };
        let kept = |before: &[u64], since: &[u64]| -> Vec<u64> {
            let before = Before { changes: changes(before), progress: None };
            before.and(&changes(since)).iter().map(|change| change.generation).collect()
        };
        assert_eq!(kept(&[], &[1]), [1]);
        assert_eq!(kept(&[1, 2], &[2, 3]), [1, 2, 3], "the one that was found had been told");
        assert_eq!(kept(&[1, 2], &[3, 4]), [1, 2, 3, 4], "it had not");
        let many: Vec<u64> = (1..=25).collect();
        assert_eq!(kept(&many[..15], &many[15..]), many[5..]);
    }

    #[test]
    fn a_new_coordinator_knows_which_steps_are_redone_by_what_the_one_before_reported() {
        let change = |generation, step| GroupChange { generation, step, rollback: true, ..GroupChange::default() };
        let report = |generation, step| Progress { generation, step, ..Progress::default() };
        let redone = |status: &Value| {
            let mut first = change(3, 50);
            Before::of(status).reached().changed(&mut first);
            first.redone
        };
        assert_eq!(
            redone(&json!({training_group::CHANGES: [change(2, 40)], training_group::PROGRESS: report(2, 62)})),
            12
        );
        assert_eq!(
            redone(&json!({training_group::CHANGES: [change(2, 60)], training_group::PROGRESS: report(1, 70)})),
            10
        );
        assert_eq!(
            redone(&json!({training_group::CHANGES: [change(3, 50)], training_group::PROGRESS: report(2, 62)})),
            0,
            "it was told"
        );
        assert_eq!(redone(&json!({})), 0);
    }
}
