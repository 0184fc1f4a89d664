//! Checkpoints in an object store, where nothing can be renamed: a checkpoint is what has a manifest.
//!
//! Parts are put where they stay, and the manifest is created last, unless there is one: of two that commit, one succeeds. Who clears
//! away an unfinished save creates an empty manifest first, so that its committer, who may still be at work, cannot commit what is being
//! deleted; the next to clear away takes that too. A checkpoint is deleted manifest first.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    CheckpointError, Created, Objects, ObjectsError, Position,
    chunk::Chunk,
    manifest::{MANIFEST, Unusable},
    medium::{Medium, Published, Replacing, Written},
    operation::{BLOCK_BYTES, Contents, drawn},
    read::name_of,
    slot::{Leftover, Slot, Staged},
};

const CHECKPOINTS: &str = "checkpoints/";

/// A job's place in a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// Its URI; paths below it end in keys.
    root: PathBuf,
    objects: Arc<dyn Objects>,
}

/// The objects of one checkpoint, or of what is none yet.
struct Found {
    slot: Slot,
    /// Bytes of its manifest.
    manifest: Option<u64>,
    /// Keys of all others.
    others: Vec<String>,
}

impl Found {
    fn is_checkpoint(&self) -> bool {
        self.manifest.is_some_and(|bytes| bytes > 0)
    }
}

impl Bucket {
    pub(crate) fn of(objects: Arc<dyn Objects>) -> Self {
        Self { root: PathBuf::from(objects.uri()), objects }
    }

    /// Sees that objects can be written, and that the store knows what it is to create one.
    pub(crate) fn try_out(&self) -> Result<(), CheckpointError> {
        let key = format!("probes/trial-{}", drawn());
        let create = || self.objects.create(&key, b"trial".to_vec());
        let created = [create()?, create()?];
        self.objects.delete(&key)?;
        match created {
            [_, Created::Before] => Ok(()),
            [_, Created::Now] => Err(CheckpointError::Objects(ObjectsError::lasting(format!(
                "{}: the object store creates an object that is there already: it does not know `If-None-Match: *`, without which two \
                 workers could overwrite each other's checkpoints; set spec.checkpoint.uri to another store",
                self.root.display()
            )))),
        }
    }

    /// Sees that there are checkpoints, or saves in progress.
    pub(crate) fn find(&self) -> Result<(), CheckpointError> {
        match self.objects.list(CHECKPOINTS)?.is_empty() {
            true => Err(CheckpointError::NoCheckpoints { path: self.root.clone() }),
            false => Ok(()),
        }
    }

    fn key<'a>(&self, path: &'a Path) -> &'a str {
        let relative = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        relative.unwrap_or_else(|| panic!("{} is not below {}", path.display(), self.root.display()))
    }

    fn folder(slot: Slot) -> String {
        format!("{CHECKPOINTS}{slot}/")
    }

    fn manifest(slot: Slot) -> String {
        Self::folder(slot) + MANIFEST
    }

    /// All that lies below `folder`, by checkpoint, newest first.
    fn found(&self, folder: &str) -> Result<Vec<Found>, CheckpointError> {
        let mut found: Vec<Found> = Vec::new();
        for (key, bytes) in self.objects.list(folder)? {
            let parts = key.strip_prefix(CHECKPOINTS).and_then(|rest| rest.split_once('/'));
            let Some((slot, name)) = parts.and_then(|(slot, name)| Some((Slot::of_name(slot)?, name))) else {
                continue;
            };
            let place = match found.iter().position(|found| found.slot == slot) {
                Some(place) => place,
                None => {
                    found.push(Found { slot, manifest: None, others: Vec::new() });
                    found.len() - 1
                }
            };
            match name == MANIFEST {
                true => found[place].manifest = Some(bytes),
                false => found[place].others.push(key),
            }
        }
        found.sort_unstable_by_key(|found| std::cmp::Reverse(found.slot));
        Ok(found)
    }

    fn delete_all(&self, keys: &[String]) -> Result<(), CheckpointError> {
        Ok(keys.iter().try_for_each(|key| self.objects.delete(key))?)
    }

    /// Deletes what was to become a checkpoint, unless it has.
    fn clear(&self, slot: Slot) -> Result<(), CheckpointError> {
        for found in self.found(&Self::folder(slot))? {
            let is_new = found.manifest.is_none();
            if found.is_checkpoint() || is_new && self.objects.create(&Self::manifest(slot), vec![])? == Created::Before
            {
                return Ok(());
            }
            self.delete_all(&found.others)?;
            if !is_new && found.others.is_empty() {
                self.objects.delete(&Self::manifest(slot))?;
            }
        }
        Ok(())
    }
}

impl Medium for Bucket {
    fn root(&self) -> &Path {
        &self.root
    }

    fn slot(&self, position: Position) -> Slot {
        Slot { step: position.step, generation: Some(position.generation) }
    }

