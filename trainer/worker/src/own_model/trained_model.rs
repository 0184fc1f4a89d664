//! A user's own model in training.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_data::{Seat, Step, Tally};
use lockstep_elastic::{ActivityMonitor, Digest};
use lockstep_launch::{DatasetFormat, Launch, ModelName, Workload};
use lockstep_nn::{
    Initial, ParamMeta, ParamTable, Role,
    arena::{Arena, Lease},
    checksum,
    optimizers::update_arenas,
    window,
};

use super::{OwnModel, Parameter};
use crate::{
    compute::{
        memory::{self, Needs},
        recipe::{check_batches, micro_batch},
        update_rule::UpdateRule,
    },
    failure::Failure,
    trainee::{Bucket, Completion, Evaluated, Judged, Lent, SampleCounts, Shares, StateRange, Trained, Trainee},
};

/// A user's model, with its weights and what the optimiser keeps beside them.
struct TrainedModel<M> {
    model: M,
    samples: SampleCounts,
    fingerprint: [u8; 32],
    table: ParamTable,
    rule: UpdateRule,
    /// The most samples that the model gets at once.
    micro_batch: usize,
    needs: Needs,
    /// The weights, then each slot of the optimiser; each as long as the table says.
    state: Arena,
    /// The gradients, and the elements beside them.
    gradients: Arena,
    buckets: Vec<Range<usize>>,
    shares: Option<(Shares, Seat)>,
    /// This worker's part of the step under way.
    own: Trained,
}

/// Checks the orders of a worker that trains the user's model.
///
/// # Errors
/// The manifest names another model or data set, or settings that own models lack.
pub(crate) fn open(
    model: impl OwnModel + 'static,
    launch: &Launch,
    workload: &Workload,
) -> Result<Box<dyn Trainee>, Failure> {
    if workload.model.name != Some(ModelName::Own) {
        let named = workload.model.name.map_or("layers", ModelName::as_str);
        return Err(Failure::fatal(format!("spec.model.name: {named}: this trainer brings its own model: own")));
    }
    if workload.dataset.format != DatasetFormat::Own {
        return Err(Failure::fatal("spec.dataset.format: this trainer brings its own samples: own"));
    }
    if workload.model.weights.is_some() {
        return Err(Failure::fatal(
            "spec.model.weights: given: a model of the trainer's own begins with its own weights",
        ));
    }
    if workload.devices_per_worker != 1 {
        let devices = workload.devices_per_worker;
        return Err(Failure::fatal(format!("spec.devicesPerWorker: {devices}: 1 for a model of the trainer's own")));
    }
    let samples = model.samples();
    check_batches(&workload.training, samples.training)?;
    let table = table(&model.parameters()).map_err(Failure::fatal)?;
    let rule = UpdateRule::new(&workload.training, false);
    let bytes = (table.elements() * size_of::<f32>()) as u64;
    let optimizer = bytes * rule.optimizer.slots().len() as u64;
    let needs = Needs { weights: bytes, gradients: bytes, optimizer, ..Needs::default() };
    memory::check(launch, &needs)?;
    Ok(Box::new(TrainedModel::new(model, table, rule, micro_batch(&workload.training), needs)))
}

/// Lays the parameters out.
fn table(parameters: &[Parameter]) -> Result<ParamTable, String> {
    let table = ParamTable::of_parameters(parameters.iter().map(|Parameter { name, shape, is_bias }| {
        let fan_in = shape.iter().skip(1).product();
        let (role, initial) = match is_bias {
            true => (Role::Bias, Initial::Constant(0.0)),
            false => (Role::Weight, Initial::of_fan_in(fan_in)),
        };
        (name.clone(), shape.clone(), role, initial)
    }));
    let empty = parameters.iter().find(|parameter| parameter.shape.contains(&0));
    let twice = parameters
        .iter()
        .enumerate()
        .find(|(place, one)| parameters[..*place].iter().any(|other| other.name == one.name));
    match (empty, twice) {
        _ if parameters.is_empty() => Err("the model has no parameters".to_owned()),
        (Some(Parameter { name, shape, .. }), _) => Err(format!("parameter {name} of shape {shape:?} has no values")),
        (_, Some((_, Parameter { name, .. }))) => Err(format!("two parameters are named {name}")),
        _ => Ok(table),
    }
}

