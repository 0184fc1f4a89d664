//! `lockstep-trainer worker`: joins the group, trains in lockstep to the last step, leaves its results.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lockstep_checkpoint::Checkpoint;
use lockstep_collective::{Abort, Communicator, JobId, Limits, Listener, Waiting};
use lockstep_data::{Dataset, Seat, steps_per_epoch};
use lockstep_elastic::{Digest, Event, Group, Hello, Incarnation, JoinError, MemberId, Membership, Sampler};
use lockstep_launch::{CommunicationAlgorithm, CommunicationBackend, Ending, Launch, Optimizer};
use lockstep_nn::{Cpu, Network, Replica, Sgd, StateTensor};
use tracing::{info, warn};

use crate::{
    baseline::Baseline,
    communication::{self, Agreed},
    failure::Failure,
    metrics::Metrics,
    model,
    reporter::Reporter,
    serve::{self, Ready},
    signals::Stop,
    storage::Storage,
    training::{Rank, Recipe},
};

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

/// Does a worker's whole life.
pub(crate) fn work(launch: &Launch) -> Result<Ending, Failure> {
    let stop = Stop::listen().map_err(|error| Failure::retry(format!("{error:#}")))?;
    let ready = Ready::default();
    let metrics = Metrics::new(&launch.job).map_err(Failure::fatal)?;
    let address = SocketAddr::new(launch.address, launch.ports.metrics);
    let text = {
        let metrics = Arc::clone(&metrics);
        move || metrics.text().unwrap_or_default()
    };
    let served =
        serve::serve(address, Arc::clone(&ready), text).map_err(|error| Failure::fatal(format!("{error:#}")))?;
    info!("serving metrics={served}");

    let dataset = model::dataset(&launch.workload)?;
    let network = model::network(&launch.workload.model, &dataset)?;
    let data = Digest::from_bytes(dataset.fingerprint());
    let storage = Storage::open(launch, data)?;
    let newest = storage.newest()?;
    let listener = Listener::bind(launch.address, launch.ports.data).map_err(Failure::fatal)?;

    let hello = hello(launch, data, listener.address(), newest.as_ref())?;
    let (membership, group) = Membership::join(&launch.coordinator.to_string(), hello, COORDINATOR_PATIENCE).map_err(
        |error| match error {
            JoinError::Refused { reason } => Failure::fatal(reason),
            JoinError::Aborted { .. } | JoinError::Unreachable { .. } => Failure::retry(error),
        },
    )?;
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
            Event::CoordinatorLost => warn!("coordinator out of reach; training goes on"),
            Event::CoordinatorFound => info!("coordinator found again"),
        }
    });
    let run = Run { launch, membership: &membership, group: &group, storage: &storage, metrics: &metrics, stop: &stop };
    let ended = run.train(dataset, network, newest, &listener, abort);
    match &ended {
        // Others must not wait for a worker that will never take part.
        Err(Failure::Fatal(message)) => {
            if let Err(error) = membership.fatal(message, FAREWELL_PATIENCE) {
                warn!(%error, "the group does not know why this worker ends");
            }
        }
        Ok(_) | Err(Failure::Retry(_) | Failure::Drained { .. }) => {}
    }
    ended
}

fn hello(launch: &Launch, data: Digest, address: SocketAddr, newest: Option<&Checkpoint>) -> Result<Hello, Failure> {
    let workload = serde_json::to_string(&launch.workload).map_err(Failure::fatal)?;
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
        address,
        workload: Digest::of(format!("{} {workload}", env!("CARGO_PKG_VERSION")).as_bytes()),
        data,
        checkpoint,
        entered_generation: None,
    })
}

/// One membership, from its first step to its last.
struct Run<'a> {
    launch: &'a Launch,
    membership: &'a Membership,
    group: &'a Group,
    storage: &'a Storage,
    metrics: &'a Arc<Metrics>,
    stop: &'a Stop,
}

