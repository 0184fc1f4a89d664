//! The folder of a run: everything that it leaves behind.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use lockstep_api::ValidJob;
use lockstep_launch::{
    Change, Encryption, InvalidField, JOURNAL_FILE, PLANS_FILE, Planned, Progress, Reached, Task, lines,
    make_credentials,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::restart::Role;
use crate::manifest;

/// Where runs go when no folder is named.
const RUNS: &str = "runs";
const MANIFEST: &str = "manifest.yaml";
const EARLIER_MANIFEST: &str = "manifest-earlier.yaml";
const LOCK: &str = "lock";
const ATTEMPT: &str = "attempt";
const HISTORY: &str = "history.jsonl";
const WANTED: &str = "replicas";
/// Its owner may read and write it.
const CREDENTIALS_MODE: u32 = 0o600;

/// A run's folder, held by this process alone.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Tells the processes of this run from those of any other.
    pub(crate) uid: String,
    /// How often a run was begun here before: processes of an earlier one are gone.
    pub(crate) attempt: u32,
    /// Whether a run was begun here before.
    pub(crate) continued: bool,
    /// Locked until the folder is dropped.
    _lock: File,
}

impl Folder {
    /// Opens the folder given, or makes a new one for a job called `name`.
    pub(crate) fn open(output: Option<&Path>, name: &str, now: Timestamp) -> anyhow::Result<Self> {
        let path = match output {
            Some(path) => path.to_owned(),
            None => unused(&Path::new(RUNS).join(format!("{name}-{}", now.strftime("%Y%m%dT%H%M%SZ")))),
        };
        Self::open_at(&path).with_context(|| format!("the run's folder {}", path.display()))
    }

