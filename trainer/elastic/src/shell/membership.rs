//! Runs a [`Member`](crate::Member) on its own thread, so that it answers while the training thread
//! computes.

use std::{
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    connection,
    event::MembershipEvent,
    mailbox::{End, Leaving, Mailbox},
    reach::{Blocked, Obstacle},
};
use crate::{
    ActivityMonitor, Assignment, Break, CheckpointMark, Digest, FollowedGroup, HeldState, Hello, PlanAgreement,
    member::FinalReport, message::MAX_PAYLOAD_BYTES,
};

/// A worker's session with the coordinator, from joining to the final report. Dropping it closes
/// the connection. Without a final report the coordinator counts the worker as lost.
pub struct Membership {
    mailbox: Arc<Mailbox>,
    coordinator: String,
    thread: Option<JoinHandle<()>>,
}

/// The result of joining: the role of this process in the newest group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The process belongs to this group.
    Member(Assignment),
    /// This group trains without the process, which catches up with it. It calls
    /// [`Membership::caught_up`] when it has, and [`Membership::regroup`] when the group changes or
    /// feeds it no more.
    Newcomer(FollowedGroup),
}

/// The reason why a worker is in no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The worker does not belong to the coordinator's group.
    #[error("the coordinator refused this worker: {reason}")]
    Refused {
        /// The difference that was found, and the remedy.
        reason: String,
        /// True if another process of this pod may join.
        may_retry: bool,
    },
    /// The group was given up. A new attempt may succeed.
    #[error("the group was given up: {reason}")]
    Aborted {
        /// The cause.
        reason: String,
    },
    /// The group goes on, or is done, without this worker.
    #[error("the group does not need this worker any more")]
    Released,
    /// No coordinator answers.
    #[error("no coordinator answered at {coordinator} for {waited:?}: {cause}")]
    Unreachable {
        /// The host and the port.
        coordinator: String,
        /// The time without an answer.
        waited: Duration,
        /// The result of the last attempt.
        cause: String,
        /// The kind of the obstacle.
        obstacle: Obstacle,
    },
}

/// The coordinator's reply to a final report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalReply {
    /// The report is recorded, and the process may end.
    Recorded,
    /// A member was lost before all members reported. A new generation is being formed; see
    /// [`Membership::regroup`].
    Changed,
}

/// The reason why a final report did not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinalReportError {
    /// The group was over before all members reported.
    #[error("the group was given up: {reason}")]
    Aborted {
        /// The cause.
        reason: String,
    },
    /// No coordinator accepted the report.
    #[error("no coordinator accepted the worker's final report for {waited:?}")]
    Unreachable {
        /// The time without an answer.
        waited: Duration,
    },
}

impl Membership {
    /// Joins the group of the coordinator at `coordinator` (host and port) with the state `held`.
    /// It blocks until the process is committed to a group or told to follow one. Each attempt
    /// resolves the name again. `patience` limits the time without any coordinator. The coordinator
    /// decides how long to wait for other members.
    ///
    /// # Errors
    /// See [`JoinError`].
    ///
    /// # Panics
    /// Panics if the system starts no thread.
    pub fn join(
        coordinator: &str,
        hello: Hello,
        held: HeldState,
        patience: Duration,
    ) -> Result<(Self, Admission), JoinError> {
        let mailbox = Arc::new(Mailbox::new());
        let thread = {
            let (mailbox, coordinator) = (Arc::clone(&mailbox), coordinator.to_owned());
            thread::Builder::new()
                .name("membership".to_owned())
                .spawn(move || connection::keep(&coordinator, hello, held, &mailbox))
                .unwrap_or_else(|error| panic!("no thread for the membership of this worker: {error}"))
        };
        let membership = Self { mailbox, coordinator: coordinator.to_owned(), thread: Some(thread) };
        let admission = membership.admission(patience)?;
        Ok((membership, admission))
    }

    /// Reports that this worker holds the state that its group starts from.
    pub fn entered(&self) {
        self.mailbox.put(|outbox| outbox.entered = true);
    }

