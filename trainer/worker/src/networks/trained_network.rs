//! A network in training on the devices of one worker.

use std::{ops::Range, sync::Arc, time::Duration};

use lockstep_data::{Dataset, Loader, Order, Samples, Seat, Step, Tally};
use lockstep_elastic::ActivityMonitor;
use lockstep_launch::{InitialWeights, Launch, Workload};
use lockstep_nn::{Cpu, Network, NotFinite, Replica, StateEntry};

use super::{
    dataset,
    description::ModelDescription,
    devices::{Devices, gathered::GatheredBucket},
    gradients, initial_weights,
    judging::judge,
    model,
    scaler::{self, Scaler},
};
use crate::{
    compute::{
        memory::{self, Needs},
        recipe::micro_batch,
        update_rule::UpdateRule,
    },
    failure::Failure,
    trainee::{Bucket, Evaluated, Lent, SampleCounts, Shares, StateRange, Trained, Trainee},
};

/// A copy of a network on each device of this worker, and their samples.
struct TrainedNetwork {
    first: Replica<Cpu>,
    further: Devices,
    scaler: Scaler,
    train: Arc<Samples>,
    held_out: Samples,
    fingerprint: [u8; 32],
    /// What using the model needs beside its weights.
    description: ModelDescription,
    /// The weights to begin with, if the manifest names any.
    initial: Option<InitialWeights>,
    micro_batch: usize,
    /// Multiply-accumulates of one sample's forward pass.
    macs: usize,
    needs: Needs,
    /// True if micro-batches consist of whole virtual shards.
    whole_shards: bool,
    shares: Option<Shares>,
    /// One for each device.
    loaders: Vec<Loader>,
}

/// Reads the data set of a workload and plans its network.
///
/// # Errors
/// The samples cannot be read, the model does not fit them, or neither fits into memory.
pub(crate) fn open(launch: &Launch, workload: &Workload) -> Result<Box<dyn Trainee>, Failure> {
    let dataset = dataset::open(workload, dataset::ending_at(&launch.ending))?;
    let network = model::network(workload, &dataset)?;
    let rule = UpdateRule::new(&workload.training, model::has_norms(&network));
    let needs = needs(workload, &rule, &network, &dataset);
    memory::check(launch, &needs)?;
    Ok(Box::new(TrainedNetwork::new(workload, rule, &network, dataset, needs)?))
}

/// Returns the bytes that a worker needs.
fn needs(workload: &Workload, rule: &UpdateRule, network: &Network, dataset: &Dataset) -> Needs {
    let summary = network.summary();
    let devices = u64::from(workload.devices_per_worker);
    let precision = model::precision(&workload.training);
    let masters = summary.weight_bytes() as u64 * devices;
    let outputs = precision.bytes_of(summary.activation_bytes(1));
    // Each output has a gradient of the same size.
    let a_sample = (precision.bytes_of(network.input().elements() * size_of::<f32>()) + 2 * outputs) as u64;
    Needs {
        weights: masters + precision.copy_bytes(summary.weight_bytes()) as u64 * devices,
        gradients: masters,
        optimizer: summary.optimizer_bytes(&rule.optimizer) as u64 * devices,
        activations: a_sample * micro_batch(&workload.training) as u64 * devices,
        samples: dataset.train.memory_bytes() + dataset.evaluation.memory_bytes(),
    }
}

impl TrainedNetwork {
    fn new(
        workload: &Workload,
        rule: UpdateRule,
        network: &Network,
        dataset: Dataset,
        needs: Needs,
    ) -> Result<Self, Failure> {
        let UpdateRule { optimizer, clip_norm } = rule;
        let (micro_batch, precision) = (micro_batch(&workload.training), model::precision(&workload.training));
        let make = || {
            let ready_order = network.table().ready_order();
            let (cpu, network) = (Cpu::new(), network.clone());
            let mut replica = Replica::with_precision(cpu, network, optimizer, micro_batch, ready_order, precision)
                .map_err(Failure::fatal)?;
            replica.clip_gradients(clip_norm);
            Ok(replica)
        };
        let Some(further) = workload.devices_per_worker.checked_sub(1) else {
            return Err(Failure::fatal("spec.devicesPerWorker: 0: 1 or more"));
        };
        let fingerprint = dataset.fingerprint();
        let description = ModelDescription::of(&workload.model, &dataset.train);
        let Dataset { train, evaluation: held_out } = dataset;
        Ok(Self {
            first: make()?,
            further: Devices::new(further as usize, make)?,
            scaler: Scaler::new(&workload.training),
            train: Arc::new(train),
            held_out,
            fingerprint,
            description,
            initial: workload.model.weights.clone(),
            micro_batch,
            macs: network.summary().macs(),
            needs,
            whole_shards: model::computes_over_shards(network),
            shares: None,
            loaders: Vec::new(),
        })
    }
}

