//! The processes of a job from the first start to the last end. A lost process is replaced while
//! the others go on.

mod stop;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use lockstep_launch::{
    Address, Exit, GroupChange, Job, Launch, Ports, Progress, Reached, RecordStore, Task, Unsaved, out_of_memory_kills,
};
use lockstep_lifecycle::{Attendance, JobFailure};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{
    CoordinatorReports, LocalRun,
    chaos::Kill,
    children::{Children, CoordinatorLine, Process, ProcessEvent},
    folder::encrypts,
    keeper::Keeper,
    restart::{Decision, Holders, ProcessEnd, ProcessRole, Restarts, Wanted},
    signals::Signals,
};
use crate::display::Display;

/// Time that the others have to end once one is done.
const FINISH: Duration = Duration::from_secs(60);
/// Time that the others have to end when the job failed.
const SETTLE: Duration = Duration::from_secs(1);
/// Seconds of a clean stop, if the job's template sets none.
const GRACE_SECONDS: u32 = 60;
/// Time until a process that could not be started is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Time between two looks at the request of `lockstep scale`.
const LOOK: Duration = Duration::from_millis(200);
/// Namespace of jobs without a cluster.
const NAMESPACE: &str = "local";

/// The end of a job.
pub(crate) enum Finish {
    /// The last step is done.
    Complete,
    /// A process ended and is not started again.
    Failed(FailedProcess),
    /// A signal arrived at this process.
    Interrupted(u8),
    /// Its time was over. If training had to begin by then, these processes did not come up.
    OutOfTime(JobFailure, Vec<ProcessRole>),
}

/// The process that made a job fail.
pub(crate) struct FailedProcess {
    pub(crate) role: ProcessRole,
    pub(crate) end: ProcessEnd,
    pub(crate) why: JobFailure,
    /// The message that it left behind.
    pub(crate) message: Option<String>,
}

/// The job's processes and the facts known of them.
struct Supervised<'a> {
    run: &'a LocalRun,
    children: Children,
    /// Number of workers that the job shall have. They are the ones with the lowest numbers.
    workers: u32,
    restarts: Restarts,
    /// The start of each process that was started last under its name.
    started: BTreeMap<ProcessRole, Instant>,
    /// The time since when the job does not train, with the newest generation of that time.
    stopped: Option<(Timestamp, u64)>,
    /// The newest generation that did a step.
    generation: u64,
    /// Number of out-of-memory kills by the kernel before the run, and of those that explain an end
    /// since; `None` if the kernel does not count them.
    memory_kills: Option<u64>,
    /// Processes that chaos killed and that have not ended yet.
    chaos_victims: Vec<ProcessRole>,
    /// Workers that were asked to leave, each with the time at which it is killed.
    leaving: Vec<(Instant, ProcessRole)>,
    /// Processes to start, each with its time.
    pending: Vec<(Instant, ProcessRole)>,
    joined: BTreeSet<String>,
    /// Members of the group by the newest report.
    members: BTreeSet<String>,
    /// Members that have ended since the group changed.
    gone: BTreeSet<String>,
    /// The furthest announced step of the newest generation.
    reached: Reached,
    /// True once the processes were asked to stop.
    drains: bool,
    /// The last reason that was shown. Several processes may end for the same reason.
    shown: Option<String>,
    /// Time by which every process has to end, once one is done.
    finish: Option<Instant>,
}

