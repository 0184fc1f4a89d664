//! Hands what a group holds to newcomers while it trains: after a step that all ranks agree on each copies its part of the state, and from
//! then on its part of every step's summed gradients, and sends them from a thread of its own.
//!
//! ```text
//! step s       every rank says in its numbers whether it knows of a newcomer that nobody feeds yet
//! step s + 1   all read that all do; after it each copies its part of the state and begins to send
//! later steps  each copies its part of the gradients, before they are applied, and sends them after what came before
//! ```
//!
//! A newcomer that cannot keep up is given up: it copies the state when it is let in. Should ranks be told of newcomers in another order,
//! a newcomer does not hear from all of them, or not of the same step from all: it copies the state, too. One that is not connected with
//! all of them comes again, once nothing is handed to it any more.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use lockstep_collective::{Abort, Group as Star};
use lockstep_elastic::{Assignment, Follower, MemberId};
use tracing::{info, warn};

use crate::{
    compute::training_state::Trainee,
    failure::Failure,
    membership::catchup::receive::{Parcel, parts},
    membership::session::Member,
};

/// What may wait to be sent to a newcomer. The memory that it takes is this rank's part of so many gradients.
pub(crate) const MAX_BEHIND: u64 = 8;
/// What may be on its way to a newcomer, or wait in its memory: sockets swallow a hundred steps of a small model, for all of which the
/// members would have to stand still when they let it in.
const MAX_UNUSED: u64 = 2;

/// Newcomers that this member was told of, in the order in which it was.
pub(crate) type Newcomers = Arc<Mutex<VecDeque<Follower>>>;

/// What one rank hands to the newcomers of its generation.
pub(crate) struct Feeds<'a> {
    member: &'a Member<'a>,
    generation: u64,
    rank: u32,
    addresses: Vec<SocketAddr>,
    /// Newcomers that were begun with, and the threads that send.
    begun: Vec<(MemberId, JoinHandle<()>)>,
    feeds: Vec<Feed>,
    /// The step after which all begin with the next newcomer.
    begins_after: Option<u64>,
    /// What was told in the numbers of steps until then was told before that was known.
    deaf_until: u64,
    /// All ranks stopped after the same step, up to which newcomers take over what is on its way.
    ended_together: bool,
}

/// One newcomer.
struct Feed {
    newcomer: MemberId,
    /// As long as more is to come.
    parcels: Option<mpsc::Sender<Parcel>>,
    behind: Arc<AtomicU64>,
    is_connected: Arc<AtomicBool>,
    abort: Abort,
}

impl<'a> Feeds<'a> {
    /// As a member of this generation.
    pub(crate) fn new(member: &'a Member<'a>, group: &Assignment) -> Self {
        Self {
            member,
            generation: group.generation,
            rank: group.rank,
            addresses: group.addresses.clone(),
            begun: Vec::new(),
            feeds: Vec::new(),
            begins_after: None,
            deaf_until: 0,
            ended_together: false,
        }
    }

    /// All ranks have stopped after the step that was done last.
    pub(crate) fn end(&mut self) {
        self.ended_together = true;
    }

    /// Whether this rank knows of a newcomer to which it hands nothing.
    pub(crate) fn knows_another(&mut self) -> bool {
        self.next(|newcomers, next| newcomers.get(next).is_some())
    }

    /// Takes down whether all ranks said so in the numbers of `step`.
    pub(crate) fn hear(&mut self, step: u64, all_do: bool) {
        if all_do && step > self.deaf_until {
            (self.begins_after, self.deaf_until) = (Some(step + 1), step + 1);
        }
    }

    /// Whether the next newcomer takes over the state after `step`.
    pub(crate) fn begins_after(&self, step: u64) -> bool {
        self.begins_after == Some(step)
    }

