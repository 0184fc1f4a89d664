use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    About, Checkpoint, CheckpointError, Folder, Layout, PartReceipt, Position, TrainingIdentity,
    backend::{Published, Replacing},
    chunk::Chunk,
    format::FORMAT_VERSION,
    manifest::{Manifest, check_cover, files},
    read::file_name,
};

/// The content of a manifest besides the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The training that the state belongs to.
    pub identity: TrainingIdentity,
    /// The training position.
    pub position: Position,
    /// A digest of the state in the group's own spelling. A load returns it unchanged.
    pub state_digest: String,
    /// The time of the save, RFC 3339.
    pub time: String,
    /// The plan by which gradients were summed, in the group's own spelling. A load returns it
    /// unchanged.
    pub communication: Option<String>,
    /// The facts about its model. A load returns it unchanged.
    pub about: About,
}

/// A checkpoint that is whole and durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The step of the checkpoint.
    pub step: u64,
    /// The path of its folder. In a bucket, its URI.
    pub path: PathBuf,
    /// The total length of its files.
    pub bytes: u64,
    /// The blake3 digest of its manifest, which holds the digests of all other files.
    pub manifest_digest: [u8; 32],
}

/// The checkpoints that already have the name of a new one.
enum Occupant {
    Free,
    /// A whole checkpoint of a group that is not older. It is kept.
    Kept(Saved),
    /// Damaged checkpoints, or those of an older group.
    Others,
}

impl Folder {
    /// Makes a checkpoint of all parts that were [written](Folder::write_part). On return it
    /// survives a power failure. One of all members commits.
    ///
    /// A whole checkpoint of the same job and step is kept and returned, unless an older generation
    /// saved it. The new checkpoint then lies beside the older one and counts as newer. A damaged
    /// checkpoint is treated in the same way.
    ///
    /// # Errors
    /// [`CheckpointError::Parts`] if a part is missing, [`CheckpointError::Foreign`] and
    /// [`CheckpointError::UnknownFormat`] if another job's checkpoint has the name,
    /// [`CheckpointError::Conflict`] if another member was faster with another state, and any error
    /// of the storage. Earlier checkpoints are untouched then.
    pub fn commit(&self, facts: &Facts, layout: &Layout, receipts: &[PartReceipt]) -> Result<Saved, CheckpointError> {
        let staging = self.backend.staging(facts.position);
        let replacing = match self.occupant(facts)? {
            Occupant::Free => Replacing::Nothing,
            Occupant::Others => Replacing::Others,
            Occupant::Kept(saved) => {
                self.backend.abandon(facts.position)?;
                return Ok(saved);
            }
        };
        let refused = |problem| CheckpointError::Parts { path: staging.clone(), problem };
        let chunks = gather(facts.position, layout, receipts).map_err(refused)?;
        let files = files(&chunks);
        for (file, bytes) in &files {
            self.check_length(&staging.join(file), *bytes)?.map_err(refused)?;
        }
        self.delete_leftovers(&staging, &files)?;

        let manifest = manifest(facts, layout, chunks);
        let bytes = manifest.stored_bytes();
        let manifest = manifest.to_bytes().map_err(refused)?;
        let id = match self.backend.publish(facts.position, &manifest, replacing)? {
            Published::Done(id) => id,
            Published::Taken(error) => {
                return match self.occupant(facts) {
                    Ok(Occupant::Kept(saved)) => self.backend.abandon(facts.position).map(|()| saved),
                    _ => Err(error),
                };
            }
        };
        Ok(Saved {
            step: facts.position.step,
            path: self.path_of(id),
            bytes: bytes + manifest.len() as u64,
            manifest_digest: *blake3::hash(&manifest).as_bytes(),
        })
    }