impl<M: OwnModel> TrainedModel<M> {
    fn new(model: M, table: ParamTable, rule: UpdateRule, micro_batch: usize, needs: Needs) -> Self {
        let samples = model.samples();
        let shapes: Vec<_> = table.parameters().iter().map(|parameter| (&parameter.name, &parameter.shape)).collect();
        let described = format!("{samples:?} {} {shapes:?}", model.data_version());
        Self {
            fingerprint: *Digest::of(described.as_bytes()).as_bytes(),
            samples,
            state: Arena::zeroed((1 + rule.optimizer.slots().len()) * table.elements()),
            gradients: Arena::zeroed(table.elements()),
            buckets: table.ready_order(),
            model,
            table,
            rule,
            micro_batch,
            needs,
            shares: None,
            own: Trained { loss: 0.0, taken: Tally::default() },
        }
    }

    /// Adds the gradients of all of `samples` to those of the arena. Also returns how long it took
    /// to read them.
    fn add_gradients(&self, samples: &[u64], work: &ActivityMonitor) -> (Trained, Duration) {
        let state = self.state.view::<f32>(0..self.table.elements());
        let weights = parameters(&self.table, &state);
        let mut arena = self.gradients.lease::<f32>(0..self.gradients.len());
        arena.fill(0.0);
        let mut gradients = parameters_mut(&self.table, &mut arena);
        let (mut all, mut reading) = (Judged::default(), Duration::ZERO);
        for samples in samples.chunks(self.micro_batch) {
            let begun = Instant::now();
            self.model.read(samples);
            reading += begun.elapsed();
            work.moved();
            all = all.plus(self.model.judge_all(&weights, samples, Some(&mut gradients)));
        }
        (Trained { loss: all.loss, taken: samples.iter().copied().collect() }, reading)
    }

    fn whole_state(&self) -> Lease {
        self.state.lease(0..self.state.len())
    }
}

/// Returns the values of each parameter.
fn parameters<'a>(table: &ParamTable, arena: &'a [f32]) -> Vec<&'a [f32]> {
    table.parameters().iter().map(|parameter| &arena[parameter.range.clone()]).collect()
}

/// Returns the values of each parameter, to be changed.
fn parameters_mut<'a>(table: &ParamTable, mut arena: &'a mut [f32]) -> Vec<&'a mut [f32]> {
    let mut start = 0;
    let mut cut = |ParamMeta { range, .. }: &ParamMeta| {
        let (values, rest) = std::mem::take(&mut arena)[range.start - start..].split_at_mut(range.len());
        (arena, start) = (rest, range.end);
        values
    };
    table.parameters().iter().map(&mut cut).collect()
}

impl<M: OwnModel> Trainee for TrainedModel<M> {
    fn samples(&self) -> SampleCounts {
        self.samples
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn ready_order(&self) -> Vec<Range<usize>> {
        self.table.ready_order()
    }

    fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.buckets = buckets.to_vec();
        Ok(())
    }

    fn set_gradient_memory(&mut self, memory: Lent) {
        self.gradients = Arena::over(memory);
    }

    fn own_gradient_memory(&mut self, beside: usize) {
        self.gradients = Arena::zeroed(self.table.elements() + beside);
    }

    fn expect(&mut self, shares: Shares) -> Result<(), Failure> {
        match shares.seats[..] {
            [seat] if seat.is_aligned() => Err(Failure::fatal(
                "spec.communication.algorithm: canonicalTree: not for a model of the trainer's own; choose another",
            )),
            [seat] => {
                self.shares = Some((shares, seat));
                Ok(())
            }
            _ => unreachable!("a worker has one device"),
        }
    }

    fn gradients(
        &mut self,
        step: Step,
        work: &Arc<ActivityMonitor>,
        announce: &mut dyn FnMut(usize, Box<dyn Bucket>),
    ) -> Duration {
        let Some((shares, seat)) = &self.shares else { panic!("step {} was not expected", step.index) };
        let samples: Vec<u64> = shares.samples(*seat, step, self.samples.training).collect();
        let (own, reading) = self.add_gradients(&samples, work);
        self.own = own;
        let elements = self.table.elements();
        let mut arena = self.gradients.lease::<f32>(0..self.gradients.len());
        let scale = 1.0 / step.samples as f32;
        arena[..elements].iter_mut().for_each(|gradient| *gradient *= scale);
        if let Some(loss) = arena.get_mut(elements) {
            *loss = self.own.loss as f32;
        }
        drop(arena);
        let (last, ready) = (self.buckets.len() - 1, Instant::now());
        for (number, bucket) in self.buckets.iter().enumerate() {
            let end = if number == last { self.gradients.len() } else { bucket.end };
            let lease = self.gradients.lease(bucket.start..end);
            announce(number, Box::new(LeasedBucket { lease, completion: Completion { taken: self.own.taken, ready } }));
        }
        reading
    }

    fn memory(&self) -> Vec<(&'static str, u64)> {
        self.needs.by_kind()
    }

    fn copy_gradients(&mut self, elements: Range<usize>, into: &mut [f32]) {
        into.copy_from_slice(&self.gradients.view(elements));
    }

