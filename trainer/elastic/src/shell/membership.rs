//! Runs a [`Member`] on a thread of its own, so that it answers while the training thread computes.

use std::{
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    line,
    reach::{Blocked, Obstacle},
    shared::{End, Leaving, Shared},
};
use crate::{
    Break, CheckpointMark, Digest, Follower, Group, Hello, Lead, State as Held, Summing, Work, member::LastWord,
    message::MAX_PAYLOAD_BYTES,
};

/// A worker's place in its group, from joining to the last word. Dropping it closes the connection: without a last word
/// the coordinator counts the worker as lost.
pub struct Membership {
    shared: Arc<Shared>,
    coordinator: String,
    thread: Option<JoinHandle<()>>,
}

/// What a process that stands still is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It belongs to this group.
    Member(Group),
    /// This group trains without it: it is to take over what that holds, to say [`Membership::caught_up`] once it has, and to stand, with
    /// [`Membership::regroup`], when the group changes or hands over nothing more.
    Newcomer(Lead),
}

/// What a training thread has to know while it trains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new generation is being formed: stand still, and say so with [`Membership::regroup`]. A planned one waits for a step that all
    /// agree on; otherwise the collectives of this generation are to be aborted now.
    Seal {
        /// Whether nobody was lost.
        planned: bool,
    },
    /// The group is over; abort the collective and end.
    Abort {
        /// Why, naming the member that was lost.
        reason: String,
    },
    /// Stop after a step that all agree on, save it, and say so with [`Membership::drained`].
    Drain {
        /// Who asks, and why.
        reason: String,
    },
    /// The group needs this worker no more; what it follows is to be aborted.
    Released,
    /// A newcomer follows the group: hand it this member's part of the state after a step that all agree on, and of each summed gradient
    /// from then on, until the group changes.
    Feed(Follower),
    /// The coordinator is out of reach and looked for; training goes on.
    CoordinatorLost,
    /// There is a coordinator again.
    CoordinatorFound,
    /// The training thread does nothing, so this worker left its group, which goes on without it. It joins again once it moves.
    Stuck {
        /// For how long, and what it was about to do.
        reason: String,
    },
    /// It still does nothing: only a new process can help.
    Hung {
        /// For how long, and what it was about to do.
        reason: String,
    },
}

/// Why a worker is in no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It does not belong there.
    #[error("the coordinator refused this worker: {reason}")]
    Refused {
        /// What differs from what, and what to do.
        reason: String,
        /// Whether another process in its place may belong there.
        may_retry: bool,
    },
    /// The group was given up; a new attempt may succeed.
    #[error("the group was given up: {reason}")]
    Aborted {
        /// Why.
        reason: String,
    },
    /// The group goes on, or is done, without it.
    #[error("the group needs this worker no more")]
    Released,
    /// Nobody answers there.
    #[error("no coordinator answered at {coordinator} for {waited:?}: {cause}")]
    Unreachable {
        /// Host and port.
        coordinator: String,
        /// How long it was tried.
        waited: Duration,
        /// What the last attempt met.
        cause: String,
        /// Of what kind that is.
        obstacle: Obstacle,
    },
}

/// What became of a last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// It is recorded; the process may end.
    Recorded,
    /// Somebody was lost before everybody had said it: a new generation is being formed, see [`Membership::regroup`].
    Changed,
}

/// Why a last word did not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarewellError {
    /// The group was over before everybody had said its last word.
    #[error("the group was given up: {reason}")]
    Aborted {
        /// Why.
        reason: String,
    },
    /// No coordinator took it.
    #[error("no coordinator was there for {waited:?} to take the worker's last word")]
    Unreachable {
        /// How long it was tried.
        waited: Duration,
    },
}