    /// Deletes the parts of a checkpoint that will not be committed. The member that would have
    /// committed it calls this.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn abandon(&self, position: Position) -> Result<(), CheckpointError> {
        self.backend.abandon(position)
    }

    /// Returns the checkpoint that already has the name and is kept.
    pub(crate) fn kept(&self, facts: &Facts) -> Result<Option<Saved>, CheckpointError> {
        match self.occupant(facts)? {
            Occupant::Kept(saved) => Ok(Some(saved)),
            Occupant::Free | Occupant::Others => Ok(None),
        }
    }

    fn occupant(&self, facts: &Facts) -> Result<Occupant, CheckpointError> {
        let own = self.backend.id(facts.position);
        let rivals = self.backend.rivals(facts.position)?;
        for id in &rivals {
            match self.verify_checkpoint(*id, Some(&facts.identity), self.at_once)? {
                // Each generation has names of its own here. Only a member of the same generation
                // can have saved another state.
                Ok(whole) if own.generation.is_some() && whole.state_digest != facts.state_digest => {
                    return Err(CheckpointError::Conflict { path: whole.path });
                }
                Ok(whole) if whole.position.generation >= facts.position.generation => return self.keep(&whole),
                // This holds for an equal state too. A group in between may have returned to an
                // earlier step, and its committer may be about to delete this checkpoint.
                Ok(_) => return Ok(Occupant::Others),
                Err(_) => {}
            }
        }
        Ok(if rivals.is_empty() { Occupant::Free } else { Occupant::Others })
    }

    /// Keeps a checkpoint and makes its name durable. The member that saved it may have ended
    /// before that.
    fn keep(&self, whole: &Checkpoint) -> Result<Occupant, CheckpointError> {
        self.backend.sync_checkpoint_names()?;
        Ok(Occupant::Kept(whole.saved()))
    }

    /// Checks that a file of a part has the length that its writer wrote.
    fn check_length(&self, path: &Path, bytes: u64) -> Result<Result<(), String>, CheckpointError> {
        let file = file_name(path);
        match self.backend.length(path).map_err(|unusable| unusable.at(path.to_owned()))? {
            Some(found) if found == bytes => Ok(Ok(())),
            Some(found) => Ok(Err(format!("{file} has {found} bytes, its writer wrote {bytes}"))),
            None => Ok(Err(format!("{file} is not here, although its writer wrote it"))),
        }
    }

    /// Deletes files that an interrupted save of the same step and generation left. The manifest
    /// will not name them.
    fn delete_leftovers(&self, staging: &Path, files: &BTreeMap<String, u64>) -> Result<(), CheckpointError> {
        let names = self.backend.file_names(staging)?;
        let mut leftovers = names.iter().filter(|name| !files.contains_key(*name) && self.backend.is_left_over(name));
        leftovers.try_for_each(|name| self.backend.remove(&staging.join(name)))
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

/// Returns the chunks of all receipts in order, or the part that is missing.
fn gather(position: Position, layout: &Layout, receipts: &[PartReceipt]) -> Result<Vec<Chunk>, String> {
    let Position { step, generation, .. } = position;
    let mut receipts: Vec<_> = receipts.iter().collect();
    receipts.sort_by_key(|receipt| (receipt.range.start, receipt.range.end));
    // The network may deliver a receipt twice.
    receipts
        .dedup_by(|a, b| (a.step, a.generation, &a.range, &a.chunks) == (b.step, b.generation, &b.range, &b.chunks));
    let mut end = 0;
    for receipt in &receipts {
        if (receipt.step, receipt.generation) != (step, generation) {
            return Err(format!(
                "a part is of step {} and generation {}, the others are of step {step} and generation {generation}",
                receipt.step, receipt.generation
            ));
        }
        if receipt.range.start > end {
            return Err(format!("the part of bytes {end} to {} is missing", receipt.range.start));
        }
        if receipt.range.start < end {
            return Err(format!("bytes {} to {end} are in two parts", receipt.range.start));
        }
        end = receipt.range.end;
        let ends = receipt.chunks.first().zip(receipt.chunks.last());
        let chunks =
            ends.map_or(receipt.range.start..receipt.range.start, |(first, last)| first.start..last.range().end);
        if chunks != receipt.range {
            return Err(format!("the part of bytes {:?} has chunks of {chunks:?}", receipt.range));
        }
    }
    if end < layout.bytes() {
        return Err(format!("the part of bytes {end} to {} is missing", layout.bytes()));
    }
    let chunks: Vec<_> = receipts.iter().flat_map(|receipt| receipt.chunks.iter().copied()).collect();
    check_cover(&chunks, layout.bytes()).map(|()| chunks)
}

fn manifest(facts: &Facts, layout: &Layout, chunks: Vec<Chunk>) -> Manifest {
    let Facts { identity, position, state_digest, time, communication, about } = facts.clone();
    Manifest {
        format_version: FORMAT_VERSION,
        readable_from: FORMAT_VERSION,
        writer: concat!("lockstep ", env!("CARGO_PKG_VERSION")).to_owned(),
        time,
        identity,
        position,
        state_digest,
        communication,
        about,
        tensors: layout.entries().to_vec(),
        chunks,
    }
}
