//! `lockstep-trainer worker`: joins the group, trains in lockstep to the last step (or measures to the last row), leaves its results.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use lockstep_checkpoint::Checkpoint;
use lockstep_collective::Communicator;
use lockstep_data::{Dataset, Seat, steps_per_epoch};
use lockstep_elastic::Digest;
use lockstep_launch::{Benchmark, CommunicationAlgorithm, Ending, Launch, Optimizer, Task, Workload};
use lockstep_nn::{Cpu, Network, Replica, Sgd, StateTensor};
use tracing::{info, warn};

use crate::{
    baseline::Baseline,
    benchmark,
    communication::{self, Agreed},
    failure::Failure,
    member::Member,
    metrics::Metrics,
    model,
    reporter::Reporter,
    serve::{self, Ready},
    signals::Stop,
    storage::Storage,
    training::{Rank, Recipe},
};

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

    match &launch.task {
        Task::Train(workload) => {
            let dataset = model::dataset(workload)?;
            let network = model::network(&workload.model, &dataset)?;
            let data = Digest::from_bytes(dataset.fingerprint());
            let storage = Storage::open(&launch.output, workload, data)?;
            let newest = storage.newest()?;
            let member = Member::join(launch, &metrics, &stop, &ready, data, newest.as_ref())?;
            let run = Run { member: &member, workload, storage: &storage };
            member.work(|| run.train(dataset, network, newest))
        }
        Task::Benchmark { benchmark: Benchmark::Collectives(collectives), communication } => {
            let no_data = Digest::of(b"");
            let member = Member::join(launch, &metrics, &stop, &ready, no_data, None)?;
            member.work(|| benchmark::measure(&member, collectives, communication))
        }
    }
}

/// One membership, from its first step to its last.
struct Run<'a> {
    member: &'a Member<'a>,
    workload: &'a Workload,
    storage: &'a Storage,
}

impl Run<'_> {
    fn train(&self, dataset: Dataset, network: Network, newest: Option<Checkpoint>) -> Result<Ending, Failure> {
        let formed = &self.member.group;
        let recipe = self.recipe(&dataset);
        let ready_order = network.table().ready_order();
        let mut replica =
            Replica::new(Cpu::new(), network, recipe.micro_batch, ready_order.clone()).map_err(Failure::fatal)?;
        let record = newest.as_ref().and_then(|checkpoint| checkpoint.communication.clone());
        self.restore(&mut replica, newest)?;

        let world = formed.addresses.len();
        let communication = &self.workload.communication;
        let mut group = self.member.form()?;
        if let Some(arena) = group.shared_arena(replica.table().elements()).map_err(Failure::retry)? {
            replica.set_gradient_memory(arena);
        }
        let seat = match communication.algorithm {
            CommunicationAlgorithm::CanonicalTree => Seat::aligned(formed.rank, formed.world, formed.shards),
            _ => Seat::new(formed.rank, formed.world, formed.shards),
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
            formed.base_step,
            Arc::clone(self.member.metrics),
            self.member.stop.clone(),
        )?;
        self.check_shared(&mut rank, world)?;
        self.steps(&mut rank, &agreed)
    }

    fn recipe(&self, dataset: &Dataset) -> Recipe {
        let training = &self.workload.training;
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
            Some(checkpoint) if checkpoint.position.step == self.member.group.base_step => {
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
                if digest != self.member.group.base_digest {
                    let expected = self.member.group.base_digest;
                    return Err(Failure::fatal(format!(
                        "{}: state {digest:.12}, the group agreed on {expected:.12}",
                        path.display()
                    )));
                }
                info!(step = self.member.group.base_step, path = %path.display(), "resumed");
                Ok(())
            }
            _ if self.member.group.base_step == 0 => {
                replica.initialise(self.workload.training.seed);
                Ok(())
            }
            _ => Err(Failure::retry(format!(
                "the group starts from step {}, which this worker did not find",
                self.member.group.base_step
            ))),
        }
    }

    /// Refuses storage that not every member sees: a checkpoint there would be of no use after a restart on other nodes.
    fn check_shared(&self, rank: &mut Rank, world: usize) -> Result<(), Failure> {
        let token = format!("{}-{}", self.member.launch.job.uid, self.member.group.generation);
        let first = self.member.group.rank == 0;
        if first {
            self.storage.leave_token(&token)?;
        }
        rank.sum(&mut [0.0])?;
        let mut blind = vec![0.0; world];
        blind[self.member.group.rank as usize] = f32::from(u8::from(!self.storage.sees_token(&token)?));
        rank.sum(&mut blind)?;
        if first {
            self.storage.clear_token(&token);
        }
        let blind: Vec<String> = blind
            .iter()
            .zip(&self.member.group.pods)
            .filter(|(blind, _)| **blind > 0.0)
            .map(|(_, pod)| pod.clone())
            .collect();
        if blind.is_empty() { Ok(()) } else { Err(self.storage.not_shared(&blind)) }
    }

    fn steps(&self, rank: &mut Rank, communication: &Agreed) -> Result<Ending, Failure> {
        let mut reporter =
            if self.member.group.rank == 0 { Some(self.reporter(rank.recipe(), communication)?) } else { None };
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
                self.member.metrics.checkpoint_failures.inc();
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
            return Err(self.member.drained(rank.step()));
        }
        self.finish(rank, reporter)
    }

    fn evaluate(&self, rank: &mut Rank, reporter: Option<&mut Reporter<'_>>) -> Result<(), Failure> {
        let Some(found) = rank.evaluate()? else { return Ok(()) };
        self.member.metrics.evaluated(found.loss);
        let Some(reporter) = reporter else { return Ok(()) };
        reporter.evaluated(rank.step(), rank.step() / rank.recipe().steps_per_epoch, found)
    }

    fn reporter<'a>(&'a self, recipe: &Recipe, communication: &'a Agreed) -> Result<Reporter<'a>, Failure> {
        let interval = Duration::from_secs(self.workload.checkpoint.interval_seconds.into());
        let Member { membership, group, .. } = self.member;
        Reporter::open(membership, group, self.storage, self.member.metrics, recipe, communication, interval)
    }

    fn finish(&self, rank: &mut Rank, reporter: Option<Reporter<'_>>) -> Result<Ending, Failure> {
        let mut ending = Ending::default();
        if let Some(reporter) = reporter {
            let facts = BTreeMap::from([
                ("job".to_owned(), self.member.launch.job.name.clone()),
                ("steps".to_owned(), rank.step().to_string()),
                ("format".to_owned(), "pt".to_owned()),
            ]);
            ending.model_uri = Some(self.storage.export(rank.replica_mut(), &facts)?);
            ending.progress = Some(reporter.progress());
        }
        let digest = Digest::from_bytes(rank.replica_mut().digest());
        self.member.finished(rank.step(), digest, ending)
    }
}
