//! Weights and optimiser state as named tensors: out for checkpoints, in for resuming, and as one
//! digest.

use std::collections::HashMap;
use std::ops::Range;

use crc_fast::CrcAlgorithm;

use crate::device::{Device, Event, Memory, Region, Values};
use crate::dtype::DType;
use crate::error::Error;
use crate::op::{MicroBatch, Op};
use crate::parameters::ParamMeta;
use crate::replica::Replica;

/// One tensor of a model's state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateTensor {
    /// `conv1.weight`, or `conv1.weight.momentum_buffer` for a slot of the optimiser.
    pub name: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// The elements, last dimension fastest.
    pub values: Vec<f32>,
}

/// The place of a tensor in a model's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// As [`StateTensor::name`].
    pub name: String,
    /// The parameter to which it belongs.
    pub parameter: String,
    /// The optimiser's slot, if it is one.
    pub slot: Option<&'static str>,
    /// Type of the elements.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Its elements in the whole state, as [`Replica::copy_state`] counts them.
    pub range: Range<usize>,
}

impl<D: Device> Replica<D> {
    /// Draws initial weights from `seed` and each parameter's name, and clears the slots.
    ///
    /// # Panics
    /// In mid-step.
    pub fn initialise(&mut self, seed: u64) {
        self.assert_between_steps("initialise");
        for parameter in self.table.parameters() {
            let values = parameter.initial_values(seed);
            self.device.write(self.plan.weights.region(parameter.range.clone()), Values::F32(&values));
        }
        self.masters_changed = true;
        self.clear_slots();
    }

    fn clear_slots(&mut self) {
        for slot in self.plan.slots.iter() {
            let all = slot.region(0..self.table.elements());
            self.device.enqueue(&Op::Zero(all), &MicroBatch::NONE);
        }
    }

    /// The arenas of the state: weights, then each slot.
    fn memories(&self) -> Vec<Memory> {
        std::iter::once(self.plan.weights).chain(self.plan.slots.iter().copied()).collect()
    }

    /// All tensors of the state: weights and statistics, then each slot; of each the layers in
    /// forward order.
    pub fn entries(&self) -> Vec<StateEntry> {
        let elements = self.table.elements();
        let slots = self.optimizer.slots().iter().map(|slot| Some(*slot));
        let arenas = std::iter::once(None).chain(slots).enumerate();
        let in_arena = |(arena, slot): (usize, Option<&'static str>)| {
            let kept =
                self.table.in_forward_order().filter(move |parameter| slot.is_none() || parameter.role.is_trained());
            kept.map(move |ParamMeta { name, shape, dtype, range, .. }| StateEntry {
                name: slot.map_or_else(|| name.clone(), |slot| format!("{name}.{slot}")),
                parameter: name.clone(),
                slot,
                dtype: *dtype,
                shape: shape.clone(),
                range: arena * elements + range.start..arena * elements + range.end,
            })
        };
        arenas.flat_map(in_arena).collect()
    }

    /// The place of some elements of the state, which lie in one arena.
    fn region_of(&self, range: &Range<usize>) -> Region {
        let elements = self.table.elements();
        let (arena, start) = (range.start / elements, range.start % elements);
        let memory = if arena == 0 { self.plan.weights } else { self.plan.slots[arena - 1] };
        memory.region(start..start + range.len())
    }

