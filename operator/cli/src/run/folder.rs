//! The folder of a run: everything that it leaves behind.

mod conflict;
mod lock;
mod read_only;

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    time::SystemTime,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use lockstep_api::ValidJob;
use lockstep_launch::{
    Encryption, GroupChange, InvalidField, METRICS_FILE, PLANS_FILE, Progress, Reached, Task, lines, make_credentials,
};
use serde::Deserialize;
use serde_json::Value;

use self::{
    conflict::{conflict, moved},
    lock::{LOCK, Lock, OWNER},
};
use super::restart::ProcessRole;
use crate::manifest;

pub(crate) use self::read_only::{ReadOnlyFolder, metrics_log_of};

/// Where runs go when no folder is named.
const RUNS: &str = "runs";
const MANIFEST: &str = "manifest.yaml";
const EARLIER_MANIFEST: &str = "manifest-earlier.yaml";
const ATTEMPT: &str = "attempt";
const UID: &str = "uid";
const RECORD: &str = "record.json";
const LOGS: &str = "logs";
const ENDINGS: &str = "endings";
const HISTORY: &str = "history.jsonl";
const WANTED: &str = "replicas";
const CHECKPOINTS: &str = "checkpoints";
/// Its owner may read and write it.
const CREDENTIALS_MODE: u32 = 0o600;

/// A run's folder, held by this process alone.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Tells the processes of this run from those of any other.
    pub(crate) uid: String,
    /// How often a run was begun here before: processes of an earlier one are gone.
    pub(crate) attempt: u32,
    /// Whether a run was begun here before.
    pub(crate) continued: bool,
    /// Locked until the folder is dropped.
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
            bail!("holds other files and no {MANIFEST} of a run; name an empty folder or a run's with --output");
        }
        for part in [LOGS, ENDINGS] {
            fs::create_dir_all(path.join(part)).context("create it")?;
        }
        let path = path.canonicalize()?;
        let lock = Lock::take(&path)?;
        // Another run may have begun, and ended, just before.
        let continued = path.join(MANIFEST).is_file();
        // A wish of an earlier run is none of this one's.
        let _there_was_none = fs::remove_file(path.join(WANTED));
        let (uid, attempt) = (uid(&path)?, next_attempt(&path)?);
        Ok(Self { path, uid, attempt, continued, _lock: lock })
    }

    /// Its absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where checkpoints go that stay on this machine.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// The manifest as it was run.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// File for the output of a process.
    pub(crate) fn log(&self, role: ProcessRole) -> PathBuf {
        self.path.join(LOGS).join(match role {
            ProcessRole::Coordinator => "coordinator.log".to_owned(),
            ProcessRole::Worker(index) => format!("worker-{index}.log"),
        })
    }

    /// File for the ending of a member.
    pub(crate) fn ending(&self, member: &str) -> PathBuf {
        self.path.join(ENDINGS).join(format!("{member}.json"))
    }

    /// File for the durable record.
    pub(crate) fn record(&self) -> PathBuf {
        self.path.join(RECORD)
    }

    /// Adds a line to the run's history.
    pub(crate) fn keep_change(&self, change: &GroupChange) -> anyhow::Result<()> {
        let path = self.path.join(HISTORY);
        lines::append(&path, change).with_context(|| format!("write {}", path.display()))
    }

    /// The last line of the run's history.
    pub(crate) fn last_change(&self) -> anyhow::Result<Option<GroupChange>> {
        let path = self.path.join(HISTORY);
        let mut told: Vec<GroupChange> = lines::read(&path).with_context(|| format!("read {}", path.display()))?;
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
        let path = self.path.join(METRICS_FILE);
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

    /// RunFolder for what the workers prove with to each other that they belong to this run.
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

    /// Keeps the manifest of this run, and under another name an earlier one by which something was trained and which differs: by more than
    /// how many of the workers that an elastic job may have it begins with, which its plans tell.
    ///
    /// # Errors The earlier run left a state, and a field that decides where its checkpoints are,
    /// or what they mean, is not as it was.
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
                    "{conflict}, as the run in {} was begun with; or another --output for a new run",
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

    /// Whether a later manifest has to fit what a run of `earlier` left: a step that is told of, or
    /// a checkpoint.
    fn may_hold_state(&self, earlier: &Task) -> anyhow::Result<bool> {
        let is_elsewhere = match earlier {
            Task::Train(workload) => workload.checkpoint.objects().is_some(),
            // It leaves its plans alone, which are not those of a training.
            Task::Benchmark { .. } => true,
        };
        if !self.has_trained()? || is_elsewhere {
            return self.has_trained();
        }
        let journal = self.path.join(METRICS_FILE);
        let steps: Vec<Value> = lines::read_last(&journal).with_context(|| format!("read {}", journal.display()))?;
        let checkpoints = self.path.join(CHECKPOINTS);
        let holds_checkpoints = match checkpoints.read_dir() {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("list {}", checkpoints.display())),
        };
        Ok(!steps.is_empty() || holds_checkpoints)
    }

    /// Whether any group began to train here.
    fn has_trained(&self) -> anyhow::Result<bool> {
        let path = self.path.join(PLANS_FILE);
        path.try_exists().with_context(|| format!("look for {}", path.display()))
    }
}

/// Whether a folder holds nothing, or what a run leaves that was killed before it kept its manifest.
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

/// A manifest of a job whatever number of workers it begins with.
fn without_replicas(mut manifest: Value) -> Value {
    manifest["spec"]["replicas"].take();
    manifest
}

