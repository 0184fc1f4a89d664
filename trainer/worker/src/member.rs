//! A worker's part in one generation of the group: it joins, binds itself to the others, and leaves with a last word.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lockstep_checkpoint::Checkpoint;
use lockstep_collective::{Abort, JobId, Limits, Listener, Seat, Waiting};
use lockstep_elastic::{Digest, Event, Group, Hello, Incarnation, JoinError, MemberId, Membership, Sampler};
use lockstep_launch::{CommunicationBackend, Ending, Launch};
use tracing::{info, warn};

use crate::{failure::Failure, metrics::Metrics, serve::Ready, signals::Stop};

/// The others wait in a sum while rank 0 saves a large state to slow storage: who is gone shows by its closed connections, or to
/// the coordinator.
const LIMITS: Limits = Limits {
    forming: Duration::from_secs(60),
    silence: Duration::from_secs(600),
    waiting: Waiting::Adaptive,
    shares_memory: true,
};
/// How long there may be no coordinator while the group forms and when it ends.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(300);
/// How long a last word may take when the job failed anyway.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

/// A worker that has joined.
pub(crate) struct Member<'a> {
    pub launch: &'a Launch,
    pub metrics: &'a Arc<Metrics>,
    pub stop: &'a Stop,
    pub membership: Membership,
    pub group: Group,
    listener: Listener,
    abort: Abort,
}

impl<'a> Member<'a> {
    /// Joins the group. `data` is the digest of the samples, `newest` the state that this worker could begin with.
    pub(crate) fn join(
        launch: &'a Launch,
        metrics: &'a Arc<Metrics>,
        stop: &'a Stop,
        ready: &Ready,
        data: Digest,
        newest: Option<&Checkpoint>,
    ) -> Result<Self, Failure> {
        let listener = Listener::bind(launch.address, launch.ports.data).map_err(Failure::fatal)?;
        let hello = hello(launch, data, &listener, newest)?;
        let (membership, group) = Membership::join(&launch.coordinator.to_string(), hello, COORDINATOR_PATIENCE)
            .map_err(|error| match error {
                JoinError::Refused { reason } => Failure::fatal(reason),
                JoinError::Aborted { .. } | JoinError::Unreachable { .. } => Failure::retry(error),
            })?;
        info!(
            generation = group.generation,
            rank = group.rank,
            world = group.world,
            base_step = group.base_step,
            "group formed"
        );
        stop.steps_begin();
        ready.store(true, Ordering::Relaxed);

        let abort = Abort::new();
        membership.on_event({
            let (abort, stop) = (abort.clone(), stop.clone());
            move |event| match event {
                Event::Abort { reason } => abort.abort(reason.clone()),
                Event::Drain { reason } => {
                    info!(reason, "asked to drain");
                    stop.ask();
                }
                Event::CoordinatorLost => warn!("coordinator out of reach; the work goes on"),
                Event::CoordinatorFound => info!("coordinator found again"),
            }
        });
        Ok(Self { launch, metrics, stop, membership, group, listener, abort })
    }

    /// Does the work of this generation. When it cannot succeed the others learn why.
    pub(crate) fn work(&self, work: impl FnOnce() -> Result<Ending, Failure>) -> Result<Ending, Failure> {
        let ended = work();
        match &ended {
            // Others must not wait for a worker that will never take part.
            Err(Failure::Fatal(message)) => {
                if let Err(error) = self.membership.fatal(message, FAREWELL_PATIENCE) {
                    warn!(%error, "the group does not know why this worker ends");
                }
            }
            Ok(_) | Err(Failure::Retry(_) | Failure::Drained { .. }) => {}
        }
        ended
    }

    /// Binds the members to each other.
    pub(crate) fn form(&self) -> Result<lockstep_collective::Group, Failure> {
        let seat = Seat {
            job: job_id(&self.launch.job.uid),
            generation: self.group.generation,
            rank: self.group.rank as usize,
        };
        let shares_memory = self.launch.task.communication().backend == CommunicationBackend::Auto;
        let limits = Limits { shares_memory, ..LIMITS };
        lockstep_collective::Group::form(&self.listener, seat, &self.group.addresses, limits, &self.abort)
            .map_err(Failure::retry)
    }

    /// Says that all stopped after `step`, as was asked.
    pub(crate) fn drained(&self, step: u64) -> Failure {
        if let Err(error) = self.membership.drained(step, FAREWELL_PATIENCE) {
            warn!(%error, "the coordinator does not know that this worker drained");
        }
        Failure::Drained { step }
    }

    /// Says that the last step is done; all members must end with the same digest.
    pub(crate) fn finished(&self, step: u64, digest: Digest, ending: Ending) -> Result<Ending, Failure> {
        let payload = serde_json::to_vec(&ending).map_err(Failure::fatal)?;
        self.membership.finished(step, digest, payload, COORDINATOR_PATIENCE).map_err(Failure::retry)?;
        Ok(ending)
    }
}

fn hello(launch: &Launch, data: Digest, listener: &Listener, newest: Option<&Checkpoint>) -> Result<Hello, Failure> {
    let task = serde_json::to_string(&launch.task).map_err(Failure::fatal)?;
    let checkpoint = match newest {
        None => None,
        Some(Checkpoint { position, state_digest, .. }) => Some(lockstep_elastic::message::Checkpoint {
            step: position.step,
            digest: state_digest.parse().map_err(Failure::fatal)?,
            sampler: Sampler { seed: position.seed, epoch: position.epoch, cursor: position.cursor },
        }),
    };
    Ok(Hello {
        job: launch.job.uid.clone(),
        attempt: launch.attempt,
        member: MemberId { pod: launch.member.clone(), incarnation: Incarnation::random() },
        address: listener.address(),
        workload: Digest::of(format!("{} {task}", env!("CARGO_PKG_VERSION")).as_bytes()),
        data,
        checkpoint,
        entered_generation: None,
    })
}

/// Frames carry 16 bytes of it.
fn job_id(uid: &str) -> JobId {
    let digest = Digest::of(uid.as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    JobId(id)
}