    /// Weights and statistics, in forward order of the layers; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn weights(&mut self) -> Vec<StateTensor> {
        self.read_all(|entry| entry.slot.is_none())
    }

    /// Everything that decides the next step; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn tensors(&mut self) -> Vec<StateTensor> {
        self.read_all(|_| true)
    }

    /// Names and shapes of [`tensors`](Replica::tensors), in the same order.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        self.entries().into_iter().map(|entry| (entry.name, entry.shape)).collect()
    }

    /// Copies some values of the tensor that [`tensors`](Replica::tensors) calls `name`; waits.
    ///
    /// # Panics
    /// In mid-step, and when there is no such tensor or no such values.
    pub fn copy_tensor(&mut self, name: &str, values: Range<usize>, into: &mut [f32]) {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let entry = self.entries().into_iter().find(|entry| entry.name == name);
        let region = self.region_of(&entry.unwrap_or_else(|| panic!("the state lacks {name}")).range);
        assert!(values.end <= region.len, "values {values:?} of {name}, which has {}", region.len);
        self.device.read(region.part(values), into);
    }

    /// Takes over a state from [`tensors`](Replica::tensors), in any order. With
    /// [`weights`](Replica::weights) alone the optimiser starts afresh. On an error nothing has
    /// changed. Waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn load_tensors(&mut self, tensors: &[StateTensor]) -> Result<(), Error> {
        let shapes = || tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..]));
        self.accept(&shapes().collect::<Vec<_>>())?;
        for StateTensor { name, shape, values } in tensors {
            if values.len() != shape.iter().product::<usize>() {
                let (name, expected, found) = (name.clone(), shape.clone(), shape.clone());
                return Err(Error::TensorShape { name, expected, found, values: values.len() });
            }
        }
        for (mut view, tensor) in self.state_views(shapes())?.into_iter().zip(tensors) {
            view.as_mut().copy_from_slice(&tensor.values);
        }
        Ok(())
    }

    /// Where the values of a state are to be written: one view for each of `tensors`, which are
    /// those of [`tensors`](Replica::tensors), in any order, or those of
    /// [`weights`](Replica::weights) alone, and then the optimiser starts afresh. The state is of
    /// use again once all values were written and the views are dropped. On an error nothing has
    /// changed.
    ///
    /// # Panics
    /// In mid-step.
    pub fn state_views<'a>(
        &mut self,
        tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    ) -> Result<Vec<D::HostView>, Error> {
        self.assert_between_steps("writing the state");
        let found: Vec<(&str, &[usize])> = tensors.collect();
        let entries = self.accept(&found)?;
        if entries.iter().all(|entry| entry.slot.is_none()) {
            self.clear_slots();
        }
        self.masters_changed = true;
        let event = self.device.ready();
        let regions: Vec<_> = entries.iter().map(|entry| self.region_of(&entry.range)).collect();
        Ok(regions.into_iter().map(|region| self.device.host_view(region, event.clone())).collect())
    }

    /// Checks that these are all tensors of a state, or all weights; gives their entries in the
    /// same order.
    fn accept(&self, found: &[(&str, &[usize])]) -> Result<Vec<StateEntry>, Error> {
        let entries = self.entries();
        let known: HashMap<&str, &StateEntry> = entries.iter().map(|entry| (&*entry.name, entry)).collect();
        let mut given: HashMap<&str, &[usize]> = HashMap::new();
        for (name, shape) in found {
            if !known.contains_key(name) || given.insert(name, shape).is_some() {
                return Err(self.refusal(name, given.contains_key(name)));
            }
        }
        let with_slots = found.iter().any(|(name, _)| known[name].slot.is_some());
        for StateEntry { name, shape, .. } in entries.iter().filter(|entry| with_slots || entry.slot.is_none()) {
            match given.get(&**name) {
                None => return Err(Error::MissingTensor { name: name.clone(), shape: shape.clone() }),
                Some(other) if other != shape => {
                    let (expected, values) = (shape.clone(), other.iter().product());
                    return Err(Error::TensorShape { name: name.clone(), expected, found: other.to_vec(), values });
                }
                Some(_) => {}
            }
        }
        Ok(found.iter().map(|(name, _)| known[name].clone()).collect())
    }

    /// Why a tensor is none of the state's.
    fn refusal(&self, name: &str, is_twice: bool) -> Error {
        let of_slot = self.table.parameters().iter().filter(|_| !is_twice).find_map(|parameter| {
            let slot = name.strip_prefix(&*parameter.name)?.strip_prefix('.')?;
            Some(Error::OtherOptimizer { slot: slot.to_owned(), optimizer: self.optimizer.name() })
        });
        of_slot.unwrap_or_else(|| Error::UnknownTensor { name: name.to_owned() })
    }

    /// The [`StateDigest`] of [`tensors`](Replica::tensors): equal on ranks whose states are equal;
    /// waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn digest(&mut self) -> [u8; 32] {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let mut digest = self.begin_digest();
        let mut block = Vec::with_capacity(DIGEST_BLOCK);
        for entry in self.entries() {
            let mut rest = entry.range;
            while !rest.is_empty() {
                let (filled, next) = (block.len(), rest.start + rest.len().min(DIGEST_BLOCK - block.len()));
                block.resize(filled + next - rest.start, 0.0);
                self.device.read(self.region_of(&(rest.start..next)), &mut block[filled..]);
                rest.start = next;
                if block.len() == DIGEST_BLOCK {
                    digest.add(&digest_blocks(&block));
                    block.clear();
                }
            }
        }
        digest.add(&digest_blocks(&block));
        digest.finish()
    }

    /// CRC-32C of a small window of the state: another one with each `turn`, so that [`WINDOWS`]
    /// turns in a row cover all of it. Equal on replicas whose states are; no proof against anybody
    /// who means it; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn window_checksum(&mut self, turn: u64) -> u32 {
        let (elements, memories) = (self.table.elements(), self.memories());
        let (arena, window) = window(turn, elements, memories.len());
        self.checksum_of(&[memories[arena].region(window)])
    }

    /// The same of the whole state.
    ///
    /// # Panics
    /// In mid-step.
    pub fn checksum(&mut self) -> u32 {
        let elements = self.table.elements();
        let regions: Vec<_> = self.memories().into_iter().map(|memory| memory.region(0..elements)).collect();
        self.checksum_of(&regions)
    }

    fn checksum_of(&mut self, regions: &[Region]) -> u32 {
        self.assert_between_steps("reading the state");
        let mut checksum = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
        for region in regions {
            let event = self.device.ready();
            checksum.update(bytemuck::cast_slice(self.device.host_view(*region, event).as_mut()));
        }
        // It has 32 bits.
        checksum.finalize() as u32
    }

    /// The digest of a state of this network, to which its blocks are to be added.
    pub fn begin_digest(&self) -> StateDigest {
        StateDigest::of(self.tensor_shapes().iter().map(|(name, shape)| (&name[..], &shape[..])))
    }

    /// Values of the whole state: the arenas one after another, weights first, then each slot.
    pub fn state_elements(&self) -> usize {
        self.memories().len() * self.table.elements()
    }

    /// Copies some values of the state, which another replica of the same network may write; waits.
    ///
    /// # Panics
    /// In mid-step, and when there are no such values.
    pub fn copy_state(&mut self, values: Range<usize>, into: &mut [f32]) {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let elements = self.table.elements();
        let mut rest = into;
        for (arena, memory) in self.memories().into_iter().enumerate() {
            let inside = |element: usize| element.clamp(arena * elements, (arena + 1) * elements) - arena * elements;
            let part = inside(values.start)..inside(values.end);
            let (here, further) = rest.split_at_mut(part.len());
            self.device.read(memory.region(part), here);
            rest = further;
        }
        assert!(rest.is_empty(), "the state has no values {values:?}");
    }

    /// Takes over all values of a state.
    ///
    /// # Panics
    /// In mid-step, and when `state` is that of another network or optimiser.
    pub fn write_state(&mut self, state: &[f32]) {
        self.assert_between_steps("writing the state");
        assert_eq!(state.len(), self.state_elements(), "the state of another network or optimiser");
        self.masters_changed = true;
        let elements = self.table.elements();
        for (values, memory) in state.chunks(elements).zip(self.memories()) {
            self.device.write(memory.region(0..elements), Values::F32(values));
        }
    }

    fn read_all(&mut self, is_wanted: impl Fn(&StateEntry) -> bool) -> Vec<StateTensor> {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let wanted: Vec<StateEntry> = self.entries().into_iter().filter(is_wanted).collect();
        let read = |StateEntry { name, shape, range, .. }| {
            let mut values = vec![0.0; range.len()];
            self.device.read(self.region_of(&range), &mut values);
            StateTensor { name, shape, values }
        };
        wanted.into_iter().map(read).collect()
    }
}