/// Whether the workers need credentials.
pub(crate) fn encrypts(task: &Task) -> bool {
    task.communication().encryption == Encryption::Tls
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

/// How often a run was begun in the folder before.
///
/// # Errors
/// That is not known any more: with a number that is too small the workers would be taken for those of a run that is over.
fn next_attempt(path: &Path) -> anyhow::Result<u32> {
    let advice =
        "how often a run was begun here: write a number there that is no smaller than active.attempt in record.json";
    let attempt = kept::<u32>(path, ATTEMPT, advice)?.map_or(0, |before| before.saturating_add(1));
    replace(&path.join(ATTEMPT), &attempt.to_string())?;
    Ok(attempt)
}

/// # Errors
/// It is not known any more: with another one the checkpoints in an object store would not be found.
fn uid(path: &Path) -> anyhow::Result<String> {
    let advice = "the run's UUID: write one there; if its checkpoints are in an object store, one that begins with the 8 characters at \
                  the end of their folder's name";
    if let Some(uid) = kept::<uuid::Uuid>(path, UID, advice)? {
        return Ok(uid.to_string());
    }
    let uid = uuid::Uuid::new_v4().to_string();
    replace(&path.join(UID), &uid)?;
    Ok(uid)
}

/// What the file `name` of a run's folder holds; `None` where it is missing, and no group was formed yet that would need it.
///
/// # Errors
/// It is missing later, cannot be read, or holds something else; `advice` says what belongs there.
fn kept<T: FromStr>(path: &Path, name: &str, advice: &str) -> anyhow::Result<Option<T>> {
    let found = match fs::read(path.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.join(RECORD).exists() => return Ok(None),
        Err(error) => error.to_string(),
        Ok(text) => match text.parse() {
            Ok(value) => return Ok(Some(value)),
            Err(_) => format!("{text:?}"),
        },
    };
    bail!("its file {name} does not tell ({found}) {advice}")
}

/// Writes a file in one instant, in place of one of that name: whoever is killed, or finds the disk full, leaves that one as it was.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = temporary(path);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.with_context(|| format!("write {}", path.display()))
}

/// Where the next file of this name is written.
fn temporary(path: &Path) -> PathBuf {
    path.with_added_extension("tmp")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use lockstep_launch::CredentialFile;

    use super::*;

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
            format!("{:#}", RunFolder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH).expect_err("refused"));
        assert!(error.contains("--output"), "{error}");
        assert_eq!(place.path().read_dir().expect("list").count(), 1);
    }

    #[test]
    fn credentials_are_for_their_owner_alone_and_new_in_each_run() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let folder = RunFolder::open(Some(&place.path().join("run")), "lenet", Timestamp::UNIX_EPOCH).expect("new");
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
    fn a_run_whose_number_or_uid_is_lost_does_not_begin_as_another() {
        let all: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"-1"), Some(&[0xff; 36])];
        for name in [ATTEMPT, UID] {
            for damaged in all {
                let place = tempfile::tempdir().expect("a temporary folder");
                let open = || RunFolder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH);
                let first = open().expect("new");
                for formed in [first.manifest(), first.record()] {
                    fs::write(formed, "").expect("write");
                }
                drop(first);
                assert_eq!(open().expect("goes on").attempt, 1);
                let path = place.path().join(name);
                fs::remove_file(&path).expect("there");
                if let Some(damaged) = damaged {
                    fs::write(&path, damaged).expect("write");
                }
                let error = format!("{:#}", open().expect_err("refused"));
                assert!(error.contains(&format!("its file {name} does not tell")), "{error}");
                assert_eq!(fs::read(&path).ok().as_deref(), damaged, "left as it was");
            }
        }
    }

    #[test]
    fn a_run_that_was_killed_before_it_kept_its_manifest_is_begun_again_in_its_folder() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let open = || RunFolder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH);
        drop(open().expect("new"));
        fs::write(place.path().join("manifest.yaml.tmp"), "meta").expect("torn");
        assert!(!open().expect("as new").continued);
        let log = place.path().join(LOGS).join("worker-0.log");
        fs::write(&log, "of something else").expect("write");
        open().expect_err("refused");
        assert!(log.exists());
    }

    #[test]
    fn a_manifest_can_be_corrected_until_the_run_leaves_a_state() {
        let keep = |left: &[&str]| {
            let place = tempfile::tempdir().expect("a temporary folder");
            let open = || RunFolder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH).expect("free");
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
                let path = place.path().join(file);
                fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                fs::write(path, "{}\n").expect("written");
            }
            open().keep_manifest(&manifest(64)).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(keep(&[]), Ok(()), "no group was formed");
        assert_eq!(keep(&[PLANS_FILE]), Ok(()), "no step was done");
        for state in [METRICS_FILE, "checkpoints/slot/manifest.json"] {
            let refused = keep(&[PLANS_FILE, state]).expect_err(state);
            assert!(refused.starts_with("spec.training.globalBatchSize: 64: 4096"), "{refused}");
        }
    }

    #[test]
    fn an_earlier_manifest_is_kept_once_something_was_trained_by_it() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let keep = |epochs: u32| {
            let folder = RunFolder::open(Some(place.path()), "lenet", Timestamp::UNIX_EPOCH).expect("free");
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
            place.path().join(EARLIER_MANIFEST).exists()
        };
        assert!(!keep(1) && !keep(2), "nothing was trained");
        fs::write(place.path().join(PLANS_FILE), "a plan").expect("write");
        assert!(!keep(2), "it is the same");
        assert!(keep(3));
    }
}
