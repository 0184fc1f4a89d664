use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    Checkpoint, CheckpointError, Folder, Identity, Layout, Position, ShardReceipt,
    chunk::Chunk,
    manifest::{FORMAT_VERSION, Manifest, files, tile},
    medium::{Published, Replacing},
    read::name_of,
};

/// What a checkpoint says besides its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whose state it is.
    pub identity: Identity,
    /// Where training stands.
    pub position: Position,
    /// Digest of the state as the group computes it, in its own spelling; returned as it is.
    pub state_digest: String,
    /// When, RFC 3339.
    pub time: String,
    /// How its gradients were summed, in the group's own spelling; returned as it is.
    pub communication: Option<String>,
}

/// A checkpoint that is whole and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its step.
    pub step: u64,
    /// Its folder; in a bucket, its URI.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// blake3 of its manifest, which carries the digests of all other files.
    pub manifest_digest: [u8; 32],
}

/// What has the place of a checkpoint that is to be committed.
enum Place {
    Free,
    /// A whole one of a group that is not older: it is kept.
    Kept(Saved),
    /// Damaged ones, or what an older group has left.
    Others,
}

impl Folder {
    /// Makes a checkpoint of shards that were [written](Folder::write_shard), all of them; when this returns, it survives a power
    /// failure. Of all members one commits.
    ///
    /// A whole checkpoint of the same job and step is kept as it is and returned, unless an older generation has left it. The new one then
    /// lies beside it, as it does beside a damaged one, and is the newer of the two.
    ///
    /// # Errors
    /// [`CheckpointError::Shards`] where a part is missing, [`CheckpointError::Foreign`] and [`CheckpointError::UnknownFormat`] where
    /// another job's checkpoint has the place, [`CheckpointError::Conflict`] where another member was faster with another state, and any
    /// error of the storage; the checkpoints before are untouched then.
    pub fn commit(&self, facts: &Facts, layout: &Layout, receipts: &[ShardReceipt]) -> Result<Saved, CheckpointError> {
        let staging = self.medium.staging(facts.position);
        let replacing = match self.found(facts)? {
            Place::Free => Replacing::Nothing,
            Place::Others => Replacing::Others,
            Place::Kept(saved) => {
                self.medium.abandon(facts.position)?;
                return Ok(saved);
            }
        };
        let refused = |problem| CheckpointError::Shards { path: staging.clone(), problem };
        let chunks = gather(facts.position, layout, receipts).map_err(refused)?;
        let files = files(&chunks);
        for (file, bytes) in &files {
            self.see(&staging.join(file), *bytes)?.map_err(refused)?;
        }
        self.clear_strangers(&staging, &files)?;

        let manifest = manifest(facts, layout, chunks);
        let bytes = manifest.stored_bytes();
        let manifest = manifest.to_bytes().map_err(refused)?;
        let slot = match self.medium.publish(facts.position, &manifest, replacing)? {
            Published::Done(slot) => slot,
            Published::Taken(error) => {
                return match self.found(facts) {
                    Ok(Place::Kept(saved)) => self.medium.abandon(facts.position).map(|()| saved),
                    _ => Err(error),
                };
            }
        };
        Ok(Saved {
            step: facts.position.step,
            path: self.place(slot),
            bytes: bytes + manifest.len() as u64,
            manifest_digest: *blake3::hash(&manifest).as_bytes(),
        })
    }

