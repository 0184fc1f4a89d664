use std::{
    num::NonZeroU32,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointError, Folder, Layout, Position,
    chunk::{Chunk, cut},
    load::read_chunk,
    operation::{Contents, Operation},
};

/// One writer's part of a state.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// Where training stands. All writers of a checkpoint have the same step and generation.
    pub position: Position,
    /// The whole state's.
    pub layout: &'a Layout,
    /// This writer; they are counted from 0.
    pub writer: u32,
    /// How many write.
    pub writers: NonZeroU32,
    /// The values of [`Layout::shard`], in as many parts as is convenient.
    pub values: &'a [&'a [f32]],
}

/// That a shard is stored, for [`Folder::commit`]. It is meant to be sent to whoever commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReceipt {
    /// Of which step.
    pub step: u64,
    /// Of which generation.
    pub generation: u64,
    /// Its bytes of the arena.
    pub range: Range<u64>,
    /// What they are, in order.
    pub chunks: Vec<Chunk>,
    /// Bytes that were not written, because the checkpoint before, or another part of this one, has the same.
    pub unchanged_bytes: u64,
}

impl Folder {
    /// Stores one writer's part of a checkpoint. It becomes visible when all parts are [committed](Folder::commit). When this returns,
    /// the part survives a power failure.
    ///
    /// The first writer also clears what saves of earlier generations have left.
    ///
    /// # Errors
    /// Any error of the storage; the checkpoints before are untouched then.
    ///
    /// # Panics
    /// When there is no such writer, or the values are not as many as its shard has.
    pub fn write_shard(&self, shard: &Shard<'_>) -> Result<ShardReceipt, CheckpointError> {
        self.write_shard_until(shard, &AtomicBool::new(false))
    }

    /// As [`Folder::write_shard`], but gives up before the next chunk once `cancelled`.
    pub(crate) fn write_shard_until(
        &self,
        shard: &Shard<'_>,
        cancelled: &AtomicBool,
    ) -> Result<ShardReceipt, CheckpointError> {
        let Shard { position, layout, writer, writers, values } = *shard;
        let range = layout.shard(writer, writers);
        let (expected, found) = (layout.values_of(&range).len(), values.iter().map(|part| part.len()).sum::<usize>());
        assert_eq!(found, expected, "values of writer {writer} of {writers}");
        if writer == 0 {
            self.clear_generations_before(position.generation)?;
        }
        let staging = self.staging(position.step, position.generation);
        self.perform(&Operation::Create(staging.clone()))?;
        let mut receipt = ShardReceipt {
            step: position.step,
            generation: position.generation,
            range: range.clone(),
            chunks: Vec::new(),
            unchanged_bytes: 0,
        };
        let before = self.steps()?.first().map(|step| self.step(*step));
        for part in cut(range.clone(), self.chunk_bytes) {
            if cancelled.load(Ordering::Relaxed) {
                return Err(CheckpointError::Cancelled { path: staging });
            }
            let within = layout.values_of(&(part.start - range.start..part.end - range.start));
            let values = slice(values, within);
            let contents = Contents::Values(&values);
            let chunk = Chunk::of(part.start, &contents);
            let path = staging.join(chunk.file());
            // A torn save of the same step may have left it, or another part of the state be equal.
            let there = is_whole(&staging, &chunk);
            // Some file systems have no second names, and another member may be deleting the first: then it is written.
            let linked = |before: &PathBuf| {
                is_whole(before, &chunk)
                    && self.perform(&Operation::Link(before.join(chunk.file()), path.clone())).is_ok()
            };
            if there || before.as_ref().is_some_and(linked) {
                receipt.unchanged_bytes += chunk.bytes;
            } else {
                self.store(&path, contents)?;
            }
            receipt.chunks.push(chunk);
        }
        self.perform(&Operation::Sync(staging))?;
        Ok(receipt)
    }
}

/// Whether a folder has the file of `chunk`, and in it what its name says: what is damaged is not referred to again.
fn is_whole(folder: &Path, chunk: &Chunk) -> bool {
    read_chunk(folder, chunk, &mut Vec::new()).is_ok()
}

/// The values `within` parts that follow one another.
fn slice<'a>(parts: &[&'a [f32]], within: Range<usize>) -> Vec<&'a [f32]> {
    let mut start = 0;
    let cut = parts.iter().map(|part| {
        let local = |value: usize| value.clamp(start, start + part.len()) - start;
        let cut = &part[local(within.start)..local(within.end)];
        start += part.len();
        cut
    });
    cut.filter(|part| !part.is_empty()).collect()
}
