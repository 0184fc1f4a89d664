//! What a worker keeps from one generation to the next: its copy of the model, and how far that is.

use std::{collections::VecDeque, ops::Range, time::Duration};

use lockstep_checkpoint::{Checkpoint, Destination, Layout, LoadRefusal};
use lockstep_collective::{Costs, Group as Ranks, SharedArena, Tag};
use lockstep_data::{Samples, Seat};
use lockstep_elastic::{Assignment, Digest, HeldState, Sampler};
use lockstep_launch::DamagedCheckpoint;
use lockstep_nn::{Cpu, Device, Network, Replica, StepResult};
use tracing::info;

use crate::{
    communication::{KnownCosts, Places},
    compute::baseline::Baseline,
    compute::devices::Devices,
    compute::fingerprint::Fingerprint,
    failure::Failure,
    membership::catchup::receive::parts,
    membership::session::{LIMITS, UNACKNOWLEDGED},
    progress::metrics_log::{Evaluation, EvaluationLine, StepLine},
    step::rank::Recipe,
    storage::{Storage, is_of_blocks, spelled},
};

/// Steps whose lines a worker remembers, in case it has to write those that the reporting worker did not.
const MAX_REMEMBERED: usize = 4096;
/// And of evaluations.
const MAX_EVALUATED: usize = 64;
/// Bytes a second that a line between workers carries at least.
const SLOW_LINE: f64 = 10e6;
/// State is sent in frames of a step that no gradient has.
const COPY: Tag = Tag { step: u64::MAX, bucket: 2 };

/// One worker's training, whatever group it belongs to.
pub(crate) struct Trainee {
    pub replica: Replica<Cpu>,
    pub devices: Devices,
    pub recipe: Recipe,
    /// Optimiser steps that the replica holds.
    pub step: u64,
    /// Not in the middle of a copy, or of a checkpoint that is being loaded.
    is_whole: bool,
    /// Steps that the checkpoint held that it read; 0 where there was none.
    read_step: u64,
    /// The newest checkpoint that it passed over, if any, and the step that it began with instead.
    passed_over: Option<(DamagedCheckpoint, u64)>,
    /// What this worker does by itself.
    pub baseline: Baseline,
    /// The plan of communication that was followed last, as checkpoints keep it.
    pub communication: Option<String>,
    /// Whether the storage was seen to be the others' too.
    pub storage_is_checked: bool,
    /// Where the ranks of its group are.
    places: Places,
    /// What messages cost, as far as this worker took part in measuring it.
    known: KnownCosts,
    remembered: VecDeque<StepLine>,
    evaluated: VecDeque<EvaluationLine>,
}

impl Trainee {
    /// With the newest state in `storage`, or the seed's first weights, and measured by itself.
    pub(crate) fn new(
        network: Network,
        recipe: Recipe,
        storage: &Storage,
        train: &Samples,
        seat: Seat,
        devices: usize,
    ) -> Result<Self, Failure> {
        let make = || {
            let ready_order = network.table().ready_order();
            Replica::new(Cpu::new(), network.clone(), recipe.micro_batch, ready_order).map_err(Failure::fatal)
        };
        let mut replica = make()?;
        let further = Devices::new(devices - 1, make)?;
        let mut baseline = Baseline::measure(&mut replica, train, seat, &recipe)?;
        baseline.samples_per_second = baseline.samples_per_second.map(|rate| rate * devices as f64);
        let mut trainee = Self {
            replica,
            devices: further,
            recipe,
            step: 0,
            is_whole: false,
            read_step: 0,
            passed_over: None,
            baseline,
            communication: None,
            storage_is_checked: false,
            places: Places::of(&[]),
            known: KnownCosts::default(),
            remembered: VecDeque::new(),
            evaluated: VecDeque::new(),
        };
        trainee.begin(storage)?;
        Ok(trainee)
    }

