//! `lockstep-trainer coordinator`: agrees on the group, keeps its record, passes its reports on. Training needs none of it.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use kube::Client;
use lockstep_elastic::{FileStore, Notice, Outcome, Sampler, StoreError, coordinate as run, coordinator::Config};
use lockstep_launch::{Ending, Launch, MIN_SHARDS, Progress, Store, Task, names};
use prometheus::TextEncoder;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tracing::{info, warn};

use crate::{board::Board, failure::Failure, kubernetes_store::KubernetesStore, metrics::process_registry, serve};

/// Coordinates the job's group to its end.
pub(crate) fn coordinate(launch: &Launch) -> Result<Ending, Failure> {
    let metrics = process_registry(&launch.job).map_err(Failure::fatal)?;
    // The coordinator is of use as soon as it listens.
    let text = move || TextEncoder::new().encode_to_string(&metrics.gather()).unwrap_or_default();
    let ready = Arc::new(AtomicBool::new(true));
    let address = SocketAddr::new(launch.address, launch.ports.metrics);
    let served = serve::serve(address, ready, text).map_err(|error| Failure::fatal(format!("{error:#}")))?;
    info!(metrics = %served, "serving");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::retry(format!("no runtime: {error}")))?;
    runtime.block_on(serve_group(launch))
}

async fn serve_group(launch: &Launch) -> Result<Ending, Failure> {
    let listener = launch.control_listener().and_then(TcpListener::from_std).map_err(|error| {
        Failure::fatal(format!("cannot listen for workers on {}:{}: {error}", launch.address, launch.ports.control))
    })?;
    let bound = listener.local_addr().map_err(Failure::retry)?;
    info!(control = %bound, "listening");

    let client = match launch.store {
        Store::Kubernetes => {
            Some(Client::try_default().await.map_err(|error| Failure::retry(format!("no API server: {error}")))?)
        }
        Store::File(_) => None,
    };
    let mut board = Board::new(&launch.store, &launch.job, client.as_ref());
    board.listening(bound);
    let seed = match &launch.task {
        Task::Train(workload) => workload.training.seed,
        Task::Benchmark { .. } => 0,
    };
    let config = Config {
        job: launch.job.uid.clone(),
        attempt: launch.attempt,
        name: format!("{}/{}", names::coordinator(&launch.job.name), uuid::Uuid::new_v4()),
        members: (0..launch.replicas).map(|index| names::worker(&launch.job.name, index)).collect(),
        shards: MIN_SHARDS.max(launch.replicas),
        sampler: Sampler { seed, epoch: 0, cursor: 0 },
        // How long to wait for workers is the decision of whoever starts them.
        join_limit: None,
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
        Notice::Progress { payload, .. } => match serde_json::from_slice(payload) {
            Ok(progress) => drop(post.send(News::Progress(Box::new(progress)))),
            Err(error) => warn!(%error, "a report could not be read"),
        },
    };
    let publishing = async {
        while let Some(news) = posted.recv().await {
            match news {
                News::Joined(member) => board.joined(&member),
                News::Progress(progress) => board.post(*progress).await,
            }
        }
    };
    let coordinating = async {
        match (&launch.store, client.clone()) {
            (Store::Kubernetes, Some(client)) => {
                run(listener, config, KubernetesStore::new(client, &launch.job), notify, asked_to_stop()).await
            }
            (Store::File(path), _) => {
                run(listener, config, FileStore::new(path.clone()), notify, asked_to_stop()).await
            }
            (Store::Kubernetes, None) => unreachable!("a client was made for this store"),
        }
    };
    let (outcome, ()) = tokio::join!(coordinating, publishing);
    let ended = conclude(outcome, board.newest().cloned());
    board.flush().await;
    let ending = match &ended {
        Ok(ending) => ending.clone(),
        Err(failure) => Ending { message: failure.to_string(), progress: board.newest().cloned(), model_uri: None },
    };
    board.end(&ending).await;
    ended
}

/// What the board has to tell.
enum News {
    Joined(String),
    Progress(Box<Progress>),
}

/// What the group's outcome means for the job.
fn conclude(outcome: Result<Outcome, StoreError>, newest: Option<Progress>) -> Result<Ending, Failure> {
    match outcome {
        Ok(Outcome::Finished { payload, .. }) => {
            let ending: Option<Ending> = serde_json::from_slice(&payload).ok();
            let ending = ending.unwrap_or_default();
            Ok(Ending { progress: ending.progress.or(newest), ..ending })
        }
        Ok(Outcome::Drained { step }) => Err(Failure::Drained { step }),
        Ok(Outcome::Fatal { message, .. }) => Err(Failure::fatal(message)),
        Ok(Outcome::Lost { member, reason }) => Err(Failure::retry(format!("{} was lost: {reason}", member.pod))),
        Ok(Outcome::Incomplete { missing, waited }) => {
            Err(Failure::retry(format!("{} did not come up within {waited:?}", missing.join(", "))))
        }
        Ok(Outcome::Superseded) => Err(Failure::retry("another coordinator took over")),
        Ok(Outcome::Stopped) => Err(Failure::retry("asked to stop before the group had drained")),
        Ok(Outcome::StoreFailed { message }) => Err(Failure::retry(message)),
        Err(error @ (StoreError::Record { .. } | StoreError::Io { .. })) => Err(Failure::fatal(error)),
        Err(error @ StoreError::Unavailable { .. }) => Err(Failure::retry(error)),
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
