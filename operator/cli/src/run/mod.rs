//! `lockstep run`: runs the manifest that `kubectl apply` takes, as processes of this machine.

mod chaos;
mod children;
pub(crate) mod environment;
pub(crate) mod folder;
pub(crate) mod keeper;
pub(crate) mod paths;
mod restart;
mod signals;
mod supervise;
mod tensorboard;
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
use lockstep_lifecycle::JobFailure;
use serde_json::Value;

use self::{
    chaos::Chaos,
    environment::Start,
    folder::{RunFolder, encrypts},
    keeper::Keeper,
    restart::ProcessRole,
    signals::Signals,
    supervise::{FailedProcess, Finish},
    trainer::ControlPort,
};
use crate::{
    Outcome,
    display::{Display, eprint_line, print, summary},
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
    /// Another value for a field, such as spec.training.epochs=3. May be given several times.
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Folder with the data set's files, in place of spec.dataset.uri.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder of the run; the folder of an earlier run continues it. Default: runs/NAME-TIME.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write TensorBoard's event file into the folder of the run.
    #[arg(long)]
    tensorboard: bool,
    /// Port of 127.0.0.1 that the coordinator listens on. Default: a free one.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Path of the trainer. Default: lockstep-trainer beside this program.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
    #[command(flatten)]
    chaos: chaos::Arguments,
}

/// A run that is ready to start: everything is checked and its folder is made.
pub(crate) struct LocalRun {
    job: ValidJob,
    folder: RunFolder,
    /// Prefix in an object store for checkpoints and the model, if they do not go to the folder.
    objects: Option<ObjectUri>,
    trainer: PathBuf,
    control: ControlPort,
    /// Command line that continues this run. A benchmark and a replay have none.
    again: Option<String>,
    /// Decisions that the workers repeat in a replay.
    replay: Option<Replay>,
    /// Kills that the user asked for.
    chaos: Option<Chaos>,
    /// True if TensorBoard's event file is written.
    tensorboard: bool,
}

/// The newest reports of the coordinator.
#[derive(Default)]
struct CoordinatorReports {
    progress: Option<Progress>,
    ending: Option<Ending>,
}

/// Checks everything before any process starts. The run's folder comes last, so that a refusal
/// leaves nothing behind.
pub(crate) fn prepare(arguments: &Arguments) -> anyhow::Result<LocalRun> {
    let Arguments { manifest: path, workers, set, data, output, tensorboard, port, trainer, chaos } = arguments;
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
        // A user who sets the field on the command line means this machine.
        (Task::Train(_), None) if set.iter().any(|assignment| assignment.starts_with("spec.dataset.uri=")) => {}
        (Task::Train(workload), None) => {
            paths::dataset_uri(&workload.dataset, &mounts).map_err(|field| manifest::refused(path, &[field]))?;
        }
        (Task::Benchmark { .. }, None) => {}
    }
    if let Task::Train(workload) = &mut job.task {
        workload.dataset.cache = paths::cache_uri(&workload.dataset, &mounts);
    }
    let mut run = LocalRun::open(job, &value, trainer.as_deref(), *port, output.as_deref())?;
    if let Task::Train(workload) = &run.job.task {
        run.again = Some(again(arguments, &run.folder, workload, &mounts));
    }
    run.tensorboard = *tensorboard;
    run.chaos = chaos.chaos(u64::from(uuid::Uuid::new_v4().as_fields().1));
    Ok(run)
}

