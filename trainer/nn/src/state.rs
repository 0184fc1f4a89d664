//! Weights and optimiser state as named tensors: out for checkpoints, in for resuming, and as one digest.

use std::ops::Range;

use crc_fast::CrcAlgorithm;

use crate::device::{Device, Event, Memory, Region};
use crate::error::Error;
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

impl<D: Device> Replica<D> {
    /// Draws PyTorch's default initial weights from `seed` and each parameter's name, and clears the slots.
    ///
    /// # Panics
    /// In mid-step.
    pub fn initialise(&mut self, seed: u64) {
        self.assert_between_steps("initialise");
        for parameter in self.table.parameters() {
            let values = parameter.initial_values(seed);
            self.device.write(self.plan.weights.region(parameter.range.clone()), &values);
        }
        self.clear_slots();
    }

    fn clear_slots(&mut self) {
        for slot in self.plan.slots.iter() {
            self.device.zero(slot.region(0..self.table.elements()));
        }
    }

    /// The arenas of the state with what a parameter's name is followed by in each: weights, then slots.
    fn arenas(&self) -> impl Iterator<Item = (String, Memory)> {
        let slots = self.optimizer.slots().iter().zip(self.plan.slots.iter());
        let slots = slots.map(|(slot, memory)| (format!(".{slot}"), *memory));
        std::iter::once((String::new(), self.plan.weights)).chain(slots)
    }

    fn memories(&self) -> Vec<Memory> {
        self.arenas().map(|(_, memory)| memory).collect()
    }

