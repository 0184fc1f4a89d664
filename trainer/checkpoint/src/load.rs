use std::{
    fmt, io,
    ops::Range,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{
    CheckpointError, Destination, Folder, Identity, Layout, NoPlace, Piece, Position,
    chunk::{Chunk, Seen},
    layout::VALUE_BYTES,
    manifest::{FORMAT_VERSION, MANIFEST, MAX_MANIFEST_BYTES, Manifest, Stored, Unusable},
    medium::Medium,
    slot::Slot,
    version_1::read_objects,
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
    /// [`CheckpointError::Foreign`], [`CheckpointError::Misfit`] and [`CheckpointError::NewerFormat`] where a whole checkpoint is not this
    /// job's, and [`CheckpointError::Storage`] where the storage does not give the folder or a file, or memory lacks: that is no damage,
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
        match read_range(&*self.medium, &path, &manifest, &layout, range) {
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
        self.read(slot, expected, |medium, path, manifest| read_state(medium, path, manifest, self.at_once, into))
    }

    /// As [`Folder::load_slot`], but none of it is kept: memory for one chunk is enough.
    pub(crate) fn verify_slot(
        &self,
        slot: Slot,
        expected: Option<&Identity>,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(slot, expected, verify_state)
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

    /// The first of `slots` that is whole.
    pub(crate) fn first_verified(
        &self,
        slots: &[Slot],
        expected: &Identity,
    ) -> Result<Option<(Slot, Checkpoint)>, CheckpointError> {
        for slot in slots.iter().copied() {
            if let Ok(whole) = self.verify_slot(slot, Some(expected))? {
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

    /// Whether a manifest is whole and says that another job wrote it, or a generation after this one, or may say so.
    pub(crate) fn is_others(&self, generation: u64, slot: Slot, expected: &Identity) -> bool {
        match self.manifest_of(slot) {
            Ok((found, ..)) => found.identity != *expected || found.position.generation > generation,
            Err(Unusable::Damaged(_)) => false,
            Err(Unusable::Newer(_) | Unusable::Unread(_)) => true,
        }
    }

    /// Whether a manifest is whole and says that this job wrote it, in a generation before this one.
    pub(crate) fn is_of_generation_before(&self, generation: u64, slot: Slot, expected: &Identity) -> bool {
        let manifest = self.manifest_of(slot).map(|(manifest, ..)| manifest);
        manifest.is_ok_and(|found| found.identity == *expected && found.position.generation < generation)
    }
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

fn read_manifest(medium: &dyn Medium, folder: &Path) -> Result<(Manifest, [u8; 32], u64), Unusable> {
    let bytes = read_file(medium, &folder.join(MANIFEST), |length| {
        if length <= MAX_MANIFEST_BYTES {
            return Ok(());
        }
        Err(format!("{MANIFEST} has {length} bytes, at most {MAX_MANIFEST_BYTES} are read"))
    });
    let bytes = bytes?;
    let manifest = Manifest::from_bytes(&bytes)?;
    Ok((manifest, *blake3::hash(&bytes).as_bytes(), bytes.len() as u64))
}

fn read_state(
    medium: &dyn Medium,
    folder: &Path,
    manifest: &Manifest,
    at_once: usize,
    into: &mut impl Destination,
) -> Result<(), Unusable> {
    let layout = Layout::of(manifest.tensors.clone()).map_err(Unusable::Damaged)?;
    let no_place = |problem| match problem {
        NoPlace::Memory(problem) => lacks_memory(folder, &problem),
        NoPlace::Misfit(problem) => {
            Unusable::Unread(Box::new(CheckpointError::Misfit { path: folder.to_owned(), problem }))
        }
    };
    match &manifest.stored {
        Stored::Objects(objects) => {
            let tensors = read_objects(medium, folder, objects, &manifest.tensors)?;
            for (place, tensor) in into.places(&layout).map_err(no_place)?.into_iter().zip(&tensors) {
                place.copy_from_slice(&tensor.values);
            }
            Ok(())
        }
        Stored::Chunks(chunks) => {
            // Before memory is reserved for what a manifest says.
            look_at_all(medium, folder, chunks)?;
            let places = into.places(&layout).map_err(no_place)?;
            read_chunks(medium, folder, chunks, &layout, places, at_once)
        }
    }
}

fn verify_state(medium: &dyn Medium, folder: &Path, manifest: &Manifest) -> Result<(), Unusable> {
    match &manifest.stored {
        Stored::Objects(objects) => read_objects(medium, folder, objects, &manifest.tensors).map(drop),
        Stored::Chunks(chunks) => {
            look_at_all(medium, folder, chunks)?;
            chunks.iter().try_for_each(|chunk| read_chunk(medium, folder, chunk, &mut |_| {}))
        }
    }
}

fn read_range(
    medium: &dyn Medium,
    folder: &Path,
    manifest: &Manifest,
    layout: &Layout,
    range: Range<u64>,
) -> Result<Vec<f32>, Unusable> {
    let mut values = Vec::new();
    match &manifest.stored {
        Stored::Objects(objects) => {
            let tensors = read_objects(medium, folder, objects, &manifest.tensors)?;
            for Piece { tensor, values: within, .. } in layout.pieces(range) {
                values.extend_from_slice(&tensors[tensor].values[within]);
            }
        }
        Stored::Chunks(chunks) => {
            let mut bytes = Vec::new();
            let overlapping = |chunk: &&Chunk| chunk.start < range.end && range.start < chunk.range().end;
            for chunk in chunks.iter().filter(overlapping) {
                bytes.clear();
                read_chunk(medium, folder, chunk, &mut |block| bytes.extend_from_slice(block))?;
                let within = |at: u64| (at.clamp(chunk.start, chunk.range().end) - chunk.start) as usize;
                extend(&mut values, bytes[within(range.start)..within(range.end)].as_chunks().0);
            }
        }
    }
    Ok(values)
}

fn extend(values: &mut Vec<f32>, bytes: &[[u8; VALUE_BYTES as usize]]) {
    values.extend(bytes.iter().map(|value| f32::from_le_bytes(*value)));
}

/// Fills the places of the tensors that `layout` names from chunks that are known to tile it. While one is verified others are read.
fn read_chunks(
    medium: &dyn Medium,
    folder: &Path,
    chunks: &[Chunk],
    layout: &Layout,
    mut unread: Vec<&mut [f32]>,
    at_once: usize,
) -> Result<(), Unusable> {
    let expected = layout.entries().iter().map(|entry| entry.elements().unwrap_or(0));
    assert!(unread.iter().map(|place| place.len()).eq(expected), "places for {layout:?}");
    // Chunks come in order, and so do the values of each tensor.
    let places = chunks.iter().map(|chunk| {
        let place = |piece: Piece<'_>| unread[piece.tensor].split_off_mut(..piece.values.len()).unwrap_or_default();
        (chunk, layout.pieces(chunk.range()).map(place).collect::<Vec<_>>())
    });
    let places = Mutex::new(places.collect::<Vec<_>>().into_iter());
    let places_left = || places.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || {
        loop {
            let Some((chunk, places)) = places_left().next() else { return Ok(()) };
            let mut places = places.into_iter();
            let mut place: &mut [f32] = &mut [];
            let mut put = |block: &[u8]| {
                let mut values = block.as_chunks().0;
                while !values.is_empty() {
                    if place.is_empty() {
                        let Some(next) = places.next() else { break };
                        place = next;
                    }
                    let length = place.len().min(values.len());
                    let filled = place.split_off_mut(..length).unwrap_or_default();
                    let (now, later) = values.split_at(length);
                    filled.iter_mut().zip(now).for_each(|(place, value)| *place = f32::from_le_bytes(*value));
                    values = later;
                }
            };
            read_chunk(medium, folder, chunk, &mut put).map_err(|unusable| {
                // Nobody needs the others.
                *places_left() = Vec::new().into_iter();
                (chunk.start, unusable)
            })?;
        }
    };
    let failed = thread::scope(|scope| {
        let threads: Vec<_> = (1..at_once.min(chunks.len())).map(|_| scope.spawn(read)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|cause| resume_unwind(cause)));
        [read()].into_iter().chain(joined).filter_map(Result::err).min_by_key(|(start, _)| *start)
    });
    failed.map_or(Ok(()), |(_, unusable)| Err(unusable))
}

/// Gives `act` the bytes of a chunk in blocks, each of which is in a core's cache then. They are not to be used where this fails: only all
/// of them can be verified.
pub(crate) fn read_chunk(
    medium: &dyn Medium,
    folder: &Path,
    chunk: &Chunk,
    act: &mut dyn FnMut(&[u8]),
) -> Result<(), Unusable> {
    let (file, mut seen) = (chunk.file(), Seen::from(chunk.start));
    let path = folder.join(&file);
    let length = look_at(medium, &path, |length| chunk.accept(length))?;
    read_blocks(medium, &path, length, &mut |block| {
        seen.add(block);
        act(block);
    })?;
    chunk.check(&seen.chunk()).map_err(|problem| Unusable::Damaged(format!("{file} {problem}")))
}

/// Reads a regular file whose length `accept`s. Reserves no more than that, and fails where memory cannot hold it.
pub(crate) fn read_file(
    medium: &dyn Medium,
    path: &Path,
    accept: impl FnOnce(u64) -> Result<(), String>,
) -> Result<Vec<u8>, Unusable> {
    let length = look_at(medium, path, accept)?;
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(length as usize);
    reserved.map_err(|error| lacks_memory(path, &error))?;
    read_blocks(medium, path, length, &mut |block| bytes.extend_from_slice(block))?;
    Ok(bytes)
}

fn read_blocks(medium: &dyn Medium, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), Unusable> {
    let mut read = 0;
    medium.read(path, length, &mut |block| {
        read += block.len() as u64;
        act(block);
    })?;
    if read != length {
        return Err(Unusable::Damaged(format!("{} shrank while it was read", name_of(path))));
    }
    Ok(())
}

/// What is too large for this process now may be whole.
fn lacks_memory(path: &Path, problem: &dyn fmt::Display) -> Unusable {
    let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("{problem}: memory lacks"));
    Unusable::Unread(Box::new(CheckpointError::Storage { attempt: "reading", path: path.to_owned(), source }))
}

/// Whether the files of all chunks have their lengths.
fn look_at_all(medium: &dyn Medium, folder: &Path, chunks: &[Chunk]) -> Result<(), Unusable> {
    chunks
        .iter()
        .try_for_each(|chunk| look_at(medium, &folder.join(chunk.file()), |length| chunk.accept(length)).map(drop))
}

/// The length of a regular file, which `accept`s it.
fn look_at(medium: &dyn Medium, path: &Path, accept: impl FnOnce(u64) -> Result<(), String>) -> Result<u64, Unusable> {
    let missing = || Unusable::Damaged(format!("{} cannot be read: it is missing", name_of(path)));
    let length = medium.length(path)?.ok_or_else(missing)?;
    accept(length).map_err(Unusable::Damaged)?;
    Ok(length)
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

impl Unusable {
    /// What a caller is told of a checkpoint that is not damaged but cannot be used.
    pub(crate) fn at(self, path: PathBuf) -> CheckpointError {
        match self {
            Self::Newer(found) => CheckpointError::NewerFormat { path, found, supported: FORMAT_VERSION },
            Self::Unread(error) => *error,
            Self::Damaged(reason) => {
                CheckpointError::Storage { attempt: "reading", path, source: io::Error::other(reason) }
            }
        }
    }
}
