//! One attempt: every process of the job, from their start to the end of the last.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::Context;
use lockstep_launch::{Address, Exit, Job, Launch, Ports, Store, Task};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{
    Heard, Session,
    children::{Children, Happening, Process, Said},
    restart::{End, Role},
    signals::Signals,
};
use crate::display::Display;

/// How long the others may take to notice a loss by themselves.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the others may take to end once one is done.
const FINISH: Duration = Duration::from_secs(60);
/// How long a clean stop may take.
const DRAIN: Duration = Duration::from_secs(60);
/// Namespace of jobs without a cluster.
const NAMESPACE: &str = "local";

/// How the processes ended, in their order, and what ended the attempt.
pub(crate) struct Attempt {
    pub(crate) ended: Vec<(Role, End)>,
    pub(crate) finish: Finish,
}

/// What ended an attempt.
pub(crate) enum Finish {
    /// The processes themselves.
    ByItself,
    /// A signal to this process.
    Interrupted(u8),
    /// These did not come up in time.
    NotUp(Vec<Role>),
}

impl Session {
    /// Starts every process and waits until all have ended.
    pub(super) async fn attempt(
        &self,
        number: u32,
        display: &mut Display,
        signals: &mut Signals,
        heard: &mut Heard,
    ) -> anyhow::Result<Attempt> {
        display.phase("starting");
        heard.ending = None;
        let processes = self.processes(number)?;
        let startup_timeout = Duration::from_secs(self.job.failure_policy.startup_timeout_seconds.into());
        let startup_deadline = Instant::now() + startup_timeout;
        let mut children = Children::start(&self.trainer, processes)?;
        let mut joined = BTreeSet::new();
        let mut up = false;
        let mut finish_deadline = None;
        let mut ended = Vec::new();
        loop {
            tokio::select! {
                happening = children.next() => match happening? {
                    Happening::Said(Said::Joined(member)) => { joined.insert(member); }
                    Happening::Said(said) => {
                        up |= matches!(said, Said::Progress(_));
                        hear(said, heard, display);
                    }
                    Happening::Ended(role, end) => {
                        ended.push((role, end));
                        if end == End::Exit(Exit::Done) {
                            finish_deadline.get_or_insert(Instant::now() + FINISH);
                        } else {
                            end_all(&mut children, SETTLE, &mut ended, heard, display).await?;
                            return Ok(Attempt { ended, finish: Finish::ByItself });
                        }
                    }
                    Happening::AllEnded => return Ok(Attempt { ended, finish: Finish::ByItself }),
                },
                signal = signals.next() => {
                    drain(&mut children, signals, self.stopping(), &mut ended, heard, display).await?;
                    return Ok(Attempt { ended, finish: Finish::Interrupted(signal) });
                }
                () = sleep_until(startup_deadline), if !up && finish_deadline.is_none() => {
                    end_all(&mut children, Duration::ZERO, &mut ended, heard, display).await?;
                    return Ok(Attempt { ended, finish: Finish::NotUp(self.absent(&joined)) });
                }
                () = sleep_until(finish_deadline.unwrap_or(startup_deadline)), if finish_deadline.is_some() => {
                    end_all(&mut children, Duration::ZERO, &mut ended, heard, display).await?;
                    return Ok(Attempt { ended, finish: Finish::ByItself });
                }
            }
        }
    }

    fn stopping(&self) -> &'static str {
        match self.job.task {
            Task::Train(_) => "stopping: a checkpoint is being saved; press Ctrl-C again to stop at once without it",
            Task::Benchmark { .. } => "stopping after this sum; press Ctrl-C again to stop at once",
        }
    }

    fn processes(&self, attempt: u32) -> anyhow::Result<Vec<Process>> {
        self.roles().map(|role| self.process(role, attempt)).collect()
    }

    fn process(&self, role: Role, attempt: u32) -> anyhow::Result<Process> {
        let Self { job, folder, trainer: _, control, again: _ } = self;
        let port = control.number()?;
        let member = self.member(role);
        let ending = folder.ending(&member);
        // An earlier attempt's ending must not be read as this one's.
        fs::write(&ending, "").with_context(|| format!("empty {}", ending.display()))?;
        let launch = Launch {
            job: Job { namespace: NAMESPACE.to_owned(), name: job.name.clone(), uid: folder.uid.clone() },
            attempt,
            member,
            replicas: job.replicas.get(),
            coordinator: Address { host: Ipv4Addr::LOCALHOST.to_string(), port },
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: Ports { control: port, ..Ports::ANY },
            inherits_listener: true,
            output: folder.path().to_owned(),
            store: Store::File(folder.record()),
            ending,
            task: job.task.clone(),
        };
        let listener = if role == Role::Coordinator { Some(control.hand_over()?) } else { None };
        Ok(Process { role, launch, listener, log: folder.log(role) })
    }

    /// The workers that have not joined; all processes when it is not known which have.
    fn absent(&self, joined: &BTreeSet<String>) -> Vec<Role> {
        let has_joined = |role: &Role| *role == Role::Coordinator || joined.contains(&self.member(*role));
        let absent: Vec<_> = self.roles().filter(|role| !has_joined(role)).collect();
        if absent.is_empty() { self.roles().collect() } else { absent }
    }
}

fn hear(said: Said, heard: &mut Heard, display: &mut Display) {
    match said {
        Said::Listening(address) => tracing::debug!(address, "the coordinator listens"),
        Said::Joined(member) => tracing::debug!(member, "joined"),
        Said::Progress(progress) => {
            display.phase(if progress.benchmark.is_some() { "measuring" } else { "training" });
            display.progress(&progress);
            heard.progress = Some(*progress);
        }
        Said::Ending(ending) => heard.ending = Some(*ending),
    }
}

async fn end_all(
    children: &mut Children,
    settle: Duration,
    ended: &mut Vec<(Role, End)>,
    heard: &mut Heard,
    display: &mut Display,
) -> anyhow::Result<()> {
    for happening in children.end_all(settle).await? {
        note_end(happening, ended, heard, display);
    }
    Ok(())
}

/// A clean stop: the workers first, because they end with the coordinator's help. A second signal kills.
async fn drain(
    children: &mut Children,
    signals: &mut Signals,
    note: &str,
    ended: &mut Vec<(Role, End)>,
    heard: &mut Heard,
    display: &mut Display,
) -> anyhow::Result<()> {
    display.phase("stopping");
    display.note(note);
    children.signal_workers(Signal::TERM);
    let deadline = Instant::now() + DRAIN;
    let mut killed = false;
    let mut coordinator_told = false;
    loop {
        if !children.has_workers() && !coordinator_told {
            children.signal_all(Signal::TERM);
            coordinator_told = true;
        }
        tokio::select! {
            happening = children.next() => match happening? {
                Happening::AllEnded => return Ok(()),
                happening => note_end(happening, ended, heard, display),
            },
            _ = signals.next() => children.signal_all(Signal::KILL),
            () = sleep_until(deadline), if !killed => {
                display.note(&format!("no clean stop within {} s: killing the processes", DRAIN.as_secs()));
                children.signal_all(Signal::KILL);
                killed = true;
            }
        }
    }
}

fn note_end(happening: Happening, ended: &mut Vec<(Role, End)>, heard: &mut Heard, display: &mut Display) {
    match happening {
        Happening::Said(said) => hear(said, heard, display),
        Happening::Ended(role, end) => ended.push((role, end)),
        Happening::AllEnded => {}
    }
}
