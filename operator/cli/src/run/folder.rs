//! The folder of a run, with everything that the run leaves behind.

mod conflict;
mod identity;
mod lock;
mod read_only;

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use lockstep_api::ValidJob;
use lockstep_launch::{
    Encryption, GroupChange, InvalidField, PLANS_FILE, Progress, Reached, Task, lines, make_credentials, metrics_log,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::{
    conflict::{conflict, moved},
    identity::{ATTEMPT, UID, next_attempt, uid},
    lock::{LOCK, Lock, OWNER},
};
use super::restart::ProcessRole;
use crate::{manifest, metrics_lines::Step};

pub(crate) use self::read_only::{ReadOnlyFolder, metrics_log_of};

/// Parent of the folders of runs, if the user names none.
const RUNS: &str = "runs";
pub(crate) const MANIFEST: &str = "manifest.yaml";
const EARLIER_MANIFEST: &str = "manifest-earlier.yaml";
const RECORD: &str = "record.json";
const LOGS: &str = "logs";
pub(crate) const ENDINGS: &str = "endings";
const HISTORY: &str = "history.jsonl";
const REQUESTED_WORKERS: &str = "replicas";
const CHECKPOINTS: &str = "checkpoints";
/// Mode of a file that only its owner may read and write.
const CREDENTIALS_MODE: u32 = 0o600;

/// A run's folder, held by this process alone.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Distinguishes the processes of this run from those of any other.
    pub(crate) uid: String,
    /// Number of earlier runs in this folder. Their processes are gone.
    pub(crate) attempt: u32,
    /// True if a run was started here before.
    pub(crate) continued: bool,
    /// Held until the folder is dropped.
    _lock: Lock,
}

impl RunFolder {
    /// Opens the folder given, or makes a new one for a job called `name`.
    pub(crate) fn open(output: Option<&Path>, name: &str, now: Timestamp) -> anyhow::Result<Self> {
        let path = match output {
            Some(path) => path.to_owned(),
            None => unused(&Path::new(RUNS).join(format!("{name}-{}", now.strftime("%Y%m%dT%H%M%SZ")))),
        };
        Self::open_at(&path).with_context(|| format!("the run's folder {}", path.display()))
    }

    fn open_at(path: &Path) -> anyhow::Result<Self> {
        if !path.join(MANIFEST).is_file() && path.exists() && !is_unused(path).context("list it")? {
            bail!(
                "holds other files but no {MANIFEST} of a run; name an empty folder or the folder of a run with --output"
            );
        }
        for part in [LOGS, ENDINGS] {
            fs::create_dir_all(path.join(part)).context("create it")?;
        }
        let path = path.canonicalize()?;
        let lock = Lock::take(&path)?;
        // Another run may have started and ended just before.
        let continued = path.join(MANIFEST).is_file();
        // A request to an earlier run does not concern this one.
        let _there_was_none = fs::remove_file(path.join(REQUESTED_WORKERS));
        let (uid, attempt) = (uid(&path)?, next_attempt(&path)?);
        Ok(Self { path, uid, attempt, continued, _lock: lock })
    }

    /// Returns the absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder for checkpoints that stay on this machine.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// Returns the path of the manifest.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// Returns the file for the output of a process.
    pub(crate) fn log(&self, role: ProcessRole) -> PathBuf {
        self.path.join(LOGS).join(match role {
            ProcessRole::Coordinator => "coordinator.log".to_owned(),
            ProcessRole::Worker(index) => format!("worker-{index}.log"),
        })
    }

    /// Returns the file for the ending of a member.
    pub(crate) fn ending(&self, member: &str) -> PathBuf {
        self.path.join(ENDINGS).join(format!("{member}.json"))
    }

    /// Returns the file for the durable record.
    pub(crate) fn record(&self) -> PathBuf {
        self.path.join(RECORD)
    }

    /// Adds a line to the run's history.
    pub(crate) fn keep_change(&self, change: &GroupChange) -> anyhow::Result<()> {
        let path = self.path.join(HISTORY);
        lines::append(&path, change).with_context(|| format!("write {}", path.display()))
    }

    /// Reads the last line of the run's history.
    pub(crate) fn last_change(&self) -> anyhow::Result<Option<GroupChange>> {
        let path = self.path.join(HISTORY);
        let mut changes: Vec<GroupChange> = lines::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(changes.pop())
    }

    /// Reads the furthest step of the run from its history and the end of its metrics log.
    pub(crate) fn reached(&self) -> anyhow::Result<Reached> {
        let mut reached = Reached::default();
        self.last_change()?.iter_mut().for_each(|last| reached.changed(last));
        let newest = self.newest_steps()?;
        if let Some(Step { step, generation, .. }) = newest.into_iter().next_back() {
            reached.reported(&Progress { step, generation, ..Progress::default() });
        }
        Ok(reached)
    }

    /// Returns the newest lines of the metrics log.
    fn newest_steps<T: DeserializeOwned>(&self) -> anyhow::Result<Vec<T>> {
        metrics_log::read_last(&self.path).with_context(|| format!("read the metrics log in {}", self.path.display()))
    }

