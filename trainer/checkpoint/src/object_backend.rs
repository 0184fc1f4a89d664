//! Checkpoints in an object store. Nothing can be renamed there, so a checkpoint is what has a
//! manifest.
//!
//! Parts are stored where they stay. The manifest is created last, and only if there is none:
//! exactly one of two committers succeeds. To clear an unfinished save, a worker first creates an
//! empty manifest. Its committer may still work, and the empty manifest keeps it from committing
//! parts that are being deleted. The next worker that clears also deletes the empty manifest. A
//! checkpoint's manifest is deleted first.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    CheckpointError, Created, Objects, ObjectsError, Position,
    backend::{Backend, Published, Replacing, Written},
    checkpoint_id::{CheckpointId, Leftover, Staged},
    chunk::Chunk,
    file_operation::{BLOCK_BYTES, Contents, unique_word},
    format::MANIFEST,
    read::file_name,
    read_error::ReadError,
};

const CHECKPOINTS: &str = "checkpoints/";

/// A job's prefix in a bucket.
#[derive(Debug)]
pub(crate) struct ObjectBackend {
    /// The URI of the prefix. Keys are paths relative to it.
    root: PathBuf,
    objects: Arc<dyn Objects>,
    /// True once a checkpoint was found or published.
    checkpoint_seen: AtomicBool,
}

/// The objects of one checkpoint or of one unfinished save.
struct StoredCheckpoint {
    id: CheckpointId,
    /// The length of its manifest.
    manifest: Option<u64>,
    /// The keys of all other objects.
    others: Vec<String>,
}

impl StoredCheckpoint {
    fn is_checkpoint(&self) -> bool {
        self.manifest.is_some_and(|bytes| bytes > 0)
    }
}

impl ObjectBackend {
    pub(crate) fn of(objects: Arc<dyn Objects>) -> Self {
        Self { root: PathBuf::from(objects.uri()), objects, checkpoint_seen: AtomicBool::new(false) }
    }

    /// Converts an error and adds if an earlier checkpoint exists.
    fn answer<T>(&self, answer: Result<T, ObjectsError>) -> Result<T, CheckpointError> {
        let checkpoint_seen = self.checkpoint_seen.load(Ordering::Relaxed);
        answer.map_err(|error| CheckpointError::Objects { error, checkpoint_seen })
    }

    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, CheckpointError> {
        self.answer(self.objects.list(folder))
    }

    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, CheckpointError> {
        self.answer(self.objects.create(key, bytes))
    }

    fn delete_object(&self, key: &str) -> Result<(), CheckpointError> {
        self.answer(self.objects.delete(key))
    }

    /// Returns the length of an object, or `None` if there is no such object.
    fn length_of(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        self.answer(self.objects.length(key))
    }

    /// Checks that objects can be written, and that the store refuses to create one twice.
    pub(crate) fn check_creation(&self) -> Result<(), CheckpointError> {
        let key = format!("probes/trial-{}", unique_word());
        let create = || self.create(&key, b"trial".to_vec());
        let created = [create()?, create()?];
        self.delete_object(&key)?;
        match created {
            [_, Created::Before] => Ok(()),
            [_, Created::Now] => Err(CheckpointError::from(ObjectsError::lasting(format!(
                "{}: the object store creates an object that already exists: it does not know `If-None-Match: *`, without which two \
                 workers could overwrite each other's checkpoints; set spec.checkpoint.uri to another store",
                self.root.display()
            )))),
        }
    }

    /// Checks that there is a checkpoint or an unfinished save.
    pub(crate) fn check_not_empty(&self) -> Result<(), CheckpointError> {
        match self.list(CHECKPOINTS)?.is_empty() {
            true => Err(CheckpointError::NoCheckpoints { path: self.root.clone() }),
            false => Ok(()),
        }
    }

    fn published(&self, id: CheckpointId) -> Published {
        self.checkpoint_seen.store(true, Ordering::Relaxed);
        Published::Done(id)
    }

    fn key<'a>(&self, path: &'a Path) -> &'a str {
        let relative = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        relative.unwrap_or_else(|| panic!("{} is not below {}", path.display(), self.root.display()))
    }

    fn folder(id: CheckpointId) -> String {
        format!("{CHECKPOINTS}{id}/")
    }

    fn manifest(id: CheckpointId) -> String {
        Self::folder(id) + MANIFEST
    }

    /// Returns what lies below `folder`, by checkpoint, newest first.
    fn found(&self, folder: &str) -> Result<Vec<StoredCheckpoint>, CheckpointError> {
        let mut found: Vec<StoredCheckpoint> = Vec::new();
        for (key, bytes) in self.list(folder)? {
            let parts = key.strip_prefix(CHECKPOINTS).and_then(|rest| rest.split_once('/'));
            let Some((id, name)) = parts.and_then(|(id, name)| Some((CheckpointId::of_name(id)?, name))) else {
                continue;
            };
            let index = match found.iter().position(|found| found.id == id) {
                Some(index) => index,
                None => {
                    found.push(StoredCheckpoint { id, manifest: None, others: Vec::new() });
                    found.len() - 1
                }
            };
            match name == MANIFEST {
                true => found[index].manifest = Some(bytes),
                false => found[index].others.push(key),
            }
        }
        if found.iter().any(StoredCheckpoint::is_checkpoint) {
            self.checkpoint_seen.store(true, Ordering::Relaxed);
        }
        found.sort_unstable_by_key(|found| std::cmp::Reverse(found.id));
        Ok(found)
    }

    fn delete_all(&self, keys: &[String]) -> Result<(), CheckpointError> {
        keys.iter().try_for_each(|key| self.delete_object(key))
    }

    /// Deletes an unfinished save. Leaves a checkpoint alone.
    fn clear(&self, id: CheckpointId) -> Result<(), CheckpointError> {
        for found in self.found(&Self::folder(id))? {
            let is_new = found.manifest.is_none();
            if found.is_checkpoint() || is_new && self.create(&Self::manifest(id), vec![])? == Created::Before {
                return Ok(());
            }
            self.delete_all(&found.others)?;
            if !is_new && found.others.is_empty() {
                self.delete_object(&Self::manifest(id))?;
            }
        }
        Ok(())
    }
}

