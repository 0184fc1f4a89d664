//! The training of one worker, from generation to generation until the last step.

use std::{collections::BTreeMap, sync::Once, time::Instant};

use lockstep_collective::{Choice, Collectives, Communicator, Group as Ranks};
use lockstep_data::Seat;
use lockstep_elastic::{Activity, ActivityMonitor, Assignment, Digest, PlanAgreement};
use lockstep_launch::{AgreedPlan, CommunicationAlgorithm, Ending, PLANS_FILE, Replay, WireFormat, Workload, lines};

use crate::{
    communication::{self, Agreed, Alone, Before, Placement, agree_alone},
    compute::{memory, payload::Payload, training_state::TrainingState},
    failure::{Failure, with_causes},
    membership::{
        catchup::{copy::copy_base, receive::until_member},
        session::{Halt, Session},
    },
    progress::{
        metrics_log::Turn,
        phase_clock::{Phase, PhaseClock},
        report::{Opening, Reporter, Start},
    },
    saving::protocol::{Logged, Saver},
    step::{
        rank::{AgreedEvaluation, CommittedStep, Rank},
        rehearsal::rehearse,
        step_sync::numbers::slots,
    },
    storage::{
        Storage,
        probe::Probe,
        retry::{Waits as _, until_stored, warned_of},
    },
    trainee::DESCRIPTION,
};

fn seat(workload: &Workload, rank: u32, world: u32, shards: u32) -> Seat {
    match workload.communication.algorithm {
        CommunicationAlgorithm::CanonicalTree => Seat::aligned(rank, world, shards),
        _ => Seat::new(rank, world, shards),
    }
}

/// Returns the seat of each device of a worker.
pub(crate) fn device_seats(workload: &Workload, rank: u32, world: u32, shards: u32) -> impl Iterator<Item = Seat> {
    let count = workload.devices_per_worker;
    (0..count).map(move |device| seat(workload, rank * count + device, world * count, shards * count))
}

