//! What a writer leaves beside its part for whoever commits: the receipt, and what the group wants to know of the values, as JSON that its
//! blake3 digest follows. The manifest does not name it, so it is gone once the checkpoint is whole.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointError, Folder, Part, Position, ShardReceipt, manifest::Unusable, operation::Contents, read::read_file,
};

/// The greatest note that is read.
pub const MAX_NOTE_BYTES: u64 = 64 << 20;
/// A network file system may show a new file late, but not later than this.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const DIGEST_HEX: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) receipt: ShardReceipt,
    /// Digest of the part's values, in the group's own spelling.
    pub(crate) digest: String,
}

impl Folder {
    pub(crate) fn leave_note(&self, part: &Part, note: &Note) -> Result<(), CheckpointError> {
        let path = self.note(part.position, part.writer, part.writers);
        let mut bytes = serde_json::to_vec(note)
            .map_err(|error| CheckpointError::Shards { path: path.clone(), problem: error.to_string() })?;
        // What a flipped bit says of a chunk would become what the manifest says of it.
        let digest = blake3::hash(&bytes).to_hex();
        bytes.extend_from_slice(digest.as_bytes());
        self.medium.store(&path, Contents::Bytes(&bytes))
    }

    /// The notes of all writers, in order. Each has said that it left one.
    pub(crate) fn notes(
        &self,
        position: Position,
        writers: NonZeroU32,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Note>, CheckpointError> {
        let begun = Instant::now();
        let note = |writer| {
            let path = self.note(position, writer, writers);
            let is_there = |path: &Path| match self.medium.length(path) {
                Ok(length) => Ok(length.is_some()),
                Err(unusable) => Err(unusable.at(path.to_owned())),
            };
            while !is_there(&path)? && begun.elapsed() < VISIBLE_WITHIN {
                if cancelled.load(Ordering::Relaxed) {
                    return Err(CheckpointError::Cancelled { path });
                }
                thread::sleep(LOOK_AGAIN);
            }
            self.read_note(path)
        };
        (0..writers.get()).map(note).collect()
    }

    fn note(&self, position: Position, writer: u32, writers: NonZeroU32) -> PathBuf {
        self.medium.staging(position).join(format!("part-{writer}-of-{writers}.json"))
    }

    fn read_note(&self, path: PathBuf) -> Result<Note, CheckpointError> {
        let accept = |length| match length <= MAX_NOTE_BYTES {
            true => Ok(()),
            false => Err(format!("it has {length} bytes, at most {MAX_NOTE_BYTES} are read")),
        };
        let note = read_file(&*self.medium, &path, accept).and_then(|bytes| {
            let (note, digest) = bytes.split_last_chunk::<DIGEST_HEX>().unwrap_or((&[], &[0; DIGEST_HEX]));
            if blake3::hash(note).to_hex().as_bytes() != digest {
                return Err(Unusable::Damaged("it does not have the digest that it states".to_owned()));
            }
            serde_json::from_slice(note).map_err(|error| Unusable::Damaged(format!("it cannot be read: {error}")))
        });
        note.map_err(|unusable| match unusable {
            Unusable::Damaged(problem) => CheckpointError::Shards { path, problem },
            other => other.at(path),
        })
    }
}
