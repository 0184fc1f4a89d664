//! The logical arena: one sequence of bytes in which every tensor of a state has its place, whoever writes which part of it.
//!
//! Weights come first, then slots, each little-endian and without gaps. Writer `r` of `n` has the values from `⌊b·r/n⌋` to `⌊b·(r+1)/n⌋`
//! of the `b` blocks of [`BLOCK_VALUES`] that the arena begins with or is; the last one may be short. No two have the same byte, and of
//! more writers than blocks some have none.

use std::{collections::BTreeSet, num::NonZeroU32, ops::Range};

use crate::{
    CheckpointError, Tensor,
    manifest::{Entry, Role},
};

/// Bytes of one value.
pub(crate) const VALUE_BYTES: u64 = size_of::<f32>() as u64;
/// A writer's part begins with a block of so many values.
pub const BLOCK_VALUES: usize = 16 << 10;

/// Which tensors a state has, and where each lies in its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: Vec<Entry>,
    /// The first value of each tensor, and the number of all values.
    starts: Vec<usize>,
    /// Values of a block; fewer in tests.
    pub(crate) block_values: usize,
}

/// The part of one tensor that lies in a range of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Which tensor: weights are counted first, then slots.
    pub tensor: usize,
    /// Its name.
    pub name: &'a str,
    /// Which of its values.
    pub values: Range<usize>,
}

impl Layout {
    /// The arena of these weights and slots, each a name and a shape, in this order.
    ///
    /// # Errors
    /// [`CheckpointError::Layout`] where two have one name, or no memory could hold them.
    pub fn new<'a>(
        weights: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        slots: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> Result<Self, CheckpointError> {
        let entry = |role| move |(name, shape)| Entry::of(name, shape, role);
        let weights = weights.into_iter().map(entry(Role::Weight));
        let entries = weights.chain(slots.into_iter().map(entry(Role::Slot))).collect();
        Self::of(entries).map_err(|problem| CheckpointError::Layout { problem })
    }

    /// The arena of these tensors.
    ///
    /// # Errors
    /// As of [`Layout::new`].
    pub fn of_tensors<'a>(weights: &[Tensor<'a>], slots: &[Tensor<'a>]) -> Result<Self, CheckpointError> {
        let parts = |tensor: &Tensor<'a>| (tensor.name, tensor.shape);
        Self::new(weights.iter().map(parts), slots.iter().map(parts))
    }

    pub(crate) fn of(entries: Vec<Entry>) -> Result<Self, String> {
        let mut names = BTreeSet::new();
        let mut starts = Vec::with_capacity(entries.len() + 1);
        let mut end = 0_usize;
        if !entries.is_sorted_by_key(|entry| entry.role) {
            return Err("a weight follows a slot".to_owned());
        }
        for entry in &entries {
            if !names.insert((entry.name.as_str(), entry.role)) {
                return Err(format!("two are named {}", entry.name));
            }
            if entry.role == Role::Slot && names.contains(&(entry.name.as_str(), Role::Weight)) {
                return Err(format!("a weight and a slot are named {}", entry.name));
            }
            starts.push(end);
            let values = entry.elements().and_then(|values| end.checked_add(values));
            let fits = values.filter(|values| (*values as u64).checked_mul(VALUE_BYTES).is_some());
            end = fits.ok_or_else(|| format!("{} has the shape {:?}, too large to store", entry.name, entry.shape))?;
        }
        starts.push(end);
        Ok(Self { entries, starts, block_values: BLOCK_VALUES })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Name and shape of each tensor, weights first.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|entry| (&entry.name[..], &entry.shape[..]))
    }

    /// Number of values.
    #[must_use]
    pub fn values(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Length of the arena.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.values() as u64 * VALUE_BYTES
    }

    /// The bytes that `writer` of `writers` writes; whole blocks, and the last one.
    ///
    /// # Panics
    /// When there is no such writer.
    #[must_use]
    pub fn shard(&self, writer: u32, writers: NonZeroU32) -> Range<u64> {
        assert!(writer < writers.get(), "writer {writer} of {writers}");
        let blocks = self.values().div_ceil(self.block_values);
        let until = |writer: u32| {
            let block = blocks as u128 * u128::from(writer) / u128::from(writers.get());
            (block as usize * self.block_values).min(self.values()) as u64 * VALUE_BYTES
        };
        until(writer)..until(writer + 1)
    }

    /// Which parts of which tensors the bytes of `range` are, in order.
    ///
    /// # Panics
    /// When the range does not begin and end at a value of the arena.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece<'_>> {
        let all = self.values_of(&range);
        let end = all.end;
        let first = self.starts.partition_point(|start| *start <= all.start).saturating_sub(1);
        let pieces = self.entries.iter().enumerate().skip(first).map(move |(tensor, entry)| {
            let (start, end) = (self.starts[tensor], self.starts[tensor + 1]);
            let cut = |value: usize| value.clamp(start, end) - start;
            Piece { tensor, name: &entry.name, values: cut(all.start)..cut(all.end) }
        });
        pieces.take_while(move |piece| self.starts[piece.tensor] < end).filter(|piece| !piece.values.is_empty())
    }

    /// Which values the bytes of `range` are.
    pub(crate) fn values_of(&self, range: &Range<u64>) -> Range<usize> {
        let whole = range.start.is_multiple_of(VALUE_BYTES) && range.end.is_multiple_of(VALUE_BYTES);
        let within = range.start <= range.end && range.end <= self.bytes();
        assert!(whole && within, "bytes {range:?} of a state of {} bytes", self.bytes());
        (range.start / VALUE_BYTES) as usize..(range.end / VALUE_BYTES) as usize
    }
}
