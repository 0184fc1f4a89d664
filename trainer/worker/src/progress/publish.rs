//! Publishes the job's reports: in the `TrainingGroup` in a cluster, on standard output for
//! `lockstep run`.

use std::{future::Future, io::Write as _, sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use lockstep_launch::{Ending, GroupChange, Job, Progress, Reached, RecordStore, training_group};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::{job_metrics::JobMetrics, whole_run::RunMeter};
use crate::kubernetes_store::{self, ANSWER_LIMIT, CONFLICT, MAX_ATTEMPTS};

/// The least time between two reports to a cluster's API server.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(5);
/// The least time between two reports to `lockstep run`.
const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);
/// The number of changes of the membership that a cluster keeps: objects must stay small.
const KEPT_CHANGES: usize = 20;

/// Takes every report, and publishes as many as its readers can use.
pub(crate) struct Publisher {
    output: Output,
    newest: Option<Progress>,
    published: Option<Instant>,
    /// The newest step that was published here.
    reached: Reached,
    run: RunMeter,
    metrics: Arc<JobMetrics>,
}

enum Output {
    Standard,
    Cluster(Box<Status>),
}

/// The status of a job's `TrainingGroup`.
struct Status {
    groups: Api<DynamicObject>,
    job: Job,
    /// The news of earlier coordinators. `None` until they could be read.
    before: Option<Before>,
    /// The newest changes that this coordinator knows, oldest first.
    changes: Vec<GroupChange>,
    /// True while the object holds all of them.
    all_told: bool,
}

/// The news of earlier coordinators.
#[derive(Debug, Default)]
struct Before {
    /// The newest changes, oldest first.
    changes: Vec<GroupChange>,
    /// The last report.
    progress: Option<Progress>,
}

impl Publisher {
    pub(crate) fn open(store: &RecordStore, job: &Job, client: Option<&Client>, metrics: Arc<JobMetrics>) -> Self {
        let output = match (store, client) {
            (RecordStore::Kubernetes, Some(client)) => {
                let groups = kubernetes_store::groups(client.clone(), job);
                let (job, changes) = (job.clone(), Vec::new());
                Output::Cluster(Box::new(Status { groups, job, before: None, changes, all_told: true }))
            }
            (RecordStore::Kubernetes | RecordStore::File(_), _) => Output::Standard,
        };
        let (reached, run) = (Reached::default(), RunMeter::default());
        Self { output, newest: None, published: None, reached, run, metrics }
    }

    /// Returns the newest report.
    pub(crate) fn newest(&self) -> Option<&Progress> {
        self.newest.as_ref()
    }

    /// Adds the figures of the whole run to a report, and serves it.
    pub(crate) fn completed(&mut self, progress: Progress) -> Progress {
        let now = std::time::Instant::now();
        self.run.reported(&progress, now);
        let remaining = progress.estimated_remaining_seconds.map(|seconds| seconds * self.run.wall_of_stepping(now));
        let whole_run = self.run.figures(&progress, now);
        let progress = Progress { whole_run, estimated_remaining_seconds: remaining, ..progress };
        self.metrics.report(&progress);
        progress
    }

    /// Keeps a report, and publishes it unless the last one was just before.
    pub(crate) async fn post(&mut self, progress: Progress) {
        let interval = match self.output {
            Output::Standard => OUTPUT_INTERVAL,
            Output::Cluster(_) => CLUSTER_INTERVAL,
        };
        let due = self.published.is_none_or(|at| at.elapsed() >= interval);
        // An evaluation and the end of the work are never held back.
        let evaluated = |progress: &Progress| progress.accuracy_step;
        let news =
            progress.step == progress.total_steps || evaluated(&progress) != self.newest.as_ref().and_then(evaluated);
        self.reached.reported(&progress);
        self.newest = Some(self.completed(progress));
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
        if let Output::Standard = self.output {
            print_line(&json!({"listening": address.to_string()}));
        }
    }

    /// Tells `lockstep run` that a worker has come up.
    pub(crate) fn joined(&self, member: &str) {
        if let Output::Standard = self.output {
            print_line(&json!({ "joined": member }));
        }
    }

    /// Tells `lockstep run` the present members.
    pub(crate) fn members(&self, members: &[String]) {
        if let Output::Standard = self.output {
            print_line(&json!({ "members": members }));
        }
    }