/// The training of this process, whatever groups it belongs to.
pub(crate) struct Run<'a> {
    session: &'a Session<'a>,
    workload: &'a Workload,
    replay: Option<&'a Replay>,
    storage: &'a Storage,
    /// The first step of this process.
    first_step: Once,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        session: &'a Session<'a>,
        workload: &'a Workload,
        replay: Option<&'a Replay>,
        storage: &'a Storage,
    ) -> Self {
        Self { session, workload, replay, storage, first_step: Once::new() }
    }

    fn work(&self) -> &ActivityMonitor {
        self.session.work()
    }

    fn phases(&self) -> &PhaseClock {
        &self.session.metrics.phases
    }

    /// Trains in one group after another until the last step is done.
    pub(crate) fn train(
        &self,
        state: &mut TrainingState,
        saver: &mut Saver<'_>,
        mut group: Assignment,
    ) -> Result<Ending, Failure> {
        loop {
            let outcome = self.generation(state, saver, &group);
            state.abandon_step();
            let broken = match outcome {
                Ok(Some(ending)) => return Ok(ending),
                Ok(None) => None,
                Err(failure) => self.session.broken_by(failure)?,
            };
            // The members from which this worker copied may be lost for good.
            if !state.is_whole() {
                state.begin(self.storage)?;
                self.session.membership.reloaded();
            }
            let admission = self.session.regroup(state.held(), broken)?;
            group = until_member(self.session, state, admission)?;
        }
    }

    /// Trains in one generation, from connecting its members until it ends. `None` if the group
    /// changes.
    fn generation(
        &self,
        state: &mut TrainingState,
        saver: &mut Saver<'_>,
        group: &Assignment,
    ) -> Result<Option<Ending>, Failure> {
        if let Some(damaged) = state.passed_over_for(0).filter(|_| group.base.step == 0) {
            return Err(self.storage.none_whole(damaged));
        }
        saver.enter(group);
        let mut ranks = self.session.form(group)?;
        copy_base(group, &mut ranks, state)?;
        self.session.membership.entered();

        // Numbers may not be rounded, so they travel alone if gradients are.
        let beside = if self.workload.communication.wire == WireFormat::F32 { slots(ranks.world()) } else { 0 };
        let arena = ranks.shared_arena(state.gradient_elements() + beside).map_err(Failure::lost)?;
        state.put_gradients(arena, beside);
        let placement = Placement::of(&group.addresses);
        state.known_costs.move_to(placement);
        self.agree_alone(state, &mut ranks, group)?;
        let agreed = self.agree(state, &mut ranks, placement)?;
        let communicator = Communicator::over(ranks).map_err(|error| Failure::retry(with_causes(&error)))?;
        let collectives = Box::new(communicator.completing(Payload::complete));
        let mut rank = self.rank(state, group, collectives, &agreed)?;
        self.work().during(Activity::Computing, || self.as_rank(&mut rank, saver, group, &agreed))
    }

    fn rank<'s>(
        &'s self,
        state: &'s mut TrainingState,
        group: &Assignment,
        collectives: Box<dyn Collectives<Payload>>,
        agreed: &Agreed,
    ) -> Result<Rank<'s>, Failure> {
        Rank::new(
            state,
            self.session,
            seat(self.workload, group.rank, group.world, group.shards),
            device_seats(self.workload, group.rank, group.world, group.shards).collect(),
            group,
            collectives,
            agreed,
        )
    }

    /// Trains as one of the connected ranks of a generation.
    fn as_rank(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        group: &Assignment,
        agreed: &Agreed,
    ) -> Result<Option<Ending>, Failure> {
        self.work().during(Activity::Waiting, || self.check_storage(rank, group))?;
        let mut reporter = if group.reports() { Some(self.open_reporter(rank, group, agreed)?) } else { None };
        self.make_up_evaluation(rank, saver, reporter.as_mut())?;
        let begun = if self.first_step.is_completed() { Phase::Resize } else { Phase::Other };
        self.phases().end_period(begun, Instant::now());
        let halt = self.steps(rank, saver, reporter.as_mut(), group, agreed)?;
        self.phases().end_period(Phase::Other, Instant::now());
        self.work().during(Activity::Waiting, || match halt {
            Some(Halt::Change) => {
                rank.end_catchup();
                Ok(None)
            }
            Some(Halt::Drain) => self.drain(rank, saver, reporter),
            None => self.finish(rank, saver, reporter),
        })
    }

    fn check_storage(&self, rank: &mut Rank<'_>, group: &Assignment) -> Result<(), Failure> {
        let token = format!("{}-{}", self.session.launch.job.uid, group.generation);
        let has_passed = rank.state.storage_is_checked;
        let probe = Probe { storage: self.storage, group, token, has_passed };
        rank.state.storage_is_checked = probe.check(&mut |values| rank.sum(values))?;
        Ok(())
    }

    fn open_reporter<'r>(
        &'r self,
        rank: &Rank<'_>,
        group: &'r Assignment,
        agreed: &Agreed,
    ) -> Result<Reporter<'r>, Failure> {
        let Session { membership, launch, .. } = self.session;
        let turn = Turn { job: &launch.job.uid, attempt: launch.attempt, generation: group.generation };
        let state = &*rank.state;
        let start = Start {
            total_steps: state.recipe.total_steps,
            batches: &state.recipe.batches,
            saved_step: state.read_step(),
            damaged: state.passed_over_for(group.base.step),
            communication: agreed.report,
            steps: state.remembered(),
            evaluations: state.evaluations(),
        };
        let mut opening = Opening { membership, group, start };
        until_stored(membership, &mut opening, |_| self.storage.clear_before(group.generation))?;
        let open = |_: &mut Opening<'_>| Reporter::open(membership, group, self.storage, start, turn, self.phases());
        let mut reporter = until_stored(membership, &mut opening, open)?;
        // The plan is kept only now: an outdated generation fails before.
        until_stored(membership, &mut reporter, |_| self.keep_plan(group, group.base.step, agreed))?;
        Ok(reporter)
    }

    /// Agrees on the throughput of one worker by itself. If no member knows it, rank 0 does a few
    /// steps by itself: beside other members of its host it would be too slow.
    fn agree_alone(&self, state: &mut TrainingState, ranks: &mut Ranks, group: &Assignment) -> Result<(), Failure> {
        let (own, shards) = (state.alone, group.shards);
        let seats = |parts| device_seats(self.workload, 0, parts, shards).collect();
        let estimate = || {
            let rate = rehearse(state, shards, seats, self.session.work())?;
            Ok(rate.map(Alone::estimated))
        };
        state.alone = agree_alone(ranks, group.rank, own, estimate, Failure::lost)?;
        Ok(())
    }

    fn agree(&self, state: &mut TrainingState, ranks: &mut Ranks, placement: Placement) -> Result<Agreed, Failure> {
        let ready_order = state.ready_order();
        let kept = state.communication.as_deref().map(Before::Kept);
        let before = self.replay.map(|replay| Before::Repeated(&replay.plan)).or(kept);
        let (settings, baseline, known) = (&self.workload.communication, &state.baseline, state.known_costs.here());
        let agreed = communication::agree(ranks, settings, &ready_order, baseline, before, placement, known)
            .map_err(Failure::lost)?;
        let differs = |replay: &&Replay| !communication::record_the_same(&replay.plan, &agreed.record);
        if let Some(Replay { plan, .. }) = self.replay.filter(differs) {
            return Err(Failure::fatal(format!("to be summed by {plan}, which is no plan here; by {}", agreed.record)));
        }
        self.follow_plan(state, &agreed)?;
        Ok(agreed)
    }

    /// Sums by the agreed plan from the next step on.
    fn follow_plan(&self, state: &mut TrainingState, agreed: &Agreed) -> Result<(), Failure> {
        state.set_buckets(agreed.plan.buckets())?;
        state.communication = Some(agreed.record.clone());
        let plan = Digest::of(agreed.record.as_bytes());
        self.session.membership.agreed(PlanAgreement { after: state.step, plan });
        Ok(())
    }

    /// Agrees again how to sum, by the times of the group's first steps.
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
            rank.state.communication = Some(agreed.record.clone());
        } else {
            if let Choice::Cheapest(costs) = agreed.plan.choice() {
                rank.state.known_costs.learn(costs);
            }
            self.follow_plan(rank.state, &agreed)?;
        }
        if let Some(reporter) = reporter {
            reporter.retuned(agreed.report);
            if !stays {
                until_stored(&self.session.membership, reporter, |_| self.keep_plan(group, rank.step(), &agreed))?;
            }
        }
        if !stays {
            // The reporting worker may have waited for its storage.
            rank.expect_anything();
            rank.sum(&mut [0.0])?;
        }
        rank.rest();
        Ok(())
    }

    /// Stores how this group sums after `step`, before the next step can be done: that step needs
    /// this rank.
    fn keep_plan(&self, group: &Assignment, step: u64, agreed: &Agreed) -> Result<(), Failure> {
        let Assignment { generation, world, .. } = group;
        let plan = agreed.record.clone();
        let planned = AgreedPlan { generation: *generation, workers: *world, step, plan };
        let path = self.storage.output().join(PLANS_FILE);
        let appended = warned_of(path.display(), || lines::append(&path, &planned));
        appended.map_err(|error| Failure::retry(format!("{}: {error}", path.display())))
    }

    /// Evaluates the base if the last group broke during its evaluation. All ranks wait here for
    /// the reporting worker, which opens the metrics log.
    fn make_up_evaluation(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<&mut Reporter<'_>>,
    ) -> Result<(), Failure> {
        let step = rank.step();
        let ends_epoch = rank.recipe().batches.ends_epoch(step);
        let lacks = |reporter: &&mut Reporter<'_>| ends_epoch && !reporter.has_evaluated(step);
        let mut owed = [f32::from(u8::from(reporter.as_ref().is_some_and(lacks)))];
        self.work().during(Activity::Waiting, || rank.sum(&mut owed))?;
        if owed == [0.0] { Ok(()) } else { self.evaluate(rank, saver, reporter).map(drop) }
    }

    /// Does steps until the last one. Returns early, with the reason, if all ranks halt after a
    /// step.
    fn steps(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        mut reporter: Option<&mut Reporter<'_>>,
        group: &Assignment,
        agreed: &Agreed,
    ) -> Result<Option<Halt>, Failure> {
        let recipe = rank.recipe().clone();
        rank.rest();
        // Every rank learns of a halt or a checkpoint in the step after the one that carried it.
        // All stop or copy after that step.
        let (mut halt, mut copy_after) = (None, None);
        let mut last = recipe.total_steps;
        rank.expect_first_step();
        while rank.step() < last {
            let committed = rank.advance(saver.flags())?;
            self.first_step.call_once(|| memory::has_fit(self.session.launch));
            let ends_epoch = recipe.batches.ends_epoch(rank.step());
            let agrees_anew = rank.has_timed_enough();
            let newest = if ends_epoch || agrees_anew { rank.settle()? } else { None };
            for committed in [committed, newest].into_iter().flatten() {
                let step = committed.line.step;
                if let Some(reason) = committed.halt {
                    last = last.min(step + 1);
                    halt = halt.max(Some(reason));
                }
                if committed.checkpoint.asks {
                    copy_after = Some(step + 1);
                }
                self.committed(rank, saver, reporter.as_deref_mut(), &committed)?;
            }
            if ends_epoch {
                rank.expect_anything();
                let begun = Instant::now();
                let has_saved = self.evaluate(rank, saver, reporter.as_deref_mut())?;
                copy_after.take_if(|_| has_saved);
                saver.evaluated(begun.elapsed());
            }
            rank.expect_steps();
            if agrees_anew && rank.step() < last {
                self.agree_anew(rank, reporter.as_deref_mut(), group, agreed)?;
                rank.expect_first_step();
            }
            // The state after the last step is saved in any case.
            if copy_after == Some(rank.step()) && rank.step() < last {
                saver.copy(rank);
            }
            if rank.step() < last {
                rank.begin_catchup();
            }
        }
        let settled = rank.settle()?;
        rank.expect_anything();
        if let Some(reporter) = reporter {
            self.work().during(Activity::Storing, || {
                settled.map_or(Ok(()), |settled| report_step(reporter, rank, &settled))?;
                reporter.report_now()
            })?;
        }
        Ok(halt.filter(|_| rank.step() < recipe.total_steps))
    }

    /// Reports a committed step, and commits the checkpoint whose parts it shows to be stored.
    fn committed(
        &self,
        rank: &Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<&mut Reporter<'_>>,
        committed: &CommittedStep,
    ) -> Result<(), Failure> {
        let Some(reporter) = reporter else {
            saver.hear(committed.line.step, committed.checkpoint);
            return Ok(());
        };
        self.work().during(Activity::Storing, || {
            reporter.take_saves(&saver.status());
            report_step(reporter, rank, committed)?;
            if let Some(settled) = saver.hear(committed.line.step, committed.checkpoint) {
                saver.commit_or_abandon(settled, || logged(rank, reporter));
            }
            Ok(())
        })?;
        until_stored(&self.session.membership, reporter, |reporter| reporter.make_room())
    }

    /// Evaluates the state. Saves it if it is the best so far; the one after the last step is saved
    /// in any case. Returns true if all ranks now save it.
    fn evaluate(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<&mut Reporter<'_>>,
    ) -> Result<bool, Failure> {
        let known = saver.best(rank.step());
        let Some(AgreedEvaluation { found, is_best }) = rank.evaluate(self.storage.best_by(), known)? else {
            return Ok(false);
        };
        rank.state.remember_evaluation(found);
        if let (Some(reporter), Some(line)) = (reporter, rank.state.evaluations().back()) {
            self.work().during(Activity::Storing, || reporter.evaluated(line))?;
        }
        let saves = is_best && rank.step() < rank.recipe().total_steps;
        if saves {
            saver.copy_best(rank, found);
        }
        Ok(saves)
    }

    fn save_last(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        reporter: Option<&mut Reporter<'_>>,
    ) -> Result<(), Failure> {
        let saved = save_last(rank, saver, reporter);
        self.phases().end_period(Phase::Checkpoint, Instant::now());
        saved
    }

    /// Saves the state before all members leave.
    fn drain(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        mut reporter: Option<Reporter<'_>>,
    ) -> Result<Option<Ending>, Failure> {
        self.save_last(rank, saver, reporter.as_mut())?;
        self.session.drained(rank.step()).map_or(Ok(None), Err)
    }

    /// Saves the state and exports the model after the last step of the job.
    fn finish(
        &self,
        rank: &mut Rank<'_>,
        saver: &mut Saver<'_>,
        mut reporter: Option<Reporter<'_>>,
    ) -> Result<Option<Ending>, Failure> {
        let mut ending = Ending::default();
        self.save_last(rank, saver, reporter.as_mut())?;
        if let Some(mut reporter) = reporter {
            let facts = BTreeMap::from([
                ("job".to_owned(), self.session.launch.job.name.clone()),
                ("steps".to_owned(), rank.step().to_string()),
                ("format".to_owned(), "pt".to_owned()),
            ]);
            let description = rank.state.description().map(|description| (DESCRIPTION.to_owned(), description));
            let facts: BTreeMap<_, _> = facts.into_iter().chain(description).collect();
            let membership = &self.session.membership;
            let export = |_: &mut Reporter<'_>| self.storage.export(&rank.state.weights(), &facts);
            ending.model_uri = Some(until_stored(membership, &mut reporter, export)?);
            until_stored(membership, &mut reporter, Reporter::merge_log)?;
            reporter.take_saves(&saver.status());
            ending.progress = Some(reporter.progress());
        }
        self.session.finished(rank.step(), rank.state.digest(), ending)
    }
}

