//! `lockstep-trainer worker`: joins the group, trains in lockstep to the last step (or measures to the last row), leaves its results.
//! When the group changes the process stays: it stands still, is committed to the next generation, and goes on.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Once},
    time::{Duration, Instant},
};

use lockstep_collective::{Choice, Communicator};
use lockstep_data::{Dataset, Samples, Seat, steps_per_epoch};
use lockstep_elastic::{Activity, ActivityMonitor, Admission, Assignment, Digest, HeldState, PlanAgreement, Sampler};
use lockstep_launch::{
    AgreedPlan, Benchmark, CommunicationAlgorithm, Ending, Launch, MIN_SHARDS, Optimizer, PLANS_FILE, Replay, Task,
    WireFormat, Workload, lines,
};
use lockstep_nn::Sgd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;

use crate::{
    benchmark,
    communication::{self, Agreed, Before, Places},
    compute::memory,
    compute::model,
    compute::training_state::Trainee,
    failure::{Failure, with_causes},
    membership::catchup::receive::until_let_in,
    membership::session::{Halt, LIMITS, Member, UNACKNOWLEDGED},
    progress::metrics::Metrics,
    progress::metrics_log::Turn,
    progress::report::{Beginning, Reporter},
    saving::protocol::Saver,
    serve::{self, Ready},
    signals::Stop,
    step::rank::{Rank, Recipe, Slice},
    step::step_sync::slots::slots,
    storage::probe,
    storage::retry::{told_of, until_stored},
    storage::{self, Storage},
};

/// Does a worker's whole life, or repeats a part of another one's.
pub(crate) fn work(launch: &Launch, replay: Option<&Replay>) -> Result<Ending, Failure> {
    allow_connections();
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
            storage::check_variables(launch)?;
            let dataset = model::dataset(workload)?;
            let network = model::network(&workload.model, &dataset)?;
            memory::check(launch, workload, &network, &dataset)?;
            let data = Digest::from_bytes(dataset.fingerprint());
            let storage = Storage::open(launch, workload, data)?;
            let shards = MIN_SHARDS.max(launch.elastic.max_replicas);
            // What a rank does by itself depends on its share of a step, which is the first group's.
            let Some(first) = device_seats(workload, 0, launch.replicas, shards).next() else {
                return Err(Failure::fatal("spec.devicesPerWorker: 0: 1 or more"));
            };
            let recipe = recipe(workload, &dataset, replay.and_then(|replay| replay.last_step));
            let devices = workload.devices_per_worker as usize;
            let mut trainee = Trainee::new(network, recipe, &storage, &dataset.train, first, devices)?;
            let held = trainee.held();
            let (member, place) = Member::join(launch, &metrics, &stop, &ready, data, held)?;
            let Dataset { train, evaluation } = dataset;
            let run = Run {
                member: &member,
                workload,
                replay,
                storage: &storage,
                train: Arc::new(train),
                held_out: Arc::new(evaluation),
                first_step: Once::new(),
            };
            let mut saver = None;
            let ended = member.work(|| {
                let group = until_let_in(&member, &mut trainee, place)?;
                let interval = Duration::from_secs(workload.checkpoint.interval_seconds.into());
                let saver = saver.insert(Saver::start(&storage, &member, &trainee, &group, interval)?);
                run.train(&mut trainee, saver, group)
            });
            // What it still writes is waited for, by this process only.
            told_of(storage.uri(), || drop(saver));
            ended
        }
        Task::Benchmark { benchmark: Benchmark::Collectives(collectives), communication } => {
            let no_data = Digest::of(b"");
            let nothing =
                HeldState { step: 0, digest: Digest::NONE, sampler: Sampler { seed: 0, epoch: 0, cursor: 0 } };
            let (member, mut place) = Member::join(launch, &metrics, &stop, &ready, no_data, nothing)?;
            member.work(|| {
                loop {
                    let Admission::Member(group) = place else {
                        // There is nothing to take over.
                        place = member.regroup(nothing, None)?;
                        continue;
                    };
                    let broken = match benchmark::measure(&member, &group, collectives, communication) {
                        Ok(Some(ending)) => return Ok(ending),
                        Ok(None) => None,
                        Err(failure) => member.broken_by(failure)?,
                    };
                    // Another group begins its table anew.
                    place = member.regroup(nothing, broken)?;
                }
            })
        }
    }
}

