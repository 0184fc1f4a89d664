//! `lockstep run`: the manifest that `kubectl apply` takes, as processes of this machine.

mod chaos;
mod children;
pub(crate) mod folder;
mod paths;
mod restart;
mod signals;
mod supervise;
mod trainer;

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use lockstep_api::{ValidJob, manifest::set as set_field};
use lockstep_launch::{CheckpointMark, Ending, ObjectUri, Progress, Replay, Task, Unsaved, Workload, names};
use serde_json::Value;

use self::{
    chaos::Chaos,
    folder::{RunFolder, encrypts},
    restart::{GiveUp, ProcessRole},
    signals::Signals,
    supervise::{FailedProcess, Finish},
    trainer::ControlPort,
};
use crate::{
    Outcome,
    display::{Display, print, summary, tell},
    manifest,
};

pub(crate) use self::trainer::find as find_trainer;

/// Arguments of `lockstep run`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Manifest of the training job, YAML or JSON.
    manifest: PathBuf,
    /// Number of workers, in place of spec.replicas.
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroU32>,
    /// Another value for a field, such as spec.training.epochs=3; may be given several times.
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// RunFolder with the data set's files, in place of spec.dataset.uri.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// RunFolder of the run; that of an earlier run continues it. Default: runs/NAME-TIME.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Port of 127.0.0.1 that the coordinator listens on. Default: a free one.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The trainer. Default: lockstep-trainer beside this program.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
    #[command(flatten)]
    chaos: chaos::Arguments,
}

/// A run that can begin: everything is checked and its folder is made.
pub(crate) struct LocalRun {
    job: ValidJob,
    folder: RunFolder,
    /// Where checkpoints and the model go, if not to the folder.
    objects: Option<ObjectUri>,
    trainer: PathBuf,
    control: ControlPort,
    /// The command line that continues this run; a benchmark and a replay begin anew.
    again: Option<String>,
    /// What the workers are to repeat, if they are.
    replay: Option<Replay>,
    /// What kills its processes, if that is asked for.
    chaos: Option<Chaos>,
}

/// What the coordinator has said so far.
#[derive(Default)]
struct Heard {
    progress: Option<Progress>,
    ending: Option<Ending>,
}

/// Checks everything that can be checked beforehand; the run's folder comes last, so that a refusal leaves nothing behind.
pub(crate) fn prepare(arguments: &Arguments) -> anyhow::Result<LocalRun> {
    let Arguments { manifest: path, workers, set, data, output, port, trainer, chaos } = arguments;
    let mut value =
        lockstep_api::manifest::parse(&manifest::read(path)?).with_context(|| path.display().to_string())?;
    for assignment in set {
        set_field(&mut value, assignment).with_context(|| format!("--set {assignment}"))?;
    }
    if let Some(workers) = workers {
        set_field(&mut value, &format!("spec.replicas={workers}")).with_context(|| format!("--workers {workers}"))?;
        let bound = |name| value["spec"]["elastic"][name].as_u64();
        if let (Some(least), Some(most)) = (bound("minReplicas"), bound("maxReplicas"))
            && !(least..=most).contains(&u64::from(workers.get()))
        {
            bail!(
                "--workers {workers}: {least} to {most}, as spec.elastic says; for another number add \
                 --set spec.elastic.minReplicas=… or --set spec.elastic.maxReplicas=…"
            );
        }
    }
    let mut job = valid(path, &value)?;
    let mounts = job.volume_mounts();
    match (&job.task, data) {
        (Task::Train(workload), Some(folder)) => {
            let uri = paths::data_uri(&workload.dataset, folder)?;
            set_field(&mut value, &format!("spec.dataset.uri={uri}"))
                .with_context(|| format!("--data {}", folder.display()))?;
            job = valid(path, &value)?;
        }
        (Task::Benchmark { .. }, Some(folder)) => {
            bail!("--data {}: a benchmark reads no data set; leave it out", folder.display())
        }
        // Who sets the field on the command line means this machine.
        (Task::Train(_), None) if set.iter().any(|assignment| assignment.starts_with("spec.dataset.uri=")) => {}
        (Task::Train(workload), None) => {
            paths::dataset_uri(&workload.dataset, &mounts).map_err(|field| manifest::refused(path, &[field]))?;
        }
        (Task::Benchmark { .. }, None) => {}
    }
    let mut session = LocalRun::open(job, &value, trainer.as_deref(), *port, output.as_deref())?;
    if let Task::Train(workload) = &session.job.task {
        session.again = Some(again(arguments, &session.folder, workload, &mounts));
    }
    session.chaos = chaos.chaos(u64::from(uuid::Uuid::new_v4().as_fields().1));
    Ok(session)
}