    fn slots(&self) -> Result<Vec<Slot>, CheckpointError> {
        let found = self.found(CHECKPOINTS)?;
        Ok(found.iter().filter(|found| found.is_checkpoint()).map(|found| found.slot).collect())
    }

    fn rivals(&self, position: Position) -> Result<Vec<Slot>, CheckpointError> {
        let slot = self.slot(position);
        let is_there = self.objects.length(&Self::manifest(slot))?.is_some_and(|bytes| bytes > 0);
        Ok(is_there.then_some(slot).into_iter().collect())
    }

    /// What is listed is stored.
    fn sync_slots(&self) -> Result<(), CheckpointError> {
        Ok(())
    }

    fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError> {
        let found = self.found(CHECKPOINTS)?;
        let leftover = |found: Found| {
            let Slot { step, generation } = found.slot;
            let staged = Staged { step, generation: generation? };
            let path = self.root.join(CHECKPOINTS).join(found.slot.to_string());
            (!found.is_checkpoint()).then_some(Leftover { path, staged: Some(staged) })
        };
        Ok(found.into_iter().filter_map(leftover).collect())
    }

    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError> {
        let Leftover { path: _, staged } = leftover;
        let slots = staged.map(|Staged { step, generation }| Slot { step, generation: Some(generation) });
        slots.into_iter().try_for_each(|slot| self.clear(slot))
    }

    fn delete(&self, slot: Slot) -> Result<(), CheckpointError> {
        self.objects.delete(&Self::manifest(slot))?;
        self.found(&Self::folder(slot))?.into_iter().try_for_each(|found| self.delete_all(&found.others))
    }

    fn length(&self, path: &Path) -> Result<Option<u64>, Unusable> {
        Ok(self.objects.length(self.key(path)).map_err(CheckpointError::from)?)
    }

    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), Unusable> {
        let read = self.objects.get(self.key(path), length).map_err(CheckpointError::from)?;
        let deleted = || Unusable::Damaged(format!("{} was deleted while it was read", name_of(path)));
        read.ok_or_else(deleted)?.chunks(BLOCK_BYTES).for_each(act);
        Ok(())
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError> {
        let folder = format!("{}/", self.key(folder));
        let keys = self.objects.list(&folder)?;
        Ok(keys.keys().filter_map(|key| key.strip_prefix(&folder)).map(str::to_owned).collect())
    }

    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError> {
        Ok(self.objects.put(self.key(path), contents.to_vec())?)
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        Ok(self.objects.delete(self.key(path))?)
    }

    fn staging(&self, position: Position) -> PathBuf {
        self.root.join(CHECKPOINTS).join(self.slot(position).to_string())
    }

    /// Folders are parts of keys here.
    fn make_staging(&self, _: Position) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// What the checkpoint before has too is put again: to be sure that it is whole there would take as long.
    fn write_chunk(
        &self,
        staging: &Path,
        _: Option<&Path>,
        chunk: &Chunk,
        contents: Contents<'_>,
    ) -> Result<Written, CheckpointError> {
        self.store(&staging.join(chunk.file()), contents)?;
        Ok(Written::Named)
    }

    /// What is put is stored.
    fn sync_chunk(&self, _: &Written) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// What is put has its name.
    fn name_chunks(&self, _: &Path, _: &[(Chunk, Written)]) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// Parts and manifest may be those of another committer that is faster. Parts that nobody names are deleted with the checkpoint.
    fn is_left_over(&self, name: &str) -> bool {
        name != MANIFEST && !Chunk::is_file(name)
    }

    fn publish(&self, position: Position, manifest: &[u8], replacing: Replacing) -> Result<Published, CheckpointError> {
        let slot = self.slot(position);
        let key = Self::manifest(slot);
        match replacing {
            Replacing::Nothing => {}
            // It is damaged: those of older groups have places of their own.
            Replacing::Others => self.objects.delete(&key)?,
        }
        let created = self.objects.create(&key, manifest.to_vec());
        match created {
            Ok(Created::Now) => return Ok(Published::Done(slot)),
            // The answer may have been lost on the way, and this be our own.
            Ok(Created::Before) | Err(_) => {}
        }
        let ours = |found: Option<Vec<u8>>| found.is_some_and(|found| found == manifest);
        match (self.objects.get(&key, manifest.len() as u64).map(ours), created) {
            (Ok(true), _) => Ok(Published::Done(slot)),
            (_, Err(error)) => Err(error.into()),
            (_, Ok(_)) => Ok(Published::Taken(CheckpointError::Conflict { path: self.root.join(key) })),
        }
    }

    fn abandon(&self, position: Position) -> Result<(), CheckpointError> {
        let slot = self.slot(position);
        self.clear(slot)?;
        // No other will: it is this one that would have committed.
        self.clear(slot)
    }
}

impl From<CheckpointError> for Unusable {
    fn from(error: CheckpointError) -> Self {
        Self::Unread(Box::new(error))
    }
}