impl LocalRun {
    /// Starts every process, replaces those that are lost, and waits until all have ended.
    pub(super) async fn supervise(
        &self,
        display: &Display,
        signals: &mut Signals,
        reports: &mut CoordinatorReports,
        keeper: &mut Keeper,
    ) -> anyhow::Result<Finish> {
        display.phase("starting");
        let workers = self.job.replicas.get();
        let roles = std::iter::once(ProcessRole::Coordinator).chain((0..workers).map(ProcessRole::Worker));
        let processes = roles.map(|role| self.process(role, workers)).collect::<anyhow::Result<Vec<_>>>()?;
        let reached = self.folder.reached()?;
        let mut job = Supervised {
            run: self,
            children: Children::start(&self.trainer, processes)?,
            workers,
            restarts: Restarts::within(self.job.limits()),
            started: BTreeMap::new(),
            stopped: Some((Timestamp::now(), 0)),
            generation: 0,
            memory_kills: out_of_memory_kills(),
            chaos_victims: Vec::new(),
            leaving: Vec::new(),
            pending: Vec::new(),
            joined: BTreeSet::new(),
            members: BTreeSet::new(),
            gone: BTreeSet::new(),
            reached,
            drains: false,
            shown: None,
            finish: None,
        };
        let mut look = Instant::now() + LOOK;
        let begun = Instant::now();
        let began = Timestamp::now();
        job.started = job.children.running().into_iter().map(|role| (role, begun)).collect();
        let mut kills = self.chaos.clone().into_iter().flatten().peekable();
        loop {
            let kill = kills.peek().copied();
            let kills_go_on = kill.is_some() && job.finish.is_none();
            let start = job.pending.iter().map(|(time, _)| *time).min();
            let overdue = job.leaving.iter().map(|(time, _)| *time).min();
            tokio::select! {
                event = job.children.next(), if !job.children.is_empty() => match event? {
                    ProcessEvent::Line(line) => job.take_line(line, reports, display),
                    ProcessEvent::Ended(role, end) => {
                        if let Some(failed) = job.ended(role, end, display) {
                            return job.fail(failed, signals, reports, display).await;
                        }
                        if role == ProcessRole::Coordinator && end != ProcessEnd::Exit(Exit::Done) {
                            // This ending would not explain a later failure of the job.
                            reports.ending = None;
                        }
                    }
                },
                () = sleep_until(start.unwrap_or(look)), if start.is_some() => job.start_pending(display),
                () = sleep_until(overdue.unwrap_or(look)), if overdue.is_some() => job.kill_overdue(display),
                signal = signals.next() => {
                    display.note(self.stopping());
                    job.drain(true, signals, reports, display).await?;
                    return Ok(if job.finish.is_some() { Finish::Complete } else { Finish::Interrupted(signal) });
                }
                () = sleep_until(job.finish.unwrap_or(look)), if job.finish.is_some() => {
                    job.end_all(Duration::ZERO, reports, display).await?;
                    return Ok(Finish::Complete);
                }
                () = sleep_until(kill.map_or(look, |kill| begun + kill.at)), if kills_go_on => {
                    job.kill_victim(kill, display);
                    kills.next();
                }
                () = sleep_until(look), if job.finish.is_none() => {
                    look = Instant::now() + LOOK;
                    keeper.tick(reports.progress.as_ref(), look.into_std(), display);
                    job.resize(display)?;
                    if let Some(failure) = job.out_of_time(began, Timestamp::now()) {
                        return job.give_up(failure, signals, reports, display).await;
                    }
                }
            }
            if job.children.is_empty() && job.pending.is_empty() {
                return Ok(Finish::Complete);
            }
        }
    }

    /// Tells the user the effect of this signal and of the next one.
    fn stopping(&self) -> &'static str {
        match self.job.task {
            Task::Train(_) => "stopping: a checkpoint is being saved; press Ctrl-C again to stop at once without it",
            Task::Benchmark { .. } => "stopping after this sum; press Ctrl-C again to stop at once",
        }
    }

    /// Returns the seconds that a clean stop may take.
    fn grace_seconds(&self) -> u32 {
        self.job.grace_seconds().unwrap_or(GRACE_SECONDS)
    }

    /// Describes a process of this job among `workers` workers.
    fn process(&self, role: ProcessRole, workers: u32) -> anyhow::Result<Process> {
        let Self { job, folder, objects, trainer: _, control, again: _, replay, chaos: _, tensorboard: _ } = self;
        let port = control.number()?;
        let member = self.member(role);
        let ending = folder.ending(&member);
        // The ending of the process before must not be read as this one's.
        fs::write(&ending, "").with_context(|| format!("empty {}", ending.display()))?;
        let launch = Launch {
            job: Job { namespace: NAMESPACE.to_owned(), name: job.name.clone(), uid: folder.uid.clone() },
            attempt: folder.attempt,
            member,
            replicas: workers,
            elastic: job.elastic,
            coordinator: Address { host: Ipv4Addr::LOCALHOST.to_string(), port },
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: Ports { control: port, ..Ports::ANY },
            inherits_listener: true,
            output: folder.path().to_owned(),
            objects: objects.clone(),
            store: RecordStore::File(folder.record()),
            credentials: encrypts(&job.task).then(|| folder.credentials()),
            grace_seconds: self.grace_seconds(),
            ending,
            task: job.task.clone(),
        };
        let listener = if role == ProcessRole::Coordinator { Some(control.hand_over()?) } else { None };
        Ok(Process { role, launch, replay: replay.clone(), listener, log: folder.log(role) })
    }
}