    /// Reports that this worker replaced the state of its generation by one from a checkpoint.
    pub fn reloaded(&self) {
        self.mailbox.put(|outbox| outbox.reloaded = true);
    }

    /// Reports a plan on which the group agreed. It becomes a part of the job's history.
    pub fn agreed(&self, summing: PlanAgreement) {
        self.mailbox.put(|outbox| outbox.plans.push(summing));
    }

    /// Reports that this follower holds a state of the group instead of its own.
    pub fn took_over(&self) {
        self.mailbox.put(|outbox| outbox.took_over = true);
    }

    /// Reports that this follower has caught up. It follows the group until it is let in.
    pub fn caught_up(&self) {
        self.mailbox.put(|outbox| outbox.caught_up = true);
    }

    /// Reports that this worker has sealed: it completes no further collective of its generation.
    /// It blocks until the worker is committed to the next generation or told to follow one. `held`
    /// is `None` in the middle of a copy. `broken` is the failure, if the worker was not asked to
    /// seal.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn regroup(
        &self,
        held: Option<HeldState>,
        broken: Option<Break>,
        patience: Duration,
    ) -> Result<Admission, JoinError> {
        self.mailbox.change(|state| (state.group, state.lead, state.sealing) = (None, None, None));
        self.mailbox.put(|outbox| (outbox.sealed, outbox.final_report) = (Some((held, broken)), None));
        self.admission(patience)
    }

    fn admission(&self, patience: Duration) -> Result<Admission, JoinError> {
        let admission = self.mailbox.wait(patience, |state| match &state.end {
            Some(End::Refused { reason, may_retry }) => {
                Some(Err(JoinError::Refused { reason: reason.clone(), may_retry: *may_retry }))
            }
            Some(End::Aborted(reason)) => Some(Err(JoinError::Aborted { reason: reason.clone() })),
            Some(End::Released) => Some(Err(JoinError::Released)),
            None => {
                let member = state.group.clone().map(Admission::Member);
                member.or_else(|| state.lead.clone().map(Admission::Newcomer)).map(Ok)
            }
        });
        admission.unwrap_or_else(|waited| {
            let Blocked { obstacle, problem: cause } = self.mailbox.state().blocked.clone();
            Err(JoinError::Unreachable { coordinator: self.coordinator.clone(), waited, cause, obstacle })
        })
    }

    /// Returns the activity monitor of the training thread. A worker that computes without a move
    /// for long leaves its group.
    #[must_use]
    pub fn work(&self) -> &Arc<ActivityMonitor> {
        &self.mailbox.work
    }

    /// Returns `Some` while a new generation is being formed, with true if it is planned. Ask
    /// between two steps.
    #[must_use]
    pub fn sealing(&self) -> Option<bool> {
        self.mailbox.state().sealing
    }

    /// Returns true if this worker has to leave and no coordinator is there to release it. All
    /// members then stop without one.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.mailbox.state().is_stranded()
    }

    /// Returns true if this worker was a member of a group, so that others may lack its state.
    #[must_use]
    pub fn has_belonged(&self) -> bool {
        self.mailbox.state().has_belonged
    }

    /// Calls `callback` from the membership's thread for every event, past ones first.
    pub fn on_event(&self, callback: impl FnMut(&MembershipEvent) + Send + 'static) {
        self.mailbox.listen(Box::new(callback));
    }

    /// Returns true if this worker belongs to no group any more and will never join one.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.mailbox.state().end.is_some()
    }

    /// Returns the cause if the group is over. Ask between two steps.
    #[must_use]
    pub fn aborted(&self) -> Option<String> {
        match &self.mailbox.state().end {
            Some(End::Aborted(reason) | End::Refused { reason, .. }) => Some(reason.clone()),
            Some(End::Released) | None => None,
        }
    }

    /// Returns the cause if all members have to stop after a step. Ask between two steps.
    #[must_use]
    pub fn draining(&self) -> Option<String> {
        self.mailbox.state().draining.clone()
    }

    /// Reports the progress of the training. A newer report replaces it, and without a coordinator
    /// it is dropped.
    pub fn progress(&self, step: u64, payload: Vec<u8>) {
        assert_fits(&payload);
        self.mailbox.put(|outbox| outbox.progress = Some((step, payload)));
    }

    /// Reports a complete checkpoint. The newest one reaches the record, if necessary through the
    /// next coordinator.
    pub fn checkpoint(&self, step: u64, manifest_digest: Digest) {
        self.mailbox.put(|outbox| outbox.checkpoint = Some(CheckpointMark { step, manifest_digest }));
    }

    /// Reports that this worker has to leave. The others go on without it and
    /// [`Membership::regroup`] returns [`JoinError::Released`], or all members get
    /// [`MembershipEvent::Drain`]. Without a coordinator, a sealed member waits for one `within`
    /// this time, because no other process may hold its state.
    pub fn leave(&self, reason: &str, within: Duration) {
        self.mailbox.change(|state| state.leaving = Some(Leaving::within(within)));
        self.mailbox.put(|outbox| outbox.leave = Some(reason.to_owned()));
    }

    /// Reports that the last step is done and all results are stored. It blocks until all members
    /// agree on the digest, or until one of them is lost first. `patience` limits the time without
    /// any coordinator.
    ///
    /// # Errors
    /// See [`FinalReportError`].
    pub fn finished(
        &self,
        step: u64,
        digest: Digest,
        payload: Vec<u8>,
        patience: Duration,
    ) -> Result<FinalReply, FinalReportError> {
        assert_fits(&payload);
        self.final_report(FinalReport::Finished { step, digest, payload }, patience)
    }

    /// Reports that this worker stopped after `step` as requested, and a checkpoint holds it. It
    /// blocks like [`Membership::finished`].
    ///
    /// # Errors
    /// See [`FinalReportError`].
    pub fn drained(&self, step: u64, patience: Duration) -> Result<FinalReply, FinalReportError> {
        self.final_report(FinalReport::Drained { step }, patience)
    }

    /// Reports that the job cannot succeed as it is described. It blocks until the coordinator
    /// knows.
    ///
    /// # Errors
    /// See [`FinalReportError`].
    pub fn fatal(&self, message: &str, patience: Duration) -> Result<(), FinalReportError> {
        self.mailbox.change(|state| state.sealing = None);
        self.final_report(FinalReport::Fatal { message: message.to_owned() }, patience).map(|_| ())
    }

    /// Reports that the members' states are useless and all have to start again from the newest
    /// checkpoint. It blocks until the coordinator knows.
    ///
    /// # Errors
    /// See [`FinalReportError`].
    pub fn diverged(&self, message: &str, patience: Duration) -> Result<(), FinalReportError> {
        self.mailbox.change(|state| state.sealing = None);
        self.final_report(FinalReport::Diverged { message: message.to_owned() }, patience).map(|_| ())
    }

    /// Closes the connection without a final report: the group loses this process.
    pub fn hang_up(&self) {
        self.mailbox.put(|outbox| outbox.stop = true);
    }

    fn final_report(&self, word: FinalReport, patience: Duration) -> Result<FinalReply, FinalReportError> {
        self.mailbox.put(|outbox| outbox.final_report = Some(word));
        let answer = self.mailbox.wait(patience, |state| match (&state.end, state.sealing) {
            (Some(End::Released), _) => Some(Ok(FinalReply::Recorded)),
            (Some(End::Aborted(reason) | End::Refused { reason, .. }), _) => {
                Some(Err(FinalReportError::Aborted { reason: reason.clone() }))
            }
            (None, Some(_)) => Some(Ok(FinalReply::Changed)),
            (None, None) => None,
        });
        answer.unwrap_or_else(|waited| Err(FinalReportError::Unreachable { waited }))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hang_up();
        if let Some(thread) = self.thread.take() {
            // The panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("state", &*self.mailbox.state()).finish_non_exhaustive()
    }
}

fn assert_fits(payload: &[u8]) {
    assert!(
        payload.len() <= MAX_PAYLOAD_BYTES,
        "a report of {} bytes, the limit is {MAX_PAYLOAD_BYTES}",
        payload.len()
    );
}