impl LocalRun {
    /// A run of the job that `value` describes, in the folder given or a new one.
    pub(crate) fn open(
        mut job: ValidJob,
        value: &Value,
        trainer: Option<&Path>,
        port: Option<u16>,
        output: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let trainer = trainer::find(trainer)?;
        let control = ControlPort::open(port)?;
        let folder = RunFolder::open(output, &job.name, Timestamp::now())?;
        folder.keep_manifest(value)?;
        if encrypts(&job.task) {
            folder.make_credentials(SystemTime::now())?;
        }
        let objects = match &mut job.task {
            Task::Train(workload) => match workload.checkpoint.objects() {
                Some(uri) => Some(uri.join(&names::unique(&job.name, &folder.uid))),
                None => {
                    workload.checkpoint.uri = paths::folder_uri(&folder.checkpoints())?;
                    None
                }
            },
            Task::Benchmark { .. } => None,
        };
        Ok(Self { job, folder, objects, trainer, control, again: None, replay: None, chaos: None })
    }

    /// Runs the job to its end, with whatever has to be replaced on the way, and prints what came of it.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        let mut signals = Signals::take().context("take over the signals")?;
        let display = Display::on_stderr();
        let mut heard = Heard::default();
        let verb = if self.folder.continued { "continues" } else { "runs" };
        let LocalRun { job, folder, .. } = &self;
        display.note(&format!("{} {verb} with {} in {}", job.name, workers(job.replicas), folder.path().display()));
        self.objects.iter().for_each(|uri| display.note(&format!("checkpoints and the model go to {uri}")));
        self.chaos.iter().for_each(|chaos| display.note(&chaos.announcement()));
        let finish = self.supervise(&display, &mut signals, &mut heard).await?;
        drop(display);
        let outcome = self.tell_end(&finish, &heard);
        if outcome == Outcome::Done {
            print(&self.results(&heard, started));
        }
        Ok(outcome)
    }

    /// Has the workers repeat what others did; says nothing where that goes well.
    pub(crate) async fn repeat(mut self, replay: Replay) -> anyhow::Result<Outcome> {
        self.replay = Some(replay);
        let mut signals = Signals::take().context("take over the signals")?;
        let (display, mut heard) = (Display::on_stderr(), Heard::default());
        let finish = self.supervise(&display, &mut signals, &mut heard).await?;
        drop(display);
        Ok(self.tell_end(&finish, &heard))
    }

    /// Says why the job is not done, if it is not.
    fn tell_end(&self, finish: &Finish, heard: &Heard) -> Outcome {
        match finish {
            Finish::Complete => Outcome::Done,
            Finish::Interrupted(signal) => {
                tell(&self.farewell(heard));
                Outcome::Interrupted(*signal)
            }
            Finish::NotUp(absent) => {
                tell(&format!("error: {}", self.not_up(absent)));
                Outcome::Failed
            }
            Finish::Failed(failed) => {
                tell(&format!("error: {}", self.failure(heard, failed)));
                Outcome::Failed
            }
        }
    }

    fn results(&self, heard: &Heard, started: Instant) -> String {
        let ending = heard
            .ending
            .clone()
            .or_else(|| self.roles().filter_map(|role| self.ending(role)).find(|ending| ending.progress.is_some()));
        let progress = ending.as_ref().and_then(|ending| ending.progress.as_ref()).or(heard.progress.as_ref());
        let stored = self.folder.path().join("model.safetensors");
        let model = match ending.as_ref().and_then(|ending| ending.model_uri.as_deref()) {
            Some(uri) => Some(paths::shown(uri).to_owned()),
            None => stored.exists().then(|| stored.display().to_string()),
        };
        // Only the coordinator tells the table of a benchmark.
        let table = heard.progress.as_ref().and_then(|progress| progress.benchmark.clone());
        let progress =
            progress.cloned().map(|progress| Progress { benchmark: progress.benchmark.or(table), ..progress });
        summary(progress.as_ref(), model.as_deref(), Some(started.elapsed()))
    }

    fn farewell(&self, heard: &Heard) -> String {
        let Some(again) = &self.again else {
            return "stopped; it begins anew when it is run again".to_owned();
        };
        let scaled = self.folder.wanted_workers().filter(|workers| *workers != self.job.replicas.get());
        let again = again.clone() + &scaled.map(|workers| format!(" --workers {workers}")).unwrap_or_default();
        match self.kept(heard) {
            Some(kept) => format!("stopped; {kept}. Continue with:\n  {again}"),
            None => format!("stopped before a checkpoint was reported. Continue with:\n  {again}"),
        }
    }

    /// What is left of the state, if a checkpoint was told of or saves failed.
    fn kept(&self, heard: &Heard) -> Option<String> {
        let ended = self.roles().filter_map(|role| self.ending(role)?.progress);
        let told: Vec<Progress> = ended.chain(heard.progress.clone()).collect();
        let newest = told.iter().filter_map(|progress| progress.last_checkpoint.clone()).max_by_key(|mark| mark.step);
        let step = told.iter().map(|progress| progress.step).max().unwrap_or_default();
        let unsaved = heard.progress.as_ref().and_then(|progress| progress.unsaved.as_ref());
        kept(newest.as_ref(), step, unsaved, is_there)
    }

    fn failure(&self, heard: &Heard, failed: &FailedProcess) -> String {
        let FailedProcess { role, end, why, message } = failed;
        // What the coordinator said last explains its own end alone.
        let of_coordinator = heard.ending.as_ref().filter(|_| *role == ProcessRole::Coordinator);
        let said = of_coordinator.map(|ending| ending.message.clone()).filter(|message| !message.is_empty());
        let told = message.clone().or(said);
        let what = told.map_or_else(|| format!("{role} {end}"), |message| format!("{role} {end}: {message}"));
        let log = self.folder.log(*role);
        let kept = self.kept(heard).filter(|_| *why != GiveUp::Fatal);
        let kept = kept.map(|kept| format!("\n  {kept}")).unwrap_or_default();
        format!("{what}{why}\n  log: {}{kept}", log.display())
    }

    fn not_up(&self, absent: &[ProcessRole]) -> String {
        let logs: Vec<_> =
            absent.iter().map(|role| format!("\n  {role}: {}", self.folder.log(*role).display())).collect();
        format!(
            "no step within {} s (spec.failurePolicy.startupTimeoutSeconds): {} did not come up; see{}",
            self.job.failure_policy.startup_timeout_seconds,
            absent.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            logs.concat()
        )
    }

    /// GiveUp a process ended, as far as it told.
    fn message(&self, role: ProcessRole) -> Option<String> {
        self.ending(role).map(|ending| ending.message).filter(|message| !message.is_empty())
    }

    fn ending(&self, role: ProcessRole) -> Option<Ending> {
        Ending::from_line(&std::fs::read_to_string(self.folder.ending(&self.member(role))).ok()?)
    }

    /// Every process that the job may have had, the coordinator first.
    fn roles(&self) -> impl Iterator<Item = ProcessRole> + use<> {
        std::iter::once(ProcessRole::Coordinator).chain((0..self.job.elastic.max_replicas).map(ProcessRole::Worker))
    }

    fn member(&self, role: ProcessRole) -> String {
        match role {
            ProcessRole::Coordinator => names::coordinator(&self.job.name),
            ProcessRole::Worker(index) => names::worker(&self.job.name, index),
        }
    }
}