impl LocalRun {
    /// Prepares a run of the job that `value` describes, in the folder given or a new one.
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
        Ok(Self { job, folder, objects, trainer, control, again: None, replay: None, chaos: None, tensorboard: false })
    }

    /// Runs the job to its end, replaces lost processes on the way, and prints the results.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        let mut signals = Signals::take().context("take over the signals")?;
        let display = Display::on_stderr();
        let mut reports = CoordinatorReports::default();
        let verb = if self.folder.continued { "continues" } else { "runs" };
        let LocalRun { job, folder, .. } = &self;
        display.note(&format!("{} {verb} with {} in {}", job.name, workers(job.replicas), folder.path().display()));
        job.warnings().iter().for_each(|warning| display.note(&format!("warning: {warning}")));
        self.objects.iter().for_each(|uri| display.note(&format!("checkpoints and the model go to {uri}")));
        self.chaos.iter().for_each(|chaos| display.note(&chaos.announcement()));
        if let Err(error) = Start::here(job.replicas.get(), Timestamp::now()).keep(folder.path()) {
            display.note(&format!("warning: the environment is not kept: {error}"));
        }
        let mut keeper = match self.tensorboard {
            true => Keeper::with_events(folder, Timestamp::now()).context("make TensorBoard's event file")?,
            false => Keeper::open(folder),
        };
        let finish = self.supervise(&display, &mut signals, &mut reports, &mut keeper).await;
        keeper.keep(reports.progress.as_ref(), &display);
        let finish = finish?;
        drop(display);
        let outcome = self.print_failure(&finish, &reports);
        if outcome == Outcome::Done {
            print(&self.results(&reports, started));
        }
        Ok(outcome)
    }

    /// Repeats the decisions of another run. Prints nothing if that succeeds.
    pub(crate) async fn repeat(mut self, replay: Replay) -> anyhow::Result<Outcome> {
        self.replay = Some(replay);
        let mut signals = Signals::take().context("take over the signals")?;
        let (display, mut reports) = (Display::on_stderr(), CoordinatorReports::default());
        let mut keeper = Keeper::open(&self.folder);
        let finish = self.supervise(&display, &mut signals, &mut reports, &mut keeper).await?;
        drop(display);
        Ok(self.print_failure(&finish, &reports))
    }

    /// Prints the reason if the job is not done.
    fn print_failure(&self, finish: &Finish, reports: &CoordinatorReports) -> Outcome {
        match finish {
            Finish::Complete => Outcome::Done,
            Finish::Interrupted(signal) => {
                eprint_line(&self.stop_message(reports));
                Outcome::Interrupted(*signal)
            }
            Finish::OutOfTime(failure, absent) => {
                eprint_line(&format!("error: {}", self.lateness_message(reports, *failure, absent)));
                Outcome::Failed
            }
            Finish::Failed(failed) => {
                eprint_line(&format!("error: {}", self.failure_message(reports, failed)));
                Outcome::Failed
            }
        }
    }

    fn results(&self, reports: &CoordinatorReports, started: Instant) -> String {
        let ending = reports
            .ending
            .clone()
            .or_else(|| self.roles().filter_map(|role| self.ending(role)).find(|ending| ending.progress.is_some()));
        let progress = ending.as_ref().and_then(|ending| ending.progress.as_ref()).or(reports.progress.as_ref());
        let stored = self.folder.path().join("model.safetensors");
        let model = match ending.as_ref().and_then(|ending| ending.model_uri.as_deref()) {
            Some(uri) => Some(paths::shown(uri).to_owned()),
            None => stored.exists().then(|| stored.display().to_string()),
        };
        // Only the coordinator's report holds the table of a benchmark.
        let table = reports.progress.as_ref().and_then(|progress| progress.benchmark.clone());
        let progress =
            progress.cloned().map(|progress| Progress { benchmark: progress.benchmark.or(table), ..progress });
        summary(progress.as_ref(), model.as_deref(), Some(started.elapsed()))
    }

    fn stop_message(&self, reports: &CoordinatorReports) -> String {
        let Some(again) = &self.again else {
            return "stopped; another run starts from the beginning".to_owned();
        };
        let scaled = self.folder.requested_workers().filter(|workers| *workers != self.job.replicas.get());
        let again = again.clone() + &scaled.map(|workers| format!(" --workers {workers}")).unwrap_or_default();
        match self.kept(reports) {
            Some(kept) => format!("stopped; {kept}. Continue with:\n  {again}"),
            None => format!("stopped before a checkpoint was reported. Continue with:\n  {again}"),
        }
    }

    /// Describes what is left of the state, if a checkpoint was reported or saves failed.
    fn kept(&self, reports: &CoordinatorReports) -> Option<String> {
        let ended = self.roles().filter_map(|role| self.ending(role)?.progress);
        let known: Vec<Progress> = ended.chain(reports.progress.clone()).collect();
        let newest = known.iter().filter_map(|progress| progress.last_checkpoint.clone()).max_by_key(|mark| mark.step);
        let step = known.iter().map(|progress| progress.step).max().unwrap_or_default();
        let unsaved = reports.progress.as_ref().and_then(|progress| progress.unsaved.as_ref());
        kept(newest.as_ref(), step, unsaved, is_there)
    }

    fn failure_message(&self, reports: &CoordinatorReports, failed: &FailedProcess) -> String {
        let FailedProcess { role, end, why, message } = failed;
        // The coordinator's last report explains only its own end.
        let ending = reports.ending.as_ref().filter(|_| *role == ProcessRole::Coordinator);
        let reported = ending.map(|ending| ending.message.clone()).filter(|message| !message.is_empty());
        let cause = match message.clone().or(reported) {
            Some(message) => format!("{role} {end}: {message}"),
            None => format!("{role} {end}"),
        };
        let log = self.folder.log(*role);
        let kept = self.kept(reports).filter(|_| *why != JobFailure::InvalidInput);
        let kept = kept.map(|kept| format!("\n  {kept}")).unwrap_or_default();
        format!("{}\n  log: {}{kept}", why.message(&cause), log.display())
    }

    fn lateness_message(&self, reports: &CoordinatorReports, failure: JobFailure, absent: &[ProcessRole]) -> String {
        let logs: Vec<_> =
            absent.iter().map(|role| format!("\n  {role}: {}", self.folder.log(*role).display())).collect();
        let names: Vec<_> = absent.iter().map(ToString::to_string).collect();
        let detail = format!("{} did not come up; see{}", names.join(", "), logs.concat());
        let kept = self.kept(reports).map(|kept| format!("\n  {kept}")).unwrap_or_default();
        format!("{}{kept}", failure.message(&detail))
    }

    /// Returns the reason that a process left for its end, if any.
    fn message(&self, role: ProcessRole) -> Option<String> {
        self.ending(role).map(|ending| ending.message).filter(|message| !message.is_empty())
    }

    fn ending(&self, role: ProcessRole) -> Option<Ending> {
        Ending::from_line(&std::fs::read_to_string(self.folder.ending(&self.member(role))).ok()?)
    }

    /// Lists every process that the job may have had, the coordinator first.
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

/// Describes what is left of a job that stopped after `step`: the newest checkpoint, if it is still
/// there, and the unsaved steps.
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

/// Returns true if a checkpoint in a folder is still there. One in an object store counts as there.
fn is_there(mark: &CheckpointMark) -> bool {
    ObjectUri::begins(&mark.uri) || Path::new(paths::shown(&mark.uri)).exists()
}

fn valid(path: &Path, value: &Value) -> anyhow::Result<ValidJob> {
    ValidJob::from_value(value.clone()).map_err(|fields| manifest::refused(path, &fields))
}

fn workers(count: NonZeroU32) -> String {
    if count.get() == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

/// Writes the command line that continues the run. The kept manifest holds every change to fields;
/// only the choices outside it are options.
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
    if arguments.tensorboard {
        words.push("--tensorboard".to_owned());
    }
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), quoted(&value)]);
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
    fn the_end_names_the_checkpoint_that_is_there_and_the_unsaved_steps() {
        let mark = CheckpointMark { step: 30, uri: "file:///c/step-30".into(), ..CheckpointMark::default() };
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
