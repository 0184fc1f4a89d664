//! The end of a job's processes: by request, or because the job has failed.

use std::time::Duration;

use lockstep_launch::Exit;
use lockstep_lifecycle::JobFailure;
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{FailedProcess, Finish, LOOK, SETTLE, Supervised};
use crate::{
    display::Display,
    run::{
        CoordinatorReports,
        children::ProcessEvent,
        restart::{ProcessEnd, ProcessRole, first_cause},
        signals::Signals,
    },
};

impl Supervised<'_> {
    /// Ends a job that has failed with this process. If other workers hold a state that is of use
    /// later, they save it first.
    pub(super) async fn fail(
        &mut self,
        failed: FailedProcess,
        signals: &mut Signals,
        reports: &mut CoordinatorReports,
        display: &Display,
    ) -> anyhow::Result<Finish> {
        if failed.why == JobFailure::InvalidInput || !self.is_worth_saving() {
            return Ok(Finish::Failed(self.settle(failed, reports, display).await?));
        }
        let FailedProcess { role, end, .. } = &failed;
        let seconds = self.run.grace_seconds();
        display.note(&format!("{role} {end} too often: the others have {seconds} s to save their state"));
        // The coordinator's ending from now on does not explain the failure.
        let before = reports.ending.take();
        self.drain(false, signals, reports, display).await?;
        if self.finish.is_some() {
            return Ok(Finish::Complete);
        }
        reports.ending = before;
        Ok(Finish::Failed(failed))
    }

    /// Ends a job that is out of time. Workers that hold a state of use save it first.
    pub(super) async fn give_up(
        &mut self,
        failure: JobFailure,
        signals: &mut Signals,
        reports: &mut CoordinatorReports,
        display: &Display,
    ) -> anyhow::Result<Finish> {
        let absent = match failure {
            JobFailure::StartupTimeout { .. } => self.absent(),
            JobFailure::InvalidInput
            | JobFailure::BackoffLimitExceeded { .. }
            | JobFailure::DeadlineExceeded { .. } => Vec::new(),
        };
        if self.is_worth_saving() {
            let seconds = self.run.grace_seconds();
            display.note(&format!("{}: the workers have {seconds} s to save their state", failure.message("")));
            self.drain(false, signals, reports, display).await?;
        } else {
            self.end_all(Duration::ZERO, reports, display).await?;
        }
        Ok(if self.finish.is_some() { Finish::Complete } else { Finish::OutOfTime(failure, absent) })
    }

    /// Ends the other processes of a failed job, and returns the process that explains the failure.
    /// A process that ends by itself within moments may be the cause.
    async fn settle(
        &mut self,
        failed: FailedProcess,
        reports: &mut CoordinatorReports,
        display: &Display,
    ) -> anyhow::Result<FailedProcess> {
        let events = self.children.end_all(SETTLE).await?;
        let mut ends = Vec::new();
        for event in events {
            match event {
                ProcessEvent::Line(line) => self.take_line(line, reports, display),
                ProcessEvent::Ended(role, end) => ends.push((role, self.explained(end))),
            }
        }
        // A process that was asked to stop later is no cause: it drains, or is killed.
        let crashed = |end: &ProcessEnd| matches!(end, ProcessEnd::Crash(_) | ProcessEnd::OutOfMemory);
        let why = failed.why;
        let later = ends.into_iter().filter(|(_, end)| crashed(end)).map(|(role, end)| self.failed(role, end, why));
        let all = std::iter::once(failed).chain(later).collect();
        match first_cause(all, |failed| failed.end) {
            Some(failed) => Ok(failed),
            None => unreachable!("at least one has failed"),
        }
    }

    /// Ends all processes after `settle`.
    pub(super) async fn end_all(
        &mut self,
        settle: Duration,
        reports: &mut CoordinatorReports,
        display: &Display,
    ) -> anyhow::Result<()> {
        for event in self.children.end_all(settle).await? {
            if let ProcessEvent::Line(line) = event {
                self.take_line(line, reports, display);
            }
        }
        Ok(())
    }

    /// Stops the job cleanly. The workers stop first, because they end with the coordinator's help.
    /// Once the user `was_told` of its effect, a signal kills the processes.
    pub(super) async fn drain(
        &mut self,
        mut was_told: bool,
        signals: &mut Signals,
        reports: &mut CoordinatorReports,
        display: &Display,
    ) -> anyhow::Result<()> {
        display.phase("stopping");
        self.drains = true;
        self.pending.clear();
        self.replace_coordinator(Instant::now());
        self.children.signal_workers(Signal::TERM);
        let grace_seconds = self.run.grace_seconds();
        let deadline = Instant::now() + Duration::from_secs(grace_seconds.into());
        let mut killed = false;
        let mut coordinator_told = false;
        while !self.children.is_empty() {
            if !self.children.has_workers() && !coordinator_told {
                self.children.signal_all(Signal::TERM);
                coordinator_told = true;
            }
            let start = self.pending.first().map(|(time, _)| *time).filter(|_| !killed && self.children.has_workers());
            tokio::select! {
                event = self.children.next() => {
                    match event? {
                        ProcessEvent::Line(line) => self.take_line(line, reports, display),
                        ProcessEvent::Ended(_, ProcessEnd::Exit(Exit::Done)) => {
                            self.finish.get_or_insert(deadline);
                        }
                        ProcessEvent::Ended(ProcessRole::Coordinator, end) if is_lost(end) => {
                            reports.ending = None;
                            self.replace_coordinator(Instant::now() + LOOK);
                        }
                        ProcessEvent::Ended(..) => {}
                    }
                }
                () = sleep_until(start.unwrap_or(deadline)), if start.is_some() => self.start_pending(display),
                _ = signals.next() => {
                    if was_told {
                        self.children.signal_all(Signal::KILL);
                        killed = true;
                    } else {
                        display.note(self.run.stopping());
                        was_told = true;
                    }
                }
                () = sleep_until(deadline), if !killed => {
                    display.note(&format!("no clean stop within {grace_seconds} s: killing the processes"));
                    self.children.signal_all(Signal::KILL);
                    killed = true;
                }
            }
        }
        Ok(())
    }

    /// Replaces a lost coordinator: a broken group saves nothing before a coordinator has formed
    /// the next generation.
    fn replace_coordinator(&mut self, time: Instant) {
        if self.children.has_workers() && !self.children.has(ProcessRole::Coordinator) {
            self.pending = vec![(time, ProcessRole::Coordinator)];
        }
    }
}

/// Returns true if a coordinator with this end may do better when it is started again.
fn is_lost(end: ProcessEnd) -> bool {
    match end {
        ProcessEnd::Signal(_)
        | ProcessEnd::OutOfMemory
        | ProcessEnd::Chaos
        | ProcessEnd::Crash(_)
        | ProcessEnd::Exit(Exit::Retry) => true,
        ProcessEnd::Exit(Exit::Done | Exit::Drained | Exit::Fatal) => false,
    }
}
