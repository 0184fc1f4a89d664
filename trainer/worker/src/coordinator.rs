//! `lockstep-trainer coordinator`: agrees on the group, keeps its record, and publishes its
//! reports. Steps need only the workers.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use kube::Client;
use lockstep_elastic::{Digest, FileStore, Notice, Outcome, StoreError, coordinate as run, coordinator::Config};
use lockstep_launch::{Departure, Ending, GroupChange, Launch, Progress, RecordStore, names};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tracing::{info, warn};

use crate::{
    failure::Failure,
    kubernetes_store::KubernetesStore,
    progress::{job_metrics::JobMetrics, publish::Publisher},
    serve,
};

/// Coordinates the job's group to its end.
pub(crate) fn coordinate(launch: &Launch) -> Result<Ending, Failure> {
    let metrics = Arc::new(JobMetrics::new(&launch.job, &launch.store).map_err(Failure::fatal)?);
    let served = Arc::clone(&metrics);
    // The coordinator is ready as soon as it listens.
    let text = move || served.text().unwrap_or_default();
    let ready = Arc::new(AtomicBool::new(true));
    let address = SocketAddr::new(launch.address, launch.ports.metrics);
    let served = serve::serve(address, ready, text, serve::LogFolder::default())
        .map_err(|error| Failure::fatal(format!("{error:#}")))?;
    info!("serving metrics={served}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::retry(format!("no runtime: {error}")))?;
    runtime.block_on(serve_group(launch, metrics))
}

async fn serve_group(launch: &Launch, metrics: Arc<JobMetrics>) -> Result<Ending, Failure> {
    let listener = launch.control_listener().and_then(TcpListener::from_std).map_err(|error| {
        Failure::fatal(format!("cannot listen for workers on {}:{}: {error}", launch.address, launch.ports.control))
    })?;
    let bound = listener.local_addr().map_err(Failure::retry)?;
    info!(control = %bound, "listening");

    let client = match launch.store {
        RecordStore::Kubernetes => {
            Some(Client::try_default().await.map_err(|error| Failure::retry(format!("no API server: {error}")))?)
        }
        RecordStore::File(_) => None,
    };
    let mut publisher = Publisher::open(&launch.store, &launch.job, client.as_ref(), metrics);
    publisher.listening(bound);
    let config = Config {
        job: launch.job.uid.clone(),
        attempt: launch.attempt,
        name: format!("{}/{}", names::coordinator(&launch.job.name), uuid::Uuid::new_v4()),
        members: (0..launch.elastic.max_replicas).map(|index| names::worker(&launch.job.name, index)).collect(),
        replicas: launch.replicas as usize,
        least: launch.elastic.min_replicas as usize,
        shards: launch.task.shards(launch.elastic.max_replicas),
        // The rest of the grace is for the coordinator's last words.
        drain_limit: Duration::from_secs(launch.grace_seconds.into()) * 2 / 3,
    };

    // Reports are published beside the coordination: a slow API server must not delay it.
    let (post, mut posted) = mpsc::unbounded_channel();
    let mut known = BTreeSet::new();
    // The receiver lives as long as the coordination, so sending cannot fail.
    let notify = move |notice: Notice<'_>| match notice {
        Notice::Status(status) => {
            for pod in status.connected.iter().filter(|pod| known.insert((*pod).clone())) {
                drop(post.send(News::Joined(pod.clone())));
            }
        }
        Notice::Changed { change, history } => {
            drop(post.send(News::Changed(described(change, history))));
            drop(post.send(News::Members(members(change))));
        }
        Notice::Found { change, history } => {
            drop(post.send(News::Found(described(change, history))));
            // The processes of an earlier attempt are gone. New ones may have their names.
            if change.active.attempt == launch.attempt {
                drop(post.send(News::Members(members(change))));
            }
        }
        Notice::Progress { payload, .. } => match serde_json::from_slice(payload) {
            Ok(progress) => drop(post.send(News::Progress(Box::new(progress)))),
            Err(error) => warn!(%error, "a report could not be read"),
        },
    };
    let publishing = async {
        while let Some(first) = posted.recv().await {
            let mut waiting = VecDeque::from([first]);
            while let Some(news) = next(&mut waiting) {
                match news {
                    News::Joined(member) => publisher.joined(&member),
                    News::Members(members) => publisher.members(&members),
                    News::Changed(change) => publisher.changed(change).await,
                    News::Found(change) => publisher.found(change).await,
                    News::Progress(progress) => publisher.post(*progress).await,
                }
                waiting.extend(std::iter::from_fn(|| posted.try_recv().ok()));
            }
        }
    };
    let coordinating = async {
        match (&launch.store, client.clone()) {
            (RecordStore::Kubernetes, Some(client)) => {
                run(listener, config, KubernetesStore::new(client, &launch.job), notify, asked_to_stop()).await
            }
            (RecordStore::File(path), _) => {
                run(listener, config, FileStore::new(path.clone()), notify, asked_to_stop()).await
            }
            (RecordStore::Kubernetes, None) => unreachable!("a client was made for this store"),
        }
    };
    let (outcome, ()) = tokio::join!(coordinating, publishing);
    let ended = conclude(outcome, publisher.newest().cloned())
        .map(|ending| Ending { progress: ending.progress.map(|last| publisher.completed(last)), ..ending });
    publisher.flush().await;
    let ending = match &ended {
        Ok(ending) => ending.clone(),
        Err(failure) => Ending { message: failure.to_string(), progress: publisher.newest().cloned(), model_uri: None },
    };
    publisher.end(&ending).await;
    ended
}