fn report_step(reporter: &mut Reporter<'_>, rank: &Rank<'_>, committed: &CommittedStep) -> Result<(), Failure> {
    reporter.step(&committed.line, rank.progress(&committed.line), rank.stragglers())
}

/// Returns what a manifest needs: the lines of the steps that a checkpoint holds, and the plan.
fn logged(rank: &Rank<'_>, reporter: &mut Reporter<'_>) -> Result<Logged, Failure> {
    Ok(Logged { log: reporter.flushed_log()?, communication: rank.state.communication.clone() })
}

/// Saves the state after the last step of a group, and reports the checkpoint.
fn save_last(
    rank: &mut Rank<'_>,
    saver: &mut Saver<'_>,
    mut reporter: Option<&mut Reporter<'_>>,
) -> Result<(), Failure> {
    let mut save = saver.begin_last();
    if let Some(reporter) = &mut reporter {
        reporter.take_saves(&saver.status());
    }
    saver.store_parts(rank, &mut save, &mut reporter)?;
    let Some(reporter) = reporter else { return Ok(()) };
    let stored = logged(rank, reporter).and_then(|logged| saver.store_manifest(logged));
    stored.map_err(|failure| match failure {
        Failure::Retry(reason) => {
            reporter.waits(&reason);
            Failure::broken(reason)
        }
        other => other,
    })?;
    reporter.take_saves(&saver.status());
    reporter.report_now()
}