/// What is left of a job that was stopped after `step`: the newest checkpoint, where it is still
/// there, and what was not saved.
fn kept(
    newest: Option<&CheckpointMark>,
    step: u64,
    unsaved: Option<&Unsaved>,
    is_there: impl Fn(&CheckpointMark) -> bool,
) -> Option<String> {
    let saved = newest.map_or(0, |mark| mark.step);
    let checkpoint = newest.map(|mark| match is_there(mark) {
        true => format!("the checkpoint of step {saved} is kept"),
        false => format!("the checkpoint of step {saved} is not in {} any more", paths::shown(&mark.uri)),
    });
    let lost = step.saturating_sub(saved);
    let lost = unsaved.filter(|_| lost > 0).map(|unsaved| match newest {
        Some(_) => format!("; the {lost} steps after it were not saved: {}", unsaved.reason),
        None => format!("none of the {lost} steps is saved: {}", unsaved.reason),
    });
    (checkpoint.is_some() || lost.is_some()).then(|| checkpoint.unwrap_or_default() + &lost.unwrap_or_default())
}

/// Whether a checkpoint in a folder is still there. One in an object store counts as there.
fn is_there(mark: &CheckpointMark) -> bool {
    ObjectUri::begins(&mark.uri) || Path::new(paths::shown(&mark.uri)).exists()
}