impl Membership {
    /// Joins the group of the coordinator at `coordinator`, host and port, holding a state, and blocks until it is committed to a
    /// group, or told to follow one. The name is looked up anew for each attempt. `patience` bounds the time without any coordinator; how long
    /// to wait for other members is the coordinator's decision.
    ///
    /// # Errors
    /// See [`JoinError`].
    ///
    /// # Panics
    /// When the system starts no thread.
    pub fn join(coordinator: &str, hello: Hello, held: Held, patience: Duration) -> Result<(Self, Place), JoinError> {
        let shared = Arc::new(Shared::new());
        let thread = {
            let (shared, coordinator) = (Arc::clone(&shared), coordinator.to_owned());
            thread::Builder::new()
                .name("membership".to_owned())
                .spawn(move || line::keep(&coordinator, hello, held, &shared))
                .unwrap_or_else(|error| panic!("no thread for the membership of this worker: {error}"))
        };
        let membership = Self { shared, coordinator: coordinator.to_owned(), thread: Some(thread) };
        let place = membership.place(patience)?;
        Ok((membership, place))
    }

    /// This worker holds the state that its group starts from.
    pub fn entered(&self) {
        self.shared.put(|outbox| outbox.entered = true);
    }

    /// This worker gave the state of its generation up for one that it read from a checkpoint.
    pub fn reloaded(&self) {
        self.shared.put(|outbox| outbox.reloaded = true);
    }

    /// How the group sums from now on, which becomes a part of the job's history.
    pub fn agreed(&self, summing: Summing) {
        self.shared.put(|outbox| outbox.plans.push(summing));
    }

    /// This worker, which follows a group, holds a state of it, and none that it held before.
    pub fn took_over(&self) {
        self.shared.put(|outbox| outbox.took_over = true);
    }

    /// This worker, which follows a group, holds what that holds: it may be let in, and follows until then.
    pub fn caught_up(&self) {
        self.shared.put(|outbox| outbox.caught_up = true);
    }

