use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Destination, Folder, Identity, Layout, Position,
    manifest::{FORMAT_VERSION, MANIFEST, Manifest, Unusable},
    medium::Medium,
    read::{read_manifest, read_range, read_state, verify_state},
    slot::Slot,
};

/// Loads of one call: another process may save and delete while this one reads.
const MOST_LISTINGS: usize = 10;

/// The newest state that is whole, and what was passed over on the way to it.
#[derive(Debug)]
pub struct Newest {
    /// `None` where no checkpoint is whole.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that are not, newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// A checkpoint, every byte of which was verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Whose it is.
    pub identity: Identity,
    /// Where training stands.
    pub position: Position,
    /// As it was saved.
    pub state_digest: String,
    /// When it was saved, RFC 3339.
    pub time: String,
    /// As it was saved.
    pub communication: Option<String>,
    /// Version of its format.
    pub format_version: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// blake3 of its manifest.
    pub manifest_digest: [u8; 32],
}

impl Folder {
    /// Loads the newest checkpoint that is whole. A damaged one is passed over and reported.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`], [`CheckpointError::Misfit`] and [`CheckpointError::UnknownFormat`] where the manifest of a checkpoint says
    /// that it is not this job's, and [`CheckpointError::Storage`] where the storage does not give the folder or a file, or memory lacks: that is no damage,
    /// and an older checkpoint would throw work away.
    pub fn newest(&self, expected: &Identity, into: &mut impl Destination) -> Result<Newest, CheckpointError> {
        let mut slots = self.settled()?;
        for _ in 1..MOST_LISTINGS {
            let newest = self.newest_of(&slots, expected, into)?;
            if newest.skipped.is_empty() {
                return Ok(newest);
            }
            // What was passed over may have been deleted for a newer one before it was read.
            let now = self.settled()?;
            if now == slots {
                return Ok(newest);
            }
            slots = now;
        }
        self.newest_of(&slots, expected, into)
    }

    /// The checkpoints as two listings in a row have them: one alone may miss what gave way to a newer one while it was listed, and that too.
    fn settled(&self) -> Result<Vec<Slot>, CheckpointError> {
        let mut slots = self.medium.slots()?;
        for _ in 1..MOST_LISTINGS {
            let now = self.medium.slots()?;
            if now == slots {
                break;
            }
            slots = now;
        }
        Ok(slots)
    }