impl TrainedNetwork {
    fn first_output_not_finite(&mut self, step: Step) -> Option<NotFinite> {
        let Self { first, train, micro_batch, whole_shards, shares, .. } = self;
        let Shares { seed, batches, seats, .. } = shares.as_ref()?;
        let order = Order {
            seed: *seed,
            batches: *batches,
            micro_batch: *micro_batch,
            seat: *seats.first()?,
            first_step: step.index,
            steps: 1,
            whole_shards: *whole_shards,
        };
        let mut loader = Loader::start(Arc::clone(train), order).ok()?;
        loader.next_step()?;
        let batches = std::iter::from_fn(|| loader.next_batch());
        batches.into_iter().find_map(|batch| gradients::with_samples(&batch, |samples| first.first_not_finite(samples)))
    }
}

impl Trainee for TrainedNetwork {
    fn samples(&self) -> SampleCounts {
        SampleCounts { training: self.train.len() as u64, held_out: self.held_out.len() as u64 }
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn ready_order(&self) -> Vec<Range<usize>> {
        self.first.table().ready_order()
    }

    fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.first.set_buckets(buckets.to_vec()).map_err(Failure::fatal)?;
        self.further.set_buckets(buckets)
    }

    /// A worker that was left behind in an older generation can only write into the memory of that
    /// generation.
    fn set_gradient_memory(&mut self, memory: Lent) {
        self.first.set_gradient_memory(memory);
        self.further.tell_losses(self.first.beside() > 0);
    }

    fn own_gradient_memory(&mut self, beside: usize) {
        self.first.own_gradient_memory(beside);
        self.further.tell_losses(beside > 0);
    }

    /// Starts to prepare the samples of all devices, and copies the state of the first device to
    /// all others.
    fn expect(&mut self, shares: Shares) -> Result<(), Failure> {
        let Shares { seed, batches, ref seats, first_step, steps } = shares;
        let (micro_batch, whole_shards) = (self.micro_batch, self.whole_shards);
        let order = |seat| Order { seed, batches, micro_batch, seat, first_step, steps, whole_shards };
        let load = |seat: &Seat| Loader::start(Arc::clone(&self.train), order(*seat)).map_err(Failure::retry);
        self.loaders = seats.iter().map(load).collect::<Result<_, _>>()?;
        self.further.take_over(&mut self.first);
        self.shares = Some(shares);
        Ok(())
    }

    fn gradients(
        &mut self,
        step: Step,
        work: &Arc<ActivityMonitor>,
        announce: &mut dyn FnMut(usize, Box<dyn Bucket>),
    ) -> Duration {
        let Self { first, further, scaler, loaders, shares, .. } = self;
        let Some(Shares { seed, seats, .. }) = shares else { panic!("step {} was not expected", step.index) };
        for loader in &mut *loaders {
            let next = loader.next_step().map(|share| share.step);
            assert_eq!(next, Some(step), "the steps of a group follow each other");
        }
        first.scale_loss(scaler.factor());
        further.scale_loss(scaler.factor());
        match &seats[..] {
            [seat] if seat.is_aligned() => {
                let announce =
                    &mut |bucket, sum, taken| announce(bucket, Box::new(GatheredBucket::alone(sum, taken)) as _);
                gradients::of_parts(first, &mut loaders[0], step, *seat, *seed, work, announce)
            }
            _ => {
                let announce = &mut |bucket, gathered| announce(bucket, Box::new(gathered) as _);
                further.gradients(first, loaders, step, *seed, work, announce)
            }
        }
    }

    fn queued(&self) -> Option<usize> {
        Some(self.loaders.iter().map(Loader::ready).sum())
    }

    /// A multiply-accumulate is two operations, and backward has two for each of forward: one for
    /// the gradients of weights, one for those of inputs.
    fn flops(&self) -> Option<f64> {
        Some(6.0 * self.macs as f64)
    }

    fn memory(&self) -> Vec<(&'static str, u64)> {
        self.needs.by_kind()
    }

