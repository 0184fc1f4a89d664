use std::{
    collections::VecDeque,
    ops::Range,
    panic::resume_unwind,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use crate::{
    CheckpointError, CheckpointPart, Folder, PartReceipt,
    backend::Written,
    chunk::{Chunk, cut},
    file_operation::Contents,
};

impl Folder {
    /// Stores one writer's part of a checkpoint. The part becomes visible when all parts are
    /// [committed](Folder::commit). On return it survives a power failure. `values` holds the
    /// part's values in any number of slices.
    ///
    /// The first writer also deletes the unfinished saves of earlier generations.
    ///
    /// # Errors
    /// Any error of the storage. Earlier checkpoints are untouched then.
    ///
    /// # Panics
    /// If there is no such writer, or if the number of values does not fit the part.
    pub fn write_part(&self, part: &CheckpointPart, values: &[&[f32]]) -> Result<PartReceipt, CheckpointError> {
        self.write_part_until(part, values, &AtomicBool::new(false))
    }

    /// Does the same, but stops before the next chunk once `cancelled` is true.
    pub(crate) fn write_part_until(
        &self,
        part: &CheckpointPart,
        values: &[&[f32]],
        cancelled: &AtomicBool,
    ) -> Result<PartReceipt, CheckpointError> {
        let CheckpointPart { position, ref layout, writer, writers } = *part;
        let range = part.range();
        let (expected, found) = (part.values().len(), values.iter().map(|slice| slice.len()).sum::<usize>());
        assert_eq!(found, expected, "values of writer {writer} of {writers}");
        if writer == 0 {
            self.clear_generations_before(position.generation)?;
        }
        let staging = self.backend.staging(position);
        self.backend.make_staging(position)?;
        let mut receipt = PartReceipt {
            step: position.step,
            generation: position.generation,
            range: range.clone(),
            chunks: Vec::new(),
            unchanged_bytes: 0,
        };
        let before = self.backend.ids()?.first().map(|id| self.path_of(*id));
        let ranges: Vec<_> = cut(range.clone(), self.chunk_bytes).collect();
        let next = AtomicUsize::new(0);
        let write = || {
            let (mut written, mut synced) = (VecDeque::new(), Vec::new());
            let mut write = || {
                while let Some(chunk) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if cancelled.load(Ordering::Relaxed) {
                        return Err(CheckpointError::Cancelled { path: staging.clone() });
                    }
                    let within = layout.values_of(&(chunk.start - range.start..chunk.end - range.start));
                    let values = slice(values, within);
                    let contents = Contents::Values(&values);
                    let chunk = Chunk::of(chunk.start, &contents);
                    written
                        .push_back((chunk, self.backend.write_chunk(&staging, before.as_deref(), &chunk, contents)?));
                }
                Ok(())
            };
            // Syncing starts after all writes. The storage has worked meanwhile, so that the waits
            // are short.
            let stored = write().and_then(|()| self.sync(&mut written, &mut synced));
            (written, synced, stored)
        };
        let (written, mut synced, stored) = thread::scope(|scope| {
            // If the system refuses more threads, those that run are enough.
            let start = |_| thread::Builder::new().spawn_scoped(scope, write).ok();
            let threads: Vec<_> = (1..self.at_once.min(ranges.len())).map_while(start).collect();
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
        // Naming starts after all syncs. The storage is slower if it must finish one chunk before
        // it gets the next.
        self.backend.name_chunks(&staging, &synced)?;
        let unchanged = synced.iter().filter(|(_, written)| *written == Written::Unchanged);
        receipt.unchanged_bytes = unchanged.map(|(chunk, _)| chunk.bytes).sum();
        receipt.chunks = synced.into_iter().map(|(chunk, _)| chunk).collect();
        Ok(receipt)
    }

    /// Syncs chunks and moves them from `written` to `synced`. Deletes a chunk that cannot be
    /// synced: a system reports a failed sync only once, and the next save would seem to
    /// succeed.
    fn sync(
        &self,
        written: &mut VecDeque<(Chunk, Written)>,
        synced: &mut Vec<(Chunk, Written)>,
    ) -> Result<(), CheckpointError> {
        while let Some(chunk) = written.pop_front() {
            self.backend.sync_chunk(&chunk.1).inspect_err(|_| self.drop_chunk(&chunk.1))?;
            synced.push(chunk);
        }
        Ok(())
    }

    /// Tidies up after a part that was not written whole. Stored chunks get their names, so that
    /// the next save need not write them. Other chunks are deleted, so that they take no space
    /// on a full disk.
    fn keep_for_later(
        &self,
        staging: &Path,
        mut written: VecDeque<(Chunk, Written)>,
        mut synced: Vec<(Chunk, Written)>,
    ) {
        // The first error is already known.
        let _ = self.sync(&mut written, &mut synced);
        let unnamed = if self.backend.name_chunks(staging, &synced).is_err() { synced } else { Vec::new() };
        written.iter().chain(&unnamed).for_each(|(_, written)| self.drop_chunk(written));
    }

    fn drop_chunk(&self, written: &Written) {
        if let Written::Unnamed(file) = written {
            // The error at hand matters more.
            let _ = self.backend.remove(file);
        }
    }
}

/// Returns the values `within` a sequence of slices.
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
