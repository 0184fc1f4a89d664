use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{
    About, CheckpointError, Destination, Folder, Layout, Position, TrainingIdentity,
    backend::Backend,
    checkpoint_id::CheckpointId,
    format::MANIFEST,
    manifest::Manifest,
    read::{read_manifest, read_range, read_state, verify_state},
    read_error::ReadError,
};

/// The most listings of one call. Another process may save and delete while this one reads.
const MOST_LISTINGS: usize = 10;

/// The newest whole checkpoint, and those that were skipped.
#[derive(Debug)]
pub struct Newest {
    /// `None` if no checkpoint is whole.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that are damaged, newest first.
    pub skipped: Vec<Skipped>,
}

/// A damaged checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The step of the checkpoint.
    pub step: u64,
    /// The path of its folder.
    pub path: PathBuf,
    /// The damage.
    pub reason: String,
}

/// A checkpoint of which every byte was verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The path of its folder.
    pub path: PathBuf,
    /// The training that it belongs to.
    pub identity: TrainingIdentity,
    /// The training position.
    pub position: Position,
    /// The digest of the state, as saved.
    pub state_digest: String,
    /// The time of the save, RFC 3339.
    pub time: String,
    /// The plan of the gradients' sums, as saved.
    pub communication: Option<String>,
    /// The facts about its model, as saved.
    pub about: About,
    /// The version of its format.
    pub format_version: u64,
    /// The total length of its files.
    pub bytes: u64,
    /// The blake3 digest of its manifest.
    pub manifest_digest: [u8; 32],
}

impl Folder {
    /// Loads the newest whole checkpoint. Skips damaged ones and reports them.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`], [`CheckpointError::Misfit`] and
    /// [`CheckpointError::UnknownFormat`] if a manifest belongs to another job.
    /// [`CheckpointError::Storage`] if the storage does not return the folder or a file, or if
    /// memory is short: this is no damage, and an older checkpoint would lose work.
    pub fn newest(&self, expected: &TrainingIdentity, into: &mut impl Destination) -> Result<Newest, CheckpointError> {
        let mut ids = self.settled_ids()?;
        for _ in 1..MOST_LISTINGS {
            let newest = self.newest_of(&ids, expected, into)?;
            if newest.skipped.is_empty() {
                return Ok(newest);
            }
            // A skipped checkpoint may have been deleted for a newer one before it was read.
            let now = self.settled_ids()?;
            if now == ids {
                return Ok(newest);
            }
            ids = now;
        }
        self.newest_of(&ids, expected, into)
    }

    /// Lists the checkpoints until two listings agree. One listing alone may miss a checkpoint that
    /// was deleted meanwhile, and the newer one as well.
    fn settled_ids(&self) -> Result<Vec<CheckpointId>, CheckpointError> {
        let mut ids = self.backend.ids()?;
        for _ in 1..MOST_LISTINGS {
            let now = self.backend.ids()?;
            if now == ids {
                break;
            }
            ids = now;
        }
        Ok(ids)
    }