    /// Returns the number of workers that `lockstep scale` asked for, if any.
    pub(crate) fn requested_workers(&self) -> Option<u32> {
        fs::read_to_string(self.path.join(REQUESTED_WORKERS)).ok()?.trim().parse().ok()
    }

    /// Returns the folder for the workers' credentials.
    pub(crate) fn credentials(&self) -> PathBuf {
        self.path.join("credentials")
    }

    /// Makes new credentials that only this user can read.
    pub(crate) fn make_credentials(&self, now: SystemTime) -> anyhow::Result<()> {
        let folder = self.credentials();
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        for (file, text) in make_credentials(now).context("make the workers' credentials")? {
            let path = file.path(&folder);
            // A new file replaces an earlier run's, so its mode was never wider.
            let _ = fs::remove_file(&path);
            let made = File::options().write(true).create_new(true).mode(CREDENTIALS_MODE).open(&path);
            made.and_then(|mut made| made.write_all(text.as_bytes()))
                .with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Keeps the manifest of this run. An earlier manifest that trained something is kept under
    /// another name if it differs. The number of workers that an elastic job starts with is no
    /// difference, because the plans hold it.
    ///
    /// # Errors
    /// The earlier run left a state, and the new manifest changes a field that decides the place or
    /// the meaning of its checkpoints.
    pub(crate) fn keep_manifest(&self, value: &Value) -> anyhow::Result<()> {
        let path = self.manifest();
        let text = manifest::write(value)?;
        if self.continued {
            let earlier_text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let refused = |fields: Vec<InvalidField>| manifest::refused(&path, &fields);
            let earlier = ValidJob::from_manifest(&earlier_text).map_err(refused)?;
            let later = ValidJob::from_value(value.clone()).map_err(refused)?;
            let has_trained = self.has_trained()?;
            let conflict = || conflict(&earlier.task, &later.task).or_else(|| moved(&earlier, &later));
            if let Some(conflict) = self.may_hold_state(&earlier.task)?.then(conflict).flatten() {
                bail!(
                    "{conflict}, as the run in {} has it; or name another --output for a new run",
                    self.path.display()
                );
            }
            if earlier_text == text {
                return Ok(());
            }
            let earlier_value = lockstep_api::manifest::parse(&earlier_text)?;
            let differs =
                earlier.elastic != later.elastic || without_replicas(earlier_value) != without_replicas(value.clone());
            if differs && has_trained {
                let kept = unused(&self.path.join(EARLIER_MANIFEST));
                fs::hard_link(&path, &kept)
                    .or_else(|_| fs::copy(&path, &kept).map(drop))
                    .with_context(|| format!("copy {}", path.display()))?;
            }
        }
        replace(&path, &text)
    }

    /// Returns true if a later manifest has to fit the state of a run of `earlier`: a step in the
    /// metrics log, or a checkpoint.
    fn may_hold_state(&self, earlier: &Task) -> anyhow::Result<bool> {
        let is_elsewhere = match earlier {
            Task::Train(workload) => workload.checkpoint.objects().is_some(),
            // A benchmark has plans of its own, which no training can use.
            Task::Benchmark { .. } => true,
        };
        if !self.has_trained()? || is_elsewhere {
            return self.has_trained();
        }
        let steps: Vec<Value> = self.newest_steps()?;
        let checkpoints = self.path.join(CHECKPOINTS);
        let holds_checkpoints = match checkpoints.read_dir() {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("list {}", checkpoints.display())),
        };
        Ok(!steps.is_empty() || holds_checkpoints)
    }

    /// Returns true if any group began to train here.
    fn has_trained(&self) -> anyhow::Result<bool> {
        let path = self.path.join(PLANS_FILE);
        path.try_exists().with_context(|| format!("look for {}", path.display()))
    }
}

/// Asks the `lockstep run` at work in the folder `run` for `workers` workers.
pub(crate) fn request_workers(run: &Path, workers: u32) -> anyhow::Result<()> {
    replace(&run.join(REQUESTED_WORKERS), &workers.to_string())
}

/// Returns true if a folder holds nothing, or only the files of a run that was killed before it
/// kept its manifest.
fn is_unused(path: &Path) -> io::Result<bool> {
    let files =
        [LOCK, OWNER, UID, ATTEMPT, MANIFEST].map(|name| [Path::new(name).to_owned(), temporary(Path::new(name))]);
    for entry in path.read_dir()? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        let is_our_own = match entry.file_type()?.is_dir() {
            true => {
                [LOGS, ENDINGS].iter().any(|ours| name.as_os_str() == *ours)
                    && entry.path().read_dir()?.next().is_none()
            }
            false => files.as_flattened().contains(&name),
        };
        if !is_our_own {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the manifest without its number of workers.
fn without_replicas(mut manifest: Value) -> Value {
    manifest["spec"]["replicas"].take();
    manifest
}

/// Returns true if the workers need credentials.
pub(crate) fn encrypts(task: &Task) -> bool {
    task.communication().encryption == Encryption::Tls
}

/// Returns the first path that does not exist: this one, or one with a number before its extension.
fn unused(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    std::iter::once(path.to_owned())
        .chain((2_u64..).map(|number| path.with_file_name(format!("{stem}-{number}{extension}"))))
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

/// Replaces a file in one instant. A kill or a full disk leaves the old file as it was.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = temporary(path);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.with_context(|| format!("write {}", path.display()))
}

/// Returns the path at which the next file of this name is written.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_added_extension("tmp")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use lockstep_launch::CredentialFile;

    use super::*;

    #[test]
    fn a_taken_folder_name_gets_a_number() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let taken = parent.path().join("lenet-20260102T030405Z");
        assert_eq!(unused(&taken), taken);
        fs::create_dir(&taken).expect("taken");
        assert_eq!(unused(&taken), parent.path().join("lenet-20260102T030405Z-2"));
    }

    #[test]
    fn a_folder_with_other_files_is_refused() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        fs::write(parent.path().join("thesis.tex"), "x").expect("write");
        let error =
            format!("{:#}", RunFolder::open(Some(parent.path()), "lenet", Timestamp::UNIX_EPOCH).expect_err("refused"));
        assert!(error.contains("--output"), "{error}");
        assert_eq!(parent.path().read_dir().expect("list").count(), 1);
    }