    /// Gives up a checkpoint of which shards were written. To be called by the one that would have committed it.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn abandon(&self, position: Position) -> Result<(), CheckpointError> {
        self.medium.abandon(position)
    }

    /// The checkpoint that already has the place and keeps it.
    pub(crate) fn kept(&self, facts: &Facts) -> Result<Option<Saved>, CheckpointError> {
        match self.found(facts)? {
            Place::Kept(saved) => Ok(Some(saved)),
            Place::Free | Place::Others => Ok(None),
        }
    }

    fn found(&self, facts: &Facts) -> Result<Place, CheckpointError> {
        let own = self.medium.slot(facts.position);
        let rivals = self.medium.rivals(facts.position)?;
        for slot in &rivals {
            match self.verify_slot(*slot, Some(&facts.identity), self.at_once)? {
                // Where each generation has a place of its own, nobody but a member of this very one can have saved another state there.
                Ok(whole) if own.generation.is_some() && whole.state_digest != facts.state_digest => {
                    return Err(CheckpointError::Conflict { path: whole.path });
                }
                Ok(whole) if whole.position.generation >= facts.position.generation => return self.keep(&whole),
                // Also the same state: a group in between may have gone back behind it, and its committer be about to delete it.
                Ok(_) => return Ok(Place::Others),
                Err(_) => {}
            }
        }
        Ok(if rivals.is_empty() { Place::Free } else { Place::Others })
    }

    /// Whoever saved it may have ended before it could survive a power failure, which is promised now.
    fn keep(&self, whole: &Checkpoint) -> Result<Place, CheckpointError> {
        self.medium.sync_slots()?;
        Ok(Place::Kept(whole.saved()))
    }

    /// Whether a part has the bytes that its writer wrote.
    fn see(&self, path: &Path, bytes: u64) -> Result<Result<(), String>, CheckpointError> {
        let file = name_of(path);
        match self.medium.length(path).map_err(|unusable| unusable.at(path.to_owned()))? {
            Some(found) if found == bytes => Ok(Ok(())),
            Some(found) => Ok(Err(format!("{file} has {found} bytes, its writer wrote {bytes}"))),
            None => Ok(Err(format!("{file} is not here, although its writer wrote it"))),
        }
    }

    /// What an earlier, torn save of the same step and generation has left and the manifest will not name.
    fn clear_strangers(&self, staging: &Path, files: &BTreeMap<String, u64>) -> Result<(), CheckpointError> {
        let names = self.medium.names(staging)?;
        let mut strangers = names.iter().filter(|name| !files.contains_key(*name) && self.medium.is_left_over(name));
        strangers.try_for_each(|name| self.medium.remove(&staging.join(name)))
    }
}

impl Checkpoint {
    pub(crate) fn saved(&self) -> Saved {
        Saved {
            step: self.position.step,
            path: self.path.clone(),
            bytes: self.bytes,
            manifest_digest: self.manifest_digest,
        }
    }
}

/// The chunks of all receipts, in the arena's order, or which part of it is missing.
fn gather(position: Position, layout: &Layout, receipts: &[ShardReceipt]) -> Result<Vec<Chunk>, String> {
    let Position { step, generation, .. } = position;
    let mut receipts: Vec<_> = receipts.iter().collect();
    receipts.sort_by_key(|receipt| (receipt.range.start, receipt.range.end));
    // The network may bring one twice.
    receipts
        .dedup_by(|a, b| (a.step, a.generation, &a.range, &a.chunks) == (b.step, b.generation, &b.range, &b.chunks));
    let mut end = 0;
    for receipt in &receipts {
        if (receipt.step, receipt.generation) != (step, generation) {
            return Err(format!(
                "a shard is of step {} and generation {}, the others are of step {step} and generation {generation}",
                receipt.step, receipt.generation
            ));
        }
        if receipt.range.start > end {
            return Err(format!("the shard of bytes {end} to {} is missing", receipt.range.start));
        }
        if receipt.range.start < end {
            return Err(format!("bytes {} to {end} are in two shards", receipt.range.start));
        }
        end = receipt.range.end;
        let ends = receipt.chunks.first().zip(receipt.chunks.last());
        let chunks =
            ends.map_or(receipt.range.start..receipt.range.start, |(first, last)| first.start..last.range().end);
        if chunks != receipt.range {
            return Err(format!("the shard of bytes {:?} has chunks of {chunks:?}", receipt.range));
        }
    }
    if end < layout.bytes() {
        return Err(format!("the shard of bytes {end} to {} is missing", layout.bytes()));
    }
    let chunks: Vec<_> = receipts.iter().flat_map(|receipt| receipt.chunks.iter().copied()).collect();
    tile(&chunks, layout.bytes()).map(|()| chunks)
}

fn manifest(facts: &Facts, layout: &Layout, chunks: Vec<Chunk>) -> Manifest {
    let Facts { identity, position, state_digest, time, communication } = facts.clone();
    Manifest {
        format_version: FORMAT_VERSION,
        readable_from: FORMAT_VERSION,
        writer: concat!("lockstep ", env!("CARGO_PKG_VERSION")).to_owned(),
        time,
        identity,
        position,
        state_digest,
        communication,
        tensors: layout.entries().to_vec(),
        chunks,
    }
}