    /// Copies this rank's part of the state for the next newcomer, and begins to send it.
    pub(crate) fn begin(&mut self, trainee: &mut Trainee) {
        let take = |newcomers: &mut VecDeque<Follower>, next| {
            let taken = newcomers.remove(next)?;
            // It may have been told of twice.
            newcomers.retain(|other| other.member != taken.member);
            Some(taken)
        };
        let Some(Follower { member: newcomer, address, .. }) = self.next(take) else { return };
        info!(%newcomer, step = trainee.step, "a newcomer takes over the state while the group trains");
        for feed in self.feeds.iter().filter(|feed| feed.newcomer.pod == newcomer.pod) {
            feed.abort.abort("a new process took its place");
        }
        self.feeds.retain(|feed| feed.newcomer.pod != newcomer.pod);
        let part = self.part(trainee.replica.state_elements());
        let mut state = vec![0.0; part.len()];
        trainee.replica.copy_state(part, &mut state);
        let (parcels, to_send) = mpsc::channel();
        let abort = Abort::new();
        let (parcels, behind, is_connected) = (Some(parcels), Arc::default(), Arc::default());
        let mut feed = Feed { newcomer: newcomer.clone(), parcels, behind, is_connected, abort: abort.clone() };
        feed.put(trainee.step, state);

        let (behind, is_connected) = (Arc::clone(&feed.behind), Arc::clone(&feed.is_connected));
        let peers: Vec<SocketAddr> = self.addresses.iter().copied().chain([address]).collect();
        let form = self.member.form_star(self.generation, self.rank, peers.clone(), abort);
        let sending = thread::Builder::new().name("feed".to_owned()).spawn(move || {
            let sent = form().and_then(|star| {
                is_connected.store(true, Ordering::Relaxed);
                send(star, peers.len() - 1, to_send, &behind)
            });
            if let Err(error) = sent {
                info!(%newcomer, %error, "a newcomer takes over nothing more");
            }
        });
        match sending {
            Ok(sending) => {
                self.begun.push((feed.newcomer.clone(), sending));
                self.feeds.push(feed);
            }
            Err(error) => warn!(%error, "no thread that feeds a newcomer"),
        }
    }

    /// Hands this rank's part of the gradients that make `step` to those that took the state over.
    pub(crate) fn put(&mut self, step: u64, trainee: &mut Trainee) {
        if self.feeds.iter().all(|feed| feed.parcels.is_none()) {
            return;
        }
        let part = self.part(trainee.replica.table().elements());
        let mut gradients = vec![0.0; part.len()];
        trainee.replica.copy_gradients(part, &mut gradients);
        self.feeds.iter_mut().for_each(|feed| feed.put(step, gradients.clone()));
    }

    /// This rank's part of so many elements.
    fn part(&self, elements: usize) -> Range<usize> {
        parts(elements, self.addresses.len()).swap_remove(self.rank as usize)
    }

    /// What `of` makes of the newcomers and the place of the next among them, if there is one: not one to which something is being sent.
    fn next<T>(&mut self, of: impl FnOnce(&mut VecDeque<Follower>, usize) -> T) -> T {
        self.begun.retain(|(_, sending)| !sending.is_finished());
        let mut newcomers = self.member.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.retain(|newcomer| newcomer.generation >= self.generation);
        let is_fed = |newcomer: &Follower| self.begun.iter().any(|(member, _)| *member == newcomer.member);
        let is_next = |newcomer: &Follower| newcomer.generation == self.generation && !is_fed(newcomer);
        let next = newcomers.iter().position(is_next).unwrap_or(newcomers.len());
        of(&mut newcomers, next)
    }
}

impl Feed {
    /// Hands it over as long as it keeps up. One that is not connected yet is waited for even so: it would take a line that is only slow for
    /// one that is cut.
    fn put(&mut self, step: u64, values: Vec<f32>) {
        let Some(parcels) = &self.parcels else { return };
        let keeps_up = self.behind.load(Ordering::Relaxed) < MAX_BEHIND;
        if !keeps_up && self.is_connected.load(Ordering::Relaxed) {
            self.abort.abort("it cannot keep up, and copies the state when it is let in");
        }
        self.behind.fetch_add(1, Ordering::Relaxed);
        // Whoever took them may have ended.
        if !keeps_up || parcels.send(Parcel { step, values }).is_err() {
            self.parcels = None;
        }
    }
}

impl Drop for Feeds<'_> {
    /// Where the group broke newcomers are let in as they are.
    fn drop(&mut self) {
        if !self.ended_together {
            self.feeds.iter().for_each(|feed| feed.abort.abort("the group is over"));
        }
    }
}

/// Sends until nothing more is to come, and all was used.
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