    #[test]
    fn credentials_are_private_and_new_in_each_run() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = RunFolder::open(Some(&parent.path().join("run")), "lenet", Timestamp::UNIX_EPOCH).expect("new");
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
        let parent = tempfile::tempdir().expect("a temporary folder");
        let output = parent.path().join("run");
        let first = RunFolder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect("new");
        fs::write(first.manifest(), "").expect("write");
        let error =
            format!("{:#}", RunFolder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect_err("in use"));
        assert!(error.contains("another `lockstep run`"), "{error}");
        let uid = first.uid.clone();
        drop(first);
        let again = RunFolder::open(Some(&output), "lenet", Timestamp::UNIX_EPOCH).expect("free again");
        assert!(again.continued);
        assert_eq!(again.uid, uid);
    }

    #[test]
    fn a_run_killed_before_it_kept_its_manifest_starts_again_in_its_folder() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let open = || RunFolder::open(Some(parent.path()), "lenet", Timestamp::UNIX_EPOCH);
        drop(open().expect("new"));
        fs::write(parent.path().join("manifest.yaml.tmp"), "meta").expect("torn");
        assert!(!open().expect("as new").continued);
        let log = parent.path().join(LOGS).join("worker-0.log");
        fs::write(&log, "of something else").expect("write");
        open().expect_err("refused");
        assert!(log.exists());
    }

    #[test]
    fn a_manifest_can_be_corrected_until_the_run_leaves_a_state() {
        let keep = |left: &[&str]| {
            let parent = tempfile::tempdir().expect("a temporary folder");
            let open = || RunFolder::open(Some(parent.path()), "lenet", Timestamp::UNIX_EPOCH).expect("free");
            let manifest = |batch: u32| {
                serde_json::json!({
                    "apiVersion": "lockstep.dev/v1alpha1",
                    "kind": "TrainingJob",
                    "metadata": {"name": "lenet"},
                    "spec": {
                        "model": {"name": "lenet5"},
                        "dataset": {"format": "glyphs"},
                        "training": {"globalBatchSize": batch},
                        "checkpoint": {"uri": "file:///checkpoints"},
                    },
                })
            };
            open().keep_manifest(&manifest(4096)).expect("the first");
            for file in left {
                let path = parent.path().join(file);
                fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                fs::write(path, "{}\n").expect("written");
            }
            open().keep_manifest(&manifest(64)).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(keep(&[]), Ok(()), "no group was formed");
        assert_eq!(keep(&[PLANS_FILE]), Ok(()), "no step was done");
        for state in [metrics_log::METRICS_FILE, "checkpoints/slot/manifest.json"] {
            let refused = keep(&[PLANS_FILE, state]).expect_err(state);
            assert!(refused.starts_with("spec.training.globalBatchSize: 64: 4096"), "{refused}");
        }
    }

    #[test]
    fn an_earlier_manifest_is_kept_once_it_trained_something() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let keep = |epochs: u32| {
            let folder = RunFolder::open(Some(parent.path()), "lenet", Timestamp::UNIX_EPOCH).expect("free");
            let manifest = serde_json::json!({
                "apiVersion": "lockstep.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": "lenet"},
                "spec": {
                    "model": {"name": "lenet5"},
                    "dataset": {"format": "glyphs"},
                    "training": {"epochs": epochs},
                    "checkpoint": {"uri": "file:///checkpoints"},
                },
            });
            folder.keep_manifest(&manifest).expect("kept");
            parent.path().join(EARLIER_MANIFEST).exists()
        };
        assert!(!keep(1) && !keep(2), "nothing was trained");
        fs::write(parent.path().join(PLANS_FILE), "a plan").expect("write");
        assert!(!keep(2), "it is the same");
        assert!(keep(3));
    }
}
