//! The job's folder, or its place in an object store: which state to start from, whether every member sees it, saving and exporting.

pub(crate) mod probe;
pub(crate) mod retry;

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockstep_checkpoint::{
    Checkpoint, CheckpointError, Destination, Folder, Layout, Newest, Objects, Saved, Skipped, Snapshotter, Tensor,
    TrainingIdentity,
};
use lockstep_elastic::Digest;
use lockstep_launch::{CheckpointMark, DamagedCheckpoint, Launch, ObjectUri, RecordStore, Workload};
use lockstep_nn::{Cpu, Replica};
use lockstep_objects::Home;
use tracing::warn;

use crate::{failure::Failure, storage::retry::told_of};

/// A network file system may show a new file late, but not later than this.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Name of the exported model in the job's folder.
const MODEL_FILE: &str = "model.safetensors";
const SPELLING: &str = "blocks-";

/// Where the job's state is kept, and whose it is.
pub(crate) struct Storage {
    folder: Folder,
    /// For metrics.
    output: PathBuf,
    identity: TrainingIdentity,
    keep_last: NonZeroU32,
    uri: String,
    keeps_journals: bool,
}

impl Storage {
    /// Opens the storage that every member shares. `data` is the digest of the samples.
    pub(crate) fn open(launch: &Launch, workload: &Workload, data: Digest) -> Result<Self, Failure> {
        let uri = workload.checkpoint.uri.clone();
        let output = launch.output.clone();
        if launch.objects.is_some() {
            fs::create_dir_all(&output)
                .map_err(|error| Failure::retry(format!("making {}: {error}", output.display())))?;
        }
        let folder = told_of(&uri, || match &launch.objects {
            None => Folder::open(&output),
            Some(place) => open_objects(place, home(launch)).and_then(Folder::open_bucket),
        });
        let folder = folder.map_err(|error| refused(&uri, &error))?;
        let keep_last = NonZeroU32::new(workload.checkpoint.keep_last).unwrap_or(NonZeroU32::MIN);
        let keeps_journals = launch.objects.is_none();
        Ok(Self { folder, output, identity: identity(workload, data), keep_last, uri, keeps_journals })
    }

    /// Loads the newest state that is whole; also gives the newest that was passed over for it. Where none is whole, or on an error, the state
    /// that `into` had may be gone.
    pub(crate) fn load_newest(
        &self,
        into: &mut impl Destination,
    ) -> Result<(Option<Checkpoint>, Option<DamagedCheckpoint>), Failure> {
        let newest = told_of(&self.uri, || self.folder.newest(&self.identity, into));
        let Newest { checkpoint, skipped } = newest.map_err(|error| self.refused(&error))?;
        let damaged = skipped.into_iter().map(|Skipped { step, path, reason }| {
            warn!(step, path = %path.display(), reason, "checkpoint passed over");
            DamagedCheckpoint { step, uri: uri_of(&path), reason }
        });
        // Each is worth a line.
        let damaged: Vec<_> = damaged.collect();
        Ok((checkpoint, damaged.into_iter().next()))
    }

    /// What to say where the group would begin with the seed's first weights although there are checkpoints: the next ones would take their
    /// place.
    pub(crate) fn none_whole(&self, newest: &DamagedCheckpoint) -> Failure {
        Failure::fatal(format!(
            "spec.checkpoint.uri: {}: no checkpoint there is whole; {newest}. Nothing was overwritten: put a whole one back, or move the \
             folder that this one lies in away to train from the beginning",
            self.uri
        ))
    }

    /// Clears what saves of groups before this generation have left, where that may take the room that the journal needs.
    pub(crate) fn clear_before(&self, generation: u64) -> Result<(), Failure> {
        if !self.keeps_journals {
            return Ok(());
        }
        told_of(&self.uri, || self.folder.clear_generations_before(generation)).map_err(|error| self.refused(&error))
    }

    /// Leaves a token that the other members look for.
    pub(crate) fn leave_token(&self, token: &str) -> Result<(), Failure> {
        told_of(&self.uri, || self.folder.probe_write(token)).map_err(|error| self.refused(&error))
    }