    fn open_at(path: &Path) -> anyhow::Result<Self> {
        let continued = path.join(MANIFEST).is_file();
        if !continued && path.exists() && path.read_dir().context("list it")?.next().is_some() {
            bail!("holds other files and no {MANIFEST} of a run; name an empty folder or a run's with --output");
        }
        for part in ["logs", "endings"] {
            fs::create_dir_all(path.join(part)).context("create it")?;
        }
        let path = path.canonicalize()?;
        let lock = File::create(path.join(LOCK)).context("create its lock")?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another `lockstep run` is at work in it"),
            Err(TryLockError::Error(error)) => return Err(error).context("lock it"),
        }
        let uid = uid(&path.join("uid"))?;
        let attempt = next_attempt(&path.join(ATTEMPT))?;
        // A wish of an earlier run is none of this one's.
        let _there_was_none = fs::remove_file(path.join(WANTED));
        Ok(Self { path, uid, attempt, continued, _lock: lock })
    }

    /// Its absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest as it was run.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// File for the output of a process.
    pub(crate) fn log(&self, role: Role) -> PathBuf {
        self.path.join("logs").join(match role {
            Role::Coordinator => "coordinator.log".to_owned(),
            Role::Worker(index) => format!("worker-{index}.log"),
        })
    }

    /// File for the ending of a member.
    pub(crate) fn ending(&self, member: &str) -> PathBuf {
        self.path.join("endings").join(format!("{member}.json"))
    }

    /// File for the durable record.
    pub(crate) fn record(&self) -> PathBuf {
        self.path.join("record.json")
    }

    /// Adds a line to the run's history.
    pub(crate) fn keep_change(&self, change: &Change) -> anyhow::Result<()> {
        let path = self.path.join(HISTORY);
        lines::append(&path, change).with_context(|| format!("write {}", path.display()))
    }

    /// The last line of the run's history.
    pub(crate) fn last_change(&self) -> anyhow::Result<Option<Change>> {
        let path = self.path.join(HISTORY);
        let mut told: Vec<Change> = lines::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(told.pop())
    }

    /// How far the run has come, as its history tells and the end of its journal.
    pub(crate) fn reached(&self) -> anyhow::Result<Reached> {
        #[derive(Deserialize)]
        struct Line {
            step: u64,
            generation: u64,
        }
        let mut reached = Reached::default();
        self.last_change()?.iter_mut().for_each(|last| reached.changed(last));
        let path = self.path.join(JOURNAL_FILE);
        let newest = lines::read_last(&path).with_context(|| format!("read {}", path.display()))?;
        if let Some(Line { step, generation }) = newest.into_iter().next_back() {
            reached.reported(&Progress { step, generation, ..Progress::default() });
        }
        Ok(reached)
    }

    /// How many workers `lockstep scale` wants, if it was called.
    pub(crate) fn wanted_workers(&self) -> Option<u32> {
        fs::read_to_string(self.path.join(WANTED)).ok()?.trim().parse().ok()
    }

    /// Folder for what the workers prove with to each other that they belong to this run.
    pub(crate) fn credentials(&self) -> PathBuf {
        self.path.join("credentials")
    }

    /// Makes that anew, for nobody but this user to read.
    pub(crate) fn make_credentials(&self, now: SystemTime) -> anyhow::Result<()> {
        let folder = self.credentials();
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        for (file, text) in make_credentials(now).context("make the workers' credentials")? {
            let path = file.path(&folder);
            // An earlier run's are replaced, and never open to more.
            let _ = fs::remove_file(&path);
            let made = File::options().write(true).create_new(true).mode(CREDENTIALS_MODE).open(&path);
            made.and_then(|mut made| made.write_all(text.as_bytes()))
                .with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Keeps the manifest of this run, and an earlier one that differs under another name: by more than how many of the workers that an
    /// elastic job may have it begins with, which its plans tell.
    ///
    /// # Errors
    /// A field that decides what the checkpoints of the earlier run mean is not as it was.
    pub(crate) fn keep_manifest(&self, value: &Value, job: &ValidJob) -> anyhow::Result<()> {
        let path = self.manifest();
        let text = manifest::write(value)?;
        if self.continued {
            let earlier_text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let earlier = ValidJob::from_manifest(&earlier_text).map_err(|fields| manifest::refused(&path, &fields))?;
            if let Some(conflict) = conflict(&earlier.task, &job.task) {
                bail!(
                    "{conflict}, as the run in {} was begun with; or another --output for a new run",
                    self.path.display()
                );
            }
            if earlier_text == text {
                return Ok(());
            }
            let earlier_value = lockstep_api::manifest::parse(&earlier_text)?;
            if earlier.elastic != job.elastic || without_replicas(earlier_value) != without_replicas(value.clone()) {
                let kept = unused(&self.path.join(EARLIER_MANIFEST));
                fs::hard_link(&path, &kept)
                    .or_else(|_| fs::copy(&path, &kept).map(drop))
                    .with_context(|| format!("copy {}", path.display()))?;
            }
        }
        replace(&path, &text)
    }
}

/// A manifest of a job whatever number of workers it begins with.
fn without_replicas(mut manifest: Value) -> Value {
    manifest["spec"]["replicas"].take();
    manifest
}

/// Whether the workers need credentials.
pub(crate) fn encrypts(task: &Task) -> bool {
    task.communication().encryption == Encryption::Tls
}

/// The first field that gives the checkpoints of `earlier` another meaning under `later`.
fn conflict(earlier: &Task, later: &Task) -> Option<InvalidField> {
    let decisive = |task: &Task| match task {
        Task::Train(workload) => serde_json::json!({
            "model": workload.model,
            "dataset": workload.dataset,
            "training": {
                "seed": workload.training.seed,
                "globalBatchSize": workload.training.global_batch_size,
            },
        }),
        // It leaves no checkpoint: whatever it measures may change.
        Task::Benchmark { .. } => serde_json::json!({ "benchmark": "given" }),
    };
    difference("spec", &decisive(earlier), &decisive(later))
}

fn difference(field: &str, earlier: &Value, later: &Value) -> Option<InvalidField> {
    if let (Value::Object(old), Value::Object(new)) = (earlier, later) {
        let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
        let at = |map: &serde_json::Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
        return names
            .into_iter()
            .find_map(|name| difference(&format!("{field}.{name}"), &at(old, name), &at(new, name)));
    }
    let text = |value: &Value| match value {
        Value::Null => "missing".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    (earlier != later).then(|| InvalidField::new(field, text(later), text(earlier)))
}

/// The path, or with a number before its extension the first that does not exist.
fn unused(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    std::iter::once(path.to_owned())
        .chain((2_u64..).map(|number| path.with_file_name(format!("{stem}-{number}{extension}"))))
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

/// The folder of a run that somebody else's `lockstep run` is at work in, or was.
#[derive(Debug)]
pub(crate) struct Other {
    path: PathBuf,
    /// The job as it was run.
    pub(crate) job: ValidJob,
    /// Its manifest.
    pub(crate) value: Value,
}

impl Other {
    /// # Errors
    /// `path` is no run's folder.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let manifest_path = path.join(MANIFEST);
        let text = fs::read_to_string(&manifest_path).with_context(|| {
            let path = path.display();
            format!("{path}: no run's folder, which `lockstep run` tells at its start: {MANIFEST} cannot be read")
        })?;
        let value = lockstep_api::manifest::parse(&text).with_context(|| manifest_path.display().to_string())?;
        let job = ValidJob::from_value(value.clone()).map_err(|fields| manifest::refused(&manifest_path, &fields))?;
        Ok(Self { path: path.to_owned(), job, value })
    }

    /// Whether a `lockstep run` is at work there.
    pub(crate) fn is_at_work(&self) -> bool {
        File::open(self.path.join(LOCK)).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Asks the `lockstep run` at work there for so many workers.
    pub(crate) fn want_workers(&self, workers: u32) -> anyhow::Result<()> {
        replace(&self.path.join(WANTED), &workers.to_string())
    }

    /// A manifest by which the run was begun, if it went on by another one.
    pub(crate) fn earlier_manifest(&self) -> anyhow::Result<Option<PathBuf>> {
        let first = self.path.join(EARLIER_MANIFEST);
        Ok(first.try_exists().with_context(|| format!("look for {}", first.display()))?.then_some(first))
    }

    /// Every change of the group, oldest first; a last line that is torn is left out.
    pub(crate) fn history(&self) -> anyhow::Result<Vec<Change>> {
        self.lines(HISTORY)
    }

    /// Every membership that trained; a line that is torn, before whose step its writer was killed, is left out.
    pub(crate) fn plans(&self) -> anyhow::Result<Vec<Planned>> {
        self.lines(PLANS_FILE)
    }

    fn lines<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let path = self.path.join(name);
        lines::read(&path).with_context(|| format!("read {}", path.display()))
    }
}

/// What a run has written of its steps; nothing where somebody took that away.
pub(crate) fn journal_of(run: &Path) -> anyhow::Result<String> {
    let path = run.join(JOURNAL_FILE);
    match fs::read(&path) {
        // Lines that a power failure has spoiled tell nothing; the others do.
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

fn next_attempt(path: &Path) -> anyhow::Result<u32> {
    let before: Option<u32> = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let attempt = before.map_or(0, |before| before + 1);
    replace(path, &attempt.to_string())?;
    Ok(attempt)
}

/// Writes a file in one instant, in place of one of that name: whoever is killed, or finds the disk full, leaves that one as it was.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = path.with_added_extension("tmp");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.with_context(|| format!("write {}", path.display()))
}

fn uid(path: &Path) -> anyhow::Result<String> {
    if let Ok(text) = fs::read_to_string(path)
        && !text.trim().is_empty()
    {
        return Ok(text.trim().to_owned());
    }
    let uid = uuid::Uuid::new_v4().to_string();
    replace(path, &uid)?;
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use lockstep_launch::{Benchmark, Collectives, Communication, CredentialFile, Workload};

    use super::*;

    fn workload() -> Workload {
        serde_json::from_value(serde_json::json!({
            "model": {"name": "mlp", "hidden": [64]},
            "dataset": {"format": "idx", "uri": "file:///srv/mnist"},
            "training": {"seed": 7},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("a workload")
    }

    #[test]
    fn a_run_continues_only_with_what_its_checkpoints_mean() {
        type Change = fn(&mut Workload);
        let cases: [(&str, Change); 5] = [
            ("spec.model.hidden: [32]: [64]", |job| job.model.hidden = vec![32]),
            ("spec.dataset.uri: missing: file:///srv/mnist", |job| job.dataset.uri = None),
            ("spec.dataset.evaluationFraction: 0.2: 0.1", |job| job.dataset.evaluation_fraction = 0.2),
            ("spec.training.seed: 8: 7", |job| job.training.seed = 8),
            ("spec.training.globalBatchSize: 128: 64", |job| job.training.global_batch_size = 128),
        ];
        for (expected, change) in cases {
            let mut later = workload();
            change(&mut later);
            let found = conflict(&Task::Train(workload()), &Task::Train(later));
            assert_eq!(found.map(|field| field.to_string()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_run_continues_for_more_epochs_and_with_another_pace() {
        let mut later = workload();
        later.training.epochs = 50;
        later.training.micro_batch_size = 16;
        later.checkpoint.interval_seconds = 5;
        assert_eq!(conflict(&Task::Train(workload()), &Task::Train(later)), None);
    }

    fn benchmark(collectives: Collectives) -> Task {
        Task::Benchmark { benchmark: Benchmark::Collectives(collectives), communication: Communication::default() }
    }

    #[test]
    fn a_benchmark_may_measure_something_else_where_another_one_did_but_trains_nothing() {
        let later = Collectives { repetitions: 3, ..Collectives::default() };
        assert_eq!(conflict(&benchmark(Collectives::default()), &benchmark(later)), None);
        let found = conflict(&benchmark(Collectives::default()), &Task::Train(workload())).expect("refused");
        assert_eq!(found.to_string(), "spec.benchmark: missing: given");
    }

    #[test]
    fn a_new_folder_is_named_after_job_and_time() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let taken = place.path().join("lenet-20260102T030405Z");
        assert_eq!(unused(&taken), taken);
        fs::create_dir(&taken).expect("taken");
        assert_eq!(unused(&taken), place.path().join("lenet-20260102T030405Z-2"));
    }

    #[test]
    fn a_folder_of_something_else_is_left_alone() {
        let place = tempfile::tempdir().expect("a temporary folder");
        fs::write(place.path().join("thesis.tex"), "x").expect("write");
        let error =
            format!("{:#}", Folder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH).expect_err("refused"));
        assert!(error.contains("--output"), "{error}");
        assert_eq!(place.path().read_dir().expect("list").count(), 1);
    }

    #[test]
    fn credentials_are_for_their_owner_alone_and_new_in_each_run() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let folder = Folder::open(Some(&place.path().join("run")), "lenet", Timestamp::UNIX_EPOCH).expect("new");
        let made = || {
            folder.make_credentials(SystemTime::now()).expect("made");
            CredentialFile::ALL.map(|file| {
                let path = file.path(&folder.credentials());
                assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
                fs::read_to_string(path).expect("text")
            })
        };
        let (first, second) = (made(), made());
        assert!(first.iter().zip(&second).all(|(first, second)| first != second));
    }

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let output = place.path().join("run");
        let first = Folder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect("new");
        fs::write(first.manifest(), "").expect("write");
        let error = format!("{:#}", Folder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect_err("in use"));
        assert!(error.contains("another `lockstep run`"), "{error}");
        let uid = first.uid.clone();
        drop(first);
        let again = Folder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect("free again");
        assert!(again.continued);
        assert_eq!(again.uid, uid);
    }
}