    /// Takes over the newest state in `storage`, or without one the seed's first weights.
    pub(crate) fn begin(&mut self, storage: &Storage) -> Result<(), Failure> {
        self.is_whole = false;
        let (loaded, damaged) = storage.load_newest(&mut Views { replica: &mut self.replica, lent: Vec::new() })?;
        (self.step, self.communication) = match loaded {
            Some(Checkpoint { path, position, communication, .. }) => {
                info!(step = position.step, path = %path.display(), "checkpoint loaded");
                (position.step, communication)
            }
            None => {
                self.replica.initialise(self.recipe.seed);
                (0, None)
            }
        };
        self.read_step = self.step;
        self.passed_over = damaged.map(|damaged| (damaged, self.step));
        self.forget_lines();
        self.is_whole = true;
        Ok(())
    }

    /// The newest checkpoint, where it was passed over for the one of this step, or for none.
    pub(crate) fn passed_over_for(&self, step: u64) -> Option<&DamagedCheckpoint> {
        self.passed_over.as_ref().filter(|(_, began)| *began == step).map(|(damaged, _)| damaged)
    }

    /// Steps that the checkpoint held that it read; 0 where there was none.
    pub(crate) const fn read_step(&self) -> u64 {
        self.read_step
    }

    /// Whether its state is of use: not in the middle of a copy, or of a checkpoint.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// What it holds.
    pub(crate) fn held(&mut self) -> HeldState {
        let Recipe { seed, steps_per_epoch, global_batch, .. } = self.recipe;
        let digest = if self.step == 0 { Digest::NONE } else { Digest::from_bytes(self.replica.digest()) };
        let (epoch, cursor) = (self.step / steps_per_epoch, self.step % steps_per_epoch * global_batch);
        HeldState { step: self.step, digest, sampler: Sampler { seed, epoch, cursor } }
    }

    /// Leaves the step that was under way, once nothing of it is lent out.
    pub(crate) fn stand(&mut self) {
        self.replica.abandon_step();
        self.devices.abandon_step();
    }

    /// Is one of this group from now on; gives where its ranks are.
    pub(crate) fn meet(&mut self, group: &Assignment) -> Places {
        self.places = Places::of(&group.addresses);
        self.places
    }

    /// What messages between the ranks of its group cost, as far as this worker knows.
    pub(crate) fn costs(&self) -> Option<Costs> {
        self.known.between(self.places)
    }

    /// Messages between the ranks of its group were found to cost so much.
    pub(crate) fn learn(&mut self, costs: Costs) {
        self.known.learn(self.places, costs);
    }

    /// Keeps gradients, and `beside` elements behind them, where the ranks of this generation, and only they, may write; without `arena`,
    /// which has as many, where nobody else may: whoever was left behind in an older generation may write into the arena of that one.
    pub(crate) fn put_gradients(&mut self, arena: Option<SharedArena>, beside: usize) {
        match arena {
            Some(arena) => self.replica.set_gradient_memory(arena),
            None => self.replica.own_gradient_memory(beside),
        }
        self.devices.tell_losses(beside > 0);
    }

    /// How long the host of a rank may acknowledge nothing while a state is copied: who copies it takes parts of it from one rank at a time,
    /// and those whose turn has not come wait until the others' are there.
    pub(crate) fn copying_limit(&self, group: &Assignment) -> Duration {
        let bytes = group.copiers.len() * self.replica.state_elements() * size_of::<f32>();
        LIMITS.silence.min(UNACKNOWLEDGED + Duration::from_secs_f64(bytes as f64 / SLOW_LINE))
    }

    /// Those that lack the group's base copy it, a part from each of those that had it before.
    pub(crate) fn catch_up(&mut self, group: &Assignment, ranks: &mut Ranks) -> Result<(), Failure> {
        let parts = parts(self.replica.state_elements(), group.sources.len());
        if !group.copiers.contains(&group.rank) {
            let place = group.sources.iter().position(|source| *source == group.rank);
            let Some(part) = place.map(|place| parts[place].clone()).filter(|_| !group.copiers.is_empty()) else {
                return Ok(());
            };
            let mut values = vec![0.0; part.len()];
            self.replica.copy_state(part, &mut values);
            for copier in &group.copiers {
                ranks.send(*copier as usize, COPY, &mut values).map_err(Failure::lost)?;
            }
            return Ok(());
        }
        let mut state = vec![0.0; self.replica.state_elements()];
        for (source, part) in group.sources.iter().zip(parts) {
            ranks.receive(*source as usize, COPY, &mut state[part]).map_err(Failure::lost)?;
        }
        self.is_whole = false;
        self.take_over(group.base.step, &state);
        let found = self.held();
        if found != group.base {
            let (found, expected) = (found.digest, group.base.digest);
            return Err(Failure::broken(format!(
                "the copied state of step {} has digest {found:.12}, the group agreed on {expected:.12}",
                group.base.step
            )));
        }
        self.is_whole = true;
        info!(step = self.step, bytes = state.len() * size_of::<f32>(), "state copied");
        Ok(())
    }

