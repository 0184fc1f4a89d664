//! A writer leaves a note beside its part for the committer. The note holds the receipt and a
//! digest of the values, as JSON, and ends in its own blake3 digest. The manifest does not name it,
//! so that the commit deletes it.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointError, CheckpointPart, Folder, PartReceipt, Position, file_operation::Contents, read::read_file,
    read_error::ReadError,
};

/// The greatest length of a note that is read.
pub(crate) const MAX_NOTE_BYTES: u64 = 64 << 20;
/// A network file system may show a new file late, but not later than this.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const DIGEST_HEX: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) receipt: PartReceipt,
    /// The digest of the part's values, in the group's own spelling.
    pub(crate) digest: String,
}

impl Folder {
    pub(crate) fn leave_note(&self, part: &CheckpointPart, note: &Note) -> Result<(), CheckpointError> {
        let path = self.note(part.position, part.writer, part.writers);
        let mut bytes = serde_json::to_vec(note)
            .map_err(|error| CheckpointError::Parts { path: path.clone(), problem: error.to_string() })?;
        // A flipped bit in a note would otherwise go into the manifest.
        let digest = blake3::hash(&bytes).to_hex();
        bytes.extend_from_slice(digest.as_bytes());
        self.backend.store(&path, Contents::Bytes(&bytes))
    }

    /// Reads the notes of all writers, in order. Each writer has reported that its note is stored.
    pub(crate) fn notes(
        &self,
        position: Position,
        writers: NonZeroU32,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Note>, CheckpointError> {
        let begun = Instant::now();
        let note = |writer| {
            let path = self.note(position, writer, writers);
            let is_there = |path: &Path| match self.backend.length(path) {
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
        self.backend.staging(position).join(format!("part-{writer}-of-{writers}.json"))
    }

    fn read_note(&self, path: PathBuf) -> Result<Note, CheckpointError> {
        let accept = |length| match length <= MAX_NOTE_BYTES {
            true => Ok(()),
            false => Err(format!("it has {length} bytes, at most {MAX_NOTE_BYTES} are read")),
        };
        let note = read_file(&*self.backend, &path, accept).and_then(|bytes| {
            let (note, digest) = bytes.split_last_chunk::<DIGEST_HEX>().unwrap_or((&[], &[0; DIGEST_HEX]));
            if blake3::hash(note).to_hex().as_bytes() != digest {
                return Err(ReadError::Damaged("it does not have the digest that it states".to_owned()));
            }
            serde_json::from_slice(note).map_err(|error| ReadError::Damaged(format!("it cannot be read: {error}")))
        });
        note.map_err(|unusable| match unusable {
            ReadError::Damaged(problem) => CheckpointError::Parts { path, problem },
            other => other.at(path),
        })
    }
}