    /// Publishes a change of the membership.
    pub(crate) async fn changed(&mut self, change: GroupChange) {
        self.tell(change, "change").await;
    }

    /// Publishes a membership that another coordinator recorded, unless that one has published it.
    pub(crate) async fn found(&mut self, change: GroupChange) {
        self.tell(change, "found").await;
    }

    async fn tell(&mut self, mut change: GroupChange, how: &str) {
        self.reached.changed(&mut change);
        self.run.changed(&change, std::time::Instant::now());
        self.metrics.changed(&change);
        match &mut self.output {
            Output::Standard => print_line(&json!({ how: change })),
            Output::Cluster(status) => {
                status.keep(change);
                status.publish(None).await;
            }
        }
    }

    async fn publish(&mut self, field: &str, value: Value) {
        match &mut self.output {
            Output::Standard => print_line(&json!({ field: value })),
            Output::Cluster(status) => status.publish(Some((field, value))).await,
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

    /// Writes a new value of a field, and the changes that the object lacks.
    async fn publish(&mut self, news: Option<(&str, Value)>) {
        if self.before.is_none() {
            let read = self.read().await;
            if !self.is_published("status", read) {
                return;
            }
        }
        if let Some((field, value)) = news {
            // A lost report is made up for by the next one.
            self.apply(field, value).await;
        }
        if let (false, Some(before)) = (self.all_told, &self.before) {
            self.all_told = self.apply(training_group::CHANGES, json!(before.and(&self.changes))).await;
        }
    }

    /// Replaces the value of a field, and retries conflicts. Each field has a manager of its own,
    /// so nothing of the former value stays. Returns true on success.
    async fn apply(&mut self, field: &str, value: Value) -> bool {
        for _ in 1..MAX_ATTEMPTS {
            match self.apply_once(field, &value).await {
                // The record or a report was written meanwhile: read the object again.
                Err(Unpublished::Overtaken) => {}
                outcome => return self.is_published(field, outcome),
            }
        }
        let outcome = self.apply_once(field, &value).await;
        self.is_published(field, outcome)
    }

    /// Returns true on success, and logs a failure.
    fn is_published<T>(&self, field: &str, outcome: Result<T, Unpublished>) -> bool {
        let cause = match outcome {
            Ok(_) => return true,
            Err(Unpublished::Overtaken) => "others write into the group all the time".to_owned(),
            Err(Unpublished::Refused(cause)) => cause,
        };
        warn!(cause, group = self.job.name, field, "report not published");
        false
    }

    /// Replaces the value of a field once. The write names the version that was just read, so it
    /// never reaches the group of another job: for a status the API server compares the
    /// `resourceVersion` only.
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

    /// Returns the version of the job's own group. The first call keeps the news of earlier
    /// coordinators; unreadable news count as none.
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
    /// Reads the status of a group.
    fn of(status: &Value) -> Self {
        let changes = serde_json::from_value(status[training_group::CHANGES].clone()).unwrap_or_default();
        Self { changes, progress: serde_json::from_value(status[training_group::PROGRESS].clone()).ok() }
    }

    /// Returns the newest of all changes, oldest first. Each appears once, as it was first
    /// published.
    fn and(&self, since: &[GroupChange]) -> Vec<GroupChange> {
        let known = self.changes.last().map(|change| change.generation);
        let news = since.iter().filter(|change| Some(change.generation) > known);
        let all: Vec<_> = self.changes.iter().chain(news).cloned().collect();
        all[all.len().saturating_sub(KEPT_CHANGES)..].to_vec()
    }

    /// Returns the newest step of this news.
    fn reached(&self) -> Reached {
        let mut reached = Reached::default();
        self.changes.last().cloned().iter_mut().for_each(|last| reached.changed(last));
        self.progress.iter().for_each(|progress| reached.reported(progress));
        reached
    }
}

/// The reason for which a report is not in the group's status.
enum Unpublished {
    /// Somebody wrote into the group after it was read.
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
    // Nobody reads a closed output, so a warning would reach nobody.
    if writeln!(output, "{news}").and_then(|()| output.flush()).is_err() {
        tracing::debug!("standard output is closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_changes_are_kept_and_none_appears_twice() {
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
    fn a_new_coordinator_learns_from_earlier_reports_which_steps_are_redone() {
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