    /// Takes over the state that a group holds after `step`.
    pub(crate) fn take_over(&mut self, step: u64, state: &[f32]) {
        self.replica.write_state(state);
        self.step = step;
        self.forget_lines();
    }

    /// Lines of steps that this worker did before may not be those of the state that it has now.
    fn forget_lines(&mut self) {
        self.remembered.clear();
        self.evaluated.clear();
    }

    /// Does the next step as a group has done it that summed these gradients, on the first device only: the others take its state over when
    /// this worker is let in.
    pub(crate) fn repeat_step(&mut self, gradients: &[f32]) {
        self.replica.take_gradients(gradients);
        self.replica.update(&self.recipe.optimiser, self.recipe.rate);
        self.replica.finish_step();
        self.step += 1;
    }

    /// Applies the summed gradients of the next step on all devices; it is then done.
    pub(crate) fn apply(&mut self) -> StepResult {
        let result = self.devices.update(&mut self.replica, &self.recipe.optimiser, self.recipe.rate);
        self.step += 1;
        result
    }

    /// What a window of its state looks like after the newest step, on all devices.
    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint, Failure> {
        let checksum = self.replica.window_checksum(self.step);
        if let Some(device) = self.devices.other_than(checksum, self.step) {
            let step = self.step;
            return Err(Failure::diverged(format_args!(
                "after step {step} device {device} of a worker does not hold the weights of its device 0"
            )));
        }
        Ok(Fingerprint::of(checksum))
    }

    /// Hands over buckets of this kind from the next step on.
    pub(crate) fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.replica.set_buckets(buckets.to_vec()).map_err(Failure::fatal)?;
        self.devices.set_buckets(buckets)
    }

    /// Keeps the line of the step that it has just done, whoever else has: it is forgotten with the state.
    pub(crate) fn remember(&mut self, line: StepLine) {
        if self.remembered.len() == MAX_REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(line);
    }

    /// Keeps what the evaluation of the present state found, as all ranks did.
    pub(crate) fn remember_evaluation(&mut self, evaluation: Evaluation) {
        if self.evaluated.len() == MAX_EVALUATED {
            self.evaluated.pop_front();
        }
        let epoch = self.step / self.recipe.steps_per_epoch;
        self.evaluated.push_back(EvaluationLine { step: self.step, epoch, evaluation });
    }

    /// The lines of the newest evaluations.
    pub(crate) fn evaluations(&self) -> &VecDeque<EvaluationLine> {
        &self.evaluated
    }

    /// The lines of the steps after `step`, as far as this worker knows them.
    pub(crate) fn remembered_after(&self, step: u64) -> impl Iterator<Item = &StepLine> {
        self.remembered.iter().filter(move |line| line.step > step)
    }
}

/// The memory of a replica's state, which a checkpoint is read into.
struct Views<'a> {
    replica: &'a mut Replica<Cpu>,
    lent: Vec<<Cpu as Device>::HostView>,
}

impl Destination for Views<'_> {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        // Those of a checkpoint that turned out to be damaged.
        self.lent.clear();
        self.lent =
            self.replica.state_views(layout.tensors()).map_err(|error| LoadRefusal::Misfit(error.to_string()))?;
        Ok(self.lent.iter_mut().map(AsMut::as_mut).collect())
    }

    fn accept(&mut self, state_digest: &str) -> Result<(), String> {
        self.lent.clear();
        let digest = spelled(self.replica.digest());
        if is_of_blocks(state_digest) && digest != state_digest {
            return Err(format!("its state has digest {digest}, its manifest says {state_digest}"));
        }
        Ok(())
    }
}