impl Supervised<'_> {
    fn take_line(&mut self, line: CoordinatorLine, reports: &mut CoordinatorReports, display: &Display) {
        match line {
            CoordinatorLine::Listening(address) => tracing::debug!(address, "the coordinator listens"),
            CoordinatorLine::Joined(member) => {
                let is_it = |worker: &u32| self.run.member(ProcessRole::Worker(*worker)) == member;
                (0..self.workers).filter(is_it).for_each(|worker| self.restarts.joined(worker));
                self.joined.insert(member);
            }
            CoordinatorLine::Members(members) => {
                self.members = members.into_iter().filter(|member| !self.gone.contains(member)).collect();
            }
            CoordinatorLine::Change(change) => {
                self.gone.clear();
                self.changed(*change, reports, display);
            }
            CoordinatorLine::Found(change) => match self.run.folder.last_change() {
                Ok(Some(last)) if last.generation >= change.generation => {}
                Ok(_) => self.changed(*change, reports, display),
                Err(error) => display.note(&format!("{error:#}")),
            },
            CoordinatorLine::Progress(progress) => {
                self.restarts.reported(progress.step, Timestamp::now());
                self.generation = self.generation.max(progress.generation);
                // A group that lost too many workers trains again in another generation.
                self.stopped = self.stopped.filter(|(_, generation)| progress.generation <= *generation);
                self.reached.reported(&progress);
                display.phase(if progress.benchmark.is_some() { "measuring" } else { "training" });
                let before = reports.progress.take();
                let unsaved = |progress: &Progress| progress.unsaved.clone();
                let before_unsaved = before.as_ref().and_then(unsaved);
                let mark = before.and_then(|before| before.last_checkpoint);
                let progress = progress.after(mark.as_ref(), before_unsaved.as_ref());
                display.progress(&progress);
                let waits = |unsaved: Option<Unsaved>| unsaved.is_some_and(|unsaved| unsaved.waits);
                if waits(unsaved(&progress)) && !waits(before_unsaved) {
                    display.note(self.waiting_advice());
                }
                reports.progress = Some(progress);
            }
            CoordinatorLine::Ending(ending) => reports.ending = Some(*ending),
        }
    }

    /// Returns the advice to a user whose workers wait for the storage.
    fn waiting_advice(&self) -> &'static str {
        match self.drains {
            true => "they end once the storage takes the checkpoint; to give up the unsaved steps, press Ctrl-C again",
            false => {
                "they go on once the storage takes the checkpoint; to give up the unsaved steps, press Ctrl-C twice"
            }
        }
    }

    /// Shows a change of the group, and keeps it.
    fn changed(&mut self, mut change: GroupChange, reports: &CoordinatorReports, display: &Display) {
        self.reached.changed(&mut change);
        // The first membership is no change.
        if change.generation > 1 && reports.progress.is_some() {
            display.note(&change.to_string());
        }
        if let Err(error) = self.run.folder.keep_change(&change) {
            display.note(&format!("{error:#}"));
        }
    }

    /// Kills the victim of `kill`.
    fn kill_victim(&mut self, kill: Option<Kill>, display: &Display) {
        if let Some(victim) = kill.and_then(|kill| kill.victim(&self.children.running())) {
            display.note(&format!("chaos kills {victim}"));
            self.children.signal(victim, Signal::KILL);
            self.chaos_victims.push(victim);
        }
    }

    /// Has a lost process replaced, or returns it if the job has failed with it.
    fn ended(&mut self, role: ProcessRole, end: ProcessEnd, display: &Display) -> Option<FailedProcess> {
        if end == ProcessEnd::Exit(Exit::Done) {
            self.finish.get_or_insert(Instant::now() + FINISH);
            self.pending.clear();
            // Nobody admits late workers any more.
            if role == ProcessRole::Coordinator {
                self.children.signal_workers(Signal::TERM);
            }
        }
        let leaves = matches!(role, ProcessRole::Worker(index) if index >= self.workers);
        let wanted = if leaves || self.finish.is_some() { Wanted::No } else { Wanted::Yes };
        let killed_by_chaos = self.chaos_victims.contains(&role) && end == ProcessEnd::Signal(Signal::KILL.as_raw());
        let end = if killed_by_chaos { ProcessEnd::Chaos } else { self.explained(end) };
        self.chaos_victims.retain(|victim| *victim != role);
        self.leaving.retain(|(_, leaving)| *leaving != role);
        let belonged = self.members.take(&self.run.member(role));
        self.joined.remove(&self.run.member(role));
        let now = Timestamp::now();
        if wanted == Wanted::Yes && self.running_workers() < self.least_workers() {
            self.stopped.get_or_insert((now, self.generation));
        }
        let lived = self.started.get(&role).map_or(Duration::ZERO, Instant::elapsed);
        let lived = SignedDuration::try_from(lived).unwrap_or(SignedDuration::MAX);
        let holders = match (self.is_held(), &belonged) {
            (true, Some(_)) => Holders::Others,
            (true, None) => Holders::OthersNotJoined,
            (false, _) => Holders::Nobody,
        };
        self.gone.extend(belonged);
        match self.restarts.next(role, end, wanted, holders, lived, now) {
            Decision::Nothing => {
                if leaves {
                    display.note(&format!("{role} left"));
                }
                None
            }
            Decision::Restart { pause } => {
                // A killed process leaves no reason, but the reason of one before it may still be
                // there.
                let leaves_reason = match end {
                    ProcessEnd::Exit(Exit::Retry | Exit::Fatal) | ProcessEnd::Crash(_) | ProcessEnd::OutOfMemory => {
                        true
                    }
                    ProcessEnd::Exit(Exit::Done | Exit::Drained) | ProcessEnd::Signal(_) | ProcessEnd::Chaos => false,
                };
                let reason = self.run.message(role).filter(|_| leaves_reason);
                match reason.filter(|reason| self.shown.as_ref() != Some(reason)) {
                    Some(reason) => {
                        display.note(&format!("{role} {end}: {reason}; a new one takes its place"));
                        self.shown = Some(reason);
                    }
                    // It was said that chaos kills it.
                    None if end == ProcessEnd::Chaos => {}
                    None => display.note(&format!("{role} {end}; a new one takes its place")),
                }
                self.pending.push((Instant::now() + pause.unsigned_abs(), role));
                None
            }
            Decision::Fail(why) => Some(self.failed(role, end, why)),
        }
    }

    fn failed(&self, role: ProcessRole, end: ProcessEnd, why: JobFailure) -> FailedProcess {
        // A message that was left beforehand speaks of memory, and does not explain a signal.
        let message = self.run.message(role).filter(|_| !matches!(end, ProcessEnd::Signal(_)));
        FailedProcess { role, end, why, message }
    }

    /// Recognises a kill by the kernel, if the count of out-of-memory kills has grown.
    fn explained(&mut self, end: ProcessEnd) -> ProcessEnd {
        match (end, self.memory_kills, out_of_memory_kills()) {
            (ProcessEnd::Signal(signal), Some(before), Some(now))
                if signal == Signal::KILL.as_raw() && now > before =>
            {
                self.memory_kills = Some(before + 1);
                ProcessEnd::OutOfMemory
            }
            _ => end,
        }
    }

    /// Returns true if a member of the group runs, and may go on with its state.
    fn is_held(&self) -> bool {
        self.children.running().iter().any(|role| self.members.contains(&self.run.member(*role)))
    }

    /// Returns true if the state is of use later.
    fn is_worth_saving(&self) -> bool {
        matches!(self.run.job.task, Task::Train(_)) && self.is_held()
    }

    /// Starts the processes that are due. A process that cannot be started is tried again, because
    /// the others hold the state and train on or wait.
    fn start_pending(&mut self, display: &Display) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.pending).into_iter().partition(|(time, _)| *time <= now);
        self.pending = later;
        for (_, role) in due {
            self.started.insert(role, now);
            let process = self.run.process(role, self.workers);
            if let Err(error) = process.and_then(|process| self.children.add(&self.run.trainer, process)) {
                let reason = format!("{error:#}");
                if self.shown.as_ref() != Some(&reason) {
                    display.note(&format!(
                        "{role} could not be started and is tried again every {} s: {reason}",
                        AGAIN.as_secs()
                    ));
                    self.shown = Some(reason);
                }
                self.pending.push((now + AGAIN, role));
            }
        }
    }

    /// Follows the request of `lockstep scale`.
    fn resize(&mut self, display: &Display) -> anyhow::Result<()> {
        let Some(wanted) = self.run.folder.requested_workers().filter(|wanted| *wanted != self.workers) else {
            return Ok(());
        };
        let elastic = self.run.job.elastic;
        if !(elastic.min_replicas..=elastic.max_replicas).contains(&wanted) {
            return Ok(());
        }
        display.note(&format!("scaling from {} to {wanted} workers", self.workers));
        self.pending.retain(|(_, role)| !matches!(role, ProcessRole::Worker(index) if *index >= wanted));
        let kill = Instant::now() + Duration::from_secs(self.run.grace_seconds().into());
        for leaving in (wanted..self.workers).map(ProcessRole::Worker).filter(|role| self.children.has(*role)) {
            self.children.signal(leaving, Signal::TERM);
            self.leaving.push((kill, leaving));
        }
        for index in self.workers..wanted {
            if !self.children.has(ProcessRole::Worker(index)) {
                self.pending.push((Instant::now(), ProcessRole::Worker(index)));
            }
        }
        self.workers = wanted;
        Ok(())
    }

    /// Kills the leaving workers whose time for a clean stop is over. It spares a member of the
    /// group, because others may still have to copy its state.
    fn kill_overdue(&mut self, display: &Display) {
        let (now, seconds) = (Instant::now(), self.run.grace_seconds());
        for (time, role) in std::mem::take(&mut self.leaving) {
            if now < time {
                self.leaving.push((time, role));
            } else if self.members.contains(&self.run.member(role)) {
                self.leaving.push((now + LOOK, role));
            } else {
                display.note(&format!("{role} has not left within {seconds} s: killing it"));
                self.children.signal(role, Signal::KILL);
            }
        }
    }

    /// Returns the failure of a job whose time is over.
    fn out_of_time(&self, began: Timestamp, now: Timestamp) -> Option<JobFailure> {
        let limits = self.run.job.limits();
        let stopped = self.stopped.map(|(stopped, _)| stopped);
        let waited = stopped.filter(|stopped| limits.patience_ends(began, *stopped) <= now);
        limits.at_deadline(began, now).or_else(|| waited.map(|_| limits.out_of_patience(self.attendance())))
    }

    fn attendance(&self) -> Attendance {
        let has_joined = |worker: &u32| self.joined.contains(&self.run.member(ProcessRole::Worker(*worker)));
        let joined = (0..self.workers).filter(has_joined).count() as u32;
        Attendance { joined, all: self.workers, least: self.least_workers() }
    }

    fn running_workers(&self) -> u32 {
        self.children.running().iter().filter(|role| matches!(role, ProcessRole::Worker(_))).count() as u32
    }

    fn least_workers(&self) -> u32 {
        self.run.job.elastic.min_replicas.min(self.workers)
    }

    /// Returns the workers that have not joined, or all processes if it is not known which have.
    fn absent(&self) -> Vec<ProcessRole> {
        let workers = || (0..self.workers).map(ProcessRole::Worker);
        let absent: Vec<_> = workers().filter(|role| !self.joined.contains(&self.run.member(*role))).collect();
        if absent.is_empty() { std::iter::once(ProcessRole::Coordinator).chain(workers()).collect() } else { absent }
    }
}