fn valid(path: &Path, value: &Value) -> anyhow::Result<ValidJob> {
    ValidJob::from_value(value.clone()).map_err(|fields| manifest::refused(path, &fields))
}

fn workers(count: NonZeroU32) -> String {
    if count.get() == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

/// The kept manifest holds every change to fields; what is left are the choices that no manifest holds.
fn again(arguments: &Arguments, folder: &RunFolder, workload: &Workload, mounts: &[PathBuf]) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "lockstep".to_owned());
    let mut words = match Path::new(&program).file_name().is_some_and(|name| name == crate::PLUGIN) {
        true => vec!["kubectl".to_owned(), "lockstep".to_owned()],
        false => vec![quoted(&program)],
    };
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), quoted(&value)]);
    option("run", folder.manifest().display().to_string());
    option("--output", folder.path().display().to_string());
    if let (Err(_), Some(uri)) = (paths::dataset_uri(&workload.dataset, mounts), &workload.dataset.uri) {
        option("--data", paths::shown(uri).to_owned());
    }
    if let Some(port) = arguments.port {
        option("--port", port.to_string());
    }
    if let Some(trainer) = &arguments.trainer {
        option("--trainer", trainer.display().to_string());
    }
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_checkpoint_that_is_there_is_kept_and_steps_that_were_not_saved_are_told() {
        let mark = CheckpointMark { step: 30, uri: "file:///c/step-30".into(), time: String::new() };
        let full = Unsaved::new(30, "disk full", true);
        let said = |newest, unsaved, there| kept(newest, 70, unsaved, |_| there).unwrap_or_default();
        assert_eq!(said(Some(&mark), None, true), "the checkpoint of step 30 is kept");
        assert_eq!(said(Some(&mark), None, false), "the checkpoint of step 30 is not in /c/step-30 any more");
        assert_eq!(
            said(Some(&mark), Some(&full), true),
            "the checkpoint of step 30 is kept; the 40 steps after it were not saved: disk full"
        );
        assert_eq!(said(None, Some(&full), true), "none of the 70 steps is saved: disk full");
        assert_eq!(said(None, None, true), "");
    }

    #[test]
    fn a_word_with_spaces_is_quoted_for_the_shell() {
        for (word, expected) in [("runs/a-1", "runs/a-1"), ("my runs", "'my runs'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