    fn copy_gradients(&mut self, elements: Range<usize>, into: &mut [f32]) {
        self.first.copy_gradients(elements, into);
    }

    fn update(&mut self, step: u64, rate: f32) -> Trained {
        let loss = self.further.update(&mut self.first, step, rate).loss_sum;
        self.scaler.did_step();
        let mut taken = Tally::default();
        self.loaders.iter().for_each(|loader| taken += loader.taken());
        Trained { loss, taken }
    }

    /// Only the first device does it: the others copy its state in [`Trainee::expect`].
    fn repeat_step(&mut self, gradients: &[f32], step: u64, rate: f32) {
        self.first.scale_loss(self.scaler.factor());
        self.first.take_gradients(gradients);
        self.first.update(step, rate);
        self.first.finish_step();
        self.scaler.did_step();
    }

    fn abandon_step(&mut self) {
        self.first.abandon_step();
        self.further.abandon_step();
    }

    fn skip_step(&mut self) {
        self.abandon_step();
        self.scaler.skipped_step();
    }

    fn loss_scale(&self) -> f32 {
        self.scaler.factor()
    }

    fn can_lower_loss_scale(&self) -> bool {
        self.scaler.can_fall()
    }

    /// An output for the samples of the first device; else the first gradient in the order of
    /// backward.
    fn first_not_finite(&mut self, step: Step) -> Option<String> {
        let gradient = self.first.first_gradient_not_finite();
        self.abandon_step();
        self.first_output_not_finite(step).or(gradient).map(|found| found.to_string())
    }

    fn evaluate(&mut self, run: Range<u64>, work: &ActivityMonitor) -> Evaluated {
        judge(&mut self.first, &self.held_out, run, self.micro_batch, work)
    }

    fn initialise(&mut self, seed: u64) -> Result<(), Failure> {
        self.first.initialise(seed);
        self.scaler.clear();
        let Some(weights) = &self.initial else { return Ok(()) };
        initial_weights::load(weights, &mut self.first).map_err(Failure::fatal)
    }

    fn description(&self) -> Option<String> {
        serde_json::to_string(&self.description).ok()
    }

    fn tensors(&self) -> Vec<StateRange> {
        let range = |StateEntry { name, shape, range, slot, .. }| StateRange {
            name,
            shape,
            elements: range,
            is_slot: slot.is_some(),
        };
        let scale = self.scaler.tensor(self.first.state_elements());
        self.first.entries().into_iter().map(range).chain([scale]).collect()
    }

    fn state_elements(&self) -> usize {
        self.first.state_elements() + scaler::ELEMENTS
    }

    fn copy_state(&mut self, elements: Range<usize>, into: &mut [f32]) {
        let behind = self.first.state_elements();
        let (replica, scale) = into.split_at_mut(behind.clamp(elements.start, elements.end) - elements.start);
        self.first.copy_state(elements.start.min(behind)..elements.end.min(behind), replica);
        let part = elements.start.max(behind) - behind..elements.end.max(behind) - behind;
        scale.copy_from_slice(&self.scaler.values()[part]);
    }

    fn write_state(&mut self, state: &[f32]) {
        let (replica, scale) = state.split_at(self.first.state_elements());
        self.first.write_state(replica);
        self.scaler.write(scale);
    }

    fn tensor_memory(&mut self, tensors: &[(&str, &[usize])]) -> Result<Vec<Lent>, String> {
        let Self { first, scaler, .. } = self;
        let of_replica = tensors.iter().copied().filter(|(name, shape)| !scaler.is_tensor(name, shape));
        let mut views = first.state_views(of_replica).map_err(|error| error.to_string())?.into_iter();
        scaler.clear();
        let lend = |(name, shape): &(&str, &[usize])| match scaler.is_tensor(name, shape) {
            true => Some(scaler.memory()),
            false => views.next().map(Lent::new),
        };
        Ok(tensors.iter().filter_map(lend).collect())
    }

    fn window_checksum(&mut self, turn: u64) -> Result<u32, Failure> {
        let checksum = self.first.window_checksum(turn);
        match self.further.other_than(checksum, turn) {
            None => Ok(self.scaler.checksum_with(checksum)),
            Some(device) => Err(Failure::diverged(format_args!(
                "after step {turn} device {device} of a worker does not hold the weights of its device 0"
            ))),
        }
    }

    fn checksum(&mut self) -> u32 {
        let checksum = self.first.checksum();
        self.scaler.checksum_with(checksum)
    }
}