    fn update(&mut self, step: u64, rate: f32) -> Trained {
        let elements = self.table.elements();
        let gradients = self.gradients.view::<f32>(0..elements);
        let mut state = self.whole_state();
        let (weights, rest) = state.split_at_mut(elements);
        let mut slots: Vec<&mut [f32]> = rest.chunks_mut(elements).collect();
        let UpdateRule { optimizer, clip_norm } = self.rule;
        update_arenas(&optimizer, clip_norm, &self.table, weights, &gradients, &mut slots, (step, rate));
        self.own
    }

    fn repeat_step(&mut self, gradients: &[f32], step: u64, rate: f32) {
        self.gradients.lease::<f32>(0..gradients.len()).copy_from_slice(gradients);
        self.update(step, rate);
    }

    fn abandon_step(&mut self) {
        assert_eq!(self.gradients.leased(), 0, "all buckets were given back");
    }

    fn evaluate(&mut self, run: Range<u64>, work: &ActivityMonitor) -> Evaluated {
        let state = self.state.view::<f32>(0..self.table.elements());
        let weights = parameters(&self.table, &state);
        let first = self.samples.training;
        let samples: Vec<u64> = (first + run.start..first + run.end).collect();
        let mut all = Judged::default();
        for samples in samples.chunks(self.micro_batch) {
            self.model.read(samples);
            work.moved();
            all = all.plus(self.model.judge_all(&weights, samples, None));
        }
        all.into()
    }

    fn initialise(&mut self, seed: u64) -> Result<(), Failure> {
        let mut state = self.whole_state();
        state.fill(0.0);
        for parameter in self.table.parameters() {
            state[parameter.range.clone()].copy_from_slice(&parameter.initial_values(seed));
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<StateRange> {
        let slots = self.rule.optimizer.slots().iter().map(|slot| Some(*slot));
        let arenas = std::iter::once(None).chain(slots).enumerate();
        let in_arena = |(arena, slot): (usize, Option<&str>)| {
            let start = arena * self.table.elements();
            let range = move |ParamMeta { name, shape, range, .. }: &ParamMeta| StateRange {
                name: slot.map_or_else(|| name.clone(), |slot| format!("{name}.{slot}")),
                shape: shape.clone(),
                elements: start + range.start..start + range.end,
                is_slot: slot.is_some(),
            };
            self.table.parameters().iter().map(range).collect::<Vec<_>>()
        };
        arenas.flat_map(in_arena).collect()
    }

    fn state_elements(&self) -> usize {
        self.state.len()
    }

    fn copy_state(&mut self, elements: Range<usize>, into: &mut [f32]) {
        into.copy_from_slice(&self.state.view(elements));
    }

    fn write_state(&mut self, state: &[f32]) {
        self.whole_state().copy_from_slice(state);
    }

    fn tensor_memory(&mut self, tensors: &[(&str, &[usize])]) -> Result<Vec<Lent>, String> {
        let known = self.tensors();
        let wants_slots = tensors.iter().any(|(name, _)| known.iter().any(|own| own.is_slot && own.name == *name));
        let wanted = |own: &&StateRange| wants_slots || !own.is_slot;
        if let Some(missing) = known.iter().filter(wanted).find(|own| tensors.iter().all(|(name, _)| *name != own.name))
        {
            return Err(format!("it lacks {}", missing.name));
        }
        let place = |(name, shape): &(&str, &[usize])| match known.iter().find(|own| own.name == *name) {
            Some(own) if own.shape == *shape => Ok(own.elements.clone()),
            Some(own) => Err(format!("{name} has shape {shape:?}, expected {:?}", own.shape)),
            None => Err(format!("this model, or its optimiser, has no {name}")),
        };
        let places = tensors.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        if !wants_slots {
            self.state.lease::<f32>(self.table.elements()..self.state.len()).fill(0.0);
        }
        Ok(places.into_iter().map(|place| Lent::new(self.state.lease::<f32>(place))).collect())
    }

    fn window_checksum(&mut self, turn: u64) -> Result<u32, Failure> {
        let elements = self.table.elements();
        let (arena, window) = window(turn, elements, self.state.len() / elements);
        let start = arena * elements;
        Ok(checksum(&self.state.view(start + window.start..start + window.end)))
    }

    fn checksum(&mut self) -> u32 {
        checksum(&self.state.view(0..self.state.len()))
    }
}

/// A bucket that was complete when it was announced.
struct LeasedBucket {
    lease: Lease,
    completion: Completion,
}

impl Bucket for LeasedBucket {
    fn complete(&mut self) -> Completion {
        self.completion
    }
}

impl AsMut<[f32]> for LeasedBucket {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.lease
    }
}
