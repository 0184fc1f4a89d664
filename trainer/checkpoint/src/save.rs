use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Folder, Snapshot,
    manifest::{Entry, FORMAT_VERSION, MANIFEST, Manifest, OPTIMIZER, Object, Role, WEIGHTS},
    operation::Operation,
    tensors,
};

/// A checkpoint that is whole and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// blake3 of its manifest, which carries the digests of all other files.
    pub manifest_digest: [u8; 32],
}

impl Folder {
    /// Stores a snapshot as the checkpoint of its step; when this returns, it survives a power failure.
    ///
    /// A whole checkpoint of the same job and step is kept as it is and returned; a damaged one is replaced.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`] and [`CheckpointError::NewerFormat`] where another job's checkpoint has the place, and
    /// any error of the storage; the checkpoints before are untouched then.
    ///
    /// # Panics
    /// When a tensor has another number of values than its shape says.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<Saved, CheckpointError> {
        let step = snapshot.position.step;
        let mut damaged = false;
        if self.step(step).exists() {
            match self.load(step, snapshot.identity)? {
                Ok(whole) => return Ok(whole.saved()),
                Err(_) => damaged = true,
            }
        }
        let files =
            Files::of(snapshot).map_err(|problem| CheckpointError::Tensors { path: self.step(step), problem })?;
        let saved = Saved {
            step,
            path: self.step(step),
            bytes: files.0.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
            manifest_digest: files.manifest_digest(),
        };
        let temporary = self.temporary(&format!("step-{step}"));
        let done = self.operations(step, files, &temporary, damaged).iter().try_for_each(Operation::perform);
        if done.is_err() {
            // What is left of it is in nobody's way; the error that matters is the one at hand.
            let _ = fs::remove_dir_all(&temporary);
        }
        done.map(|()| saved)
    }

    /// The parts of a save, in the order that keeps a checkpoint whole or absent.
    pub(crate) fn operations(
        &self,
        step: u64,
        files: Files,
        temporary: &Path,
        replace_damaged: bool,
    ) -> Vec<Operation> {
        let mut operations = vec![Operation::Create(temporary.to_owned())];
        operations.extend(files.0.into_iter().map(|(name, bytes)| Operation::Write(temporary.join(name), bytes)));
        operations.push(Operation::Sync(temporary.to_owned()));
        if replace_damaged {
            operations.push(Operation::Rename(self.step(step), self.temporary(&format!("damaged-{step}"))));
        }
        operations.push(Operation::Rename(temporary.to_owned(), self.step(step)));
        operations.push(Operation::Sync(self.checkpoints()));
        operations
    }
}

/// The files of a checkpoint, the manifest last.
pub(crate) struct Files(pub(crate) Vec<(&'static str, Vec<u8>)>);

impl Files {
    pub(crate) fn of(snapshot: &Snapshot<'_>) -> Result<Self, String> {
        let Snapshot { identity, position, state_digest, time, communication, weights, slots } = *snapshot;
        let names: BTreeSet<_> = weights.iter().map(|tensor| tensor.name).collect();
        if let Some(twice) = slots.iter().find(|slot| names.contains(slot.name)) {
            return Err(format!("a weight and a slot are named {}", twice.name));
        }
        let none = BTreeMap::new();
        let stored = [(WEIGHTS, weights), (OPTIMIZER, slots)];
        let mut files = Vec::with_capacity(stored.len() + 1);
        for (name, group) in stored {
            files.push((name, tensors::to_bytes(group, &none)?));
        }
        let entry = |role| move |tensor| Entry::of(tensor, role);
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            writer: concat!("lockstep ", env!("CARGO_PKG_VERSION")).to_owned(),
            time: time.to_owned(),
            identity: identity.clone(),
            position,
            state_digest: state_digest.to_owned(),
            communication: communication.map(str::to_owned),
            tensors: weights.iter().map(entry(Role::Weight)).chain(slots.iter().map(entry(Role::Slot))).collect(),
            objects: stored.iter().zip(&files).map(|((name, group), file)| Object::of(name, &file.1, group)).collect(),
        };
        files.push((MANIFEST, manifest.to_bytes()?));
        Ok(Self(files))
    }

    fn manifest_digest(&self) -> [u8; 32] {
        self.0.last().map(|(_, manifest)| *blake3::hash(manifest).as_bytes()).unwrap_or_default()
    }
}