    fn newest_of(
        &self,
        slots: &[Slot],
        expected: &Identity,
        into: &mut impl Destination,
    ) -> Result<Newest, CheckpointError> {
        let mut skipped = Vec::new();
        for slot in slots.iter().copied() {
            match self.load_slot(slot, Some(expected), into)? {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), skipped }),
                Err(reason) => skipped.push(Skipped { step: slot.step, path: self.place(slot), reason }),
            }
        }
        Ok(Newest { checkpoint: None, skipped })
    }

    /// The values that the bytes of `range` are in the newest checkpoint of `step`, or what is wrong with it. Only the chunks that have some of
    /// them are read and verified: a member that needs a part need not read all.
    ///
    /// # Errors
    /// As of [`Folder::newest`].
    ///
    /// # Panics
    /// When the range does not begin and end at a value of the checkpoint's arena.
    pub fn load_range(
        &self,
        step: u64,
        expected: &Identity,
        range: Range<u64>,
    ) -> Result<Result<Vec<f32>, String>, CheckpointError> {
        let Some(slot) = self.medium.slots()?.into_iter().find(|slot| slot.step == step) else {
            return Ok(Err(format!("there is no checkpoint of step {step}")));
        };
        let path = self.place(slot);
        let read = self.manifest_of(slot).and_then(|(manifest, ..)| {
            let layout = Layout::of(manifest.tensors.clone()).map_err(Unusable::Damaged)?;
            Ok((manifest, layout))
        });
        let (manifest, layout) = match read {
            Ok(read) => read,
            Err(Unusable::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        refuse_foreign(&path, &manifest.identity, expected)?;
        let wanted = layout.values_of(&range);
        match read_range(&*self.medium, &path, &manifest, range) {
            Ok(values) => {
                assert_eq!(values.len(), wanted.len(), "values {wanted:?} of {}", path.display());
                Ok(Ok(values))
            }
            Err(Unusable::Damaged(reason)) => Ok(Err(reason)),
            Err(other) => Err(other.at(path)),
        }
    }

    /// A checkpoint of this identity, or of any, or what is wrong with it.
    pub(crate) fn load_slot(
        &self,
        slot: Slot,
        expected: Option<&Identity>,
        into: &mut impl Destination,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(slot, expected, |medium, path, manifest| {
            read_state(medium, path, manifest, self.at_once, into)?;
            into.accept(&manifest.state_digest).map_err(Unusable::Damaged)
        })
    }

    /// As [`Folder::load_slot`], but none of it is kept. So many chunks are read at once.
    pub(crate) fn verify_slot(
        &self,
        slot: Slot,
        expected: Option<&Identity>,
        at_once: usize,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(slot, expected, |medium, path, manifest| verify_state(medium, path, manifest, at_once))
    }

    fn read(
        &self,
        slot: Slot,
        expected: Option<&Identity>,
        state: impl FnOnce(&dyn Medium, &Path, &Manifest) -> Result<(), Unusable>,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        let path = self.place(slot);
        let (manifest, manifest_digest, manifest_bytes) = match self.manifest_of(slot) {
            Ok(read) => read,
            Err(Unusable::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        if let Some(expected) = expected {
            refuse_foreign(&path, &manifest.identity, expected)?;
        }
        match state(&*self.medium, &path, &manifest) {
            Ok(()) => {}
            Err(Unusable::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        }
        let bytes = manifest_bytes + manifest.stored_bytes();
        let Manifest { position, state_digest, time, identity, communication, format_version, .. } = manifest;
        Ok(Ok(Checkpoint {
            path,
            identity,
            position,
            state_digest,
            time,
            communication,
            format_version,
            bytes,
            manifest_digest,
        }))
    }

    /// The first of `slots` that is whole. One chunk is read at a time: a model may be training beside.
    pub(crate) fn first_verified(
        &self,
        slots: &[Slot],
        expected: &Identity,
    ) -> Result<Option<(Slot, Checkpoint)>, CheckpointError> {
        for slot in slots.iter().copied() {
            if let Ok(whole) = self.verify_slot(slot, Some(expected), 1)? {
                return Ok(Some((slot, whole)));
            }
        }
        Ok(None)
    }

    /// A manifest with its digest and length.
    pub(crate) fn manifest_of(&self, slot: Slot) -> Result<(Manifest, [u8; 32], u64), Unusable> {
        let read = read_manifest(&*self.medium, &self.place(slot))?;
        match slot.is_of(read.0.position) {
            true => Ok(read),
            false => {
                let Position { step, generation, .. } = read.0.position;
                Err(Unusable::Damaged(format!("{MANIFEST} is of step {step} and generation {generation}")))
            }
        }
    }

    /// Whose a checkpoint is, as this generation of a job sees it.
    pub(crate) fn owner(&self, generation: u64, slot: Slot, expected: &Identity) -> Owner {
        match self.manifest_of(slot) {
            Ok((found, ..)) if found.identity == *expected && found.position.generation <= generation => Owner::This,
            Ok(_) | Err(Unusable::UnknownFormat(_) | Unusable::Unread(_)) => Owner::Other,
            Err(Unusable::Damaged(_)) => Owner::Nobody,
        }
    }

    /// Whether a manifest is whole and says that this job wrote it, in a generation before this one.
    pub(crate) fn is_of_generation_before(&self, generation: u64, slot: Slot, expected: &Identity) -> bool {
        let manifest = self.manifest_of(slot).map(|(manifest, ..)| manifest);
        manifest.is_ok_and(|found| found.identity == *expected && found.position.generation < generation)
    }
}

/// Who has a say about a checkpoint, by its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This job, in the generation that asks or one before it.
    This,
    /// Another job or a later generation, or maybe: its manifest cannot be read now, or not by this build.
    Other,
    /// Its manifest is damaged.
    Nobody,
}

fn refuse_foreign(path: &Path, found: &Identity, expected: &Identity) -> Result<(), CheckpointError> {
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

impl Unusable {
    /// What a caller is told of a checkpoint that is not damaged but cannot be used.
    pub(crate) fn at(self, path: PathBuf) -> CheckpointError {
        match self {
            Self::UnknownFormat(found) => CheckpointError::UnknownFormat { path, found, supported: FORMAT_VERSION },
            Self::Unread(error) => *error,
            Self::Damaged(reason) => {
                CheckpointError::Storage { attempt: "reading", path, source: io::Error::other(reason) }
            }
        }
    }
}