    /// The weights, in forward order of the layers; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn weights(&mut self) -> Vec<StateTensor> {
        self.read_all(self.plan.weights, "")
    }

    /// Everything that decides the next step: weights and optimiser slots; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn tensors(&mut self) -> Vec<StateTensor> {
        let arenas: Vec<_> = self.arenas().collect();
        arenas.into_iter().flat_map(|(suffix, memory)| self.read_all(memory, &suffix)).collect()
    }

    /// Names and shapes of [`tensors`](Replica::tensors), in the same order: weights, then each slot.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let of = |suffix: String| {
            let shape = move |name: String| (format!("{name}{suffix}"), self.parameter(&name).shape.clone());
            self.forward_names().map(shape)
        };
        self.arenas().flat_map(|(suffix, _)| of(suffix)).collect()
    }

    /// Copies some values of the tensor that [`tensors`](Replica::tensors) calls `name`; waits.
    ///
    /// # Panics
    /// In mid-step, and when there is no such tensor or no such values.
    pub fn copy_tensor(&mut self, name: &str, values: Range<usize>, into: &mut [f32]) {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let Region { memory, start, len } = self.region_of(name);
        assert!(values.end <= len, "values {values:?} of {name}, which has {len}");
        self.device.read(memory.region(start + values.start..start + values.end), into);
    }

    /// Takes over a state from [`tensors`](Replica::tensors), in any order. With [`weights`](Replica::weights) alone
    /// the optimiser starts afresh. On an error nothing has changed. Waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn load_tensors(&mut self, tensors: &[StateTensor]) -> Result<(), Error> {
        let shapes = || tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..]));
        self.accept(&shapes().collect::<Vec<_>>())?;
        for StateTensor { name, shape, values } in tensors {
            let expected = &self.parameter(self.split(name).0).shape;
            if values.len() != expected.iter().product() {
                let (name, expected, found) = (name.clone(), expected.clone(), shape.clone());
                return Err(Error::TensorShape { name, expected, found, values: values.len() });
            }
        }
        for (mut view, tensor) in self.state_views(shapes())?.into_iter().zip(tensors) {
            view.as_mut().copy_from_slice(&tensor.values);
        }
        Ok(())
    }

    /// Where the values of a state are to be written: one view for each of `tensors`, which are those of [`tensors`](Replica::tensors), in any
    /// order, or those of [`weights`](Replica::weights) alone, and then the optimiser starts afresh. The state is of use again once all values
    /// were written and the views are dropped. On an error nothing has changed.
    ///
    /// # Panics
    /// In mid-step.
    pub fn state_views<'a>(
        &mut self,
        tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    ) -> Result<Vec<D::HostView>, Error> {
        self.assert_between_steps("writing the state");
        let found: Vec<(&str, &[usize])> = tensors.collect();
        self.accept(&found)?;
        if found.iter().all(|(name, _)| self.split(name).1 == 0) {
            self.clear_slots();
        }
        let event = self.device.ready();
        let regions: Vec<_> = found.iter().map(|(name, _)| self.region_of(name)).collect();
        Ok(regions.into_iter().map(|region| self.device.host_view(region, event.clone())).collect())
    }

    /// Checks that these are all tensors of a state, or all weights.
    fn accept(&self, found: &[(&str, &[usize])]) -> Result<(), Error> {
        let is_strange = |at: usize, name: &str| {
            self.table.get(self.split(name).0).is_none() || found[..at].iter().any(|(earlier, _)| *earlier == name)
        };
        if let Some((_, (name, _))) = found.iter().enumerate().find(|(at, (name, _))| is_strange(*at, name)) {
            let of_slot = self.table.parameters().iter().find_map(|parameter| {
                let slot = name.strip_prefix(&*parameter.name)?.strip_prefix('.')?;
                Some(Error::OtherOptimizer { slot: slot.to_owned(), optimizer: self.optimizer.name() })
            });
            return Err(of_slot.unwrap_or_else(|| Error::UnknownTensor { name: (*name).to_owned() }));
        }
        let with_slots = found.iter().any(|(name, _)| self.split(name).1 > 0);
        let needed = if with_slots { self.arenas().count() } else { 1 };
        for (suffix, _) in self.arenas().take(needed) {
            for ParamMeta { name, shape, .. } in self.table.parameters() {
                let name = format!("{name}{suffix}");
                match found.iter().find(|(other, _)| *other == name) {
                    None => return Err(Error::MissingTensor { name, shape: shape.clone() }),
                    Some((_, other)) if other != shape => {
                        let (expected, values) = (shape.clone(), other.iter().product());
                        return Err(Error::TensorShape { name, expected, found: other.to_vec(), values });
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The parameter to whose state a tensor belongs, and the arena: 0 for the weights, then each slot.
    fn split<'a>(&self, tensor: &'a str) -> (&'a str, usize) {
        let slots = self.optimizer.slots().iter().enumerate();
        let of_slot = |(slot, name): (usize, &&str)| Some((tensor.strip_suffix(*name)?.strip_suffix('.')?, slot + 1));
        slots.into_iter().find_map(of_slot).unwrap_or((tensor, 0))
    }

    /// The place of a tensor of the state.
    fn region_of(&self, tensor: &str) -> Region {
        let (parameter, arena) = self.split(tensor);
        let memory = if arena == 0 { self.plan.weights } else { self.plan.slots[arena - 1] };
        memory.region(self.parameter(parameter).range.clone())
    }

    /// The [`StateDigest`] of [`tensors`](Replica::tensors): equal on ranks whose states are equal; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn digest(&mut self) -> [u8; 32] {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let names: Vec<String> = self.forward_names().collect();
        let mut digest = self.begin_digest();
        let mut block = Vec::with_capacity(DIGEST_BLOCK);
        for memory in self.memories() {
            for name in &names {
                let mut rest = self.parameter(name).range.clone();
                while !rest.is_empty() {
                    let (filled, next) = (block.len(), rest.start + rest.len().min(DIGEST_BLOCK - block.len()));
                    block.resize(filled + next - rest.start, 0.0);
                    self.device.read(memory.region(rest.start..next), &mut block[filled..]);
                    rest.start = next;
                    if block.len() == DIGEST_BLOCK {
                        digest.add(&digest_blocks(&block));
                        block.clear();
                    }
                }
            }
        }
        digest.add(&digest_blocks(&block));
        digest.finish()
    }

    /// CRC-32C of a small window of the state: another one with each `turn`, so that [`WINDOWS`] turns in a row cover all of it. Equal on
    /// replicas whose states are; no proof against anybody who means it; waits.
    ///
    /// # Panics
    /// In mid-step.
    pub fn window_checksum(&mut self, turn: u64) -> u32 {
        let (elements, memories) = (self.table.elements(), self.memories());
        let arenas = memories.len() as u64;
        let window = elements.div_ceil(WINDOWS / memories.len()).max(MIN_WINDOW);
        let windows = elements.div_ceil(window) as u64;
        let start = (turn / arenas % windows) as usize * window;
        let memory = memories[(turn % arenas) as usize];
        self.checksum_of(&[memory.region(start..elements.min(start + window))])
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
        StateDigest::of(&self.tensor_shapes())
    }

    /// Values of the whole state: the arenas one after another, weights first, then each slot.
    pub fn state_elements(&self) -> usize {
        self.arenas().count() * self.table.elements()
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
        let elements = self.table.elements();
        for (values, memory) in state.chunks(elements).zip(self.memories()) {
            self.device.write(memory.region(0..elements), values);
        }
    }

    fn read_all(&mut self, memory: Memory, suffix: &str) -> Vec<StateTensor> {
        self.assert_between_steps("reading the state");
        self.device.ready().wait();
        let names: Vec<String> = self.forward_names().collect();
        let read = |name: String| {
            let (range, shape) = (self.parameter(&name).range.clone(), self.parameter(&name).shape.clone());
            let mut values = vec![0.0; range.len()];
            self.device.read(memory.region(range), &mut values);
            StateTensor { name: format!("{name}{suffix}"), shape, values }
        };
        names.into_iter().map(read).collect()
    }

    fn forward_names(&self) -> impl Iterator<Item = String> {
        self.network().blocks().iter().flat_map(|block| ["weight", "bias"].map(|role| format!("{}.{role}", block.name)))
    }

    fn parameter(&self, name: &str) -> &ParamMeta {
        self.table.get(name).unwrap_or_else(|| panic!("the table lacks {name}"))
    }
}

/// In how many turns [`Replica::window_checksum`] covers a state, at the most: windows have so many values that it is worth the call.
pub const WINDOWS: usize = 128;
const MIN_WINDOW: usize = 1 << 14;

/// Values that are digested together, the last block of a state having fewer.
pub const DIGEST_BLOCK: usize = 16 << 10;

/// `BLAKE3(names and shapes ‖ BLAKE3(block 0) ‖ BLAKE3(block 1) ‖ …)` of the values of all tensors one after another, so that each block
/// may be digested by another rank.
#[derive(Debug, Clone)]
pub struct StateDigest(blake3::Hasher);

impl StateDigest {
    fn of(tensors: &[(String, Vec<usize>)]) -> StateDigest {
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