/// News for the publisher.
enum News {
    Joined(String),
    /// The members of the group from now on.
    Members(Vec<String>),
    Changed(GroupChange),
    /// A membership that another coordinator recorded, and may have published.
    Found(GroupChange),
    Progress(Box<Progress>),
}

/// Returns the oldest item that is still news. A report replaces all reports before it, back to the
/// last change of the group.
fn next(waiting: &mut VecDeque<News>) -> Option<News> {
    let is_report = |news: &News| matches!(news, News::Progress(_));
    let is_change = |news: &News| matches!(news, News::Changed(_) | News::Found(_));
    while let Some(news) = waiting.pop_front() {
        if !is_report(&news) || !waiting.iter().take_while(|later| !is_change(later)).any(is_report) {
            return Some(news);
        }
    }
    None
}

fn members(change: &lockstep_elastic::Change) -> Vec<String> {
    change.active.members.iter().map(|member| member.pod.clone()).collect()
}

/// Returns a change of the membership as reports describe it.
fn described(change: &lockstep_elastic::Change, history: Digest) -> GroupChange {
    let lockstep_elastic::Change { active, joined, left, lost, broken, took } = change;
    let gone = |gone: &[(String, String)]| -> Vec<Departure> {
        gone.iter().map(|(pod, reason)| Departure { pod: pod.clone(), reason: reason.clone() }).collect()
    };
    GroupChange {
        time: jiff::Timestamp::now().to_string(),
        generation: active.generation,
        workers: active.members.len() as u32,
        step: active.base_step,
        joined: joined.clone(),
        left: gone(left),
        lost: gone(lost),
        broken: broken.clone(),
        rollback: active.rollback,
        redone: 0,
        seconds: took.as_secs_f64(),
        history: history.to_string(),
    }
}

/// Returns the meaning of the group's outcome for the job.
fn conclude(outcome: Result<Outcome, StoreError>, newest: Option<Progress>) -> Result<Ending, Failure> {
    match outcome {
        Ok(Outcome::Finished { payload, .. }) => {
            let ending: Option<Ending> = serde_json::from_slice(&payload).ok();
            let ending = ending.unwrap_or_default();
            Ok(Ending { progress: ending.progress.or(newest), ..ending })
        }
        Ok(Outcome::Drained { step }) => Err(Failure::Drained { step, drain: None }),
        Ok(Outcome::Fatal { message, .. }) => Err(Failure::fatal(message)),
        Ok(Outcome::Diverged { message, .. }) => Err(Failure::retry(message)),
        Ok(Outcome::Superseded) => Err(Failure::retry("another coordinator took over")),
        Ok(Outcome::Deserted) => {
            Err(Failure::retry("no worker was heard any more: another coordinator may have a better line to them"))
        }
        Ok(Outcome::Stopped) => Err(Failure::retry("asked to stop before the group had drained")),
        Ok(Outcome::StoreFailed { message }) => Err(Failure::retry(message)),
        Err(error @ (StoreError::Record { .. } | StoreError::Io { .. })) => Err(Failure::fatal(error)),
        // A person may correct it. Until then, members train on, and sealed workers wait.
        Err(error @ (StoreError::Unavailable { .. } | StoreError::Forbidden { .. } | StoreError::Refused { .. })) => {
            Err(Failure::retry(error))
        }
    }
}

async fn asked_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("signals cannot be heard");
        return std::future::pending().await;
    };
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    info!("asked to stop");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_report_is_replaced_by_a_newer_one() {
        let report = |step| News::Progress(Box::new(Progress { step, ..Progress::default() }));
        let changed = News::Changed(GroupChange { generation: 7, ..GroupChange::default() });
        let joined = News::Joined("a".into());
        let members = News::Members(vec!["a".into(), "b".into()]);
        let mut waiting =
            VecDeque::from([report(1), joined, report(2), report(3), members, changed, report(4), report(5)]);
        let told: Vec<_> = std::iter::from_fn(|| next(&mut waiting))
            .map(|news| match news {
                News::Joined(member) => member,
                News::Members(members) => members.concat(),
                News::Progress(progress) => progress.step.to_string(),
                News::Changed(change) | News::Found(change) => format!("generation {}", change.generation),
            })
            .collect();
        assert_eq!(told, ["a", "3", "ab", "generation 7", "5"]);
    }
}