    /// This worker stands still: from here on it completes no collective of its generation. Blocks until it is committed to the next
    /// one, or told to follow one. `held` is `None` in the middle of a copy, `broken` tells what failed if it was not asked to stand.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn regroup(&self, held: Option<Held>, broken: Option<Break>, patience: Duration) -> Result<Place, JoinError> {
        self.shared.change(|state| (state.group, state.lead, state.sealing) = (None, None, None));
        self.shared.put(|outbox| (outbox.stand, outbox.last_word) = (Some((held, broken)), None));
        self.place(patience)
    }

    fn place(&self, patience: Duration) -> Result<Place, JoinError> {
        let place = self.shared.wait(patience, |state| match &state.end {
            Some(End::Refused { reason, may_retry }) => {
                Some(Err(JoinError::Refused { reason: reason.clone(), may_retry: *may_retry }))
            }
            Some(End::Aborted(reason)) => Some(Err(JoinError::Aborted { reason: reason.clone() })),
            Some(End::Released) => Some(Err(JoinError::Released)),
            None => {
                let member = state.group.clone().map(Place::Member);
                member.or_else(|| state.lead.clone().map(Place::Newcomer)).map(Ok)
            }
        });
        place.unwrap_or_else(|waited| {
            let Blocked { obstacle, problem: cause } = self.shared.state().blocked.clone();
            Err(JoinError::Unreachable { coordinator: self.coordinator.clone(), waited, cause, obstacle })
        })
    }

    /// Where the training thread tells that it works: while it computes and does nothing for long, this worker is no member.
    #[must_use]
    pub fn work(&self) -> &Arc<Work> {
        &self.shared.work
    }

    /// Whether a new generation is being formed, and if so whether it is planned: ask between two steps.
    #[must_use]
    pub fn sealing(&self) -> Option<bool> {
        self.shared.state().sealing
    }

    /// Whether this worker has to go and there is no coordinator that would let it: all have to stop without one.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.shared.state().is_stranded()
    }

    /// Whether this worker has been a member of a group: others may lack what it holds.
    #[must_use]
    pub fn has_belonged(&self) -> bool {
        self.shared.state().has_belonged
    }

    /// Calls `callback` from the membership's thread for everything that happens, beginning with what happened already.
    pub fn on_event(&self, callback: impl FnMut(&Event) + Send + 'static) {
        self.shared.listen(Box::new(callback));
    }

    /// Whether this worker belongs to no group any more, and will not to another.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.state().end.is_some()
    }

    /// Why the group is over, if it is: ask between two steps.
    #[must_use]
    pub fn aborted(&self) -> Option<String> {
        match &self.shared.state().end {
            Some(End::Aborted(reason) | End::Refused { reason, .. }) => Some(reason.clone()),
            Some(End::Released) | None => None,
        }
    }

    /// Why all have to stop after a step, if they have to: ask between two steps.
    #[must_use]
    pub fn draining(&self) -> Option<String> {
        self.shared.state().draining.clone()
    }

    /// Reports how far the training is; dropped while there is no coordinator, and replaced by a newer report.
    pub fn progress(&self, step: u64, payload: Vec<u8>) {
        assert_fits(&payload);
        self.shared.put(|outbox| outbox.progress = Some((step, payload)));
    }

    /// Reports a checkpoint that is whole; the newest one reaches the record, if need be through the next coordinator.
    pub fn checkpoint(&self, step: u64, manifest_digest: Digest) {
        self.shared.put(|outbox| outbox.checkpoint = Some(CheckpointMark { step, manifest_digest }));
    }

    /// This worker has to go. The others go on without it, after which [`Membership::regroup`] ends with [`JoinError::Released`], or all
    /// are told [`Event::Drain`]. While there is no coordinator a member that stands waits for one `within` that time, as it may hold what
    /// nobody else does.
    pub fn leave(&self, reason: &str, within: Duration) {
        self.shared.change(|state| state.leaving = Some(Leaving::within(within)));
        self.shared.put(|outbox| outbox.leave = Some(reason.to_owned()));
    }

    /// The last step is done and all results are stored. Blocks until every member said so and all agree on the digest, or one was
    /// lost before; `patience` bounds the time without any coordinator.
    ///
    /// # Errors
    /// See [`FarewellError`].
    pub fn finished(
        &self,
        step: u64,
        digest: Digest,
        payload: Vec<u8>,
        patience: Duration,
    ) -> Result<Farewell, FarewellError> {
        assert_fits(&payload);
        self.last_word(LastWord::Finished { step, digest, payload }, patience)
    }

    /// Stopped after `step`, as was asked; a checkpoint holds it. Blocks as [`Membership::finished`] does.
    ///
    /// # Errors
    /// See [`FarewellError`].
    pub fn drained(&self, step: u64, patience: Duration) -> Result<Farewell, FarewellError> {
        self.last_word(LastWord::Drained { step }, patience)
    }

    /// The job cannot succeed as it is described. Blocks until the coordinator knows.
    ///
    /// # Errors
    /// See [`FarewellError`].
    pub fn fatal(&self, message: &str, patience: Duration) -> Result<(), FarewellError> {
        self.shared.change(|state| state.sealing = None);
        self.last_word(LastWord::Fatal { message: message.to_owned() }, patience).map(|_| ())
    }

    /// What the members hold is of no use: all have to begin anew with the newest checkpoint. Blocks until the coordinator knows.
    ///
    /// # Errors
    /// See [`FarewellError`].
    pub fn diverged(&self, message: &str, patience: Duration) -> Result<(), FarewellError> {
        self.shared.change(|state| state.sealing = None);
        self.last_word(LastWord::Diverged { message: message.to_owned() }, patience).map(|_| ())
    }

    /// Ends the connection with the coordinator without a word: this process is lost to the group.
    pub fn hang_up(&self) {
        self.shared.put(|outbox| outbox.stop = true);
    }

    fn last_word(&self, word: LastWord, patience: Duration) -> Result<Farewell, FarewellError> {
        self.shared.put(|outbox| outbox.last_word = Some(word));
        let answer = self.shared.wait(patience, |state| match (&state.end, state.sealing) {
            (Some(End::Released), _) => Some(Ok(Farewell::Recorded)),
            (Some(End::Aborted(reason) | End::Refused { reason, .. }), _) => {
                Some(Err(FarewellError::Aborted { reason: reason.clone() }))
            }
            (None, Some(_)) => Some(Ok(Farewell::Changed)),
            (None, None) => None,
        });
        answer.unwrap_or_else(|waited| Err(FarewellError::Unreachable { waited }))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hang_up();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("state", &*self.shared.state()).finish_non_exhaustive()
    }
}

fn assert_fits(payload: &[u8]) {
    assert!(
        payload.len() <= MAX_PAYLOAD_BYTES,
        "a report of {} bytes, the limit is {MAX_PAYLOAD_BYTES}",
        payload.len()
    );
}
