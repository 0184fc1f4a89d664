//! A member's part in the catch-up of newcomers, while the group trains. After a step on which all
//! ranks agree, each rank copies its part of the state. From then on it copies its part of every
//! step's summed gradients. A thread of its own sends the copies.
//!
//! ```text
//! step s       each rank's numbers say if it knows a newcomer to which it does not send yet
//! step s + 1   the sums of step s say that all ranks know one; after step s + 1 each rank copies
//!              its part of the state and begins to send it
//! later steps  each rank copies its part of the gradients before they are applied, and sends it
//!              after all earlier copies
//! ```
//!
//! The ranks stop sending to a newcomer that cannot keep pace. It copies the state when it becomes
//! a member. The same happens if ranks learn of several newcomers in different orders: a newcomer
//! then receives nothing from some ranks, or parts of different steps. A newcomer without a
//! connection to every rank tries again once no rank sends to it any more.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

// A star connects each rank with one newcomer, its last rank.
use lockstep_collective::{Abort, Group as Star};
use lockstep_elastic::{Assignment, Follower, MemberId};
use tracing::{info, warn};

use super::parcel::{MAX_BEHIND, Parcel, parts};
use crate::{compute::training_state::TrainingState, failure::Failure, membership::session::Session};

/// The most parcels that were sent to a newcomer and are not used yet. Without this limit, sockets
/// would hold a hundred steps of a small model. The group would wait for all of them when it lets
/// the newcomer in.
const MAX_UNUSED: u64 = 2;

/// The newcomers to which one rank of a generation sends.
pub(crate) struct CatchupSenders<'a> {
    session: &'a Session<'a>,
    generation: u64,
    rank: u32,
    addresses: Vec<SocketAddr>,
    /// The newcomers with which this rank began, and the threads that send to them.
    begun: Vec<(MemberId, JoinHandle<()>)>,
    senders: Vec<CatchupSender>,
    /// The step after which all ranks begin with the next newcomer.
    begins_after: Option<u64>,
    /// Ranks report a newcomer until they begin to send to it. Reports up to this step may mean the
    /// latest such newcomer, so they do not count.
    outdated_until: u64,
    /// True once all ranks have stopped after the same step. Newcomers then still get what was
    /// copied for them.
    ended_together: bool,
}

/// The sending to one newcomer.
struct CatchupSender {
    newcomer: MemberId,
    /// `None` once nothing more is sent.
    parcels: Option<mpsc::Sender<Parcel>>,
    /// The number of parcels that wait to be sent.
    behind: Arc<AtomicU64>,
    is_connected: Arc<AtomicBool>,
    abort: Abort,
}

impl<'a> CatchupSenders<'a> {
    /// Returns the senders of a member of this generation, which knows no newcomer yet.
    pub(crate) fn new(session: &'a Session<'a>, group: &Assignment) -> Self {
        Self {
            session,
            generation: group.generation,
            rank: group.rank,
            addresses: group.addresses.clone(),
            begun: Vec::new(),
            senders: Vec::new(),
            begins_after: None,
            outdated_until: 0,
            ended_together: false,
        }
    }

    /// Notes that all ranks have stopped after the newest step.
    pub(crate) fn end(&mut self) {
        self.ended_together = true;
    }

    /// Returns true if this rank knows a newcomer to which it sends nothing.
    pub(crate) fn knows_another(&mut self) -> bool {
        self.next(|newcomers, next| newcomers.get(next).is_some())
    }

    /// Notes if all ranks reported another newcomer in `step`. They then begin after the next step.
    pub(crate) fn hear(&mut self, step: u64, all_know: bool) {
        if all_know && step > self.outdated_until {
            (self.begins_after, self.outdated_until) = (Some(step + 1), step + 1);
        }
    }

    /// Returns true if the next newcomer takes over the state after `step`.
    pub(crate) fn begins_after(&self, step: u64) -> bool {
        self.begins_after == Some(step)
    }