impl Backend for ObjectBackend {
    fn root(&self) -> &Path {
        &self.root
    }

    fn id(&self, position: Position) -> CheckpointId {
        CheckpointId { step: position.step, generation: Some(position.generation) }
    }

    fn ids(&self) -> Result<Vec<CheckpointId>, CheckpointError> {
        let found = self.found(CHECKPOINTS)?;
        Ok(found.iter().filter(|found| found.is_checkpoint()).map(|found| found.id).collect())
    }

    fn rivals(&self, position: Position) -> Result<Vec<CheckpointId>, CheckpointError> {
        let id = self.id(position);
        let is_there = self.length_of(&Self::manifest(id))?.is_some_and(|bytes| bytes > 0);
        Ok(is_there.then_some(id).into_iter().collect())
    }

    /// A listed object is durable.
    fn sync_checkpoint_names(&self) -> Result<(), CheckpointError> {
        Ok(())
    }

    fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError> {
        let found = self.found(CHECKPOINTS)?;
        let leftover = |found: StoredCheckpoint| {
            let CheckpointId { step, generation } = found.id;
            let staged = Staged { step, generation: generation? };
            let path = self.root.join(CHECKPOINTS).join(found.id.to_string());
            (!found.is_checkpoint()).then_some(Leftover { path, staged: Some(staged) })
        };
        Ok(found.into_iter().filter_map(leftover).collect())
    }

    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError> {
        let Leftover { path: _, staged } = leftover;
        let ids = staged.map(|Staged { step, generation }| CheckpointId { step, generation: Some(generation) });
        ids.into_iter().try_for_each(|id| self.clear(id))
    }

    fn delete(&self, id: CheckpointId) -> Result<(), CheckpointError> {
        self.delete_object(&Self::manifest(id))?;
        self.found(&Self::folder(id))?.into_iter().try_for_each(|found| self.delete_all(&found.others))
    }

    fn length(&self, path: &Path) -> Result<Option<u64>, ReadError> {
        Ok(self.length_of(self.key(path))?)
    }

    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), ReadError> {
        let read = self.answer(self.objects.get(self.key(path), length))?;
        let deleted = || ReadError::Damaged(format!("{} was deleted while it was read", file_name(path)));
        read.ok_or_else(deleted)?.chunks(BLOCK_BYTES).for_each(act);
        Ok(())
    }

    fn file_names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError> {
        let folder = format!("{}/", self.key(folder));
        let keys = self.list(&folder)?;
        Ok(keys.keys().filter_map(|key| key.strip_prefix(&folder)).map(str::to_owned).collect())
    }

    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError> {
        self.answer(self.objects.put(self.key(path), contents.to_vec()))
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        self.delete_object(self.key(path))
    }

    fn staging(&self, position: Position) -> PathBuf {
        self.root.join(CHECKPOINTS).join(self.id(position).to_string())
    }

    /// Folders are only prefixes of keys.
    fn make_staging(&self, _: Position) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// An unchanged chunk is stored again. To verify the earlier copy would take as long.
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

    /// A stored object is durable.
    fn sync_chunk(&self, _: &Written) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// A stored object has its name.
    fn name_chunks(&self, _: &Path, _: &[(Chunk, Written)]) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// Parts and manifest may belong to a faster committer. Parts that no manifest names are
    /// deleted with the checkpoint.
    fn is_left_over(&self, name: &str) -> bool {
        name != MANIFEST && !Chunk::is_file(name)
    }

    fn publish(&self, position: Position, manifest: &[u8], replacing: Replacing) -> Result<Published, CheckpointError> {
        let id = self.id(position);
        let key = Self::manifest(id);
        match replacing {
            Replacing::Nothing => {}
            // The other manifest is damaged: older groups use other names.
            Replacing::Others => self.delete_object(&key)?,
        }
        let created = self.create(&key, manifest.to_vec());
        match created {
            Ok(Created::Now) => return Ok(self.published(id)),
            // The answer may have been lost on the way. The manifest may be our own.
            Ok(Created::Before) | Err(_) => {}
        }
        let ours = |found: Option<Vec<u8>>| found.is_some_and(|found| found == manifest);
        match (self.objects.get(&key, manifest.len() as u64).map(ours), created) {
            (Ok(true), _) => Ok(self.published(id)),
            (_, Err(error)) => Err(error),
            (_, Ok(_)) => Ok(Published::Taken(CheckpointError::Conflict { path: self.root.join(key) })),
        }
    }

    fn abandon(&self, position: Position) -> Result<(), CheckpointError> {
        let id = self.id(position);
        self.clear(id)?;
        // The first call left an empty manifest. Nobody else will commit or clear this save.
        self.clear(id)
    }
}