/// In how many turns [`Replica::window_checksum`] covers a state, at the most: windows have so many
/// values that it is worth the call.
pub const WINDOWS: usize = 128;
const MIN_WINDOW: usize = 1 << 14;

/// The window of a state for a turn of [`Replica::window_checksum`]: an arena, and elements of it.
/// The state has so many `arenas` of `elements` each.
#[must_use]
pub fn window(turn: u64, elements: usize, arenas: usize) -> (usize, Range<usize>) {
    let (every, arena) = (arenas as u64, (turn % arenas as u64) as usize);
    let window = elements.div_ceil(WINDOWS / arenas).max(MIN_WINDOW);
    let start = (turn / every % elements.div_ceil(window) as u64) as usize * window;
    (arena, start..elements.min(start + window))
}

/// CRC-32C of values.
#[must_use]
pub fn checksum(values: &[f32]) -> u32 {
    // It has 32 bits.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytemuck::cast_slice(values)) as u32
}

/// Values that are digested together, the last block of a state having fewer.
pub const DIGEST_BLOCK: usize = 16 << 10;

/// `BLAKE3(names and shapes ‖ BLAKE3(block 0) ‖ BLAKE3(block 1) ‖ …)` of the values of all tensors
/// one after another, so that each block may be digested by another rank.
#[derive(Debug, Clone)]
pub struct StateDigest(blake3::Hasher);

impl StateDigest {
    /// The digest of a state of these tensors, given by name and shape, to which its blocks are to
    /// be added.
    pub fn of<'a>(tensors: impl ExactSizeIterator<Item = (&'a str, &'a [usize])>) -> StateDigest {
        let mut hasher = blake3::Hasher::new();
        let length = |hasher: &mut blake3::Hasher, length: usize| {
            hasher.update(&(length as u64).to_le_bytes());
        };
        length(&mut hasher, tensors.len());
        for (name, shape) in tensors {
            length(&mut hasher, name.len());
            hasher.update(name.as_bytes());
            length(&mut hasher, shape.len());
            shape.iter().for_each(|dimension| length(&mut hasher, *dimension));
        }
        StateDigest(hasher)
    }

    /// Adds the digests of the blocks that come next.
    pub fn add(&mut self, blocks: &[[u8; 32]]) {
        blocks.iter().for_each(|block| {
            self.0.update(block);
        });
    }

    /// Once all blocks were added.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// The digests of blocks; `values` begin where a block does.
pub fn digest_blocks(values: &[f32]) -> Vec<[u8; 32]> {
    values.chunks(DIGEST_BLOCK).map(digest_block).collect()
}

/// As on any machine: the bytes of a little-endian one are taken as they lie.
fn digest_block(values: &[f32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    if cfg!(target_endian = "little") {
        hasher.update(bytemuck::cast_slice(values));
    } else {
        values.iter().for_each(|value| {
            hasher.update(&value.to_le_bytes());
        });
    }
    *hasher.finalize().as_bytes()
}
