use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Folder, Identity, OwnedTensor, Position, Saved,
    manifest::{FORMAT_VERSION, MANIFEST, MAX_MANIFEST_BYTES, Manifest, Object, Part, Role, Unusable},
    tensors,
};

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

/// State to resume from, every byte of it verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Where training stands.
    pub position: Position,
    /// As it was saved.
    pub state_digest: String,
    /// When it was saved, RFC 3339.
    pub time: String,
    /// As it was saved.
    pub communication: Option<String>,
    /// The model's parameters, in the order they were saved.
    pub weights: Vec<OwnedTensor>,
    /// The optimiser's slots, in the order they were saved.
    pub slots: Vec<OwnedTensor>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// blake3 of its manifest.
    pub manifest_digest: [u8; 32],
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

impl Folder {
    /// The newest checkpoint that is whole. A damaged one is passed over and reported.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`] and [`CheckpointError::NewerFormat`] where a whole checkpoint is not this job's, and
    /// [`CheckpointError::Storage`] where the storage does not give the folder or a file: that is no damage, and an older
    /// checkpoint would throw work away.
    pub fn newest(&self, expected: &Identity) -> Result<Newest, CheckpointError> {
        let mut skipped = Vec::new();
        for step in self.steps()? {
            match self.load(step, expected)? {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), skipped }),
                Err(reason) => skipped.push(Skipped { step, path: self.step(step), reason }),
            }
        }
        Ok(Newest { checkpoint: None, skipped })
    }

    /// The checkpoint of `step`, or what is wrong with it.
    pub(crate) fn load(&self, step: u64, expected: &Identity) -> Result<Result<Checkpoint, String>, CheckpointError> {
        let path = self.step(step);
        let (manifest, manifest_digest, manifest_bytes) = match read_manifest(&path) {
            Ok(read) => read,
            Err(Unusable::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        refuse_foreign(&path, &manifest.identity, expected)?;
        if manifest.position.step != step {
            return Ok(Err(format!("{MANIFEST} is of step {}", manifest.position.step)));
        }
        let bytes = manifest_bytes + manifest.objects.iter().map(|object| object.bytes).sum::<u64>();
        let (weights, slots) = match read_objects(&path, &manifest) {
            Ok(read) => read,
            Err(Unusable::Damaged(reason)) => return Ok(Err(reason)),
            Err(other) => return Err(other.at(path)),
        };
        let Manifest { position, state_digest, time, communication, .. } = manifest;
        Ok(Ok(Checkpoint { path, position, state_digest, time, communication, weights, slots, bytes, manifest_digest }))
    }

    /// Whether the manifest of `step` is whole and says that another job wrote it, or may say so.
    pub(crate) fn is_foreign(&self, step: u64, expected: &Identity) -> bool {
        match read_manifest(&self.step(step)) {
            Ok((manifest, ..)) => manifest.identity != *expected,
            Err(Unusable::Damaged(_)) => false,
            Err(Unusable::Newer(_) | Unusable::Unread(_)) => true,
        }
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

fn read_manifest(folder: &Path) -> Result<(Manifest, [u8; 32], u64), Unusable> {
    let bytes = read_file(&folder.join(MANIFEST), |length| {
        if length <= MAX_MANIFEST_BYTES {
            return Ok(());
        }
        Err(format!("{MANIFEST} has {length} bytes, at most {MAX_MANIFEST_BYTES} are read"))
    });
    let bytes = bytes?;
    let manifest = Manifest::from_bytes(&bytes)?;
    Ok((manifest, *blake3::hash(&bytes).as_bytes(), bytes.len() as u64))
}

fn read_objects(folder: &Path, manifest: &Manifest) -> Result<(Vec<OwnedTensor>, Vec<OwnedTensor>), Unusable> {
    let damaged = |reason: String| Err(Unusable::Damaged(reason));
    let mut found = BTreeMap::new();
    for object in &manifest.objects {
        for (name, tensor) in read_object(folder, object)? {
            if found.insert(name.clone(), tensor).is_some() {
                return damaged(format!("tensor {name} is stored twice"));
            }
        }
    }
    let (mut weights, mut slots) = (Vec::new(), Vec::new());
    for entry in &manifest.tensors {
        let name = &entry.name;
        let tensor = found.remove(name).ok_or_else(|| Unusable::Damaged(format!("tensor {name} is missing")))?;
        if tensor.shape != entry.shape || Some(tensor.values.len()) != entry.elements() {
            return damaged(format!("tensor {name} has shape {:?}, {MANIFEST} says {:?}", tensor.shape, entry.shape));
        }
        match entry.role {
            Role::Weight => weights.push(tensor),
            Role::Slot => slots.push(tensor),
        }
    }
    match found.first_key_value() {
        None => Ok((weights, slots)),
        Some((name, _)) => damaged(format!("tensor {name} is not in {MANIFEST}")),
    }
}

fn read_object(folder: &Path, object: &Object) -> Result<BTreeMap<String, OwnedTensor>, Unusable> {
    let damaged = |reason: String| Err(Unusable::Damaged(reason));
    let Object { file, bytes: expected, blake3, parts } = object;
    let bytes = read_file(&folder.join(file), |length| {
        if length == *expected {
            return Ok(());
        }
        Err(format!("{file} has {length} bytes, {MANIFEST} says {expected}"))
    })?;
    if blake3::hash(&bytes).to_hex().as_str() != blake3 {
        return damaged(format!("{file} does not have the digest that {MANIFEST} states"));
    }
    let tensors = tensors::from_bytes(&bytes).map_err(|problem| Unusable::Damaged(format!("{file}: {problem}")))?;
    for Part { tensor, start, end } in parts {
        let elements = tensors.get(tensor).map(|tensor| tensor.values.len());
        if (*start, Some(*end)) != (0, elements) {
            return damaged(format!(
                "{file} holds {elements:?} elements of {tensor}, {MANIFEST} says {start} to {end}"
            ));
        }
    }
    Ok(tensors)
}

/// Reads a regular file whose length `accept`s. Reserves no more than that length, and fails where memory cannot hold it.
fn read_file(path: &Path, accept: impl FnOnce(u64) -> Result<(), String>) -> Result<Vec<u8>, Unusable> {
    let name = path.file_name().unwrap_or_default().display().to_string();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Unusable::Damaged(format!("{name} cannot be read: {error}"))
        }
        _ => Unusable::Unread(error),
    };
    // A pipe would hold up the reader, hence the look before opening.
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Unusable::Damaged(format!("{name} is no regular file")));
    }
    accept(metadata.len()).map_err(Unusable::Damaged)?;
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(metadata.len() as usize);
    reserved.map_err(|error| Unusable::Damaged(format!("{name} cannot be read: {error}")))?;
    File::open(path).and_then(|file| file.take(metadata.len()).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 != metadata.len() {
        return Err(Unusable::Damaged(format!("{name} shrank while it was read")));
    }
    Ok(bytes)
}

impl Unusable {
    /// What a caller is told of a checkpoint that is not damaged but cannot be used.
    fn at(self, path: PathBuf) -> CheckpointError {
        match self {
            Self::Newer(found) => CheckpointError::NewerFormat { path, found, supported: FORMAT_VERSION },
            Self::Unread(source) => CheckpointError::Storage { attempt: "reading", path, source },
            Self::Damaged(reason) => {
                CheckpointError::Storage { attempt: "reading", path, source: io::Error::other(reason) }
            }
        }
    }
}
