use std::{
    collections::VecDeque,
    num::NonZeroU32,
    ops::Range,
    panic::resume_unwind,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointError, Folder, Layout, Position,
    chunk::{Chunk, cut},
    medium::Written,
    operation::Contents,
};

/// Chunks that one writer or reader works on at once.
pub(crate) const AT_ONCE: usize = 3;

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
        let staging = self.medium.staging(position);
        self.medium.make_staging(position)?;
        let mut receipt = ShardReceipt {
            step: position.step,
            generation: position.generation,
            range: range.clone(),
            chunks: Vec::new(),
            unchanged_bytes: 0,
        };
        let before = self.medium.slots()?.first().map(|slot| self.place(*slot));
        let parts: Vec<_> = cut(range.clone(), self.chunk_bytes).collect();
        let next = AtomicUsize::new(0);
        let write = || {
            let (mut written, mut synced) = (VecDeque::new(), Vec::new());
            let mut write = || {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if cancelled.load(Ordering::Relaxed) {
                        return Err(CheckpointError::Cancelled { path: staging.clone() });
                    }
                    let within = layout.values_of(&(part.start - range.start..part.end - range.start));
                    let values = slice(values, within);
                    let contents = Contents::Values(&values);
                    let chunk = Chunk::of(part.start, &contents);
                    written.push_back((chunk, self.medium.write_chunk(&staging, before.as_deref(), &chunk, contents)?));
                }
                Ok(())
            };
            // Once all are written: meanwhile the storage has been at work, and these waits are short.
            let stored = write().and_then(|()| self.sync(&mut written, &mut synced));
            (written, synced, stored)
        };
        let (written, mut synced, stored) = thread::scope(|scope| {
            // Where the system gives no more threads there are enough.
            let start = |_| thread::Builder::new().spawn_scoped(scope, write).ok();
            let threads: Vec<_> = (1..self.at_once.min(parts.len())).map_while(start).collect();
            let (mut written, mut synced, mut stored) = write();
            for thread in threads {
                let others = thread.join().unwrap_or_else(|cause| resume_unwind(cause));
                written.extend(others.0);
                synced.extend(others.1);
                stored = stored.and(others.2);
            }
            (written, synced, stored)
        });
        if let Err(error) = stored {
            if !matches!(error, CheckpointError::Cancelled { .. }) {
                self.keep_for_later(&staging, written, synced);
            }
            return Err(error);
        }
        synced.sort_by_key(|(chunk, _)| chunk.start);
        // After all are written: the storage is slower when it is to finish one before it gets the next.
        self.medium.name_chunks(&staging, &synced)?;
        let unchanged = synced.iter().filter(|(_, written)| *written == Written::Unchanged);
        receipt.unchanged_bytes = unchanged.map(|(chunk, _)| chunk.bytes).sum();
        receipt.chunks = synced.into_iter().map(|(chunk, _)| chunk).collect();
        Ok(receipt)
    }

    /// Moves chunks from `written` to `synced`, each once it is stored; one that cannot be goes. A system that could not store a file tells of
    /// it once, and says of the next attempt that all is well.
    fn sync(
        &self,
        written: &mut VecDeque<(Chunk, Written)>,
        synced: &mut Vec<(Chunk, Written)>,
    ) -> Result<(), CheckpointError> {
        while let Some(chunk) = written.pop_front() {
            self.medium.sync_chunk(&chunk.1).inspect_err(|_| self.drop_chunk(&chunk.1))?;
            synced.push(chunk);
        }
        Ok(())
    }

    /// Of a shard that could not be written whole: what is stored gets its name, so that the next attempt need not write it again; what
    /// cannot be stored goes, so that on a full disk it does not take the room of the next.
    fn keep_for_later(
        &self,
        staging: &Path,
        mut written: VecDeque<(Chunk, Written)>,
        mut synced: Vec<(Chunk, Written)>,
    ) {
        // One that fails now is not the first.
        let _ = self.sync(&mut written, &mut synced);
        let unnamed = if self.medium.name_chunks(staging, &synced).is_err() { synced } else { Vec::new() };
        written.iter().chain(&unnamed).for_each(|(_, written)| self.drop_chunk(written));
    }

    fn drop_chunk(&self, written: &Written) {
        if let Written::Unnamed(file) = written {
            // The error that matters is the one at hand.
            let _ = self.medium.remove(file);
        }
    }
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