    /// Copies this rank's part of the state for the next newcomer, and begins to send it.
    pub(crate) fn begin(&mut self, training: &mut TrainingState) {
        let take = |newcomers: &mut VecDeque<Follower>, next| {
            let taken = newcomers.remove(next)?;
            // The coordinator may have announced it twice.
            newcomers.retain(|other| other.member != taken.member);
            Some(taken)
        };
        let Some(Follower { member: newcomer, address, .. }) = self.next(take) else { return };
        info!(%newcomer, step = training.step, "a newcomer takes over the state while the group trains");
        for sender in self.senders.iter().filter(|sender| sender.newcomer.pod == newcomer.pod) {
            sender.abort.abort("a new process took its place");
        }
        self.senders.retain(|sender| sender.newcomer.pod != newcomer.pod);
        let part = self.part(training.state_elements());
        let mut values = vec![0.0; part.len()];
        training.copy_state(part, &mut values);
        let (parcels, to_send) = mpsc::channel();
        let abort = Abort::new();
        let (parcels, behind, is_connected) = (Some(parcels), Arc::default(), Arc::default());
        let mut sender =
            CatchupSender { newcomer: newcomer.clone(), parcels, behind, is_connected, abort: abort.clone() };
        sender.put(training.step, values);

        let (behind, is_connected) = (Arc::clone(&sender.behind), Arc::clone(&sender.is_connected));
        let peers: Vec<SocketAddr> = self.addresses.iter().copied().chain([address]).collect();
        let form = self.session.form_star(self.generation, self.rank, peers.clone(), abort);
        let sending = thread::Builder::new().name("catchup".to_owned()).spawn(move || {
            let sent = form().and_then(|star| {
                is_connected.store(true, Ordering::Relaxed);
                send(star, peers.len() - 1, to_send, &behind)
            });
            if let Err(error) = sent {
                info!(%newcomer, %error, "stopped sending to a newcomer");
            }
        });
        match sending {
            Ok(sending) => {
                self.begun.push((sender.newcomer.clone(), sending));
                self.senders.push(sender);
            }
            Err(error) => warn!(%error, "cannot start a thread that sends to a newcomer"),
        }
    }

    /// Sends this rank's part of the gradients that make `step` to all newcomers that took the
    /// state over.
    pub(crate) fn put(&mut self, step: u64, training: &mut TrainingState) {
        if self.senders.iter().all(|sender| sender.parcels.is_none()) {
            return;
        }
        let part = self.part(training.gradient_elements());
        let mut gradients = vec![0.0; part.len()];
        training.copy_gradients(part, &mut gradients);
        self.senders.iter_mut().for_each(|sender| sender.put(step, gradients.clone()));
    }

    /// Returns this rank's part of `elements` values.
    fn part(&self, elements: usize) -> Range<usize> {
        parts(elements, self.addresses.len()).swap_remove(self.rank as usize)
    }

    /// Calls `act` with the known newcomers and the position of the next one to begin with. Without
    /// a next one, the position is their number. A newcomer to which a thread still sends is never
    /// the next.
    fn next<T>(&mut self, act: impl FnOnce(&mut VecDeque<Follower>, usize) -> T) -> T {
        self.begun.retain(|(_, sending)| !sending.is_finished());
        let mut newcomers = self.session.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.retain(|newcomer| newcomer.generation >= self.generation);
        let is_begun = |newcomer: &Follower| self.begun.iter().any(|(member, _)| *member == newcomer.member);
        let is_next = |newcomer: &Follower| newcomer.generation == self.generation && !is_begun(newcomer);
        let next = newcomers.iter().position(is_next).unwrap_or(newcomers.len());
        act(&mut newcomers, next)
    }
}

impl CatchupSender {
    /// Hands values to the sending thread while the newcomer keeps pace. Before the newcomer is
    /// connected, an abort would look to it like a missing connection, so there is none.
    fn put(&mut self, step: u64, values: Vec<f32>) {
        let Some(parcels) = &self.parcels else { return };
        let keeps_pace = self.behind.load(Ordering::Relaxed) < MAX_BEHIND;
        if !keeps_pace && self.is_connected.load(Ordering::Relaxed) {
            self.abort.abort("it cannot keep up, and copies the state when it is let in");
        }
        self.behind.fetch_add(1, Ordering::Relaxed);
        // The sending thread may have ended.
        if !keeps_pace || parcels.send(Parcel { step, values }).is_err() {
            self.parcels = None;
        }
    }
}

impl Drop for CatchupSenders<'_> {
    /// If the group broke, stops sending: newcomers become members with the state that they have.
    fn drop(&mut self) {
        if !self.ended_together {
            self.senders.iter().for_each(|sender| sender.abort.abort("the group is over"));
        }
    }
}

/// Sends until no more parcels come and the newcomer has used all of them.
fn send(mut star: Star, to: usize, parcels: mpsc::Receiver<Parcel>, behind: &AtomicU64) -> Result<(), Failure> {
    let mut unused = 0;
    for parcel in parcels {
        if unused == MAX_UNUSED {
            Parcel::wait_until_used(&mut star, to)?;
            unused -= 1;
        }
        let behind = behind.fetch_sub(1, Ordering::Relaxed) - 1;
        parcel.send(&mut star, to, behind)?;
        unused += 1;
    }
    (0..unused).try_for_each(|_| Parcel::wait_until_used(&mut star, to))
}
