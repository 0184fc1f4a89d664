//! Where the coordinator publishes the job's reports: the `TrainingGroup` in a cluster, standard output for `lockstep run`.

use std::{collections::VecDeque, io::Write as _, time::Duration};

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use lockstep_launch::{Change, Ending, Job, Progress, Store, group};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::kubernetes_store::{self, ANSWER_LIMIT};

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
}

enum Place {
    Output,
    Cluster { groups: Box<Api<DynamicObject>>, name: String, changes: VecDeque<Change> },
}

impl Board {
    pub(crate) async fn open(store: &Store, job: &Job, client: Option<&Client>) -> Self {
        let place = match (store, client) {
            (Store::Kubernetes, Some(client)) => {
                let groups = Box::new(kubernetes_store::groups(client.clone(), job));
                let changes = changes_told(&groups, &job.name).await;
                Place::Cluster { groups, name: job.name.clone(), changes }
            }
            (Store::Kubernetes | Store::File(_), _) => Place::Output,
        };
        Self { place, newest: None, published: None }
    }

    /// The newest report that was posted.
    pub(crate) fn newest(&self) -> Option<&Progress> {
        self.newest.as_ref()
    }

    /// Keeps a report and publishes it unless one was published just before.
    pub(crate) async fn post(&mut self, progress: Progress) {
        let interval = match self.place {
            Place::Output => OUTPUT_INTERVAL,
            Place::Cluster { .. } => CLUSTER_INTERVAL,
        };
        let due = self.published.is_none_or(|at| at.elapsed() >= interval);
        // An evaluation and the end of the work are never held back.
        let evaluated = |progress: &Progress| progress.accuracy_step;
        let news =
            progress.step == progress.total_steps || evaluated(&progress) != self.newest.as_ref().and_then(evaluated);
        self.newest = Some(progress);
        if due || news {
            self.flush().await;
        }
    }

    /// Publishes the newest report now.
    pub(crate) async fn flush(&mut self) {
        let Some(progress) = &self.newest else { return };
        self.publish(json!({ group::PROGRESS: progress })).await;
        self.published = Some(Instant::now());
    }

    /// Publishes how the job ended.
    pub(crate) async fn end(&mut self, ending: &Ending) {
        self.publish(json!({ group::ENDING: ending })).await;
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

    /// Tells that the membership changed.
    pub(crate) async fn changed(&mut self, change: Change) {
        let news = match &mut self.place {
            Place::Output => json!({ "change": change }),
            Place::Cluster { changes, .. } => {
                changes.push_back(change);
                changes.drain(..changes.len().saturating_sub(KEPT_CHANGES));
                json!({ group::CHANGES: changes })
            }
        };
        self.publish(news).await;
    }

    async fn publish(&self, news: serde_json::Value) {
        match &self.place {
            Place::Output => print_line(&news),
            Place::Cluster { groups, name, changes: _ } => {
                let patch = Patch::Merge(json!({ "status": news }));
                // Reports are news, not state: the next one makes up for one that was lost.
                match timeout(ANSWER_LIMIT, groups.patch_status(name, &PatchParams::default(), &patch)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => warn!(%error, group = name, "report not published"),
                    Err(_) => warn!(group = name, "report not published: no answer"),
                }
            }
        }
    }
}

/// What coordinators before this one told of. News, not state: a list that cannot be read begins anew.
async fn changes_told(groups: &Api<DynamicObject>, name: &str) -> VecDeque<Change> {
    let Ok(Ok(group)) = timeout(ANSWER_LIMIT, groups.get_status(name)).await else { return VecDeque::new() };
    let told = group.data.get("status").and_then(|status| status.get(group::CHANGES)).cloned();
    told.and_then(|told| serde_json::from_value(told).ok()).unwrap_or_default()
}

fn print_line(news: &serde_json::Value) {
    let mut output = std::io::stdout().lock();
    // When nobody reads any more there is nobody to tell.
    if writeln!(output, "{news}").and_then(|()| output.flush()).is_err() {
        tracing::debug!("standard output is closed");
    }
}