    fn newest_of(
        &self,
        ids: &[CheckpointId],
        expected: &TrainingIdentity,
        into: &mut impl Destination,
    ) -> Result<Newest, CheckpointError> {
        let mut skipped = Vec::new();
        for id in ids.iter().copied() {
            match self.load_checkpoint(id, Some(expected), into)? {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), skipped }),
                Err(reason) => skipped.push(Skipped { step: id.step, path: self.path_of(id), reason }),
            }
        }
        Ok(Newest { checkpoint: None, skipped })
    }

    /// Loads the values of the bytes `range` from the newest checkpoint of `step`, or returns its
    /// damage. Reads and verifies only the chunks that overlap the range: a member that needs one
    /// part need not read all.
    ///
    /// # Errors
    /// See [`Folder::newest`].
    ///
    /// # Panics
    /// If the range does not begin and end at a value of the checkpoint's arena.
    pub fn load_range(
        &self,
        step: u64,
        expected: &TrainingIdentity,
        range: Range<u64>,
    ) -> Result<Result<Vec<f32>, String>, CheckpointError> {
        let Some(id) = self.backend.ids()?.into_iter().find(|id| id.step == step) else {
            return Ok(Err(format!("there is no checkpoint of step {step}")));
        };
        let path = self.path_of(id);
        let read = self.manifest_of(id).and_then(|(manifest, ..)| {
            let layout = Layout::of(manifest.tensors.clone()).map_err(ReadError::Damaged)?;
            Ok((manifest, layout))
        });
        let (manifest, layout) = match read {
            Ok(read) => read,
            Err(ReadError::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        refuse_foreign(&path, &manifest.identity, expected)?;
        let wanted = layout.values_of(&range);
        match read_range(&*self.backend, &path, &manifest, range) {
            Ok(values) => {
                assert_eq!(values.len(), wanted.len(), "values {wanted:?} of {}", path.display());
                Ok(Ok(values))
            }
            Err(ReadError::Damaged(reason)) => Ok(Err(reason)),
            Err(other) => Err(other.at(path)),
        }
    }

    /// Loads a checkpoint of this identity, or of any if there is none, or returns its damage.
    pub(crate) fn load_checkpoint(
        &self,
        id: CheckpointId,
        expected: Option<&TrainingIdentity>,
        into: &mut impl Destination,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(id, expected, |backend, path, manifest| {
            read_state(backend, path, manifest, self.at_once, into)?;
            into.accept(&manifest.state_digest).map_err(ReadError::Damaged)
        })
    }

    /// Verifies a checkpoint in the same way and keeps nothing. Reads `at_once` chunks at once.
    pub(crate) fn verify_checkpoint(
        &self,
        id: CheckpointId,
        expected: Option<&TrainingIdentity>,
        at_once: usize,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(id, expected, |backend, path, manifest| verify_state(backend, path, manifest, at_once))
    }

    fn read(
        &self,
        id: CheckpointId,
        expected: Option<&TrainingIdentity>,
        state: impl FnOnce(&dyn Backend, &Path, &Manifest) -> Result<(), ReadError>,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        let path = self.path_of(id);
        let (manifest, manifest_digest, manifest_bytes) = match self.manifest_of(id) {
            Ok(read) => read,
            Err(ReadError::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        if let Some(expected) = expected {
            refuse_foreign(&path, &manifest.identity, expected)?;
        }
        match state(&*self.backend, &path, &manifest) {
            Ok(()) => {}
            Err(ReadError::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        }
        let bytes = manifest_bytes + manifest.stored_bytes();
        let Manifest { position, state_digest, time, identity, communication, about, format_version, .. } = manifest;
        Ok(Ok(Checkpoint {
            path,
            identity,
            position,
            state_digest,
            time,
            communication,
            about,
            format_version,
            bytes,
            manifest_digest,
        }))
    }

    /// Returns the first whole checkpoint of `ids`. Reads one chunk at a time because training may
    /// go on meanwhile.
    pub(crate) fn first_verified(
        &self,
        ids: &[CheckpointId],
        expected: &TrainingIdentity,
    ) -> Result<Option<(CheckpointId, Checkpoint)>, CheckpointError> {
        for id in ids.iter().copied() {
            if let Ok(whole) = self.verify_checkpoint(id, Some(expected), 1)? {
                return Ok(Some((id, whole)));
            }
        }
        Ok(None)
    }

    /// Returns a manifest with its digest and length.
    pub(crate) fn manifest_of(&self, id: CheckpointId) -> Result<(Manifest, [u8; 32], u64), ReadError> {
        let read = read_manifest(&*self.backend, &self.path_of(id))?;
        match id.may_hold(read.0.position) {
            true => Ok(read),
            false => {
                let Position { step, generation, .. } = read.0.position;
                Err(ReadError::Damaged(format!("{MANIFEST} is of step {step} and generation {generation}")))
            }
        }
    }

    /// Returns the owner of a checkpoint as this generation of a job sees it.
    pub(crate) fn owner(&self, generation: u64, id: CheckpointId, expected: &TrainingIdentity) -> Owner {
        match self.manifest_of(id) {
            Ok((found, ..)) if found.identity == *expected && found.position.generation <= generation => Owner::This,
            Ok(_) | Err(ReadError::UnknownFormat(_) | ReadError::Unread(_)) => Owner::Other,
            Err(ReadError::Damaged(_)) => Owner::Nobody,
        }
    }

    /// True if the manifest is whole and an earlier generation of this job wrote it.
    pub(crate) fn is_of_generation_before(
        &self,
        generation: u64,
        id: CheckpointId,
        expected: &TrainingIdentity,
    ) -> bool {
        let manifest = self.manifest_of(id).map(|(manifest, ..)| manifest);
        manifest.is_ok_and(|found| found.identity == *expected && found.position.generation < generation)
    }
}

/// The job that may decide about a checkpoint, by its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This job, in the generation that asks or an earlier one.
    This,
    /// Possibly another job or a later generation. The manifest may also be unreadable now, or
    /// unknown to this program.
    Other,
    /// Nobody: the manifest is damaged.
    Nobody,
}

fn refuse_foreign(path: &Path, found: &TrainingIdentity, expected: &TrainingIdentity) -> Result<(), CheckpointError> {
    let fields = [
        ("model", &found.model, &expected.model),
        ("workload digest", &found.workload_digest, &expected.workload_digest),
    ];
    match fields.into_iter().find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((field, found, expected)) => Err(CheckpointError::Foreign {
            path: path.to_owned(),
            field,
            found: found.clone(),
            expected: expected.clone(),
        }),
    }
}
