//! The storage of a job: its folder, or its place in an object store. It holds checkpoints and the
//! exported model; the folder also holds the metrics log.

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
    Checkpoint, CheckpointError, Destination, Evaluation, Folder, Metric, Newest, Objects, OwnedTensor, Saved, Skipped,
    Snapshotter, TrainingIdentity,
};
use lockstep_elastic::Digest;
use lockstep_launch::{
    BestMetric, CheckpointMark, DamagedCheckpoint, Launch, ModelSpec, ObjectUri, RecordStore, Workload,
};
use lockstep_objects::Home;
use tracing::warn;

use self::retry::warned_of;
use crate::failure::Failure;

/// The time within which a network file system shows a new file.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The name of the exported model in the job's folder.
const MODEL_FILE: &str = "model.safetensors";
/// The beginning of a state digest that is made of the digests of blocks.
const SPELLING: &str = "blocks-";

/// The storage of one job.
pub(crate) struct Storage {
    folder: Folder,
    /// The folder for the metrics log and the plans.
    output: PathBuf,
    identity: TrainingIdentity,
    keep_last: NonZeroU32,
    uri: String,
    keeps_metrics: bool,
    /// The metric by which the job keeps its best checkpoint, if it does.
    best_by: Option<Metric>,
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
        let folder = warned_of(&uri, || match &launch.objects {
            None => Folder::open(&output),
            Some(place) => open_objects(place, home(launch)).and_then(Folder::open_bucket),
        });
        let folder = folder.map_err(|error| refused(&uri, &error))?;
        let keep_last = NonZeroU32::new(workload.checkpoint.keep_last).unwrap_or(NonZeroU32::MIN);
        let keeps_metrics = launch.objects.is_none();
        let best_by = workload.checkpoint.best.map(|best| match best.metric {
            BestMetric::Accuracy => Metric::Accuracy,
            BestMetric::Loss => Metric::Loss,
        });
        Ok(Self { folder, output, identity: identity(workload, data), keep_last, uri, keeps_metrics, best_by })
    }

    /// Loads the newest whole checkpoint. Also returns the newest damaged one if there is one after
    /// it. If no checkpoint is whole, or on an error, the state in `into` may be lost.
    pub(crate) fn load_newest(
        &self,
        into: &mut impl Destination,
    ) -> Result<(Option<Checkpoint>, Option<DamagedCheckpoint>), Failure> {
        let newest = warned_of(&self.uri, || self.folder.newest(&self.identity, into));
        let Newest { checkpoint, skipped } = newest.map_err(|error| self.refused(&error))?;
        let damaged = skipped.into_iter().map(|Skipped { step, path, reason }| {
            warn!(step, path = %path.display(), reason, "checkpoint passed over");
            DamagedCheckpoint { step, uri: uri_of(&path), reason }
        });
        // Collecting logs each of them.
        let damaged: Vec<_> = damaged.collect();
        Ok((checkpoint, damaged.into_iter().next()))
    }

    /// Returns the failure of a group that has only damaged checkpoints. It must not begin with the
    /// seed's first weights: its checkpoints would replace the damaged ones.
    pub(crate) fn none_whole(&self, newest: &DamagedCheckpoint) -> Failure {
        Failure::fatal(format!(
            "spec.checkpoint.uri: {}: no checkpoint there is whole; {newest}. Nothing was overwritten: put a whole one back, or move the \
             folder that this one lies in away to train from the beginning",
            self.uri
        ))
    }

    /// Removes what interrupted saves of earlier generations left, if it may take the room that the
    /// metrics log needs.
    pub(crate) fn clear_before(&self, generation: u64) -> Result<(), Failure> {
        if !self.keeps_metrics {
            return Ok(());
        }
        warned_of(&self.uri, || self.folder.clear_generations_before(generation)).map_err(|error| self.refused(&error))
    }

    /// Leaves a token for the other members to find.
    pub(crate) fn leave_token(&self, token: &str) -> Result<(), Failure> {
        warned_of(&self.uri, || self.folder.probe_write(token)).map_err(|error| self.refused(&error))
    }

    /// Returns true if this member sees the token.
    pub(crate) fn sees_token(&self, token: &str) -> Result<bool, Failure> {
        let begun = Instant::now();
        loop {
            if warned_of(&self.uri, || self.folder.probe_seen(token)).map_err(|error| self.refused(&error))? {
                return Ok(true);
            }
            if begun.elapsed() > VISIBLE_WITHIN {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Removes the token.
    pub(crate) fn clear_token(&self, token: &str) {
        if let Err(error) = warned_of(&self.uri, || self.folder.probe_clear(token)) {
            warn!(%error, "a probe was left behind");
        }
    }

    /// Returns the message of a group in which the pods `blind` do not see the token.
    pub(crate) fn not_shared(&self, blind: &[String]) -> String {
        format!(
            "spec.checkpoint.uri: {}: {} cannot see what another worker wrote there: name a folder on storage that every worker \
             mounts, such as a ReadWriteMany volume, or one object store for all",
            self.uri,
            blind.join(", ")
        )
    }

    /// Starts the thread that saves parts of about `values` values and removes the oldest
    /// checkpoints.
    pub(crate) fn snapshotter(&self, values: usize) -> Result<Snapshotter, Failure> {
        Snapshotter::start(self.folder.clone(), self.keep_last, values).map_err(|error| self.refused(&error))
    }

    /// Returns the metric by which the job keeps its best checkpoint, if it does.
    pub(crate) const fn best_by(&self) -> Option<Metric> {
        self.best_by
    }

    /// Returns the best checkpoint of this job up to `step`, with its evaluation. Storage that does
    /// not answer has none: the next evaluation then counts as the best so far.
    pub(crate) fn best_until(&self, step: u64) -> Option<(Evaluation, CheckpointMark)> {
        let listed = warned_of(&self.uri, || self.folder.list());
        let listed = listed.inspect_err(|error| warn!(%error, "the best checkpoint is not known")).ok()?;
        let described = listed.into_iter().filter_map(|listed| Some((listed.path, listed.described.ok()?)));
        let ours = described.filter(|(_, found)| found.identity == self.identity && found.position.step <= step);
        let marked = ours.map(|(path, found)| {
            let mark = CheckpointMark { step: found.position.step, uri: uri_of(&path), time: found.time, bytes: None };
            ((found.about.evaluation, mark), found.about.evaluation)
        });
        let (evaluation, mark) = self.best_by?.best(marked)?;
        Some((evaluation?, mark))
    }

    /// Returns the storage as the job names it.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns what a checkpoint must share with this job.
    pub(crate) fn identity(&self) -> &TrainingIdentity {
        &self.identity
    }

    /// Returns the description of a checkpoint for reports.
    pub(crate) fn mark(&self, saved: &Saved, time: String) -> CheckpointMark {
        CheckpointMark { step: saved.step, uri: uri_of(&saved.path), time, bytes: Some(saved.bytes) }
    }

    /// Returns the failure for an error of storage that worked when it was opened. It may work
    /// again.
    pub(crate) fn refused(&self, error: &CheckpointError) -> Failure {
        match error {
            CheckpointError::ReadOnly { .. } | CheckpointError::Unwritable { .. } => {
                Failure::retry(format!("spec.checkpoint.uri: {}: {error}", self.uri))
            }
            _ => refused(&self.uri, error),
        }
    }

    /// Writes the trained weights for others to use. Returns their URI.
    pub(crate) fn export(&self, weights: &[OwnedTensor], facts: &BTreeMap<String, String>) -> Result<String, Failure> {
        let path = warned_of(&self.uri, || {
            self.folder.export_model(MODEL_FILE, &weights.iter().map(OwnedTensor::borrowed).collect::<Vec<_>>(), facts)
        });
        path.map(|path| uri_of(&path)).map_err(|error| self.refused(&error))
    }

    /// Returns true if all workers share the metrics log, and it outlives their pods.
    pub(crate) fn keeps_metrics(&self) -> bool {
        self.keeps_metrics
    }

    /// Returns the folder for the metrics log and the plans.
    pub(crate) fn output(&self) -> &Path {
        &self.output
    }
}

/// Returns the identity of a job's checkpoints: the model, the samples, their order, the batch and
/// the optimizer. The number of workers, the epochs and the rates may differ.
fn identity(workload: &Workload, data: Digest) -> TrainingIdentity {
    let Workload { model, dataset: _, training, communication: _, checkpoint: _, devices_per_worker: _ } = workload;
    // A state has taken its initial weights over.
    let model = serde_json::to_string(&ModelSpec { weights: None, ..model.clone() }).unwrap_or_default();
    let changes = training.batch_size_schedule.iter();
    let batches: String =
        changes.map(|change| format!(", {} from epoch {} on", change.global_batch_size, change.epoch)).collect();
    let decisive = format!(
        "data {data} batch {}{batches} seed {} optimizer {}",
        training.global_batch_size,
        training.seed,
        training.optimizer.name()
    );
    TrainingIdentity { model, workload_digest: decisive }
}

/// The fields that [`identity`] puts into a workload's digest, in its order.
const FIELDS: [&str; 4] =
    ["spec.dataset.uri", "spec.training.globalBatchSize", "spec.training.seed", "spec.training.optimizer"];

/// Returns the first field in which two workloads differ, with its values in both.
fn difference<'a>(found: &'a str, expected: &'a str) -> Option<(&'static str, &'a str, &'a str)> {
    fn values(workload: &str) -> Option<[&str; FIELDS.len()]> {
        let (data, rest) = workload.strip_prefix("data ")?.split_once(" batch ")?;
        let (batch, rest) = rest.split_once(" seed ")?;
        let (seed, optimizer) = rest.split_once(" optimizer ")?;
        Some([data, batch, seed, optimizer])
    }
    let (found, expected) = (values(found)?, values(expected)?);
    let all = FIELDS.into_iter().zip(found).zip(expected);
    all.map(|((field, found), expected)| (field, found, expected)).find(|(_, found, expected)| found != expected)
}

/// Spells the digest of a state for a manifest.
pub(crate) fn spelled(digest: [u8; 32]) -> String {
    format!("{SPELLING}{}", Digest::from_bytes(digest))
}

/// Returns true if a manifest's digest is made of blocks. Older versions wrote another digest
/// without a mark; the digests of the files vouch for their bytes.
pub(crate) fn is_of_blocks(state_digest: &str) -> bool {
    state_digest.starts_with(SPELLING)
}

fn refused(uri: &str, error: &CheckpointError) -> Failure {
    let message = format!("spec.checkpoint.uri: {uri}: {error}");
    match error {
        CheckpointError::Foreign { path, found, expected, .. } => match difference(found, expected) {
            Some((field, ..)) if field == FIELDS[0] => Failure::fatal(format!(
                "{field}: these samples are not those of the checkpoint {}: put those there, or begin a new run",
                path.display()
            )),
            Some((field, found, expected)) => Failure::fatal(format!(
                "{field}: {expected}: the checkpoint {} is of a run with {found}; nothing was overwritten: set {found}, or \
                 begin a new run with another spec.checkpoint.uri",
                path.display()
            )),
            None => Failure::fatal(message),
        },
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

/// Opens a place in an object store.
pub(crate) fn open_objects(place: &ObjectUri, home: Home) -> Result<Arc<dyn Objects>, CheckpointError> {
    Ok(lockstep_objects::open(place, home)?)
}

/// Checks the variables of the job's object store, if it has one, before anything that takes long.
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

    fn workload(data: &str, training: serde_json::Value) -> String {
        let workload = serde_json::from_value(serde_json::json!({
            "model": {"name": "lenet5"},
            "dataset": {"format": "idx", "uri": "file:///data"},
            "training": training,
            "communication": {},
            "checkpoint": {"uri": "file:///c"},
        }));
        identity(&workload.expect("a workload"), Digest::of(data.as_bytes())).workload_digest
    }

    #[test]
    fn a_checkpoint_of_another_run_is_refused_with_the_field_that_differs() {
        use serde_json::json;

        let found = workload("a", json!({"globalBatchSize": 64}));
        let blamed = |expected: String| {
            let (path, found) = ("/c/step-3".into(), found.clone());
            refused("file:///c", &CheckpointError::Foreign { path, field: "workload digest", found, expected })
                .to_string()
        };
        let changes = json!([{"epoch": 2, "globalBatchSize": 128}]);
        for (expected, beginning) in [
            (workload("b", json!({})), "spec.dataset.uri: these samples are not those of the checkpoint /c/step-3"),
            (
                workload("a", json!({"globalBatchSize": 32})),
                "spec.training.globalBatchSize: 32: the checkpoint /c/step-3",
            ),
            (
                workload("a", json!({"batchSizeSchedule": changes})),
                "spec.training.globalBatchSize: 64, 128 from epoch 2 on: the checkpoint /c/step-3 is of a run with 64;",
            ),
            (workload("a", json!({"seed": 1})), "spec.training.seed: 1: the checkpoint /c/step-3 is of a run with 0;"),
            (
                workload("a", json!({"optimizer": {"lars": {}}})),
                "spec.training.optimizer: lars: the checkpoint /c/step-3 is of a run with sgd; nothing was overwritten",
            ),
        ] {
            let said = blamed(expected);
            assert!(said.starts_with(beginning), "{said}");
        }
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused_with_both() {
        let (path, found, expected) = ("/c/step-3".into(), "resnet20".to_owned(), "lenet5".to_owned());
        let said =
            refused("file:///c", &CheckpointError::Foreign { path, field: "model", found, expected }).to_string();
        assert!(
            said.starts_with("spec.checkpoint.uri: file:///c: /c/step-3 belongs to another job: its model is"),
            "{said}"
        );
    }
}