    /// Whether the token that one of them left is here too.
    pub(crate) fn sees_token(&self, token: &str) -> Result<bool, Failure> {
        let begun = Instant::now();
        loop {
            if told_of(&self.uri, || self.folder.probe_seen(token)).map_err(|error| self.refused(&error))? {
                return Ok(true);
            }
            if begun.elapsed() > VISIBLE_WITHIN {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Takes the token away.
    pub(crate) fn clear_token(&self, token: &str) {
        if let Err(error) = told_of(&self.uri, || self.folder.probe_clear(token)) {
            warn!(%error, "a probe was left behind");
        }
    }

    /// What to say when some ranks do not see what another one wrote.
    pub(crate) fn not_shared(&self, blind: &[String]) -> String {
        format!(
            "spec.checkpoint.uri: {}: {} cannot see what another worker wrote there: name a folder on storage that every worker \
             mounts, such as a ReadWriteMany volume, or one object store for all",
            self.uri,
            blind.join(", ")
        )
    }

    /// Where each tensor of `replica` lies in a checkpoint.
    pub(crate) fn layout(&self, replica: &Replica<Cpu>) -> Result<Layout, Failure> {
        let shapes = replica.tensor_shapes();
        let (weights, slots) = shapes.split_at(replica.table().parameters().len());
        let borrowed = |tensors| <[(String, Vec<usize>)]>::iter(tensors).map(|(name, shape)| (&name[..], &shape[..]));
        Layout::new(borrowed(weights), borrowed(slots)).map_err(|error| self.refused(&error))
    }

    /// What saves parts of about so many values in the background, and forgets the oldest.
    pub(crate) fn snapshotter(&self, values: usize) -> Result<Snapshotter, Failure> {
        Snapshotter::start(self.folder.clone(), self.keep_last, values).map_err(|error| self.refused(&error))
    }

    /// As the job names it.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    pub(crate) fn identity(&self) -> &TrainingIdentity {
        &self.identity
    }

    /// What others are told of a checkpoint.
    pub(crate) fn mark(&self, saved: &Saved, time: String) -> CheckpointMark {
        CheckpointMark { step: saved.step, uri: uri_of(&saved.path), time }
    }

    /// Storage that fails now may work later, as it did when it was opened; anything else is as it is.
    pub(crate) fn refused(&self, error: &CheckpointError) -> Failure {
        match error {
            CheckpointError::ReadOnly { .. } | CheckpointError::Unwritable { .. } => {
                Failure::retry(format!("spec.checkpoint.uri: {}: {error}", self.uri))
            }
            _ => refused(&self.uri, error),
        }
    }

    /// Writes the trained weights for others to use; gives the place.
    pub(crate) fn export(
        &self,
        replica: &mut Replica<Cpu>,
        facts: &BTreeMap<String, String>,
    ) -> Result<String, Failure> {
        let weights = replica.weights();
        let path = told_of(&self.uri, || self.folder.export_model(MODEL_FILE, &borrowed(&weights), facts));
        path.map(|path| uri_of(&path)).map_err(|error| self.refused(&error))
    }

    /// Whether the folder for metrics outlives this worker's pod and is every worker's.
    pub(crate) fn keeps_journals(&self) -> bool {
        self.keeps_journals
    }

    /// The folder for metrics.
    pub(crate) fn output(&self) -> &Path {
        &self.output
    }
}

/// A checkpoint fits when the model, the samples, their order and the batch are the same: the number of workers, of epochs and the
/// rates may differ.
fn identity(workload: &Workload, data: Digest) -> TrainingIdentity {
    let Workload { model, dataset: _, training, communication: _, checkpoint: _, devices_per_worker: _ } = workload;
    let model = serde_json::to_string(model).unwrap_or_default();
    let decisive = format!("data {data} batch {} seed {}", training.global_batch_size, training.seed);
    TrainingIdentity { model, workload_digest: decisive }
}

/// Whether two workloads differ in nothing but their samples.
fn are_other_samples(found: &str, expected: &str) -> bool {
    let parts = |workload: &str| workload.split_once(" batch ").map(|(data, rest)| (data.to_owned(), rest.to_owned()));
    match (parts(found), parts(expected)) {
        (Some((data, rest)), Some((other_data, other_rest))) => data != other_data && rest == other_rest,
        _ => false,
    }
}

/// How a manifest spells the digest of a state, which is that of its blocks.
pub(crate) fn spelled(digest: [u8; 32]) -> String {
    format!("{SPELLING}{}", Digest::from_bytes(digest))
}

/// Whether a manifest's digest is of this kind. Older versions had another, unmarked; the digests of the files vouch for their bytes.
pub(crate) fn is_of_blocks(state_digest: &str) -> bool {
    state_digest.starts_with(SPELLING)
}

fn borrowed(tensors: &[lockstep_nn::StateTensor]) -> Vec<Tensor<'_>> {
    tensors.iter().map(|tensor| Tensor { name: &tensor.name, shape: &tensor.shape, values: &tensor.values }).collect()
}

fn refused(uri: &str, error: &CheckpointError) -> Failure {
    let message = format!("spec.checkpoint.uri: {uri}: {error}");
    match error {
        CheckpointError::Foreign { path, found, expected, .. } if are_other_samples(found, expected) => {
            Failure::fatal(format!(
                "spec.dataset.uri: these samples are not those of the checkpoint {}: put those there, or begin a new run",
                path.display()
            ))
        }
        CheckpointError::Objects { error, .. } if error.is_passing() => Failure::retry(message),
        CheckpointError::Storage { .. }
        | CheckpointError::Conflict { .. }
        | CheckpointError::Full { .. }
        | CheckpointError::Parts { .. }
        | CheckpointError::Thread { .. }
        | CheckpointError::Cancelled { .. } => Failure::retry(message),
        _ => Failure::fatal(message),
    }
}

/// The place in an object store.
pub(crate) fn open_objects(place: &ObjectUri, home: Home) -> Result<Arc<dyn Objects>, CheckpointError> {
    Ok(lockstep_objects::open(place, home)?)
}

/// Checks what the environment says of the job's object store, if it has one: before anything that takes long.
pub(crate) fn check_variables(launch: &Launch) -> Result<(), Failure> {
    let Some(place) = &launch.objects else { return Ok(()) };
    lockstep_objects::check(place).map_err(|error| refused(&place.to_string(), &CheckpointError::from(error)))
}

fn home(launch: &Launch) -> Home {
    match launch.store {
        RecordStore::Kubernetes => Home::Pod,
        RecordStore::File(_) => Home::Run,
    }
}

fn uri_of(path: &Path) -> String {
    if let Some(uri) = path.to_str().filter(|text| ObjectUri::begins(text)) {
        return uri.to_owned();
    }
    let absolute: PathBuf = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    format!("file://{}", absolute.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_other_samples_is_blamed_on_the_data_set() {
        let workload = |data: &str, batch: u32| {
            let workload = serde_json::from_value(serde_json::json!({
                "model": {"name": "lenet5"},
                "dataset": {"format": "idx", "uri": "file:///data"},
                "training": {"globalBatchSize": batch},
                "communication": {},
                "checkpoint": {"uri": "file:///c"},
            }));
            identity(&workload.expect("a workload"), Digest::of(data.as_bytes())).workload_digest
        };
        let blamed = |expected: String| {
            let (path, found) = ("/c/step-3".into(), workload("a", 64));
            refused("file:///c", &CheckpointError::Foreign { path, field: "workload digest", found, expected })
                .to_string()
        };
        let other_samples = blamed(workload("b", 64));
        assert!(other_samples.starts_with("spec.dataset.uri: these samples are not those of"), "{other_samples}");
        let other_batch = blamed(workload("b", 32));
        assert!(other_batch.starts_with("spec.checkpoint.uri: file:///c"), "{other_batch}");
    }
}