/// Lets this process have as many connections as it may: each rank is connected with all others.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    // Whoever needs more than it then has is told so by the connection that fails.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn recipe(workload: &Workload, dataset: &Dataset, last_step: Option<u64>) -> Recipe {
    let training = &workload.training;
    let Optimizer::Sgd(sgd) = &training.optimizer;
    let global_batch = u64::from(training.global_batch_size);
    let steps_per_epoch = steps_per_epoch(dataset.train.len() as u64, global_batch);
    // A share can never be greater than the global batch.
    let micro_batch = training.micro_batch_size.min(training.global_batch_size) as usize;
    Recipe {
        seed: training.seed,
        global_batch,
        micro_batch,
        total_steps: last_step.unwrap_or(u64::MAX).min(steps_per_epoch * u64::from(training.epochs)),
        steps_per_epoch,
        optimiser: Sgd { momentum: sgd.momentum, weight_decay: sgd.weight_decay },
        rate: training.schedule.base_learning_rate,
    }
}

fn seat(workload: &Workload, rank: u32, world: u32, shards: u32) -> Seat {
    match workload.communication.algorithm {
        CommunicationAlgorithm::CanonicalTree => Seat::aligned(rank, world, shards),
        _ => Seat::new(rank, world, shards),
    }
}

/// The seat of each device of a worker.
fn device_seats(workload: &Workload, rank: u32, world: u32, shards: u32) -> impl Iterator<Item = Seat> {
    let count = workload.devices_per_worker;
    (0..count).map(move |device| seat(workload, rank * count + device, world * count, shards * count))
}

/// The training of this process, whatever groups it belongs to.
struct Run<'a> {
    member: &'a Member<'a>,
    workload: &'a Workload,
    replay: Option<&'a Replay>,
    storage: &'a Storage,
    train: Arc<Samples>,
    held_out: Arc<Samples>,
    /// Of this process.
    first_step: Once,
}