impl Run<'_> {
    fn train(
        &self,
        dataset: Dataset,
        network: Network,
        newest: Option<Checkpoint>,
        listener: &Listener,
        abort: Abort,
    ) -> Result<Ending, Failure> {
        let recipe = self.recipe(&dataset);
        let ready_order = network.table().ready_order();
        let mut replica =
            Replica::new(Cpu::new(), network, recipe.micro_batch, ready_order.clone()).map_err(Failure::fatal)?;
        let record = newest.as_ref().and_then(|checkpoint| checkpoint.communication.clone());
        self.restore(&mut replica, newest)?;

        let world = self.group.addresses.len();
        let seat = lockstep_collective::Seat {
            job: job_id(&self.launch.job.uid),
            generation: self.group.generation,
            rank: self.group.rank as usize,
        };
        let communication = &self.launch.workload.communication;
        let limits = Limits { shares_memory: communication.backend == CommunicationBackend::Auto, ..LIMITS };
        let mut group = lockstep_collective::Group::form(listener, seat, &self.group.addresses, limits, &abort)
            .map_err(Failure::retry)?;
        if let Some(arena) = group.shared_arena(replica.table().elements()).map_err(Failure::retry)? {
            replica.set_gradient_memory(arena);
        }
        let Group { rank, world: ranks, shards, .. } = *self.group;
        let seat = match communication.algorithm {
            CommunicationAlgorithm::CanonicalTree => Seat::aligned(rank, ranks, shards),
            _ => Seat::new(rank, ranks, shards),
        };
        let Dataset { train, evaluation } = dataset;
        let own = Baseline::measure(&mut replica, &train, seat, &recipe)?;
        let agreed = communication::agree(&mut group, communication, &ready_order, &own, record.as_deref())
            .map_err(Failure::retry)?;
        replica.set_buckets(agreed.plan.buckets().to_vec()).map_err(Failure::fatal)?;
        let mut communicator = Communicator::over(group).map_err(Failure::retry)?;
        communicator.follow(&agreed.plan);
        let mut rank = Rank::new(
            seat,
            recipe,
            Arc::new(train),
            Arc::new(evaluation),
            replica,
            communicator,
            agreed.baseline,
            self.group.base_step,
            Arc::clone(self.metrics),
            self.stop.clone(),
        )?;
        self.check_shared(&mut rank, world)?;
        self.steps(&mut rank, &agreed)
    }

    fn recipe(&self, dataset: &Dataset) -> Recipe {
        let training = &self.launch.workload.training;
        let Optimizer::Sgd(sgd) = &training.optimizer;
        let global_batch = u64::from(training.global_batch_size);
        let steps_per_epoch = steps_per_epoch(dataset.train.len() as u64, global_batch);
        // A share can never be greater than the global batch.
        let micro_batch = training.micro_batch_size.min(training.global_batch_size) as usize;
        Recipe {
            seed: training.seed,
            global_batch,
            micro_batch,
            total_steps: steps_per_epoch * u64::from(training.epochs),
            steps_per_epoch,
            optimiser: Sgd { momentum: sgd.momentum, weight_decay: sgd.weight_decay },
            rate: training.schedule.base_learning_rate,
        }
    }

    /// The state that the group starts from: its checkpoint, or the seed's first weights.
    fn restore(&self, replica: &mut Replica<Cpu>, newest: Option<Checkpoint>) -> Result<(), Failure> {
        match newest {
            Some(checkpoint) if checkpoint.position.step == self.group.base_step => {
                let Checkpoint { path, weights, slots, .. } = checkpoint;
                let tensors: Vec<StateTensor> = weights
                    .into_iter()
                    .chain(slots)
                    .map(|tensor| StateTensor { name: tensor.name, shape: tensor.shape, values: tensor.values })
                    .collect();
                replica
                    .load_tensors(&tensors)
                    .map_err(|error| Failure::fatal(format!("{}: {error}", path.display())))?;
                let digest = Digest::from_bytes(replica.digest());
                if digest != self.group.base_digest {
                    let expected = self.group.base_digest;
                    return Err(Failure::fatal(format!(
                        "{}: state {digest:.12}, the group agreed on {expected:.12}",
                        path.display()
                    )));
                }
                info!(step = self.group.base_step, path = %path.display(), "resumed");
                Ok(())
            }
            _ if self.group.base_step == 0 => {
                replica.initialise(self.launch.workload.training.seed);
                Ok(())
            }
            _ => Err(Failure::retry(format!(
                "the group starts from step {}, which this worker did not find",
                self.group.base_step
            ))),
        }
    }

    /// Refuses storage that not every member sees: a checkpoint there would be of no use after a restart on other nodes.
    fn check_shared(&self, rank: &mut Rank, world: usize) -> Result<(), Failure> {
        let token = format!("{}-{}", self.launch.job.uid, self.group.generation);
        let first = self.group.rank == 0;
        if first {
            self.storage.leave_token(&token)?;
        }
        rank.sum(&mut [0.0])?;
        let mut blind = vec![0.0; world];
        blind[self.group.rank as usize] = f32::from(u8::from(!self.storage.sees_token(&token)?));
        rank.sum(&mut blind)?;
        if first {
            self.storage.clear_token(&token);
        }
        let blind: Vec<String> =
            blind.iter().zip(&self.group.pods).filter(|(blind, _)| **blind > 0.0).map(|(_, pod)| pod.clone()).collect();
        if blind.is_empty() { Ok(()) } else { Err(self.storage.not_shared(&blind)) }
    }

    fn steps(&self, rank: &mut Rank, communication: &Agreed) -> Result<Ending, Failure> {
        let mut reporter = if self.group.rank == 0 { Some(self.reporter(rank.recipe(), communication)?) } else { None };
        let recipe = rank.recipe().clone();
        rank.rest();
        // Every rank learns of a stop during the step after the one that carried it, and stops after that step.
        let mut last = recipe.total_steps;
        while rank.step() < last {
            let mut done = rank.advance()?;
            let ends_epoch = rank.step().is_multiple_of(recipe.steps_per_epoch);
            let saves = reporter.as_ref().is_some_and(Reporter::checkpoint_due) && rank.step() < recipe.total_steps;
            // A step that a checkpoint holds will not be done again: its line must be in the journal before.
            let newest = if ends_epoch || saves { rank.settle()? } else { None };
            for settled in [done.take(), newest].into_iter().flatten() {
                if settled.stop {
                    last = last.min(settled.step + 1);
                }
                if let Some(reporter) = &mut reporter {
                    reporter.step(rank, &settled)?;
                }
            }
            if ends_epoch {
                self.evaluate(rank, reporter.as_mut())?;
            }
            if let Some(reporter) = reporter.as_mut().filter(|_| saves)
                && let Err(error) = reporter.save(rank)
            {
                self.metrics.checkpoint_failures.inc();
                warn!(%error, step = rank.step(), "checkpoint not saved; training goes on");
            }
        }
        if let (Some(settled), Some(reporter)) = (rank.settle()?, &mut reporter) {
            reporter.step(rank, &settled)?;
        }
        if let Some(reporter) = &mut reporter {
            reporter.save(rank)?;
            reporter.report(true)?;
        }
        if rank.step() < recipe.total_steps {
            if let Err(error) = self.membership.drained(rank.step(), FAREWELL_PATIENCE) {
                warn!(%error, "the coordinator does not know that this worker drained");
            }
            return Err(Failure::Drained { step: rank.step() });
        }
        self.finish(rank, reporter)
    }

    fn evaluate(&self, rank: &mut Rank, reporter: Option<&mut Reporter<'_>>) -> Result<(), Failure> {
        let Some(found) = rank.evaluate()? else { return Ok(()) };
        self.metrics.evaluated(found.loss);
        let Some(reporter) = reporter else { return Ok(()) };
        reporter.evaluated(rank.step(), rank.step() / rank.recipe().steps_per_epoch, found)
    }

    fn reporter<'a>(&'a self, recipe: &Recipe, communication: &'a Agreed) -> Result<Reporter<'a>, Failure> {
        let interval = Duration::from_secs(self.launch.workload.checkpoint.interval_seconds.into());
        Reporter::open(self.membership, self.group, self.storage, self.metrics, recipe, communication, interval)
    }

    fn finish(&self, rank: &mut Rank, reporter: Option<Reporter<'_>>) -> Result<Ending, Failure> {
        let mut ending = Ending::default();
        if let Some(reporter) = reporter {
            let facts = BTreeMap::from([
                ("job".to_owned(), self.launch.job.name.clone()),
                ("steps".to_owned(), rank.step().to_string()),
                ("format".to_owned(), "pt".to_owned()),
            ]);
            ending.model_uri = Some(self.storage.export(rank.replica_mut(), &facts)?);
            ending.progress = Some(reporter.progress());
        }
        let digest = Digest::from_bytes(rank.replica_mut().digest());
        let payload = serde_json::to_vec(&ending).map_err(Failure::fatal)?;
        self.membership.finished(rank.step(), digest, payload, COORDINATOR_PATIENCE).map_err(Failure::retry)?;
        Ok(ending)
    }
}

/// Frames carry 16 bytes of it.
fn job_id(uid: &str) -> JobId {
    let digest = Digest::of(uid.as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    JobId(id)
}