impl Run<'_> {
    fn work(&self) -> &ActivityMonitor {
        self.member.membership.work()
    }

    /// From group to group until the last step is done.
    fn train(&self, trainee: &mut Trainee, saver: &mut Saver<'_>, mut group: Assignment) -> Result<Ending, Failure> {
        loop {
            let outcome = self.generation(trainee, saver, &group);
            trainee.stand();
            let broken = match outcome {
                Ok(Some(ending)) => return Ok(ending),
                Ok(None) => None,
                Err(failure) => self.member.broken_by(failure)?,
            };
            // Those it copied from may be gone for good.
            if !trainee.is_whole() {
                trainee.begin(self.storage)?;
                self.member.membership.reloaded();
            }
            let place = self.member.regroup(trainee.held(), broken)?;
            group = until_let_in(self.member, trainee, place)?;
        }
    }

    /// One generation, from binding its members to each other until it ends. `None` where the group changes.
    fn generation(
        &self,
        trainee: &mut Trainee,
        saver: &mut Saver<'_>,
        group: &Assignment,
    ) -> Result<Option<Ending>, Failure> {
        if let Some(damaged) = trainee.passed_over_for(0).filter(|_| group.base.step == 0) {
            return Err(self.storage.none_whole(damaged));
        }
        saver.enter(group);
        let mut ranks = self.member.form(group)?;
        ranks.set_silence(LIMITS.silence, trainee.copying_limit(group)).map_err(Failure::lost)?;
        trainee.catch_up(group, &mut ranks)?;
        ranks.set_silence(LIMITS.silence, UNACKNOWLEDGED).map_err(Failure::lost)?;
        trainee.devices.take_over(&mut trainee.replica);
        self.member.membership.entered();

        // What is told beside the gradients is not to be rounded.
        let beside = if self.workload.communication.wire == WireFormat::F32 { slots(ranks.world()) } else { 0 };
        let arena = ranks.shared_arena(trainee.replica.table().elements() + beside).map_err(Failure::lost)?;
        trainee.put_gradients(arena, beside);
        let places = trainee.meet(group);
        let agreed = self.agree(trainee, &mut ranks, places)?;
        let communicator = Communicator::over(ranks).map_err(|error| Failure::retry(with_causes(&error)))?;
        self.work().during(Activity::Computing, || self.bound(trainee, saver, group, communicator, &agreed))
    }

    /// The rest of it, as one of ranks that are bound to each other.
    fn bound(
        &self,
        trainee: &mut Trainee,
        saver: &mut Saver<'_>,
        group: &Assignment,
        communicator: Communicator<Slice>,
        agreed: &Agreed,
    ) -> Result<Option<Ending>, Failure> {
        let mut rank = Rank::new(
            trainee,
            self.member,
            seat(self.workload, group.rank, group.world, group.shards),
            device_seats(self.workload, group.rank, group.world, group.shards),
            group,
            Arc::clone(&self.train),
            Arc::clone(&self.held_out),
            communicator,
            agreed,
        )?;
        self.work().during(Activity::Waiting, || probe::check(self.member, self.storage, &mut rank, group))?;
        let mut reporter = if group.reports() {
            let Member { membership, metrics, launch, .. } = self.member;
            let turn = Turn { job: &launch.job.uid, attempt: launch.attempt, generation: group.generation };
            let mut teller = Beginning { membership, group, trainee: rank.trainee };
            let open = |teller: &mut Beginning<'_>| {
                Reporter::open(membership, group, self.storage, metrics, teller.trainee, agreed, turn)
            };
            until_stored(membership, &mut teller, |_| self.storage.clear_before(group.generation))?;
            let mut reporter = until_stored(membership, &mut teller, open)?;
            // Only now is it known that this turn is not over.
            until_stored(membership, &mut reporter, |_| self.keep_plan(group, group.base.step, agreed))?;
            Some(reporter)
        } else {
            self.member.metrics.leave_reporting();
            None
        };
        self.make_up_evaluation(&mut rank, reporter.as_mut())?;
        let halt = self.steps(&mut rank, saver, reporter.as_mut(), group, agreed)?;
        self.work().during(Activity::Waiting, || match halt {
            Some(Halt::Change) => {
                rank.end_feeds();
                Ok(None)
            }
            Some(Halt::Drain) => self.drain(&mut rank, saver, reporter),
            None => self.finish(&mut rank, saver, reporter),
        })
    }

    fn agree(
        &self,
        trainee: &mut Trainee,
        ranks: &mut lockstep_collective::Group,
        places: Places,
    ) -> Result<Agreed, Failure> {
        let ready_order = trainee.replica.table().ready_order();
        let kept = trainee.communication.as_deref().map(Before::Kept);
        let before = self.replay.map(|replay| Before::Repeated(&replay.plan)).or(kept);
        let (settings, baseline, known) = (&self.workload.communication, &trainee.baseline, trainee.costs());
        let agreed = communication::agree(ranks, settings, &ready_order, baseline, before, places, known)
            .map_err(Failure::lost)?;
        let differs = |replay: &&Replay| !communication::tell_the_same(&replay.plan, &agreed.record);
        if let Some(Replay { plan, .. }) = self.replay.filter(differs) {
            return Err(Failure::fatal(format!("to be summed by {plan}, which is no plan here; by {}", agreed.record)));
        }
        self.take_over(trainee, &agreed)?;
        Ok(agreed)
    }

    /// Sums as agreed from the next step on.
    fn take_over(&self, trainee: &mut Trainee, agreed: &Agreed) -> Result<(), Failure> {
        trainee.set_buckets(agreed.plan.buckets())?;
        trainee.communication = Some(agreed.record.clone());
        let plan = Digest::of(agreed.record.as_bytes());
        self.member.membership.agreed(PlanAgreement { after: trainee.step, plan });
        Ok(())
    }

    /// Agrees anew how to sum, by what the group's first steps took.
    fn agree_anew(
        &self,
        rank: &mut Rank<'_>,
        reporter: Option<&mut Reporter<'_>>,
        group: &Assignment,
        before: &Agreed,
    ) -> Result<(), Failure> {
        let agreed = rank.agree_anew(before)?;
        let stays = agreed.plan == before.plan;
        if stays {
            rank.trainee.communication = Some(agreed.record.clone());
        } else {
            if let Choice::Cheapest(costs) = agreed.plan.choice() {
                rank.trainee.learn(costs);
            }
            self.take_over(rank.trainee, &agreed)?;
        }
        if let Some(reporter) = reporter {
            reporter.sums_by(&agreed);
            if !stays {
                until_stored(&self.member.membership, reporter, |_| self.keep_plan(group, rank.step(), &agreed))?;
            }
        }
        if !stays {
            // Whoever reports may have waited for its storage.
            rank.expect_anything();
            rank.sum(&mut [0.0])?;
        }
        rank.rest();
        Ok(())
    }

    /// Has it stored how this group sums after `step`, before there can be another: each one needs this rank.
    fn keep_plan(&self, group: &Assignment, step: u64, agreed: &Agreed) -> Result<(), Failure> {
        let Assignment { generation, world, .. } = group;
        let plan = agreed.record.clone();
        let planned = AgreedPlan { generation: *generation, workers: *world, step, plan };
        let path = self.storage.output().join(PLANS_FILE);
        let appended = told_of(path.display(), || lines::append(&path, &planned));
        appended.map_err(|error| Failure::retry(format!("{}: {error}", path.display())))
    }

    /// A group that broke while it evaluated has done the step before it already. All wait here for the one that opens the journal: a large
    /// one takes its time on slow storage.
    fn make_up_evaluation(&self, rank: &mut Rank<'_>, reporter: Option<&mut Reporter<'_>>) -> Result<(), Failure> {
        let step = rank.step();
        let ends_epoch = step > 0 && step.is_multiple_of(rank.recipe().steps_per_epoch);
        let lacks = |reporter: &&mut Reporter<'_>| ends_epoch && !reporter.has_evaluated(step);
        let mut owed = [f32::from(u8::from(reporter.as_ref().is_some_and(lacks)))];
        self.work().during(Activity::Waiting, || rank.sum(&mut owed))?;
        if owed == [0.0] { Ok(()) } else { self.evaluate(rank, reporter) }
    }

    /// Does steps until the last, or until all halt after one, which it says.
    fn steps(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        mut reporter: Option<&mut Reporter<'_>>,
        group: &Assignment,
        agreed: &Agreed,
    ) -> Result<Option<Halt>, Failure> {
        let (recipe, work) = (rank.recipe().clone(), self.work());
        rank.rest();
        // Every rank learns of a halt or a checkpoint during the step after the one that carried it: all stop or copy after that step.
        let (mut halt, mut copied) = (None, None);
        let mut last = recipe.total_steps;
        rank.expect_first_step();
        while rank.step() < last {
            let done = rank.advance(saver.word(reporter.is_some()))?;
            self.first_step.call_once(|| memory::has_fit(self.member.launch));
            let ends_epoch = rank.step().is_multiple_of(recipe.steps_per_epoch);
            let agrees_anew = rank.has_seen_enough();
            let newest = if ends_epoch || agrees_anew { rank.settle()? } else { None };
            for settled in [done, newest].into_iter().flatten() {
                let step = settled.line.step;
                if let Some(reason) = settled.halt {
                    last = last.min(step + 1);
                    halt = halt.max(Some(reason));
                }
                if settled.told.asks {
                    copied = Some(step + 1);
                }
                work.during(Activity::Storing, || {
                    if let Some(reporter) = &mut reporter {
                        reporter.take_checkpoint(saver);
                        reporter.step(rank, &settled.line)?;
                    }
                    saver.hear(step, settled.told, reporter.as_deref_mut());
                    Ok(())
                })?;
                if let Some(reporter) = &mut reporter {
                    until_stored(&self.member.membership, reporter, |reporter| reporter.make_room())?;
                }
            }
            if ends_epoch {
                rank.expect_anything();
                let begun = Instant::now();
                self.evaluate(rank, reporter.as_deref_mut())?;
                saver.evaluated(begun.elapsed());
            }
            rank.expect_steps();
            if agrees_anew && rank.step() < last {
                self.agree_anew(rank, reporter.as_deref_mut(), group, agreed)?;
                rank.expect_first_step();
            }
            // After the last one is saved anyway.
            if copied == Some(rank.step()) && rank.step() < last {
                saver.copy(rank);
            }
            if rank.step() < last {
                rank.feed_newcomer();
            }
        }
        let settled = rank.settle()?;
        rank.expect_anything();
        if let Some(reporter) = reporter {
            work.during(Activity::Storing, || {
                settled.map_or(Ok(()), |settled| reporter.step(rank, &settled.line))?;
                reporter.report(true)
            })?;
        }
        Ok(halt.filter(|_| rank.step() < recipe.total_steps))
    }

    fn evaluate(&self, rank: &mut Rank<'_>, reporter: Option<&mut Reporter<'_>>) -> Result<(), Failure> {
        let Some(found) = rank.evaluate()? else { return Ok(()) };
        self.member.metrics.evaluated(found.loss);
        rank.trainee.remember_evaluation(found);
        let (Some(reporter), Some(line)) = (reporter, rank.trainee.evaluations().back()) else { return Ok(()) };
        self.work().during(Activity::Storing, || reporter.evaluated(line))
    }

    /// Saves the state before everybody goes.
    fn drain(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<Reporter<'_>>,
    ) -> Result<Option<Ending>, Failure> {
        save_at_the_end(rank, saver, reporter)?;
        self.member.drained(rank.step()).map_or(Ok(None), Err)
    }

    fn finish(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<Reporter<'_>>,
    ) -> Result<Option<Ending>, Failure> {
        let mut ending = Ending::default();
        if let Some(mut reporter) = save_at_the_end(rank, saver, reporter)? {
            let facts = BTreeMap::from([
                ("job".to_owned(), self.member.launch.job.name.clone()),
                ("steps".to_owned(), rank.step().to_string()),
                ("format".to_owned(), "pt".to_owned()),
            ]);
            let export = |_: &mut Reporter<'_>| self.storage.export(&mut rank.trainee.replica, &facts);
            ending.model_uri = Some(until_stored(&self.member.membership, &mut reporter, export)?);
            reporter.take_checkpoint(saver);
            ending.progress = Some(reporter.progress());
        }
        let digest = Digest::from_bytes(rank.trainee.replica.digest());
        self.member.finished(rank.step(), digest, ending)
    }
}

/// Saves the state after the last step, and tells of it.
fn save_at_the_end<'a>(
    rank: &mut Rank<'_>,
    saver: &mut Saver<'_>,
    mut reporter: Option<Reporter<'a>>,
) -> Result<Option<Reporter<'a>>, Failure> {
    saver.save(rank, reporter.as_mut())?;
    if let Some(reporter) = &mut reporter {
        reporter.take_checkpoint(saver);
        reporter.report(true)?;
    }
    Ok(reporter)
}
