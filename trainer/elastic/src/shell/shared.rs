//! What the training thread and the membership's thread tell each other.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    membership::Event,
    reach::{Blocked, Obstacle},
};
use crate::{
    Break, CheckpointMark, Group, Lead, State as Held, Summing, Work,
    member::{self, LastWord},
};

/// How long a worker that has to go looks for a coordinator that would let it, where it trains or holds nothing that others lack.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the thread that waits for an answer sleeps before it looks at the time again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the training thread and the membership's thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    outbox: Mutex<Outbox>,
    filled: Notify,
    listener: Mutex<Listener>,
    pub(super) work: Arc<Work>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The newest group, until the worker stands still again.
    pub(super) group: Option<Group>,
    /// The group that it is to follow, until it stands still again.
    pub(super) lead: Option<Lead>,
    /// Whether a newer one is being formed, and whether that is planned.
    pub(super) sealing: Option<bool>,
    pub(super) end: Option<End>,
    pub(super) draining: Option<String>,
    pub(super) leaving: Option<Leaving>,
    /// Whether it was a member of a group: others may lack what it holds.
    pub(super) has_belonged: bool,
    /// Since when there is no coordinator.
    alone: Option<Instant>,
    /// What the last attempt to connect met.
    pub(super) blocked: Blocked,
}

impl State {
    /// Whether this worker has to go, and nobody is there who would let it.
    pub(super) fn is_stranded(&self) -> bool {
        self.leaving.is_some() && self.alone.is_some_and(|since| since.elapsed() >= LEAVE_PATIENCE)
    }

    /// Whether one that has been without coordinator for so long, and has this `patience`, waits for none any more.
    fn gives_up(&self, alone: Duration, patience: Duration) -> bool {
        let has_time = |leaving: &Leaving| self.has_belonged && leaving.since.elapsed() <= leaving.within;
        let is_to_go = self.leaving.as_ref().is_some_and(|leaving| alone > LEAVE_PATIENCE && !has_time(leaving));
        alone > patience || is_to_go
    }
}

/// It has to go.
#[derive(Debug)]
pub(super) struct Leaving {
    since: Instant,
    /// How long it may take to hand over what it holds.
    within: Duration,
}

impl Leaving {
    pub(super) fn within(within: Duration) -> Self {
        Self { since: Instant::now(), within }
    }
}

#[derive(Debug)]
pub(super) enum End {
    Refused { reason: String, may_retry: bool },
    Aborted(String),
    Released,
}

/// What waits to be told: one place for each kind, where the newest counts; of plans all.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) entered: bool,
    pub(super) reloaded: bool,
    pub(super) took_over: bool,
    pub(super) caught_up: bool,
    pub(super) plans: Vec<Summing>,
    pub(super) stand: Option<(Option<Held>, Option<Break>)>,
    pub(super) progress: Option<(u64, Vec<u8>)>,
    pub(super) checkpoint: Option<CheckpointMark>,
    pub(super) leave: Option<String>,
    pub(super) last_word: Option<LastWord>,
    pub(super) stop: bool,
}

type Callback = Box<dyn FnMut(&Event) + Send>;

#[derive(Default)]
struct Listener {
    callback: Option<Callback>,
    /// Until somebody listens. Coordinators that come and go are not kept.
    past: Vec<Event>,
}

impl Shared {
    pub(super) fn new() -> Self {
        let alone = Some(Instant::now());
        let blocked = Blocked { obstacle: Obstacle::Other, problem: "not tried yet".to_owned() };
        let state = State {
            group: None,
            lead: None,
            sealing: None,
            end: None,
            draining: None,
            leaving: None,
            has_belonged: false,
            alone,
            blocked,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            outbox: Mutex::default(),
            filled: Notify::new(),
            listener: Mutex::default(),
            work: Arc::default(),
        }
    }

    /// The first answer of `look`, or the time that was spent without coordinator once it exceeds `patience`.
    pub(super) fn wait<T>(&self, patience: Duration, look: impl Fn(&State) -> Option<T>) -> Result<T, Duration> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(answer) = look(&state) {
                return Ok(answer);
            }
            // A coordinator that left long before this wait began has the whole patience, too.
            let alone = state.alone.map(|since| since.max(begun).elapsed());
            if let Some(waited) = alone.filter(|alone| state.gives_up(*alone, patience)) {
                return Err(waited);
            }
            state = self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn put(&self, fill: impl FnOnce(&mut Outbox)) {
        fill(&mut lock(&self.outbox));
        self.filled.notify_one();
    }

    pub(super) fn listen(&self, mut callback: Callback) {
        let mut listener = lock(&self.listener);
        for event in std::mem::take(&mut listener.past) {
            callback(&event);
        }
        listener.callback = Some(callback);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(super) fn tell(&self, event: Event) {
        let mut listener = lock(&self.listener);
        match &mut listener.callback {
            Some(callback) => callback(&event),
            None => match event {
                Event::Abort { .. } | Event::Drain { .. } | Event::Feed(_) => listener.past.push(event),
                // Whoever begins in a group asks whether it is changing.
                Event::Seal { .. } | Event::CoordinatorLost | Event::CoordinatorFound => {}
                // It computes for a group only after it listens, and follows one, too.
                Event::Stuck { .. } | Event::Hung { .. } | Event::Released => {}
            },
        }
    }

    /// Completes once the training thread has something to say.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    pub(super) fn stopped(&self) -> bool {
        lock(&self.outbox).stop
    }

    /// What the training thread has to say, the last word last.
    pub(super) fn said(&self) -> Vec<member::Event> {
        let mut outbox = lock(&self.outbox);
        let entered = std::mem::take(&mut outbox.entered).then_some(member::Event::Entered);
        let reloaded = std::mem::take(&mut outbox.reloaded).then_some(member::Event::Reloaded);
        let took_over = std::mem::take(&mut outbox.took_over).then_some(member::Event::TookOver);
        let caught_up = std::mem::take(&mut outbox.caught_up).then_some(member::Event::CaughtUp);
        let plans = std::mem::take(&mut outbox.plans).into_iter().map(member::Event::Agreed);
        let stand = outbox.stand.take().map(|(held, broken)| member::Event::Stand { held, broken });
        let progress = outbox.progress.take().map(|(step, payload)| member::Event::Progress { step, payload });
        let checkpoint = outbox.checkpoint.take().map(member::Event::Checkpoint);
        let leave = outbox.leave.take().map(|reason| member::Event::Leave { reason });
        let last_word = outbox.last_word.take().map(member::Event::LastWord);
        let before = [entered, reloaded, took_over, caught_up].into_iter().flatten();
        let after = [progress, checkpoint, leave, stand, last_word].into_iter().flatten();
        before.chain(plans).chain(after).collect()
    }

    pub(super) fn connected(&self) {
        let in_group = self.state().group.is_some();
        self.change(|state| state.alone = None);
        if in_group {
            self.tell(Event::CoordinatorFound);
        }
    }

    /// This worker hung up.
    pub(super) fn left(&self) {
        self.change(|state| {
            state.alone.get_or_insert_with(Instant::now);
        });
    }

    pub(super) fn disconnected(&self, blocked: &Blocked) {
        let (was_connected, in_group) = {
            let state = self.state();
            (state.alone.is_none(), state.group.is_some() && state.end.is_none())
        };
        self.change(|state| {
            state.blocked.clone_from(blocked);
            state.alone.get_or_insert_with(Instant::now);
        });
        if was_connected && in_group {
            self.tell(Event::CoordinatorLost);
        }
    }

    pub(super) fn committed(&self, group: Group) {
        self.change(|state| {
            (state.group, state.lead, state.sealing, state.draining) = (Some(group), None, None, None);
            state.has_belonged = true;
        });
    }

    pub(super) fn told_to_follow(&self, lead: Lead) {
        // What was asked for before it stood is done.
        self.change(|state| (state.lead, state.sealing) = (Some(lead), None));
    }

    pub(super) fn drain(&self, reason: String) {
        self.change(|state| state.draining = Some(reason.clone()));
        self.tell(Event::Drain { reason });
    }

    /// A new generation is being formed. One that is no longer planned cannot be planned again.
    pub(super) fn asked_to_seal(&self, planned: bool) {
        self.change(|state| state.sealing = Some(planned && state.sealing != Some(false)));
        self.tell(Event::Seal { planned });
    }

    pub(super) fn ended(&self, end: End) {
        let event = match &end {
            End::Refused { reason, .. } | End::Aborted(reason) => Some(Event::Abort { reason: reason.clone() }),
            End::Released => Some(Event::Released),
        };
        self.change(|state| state.end = Some(end));
        if let Some(event) = event {
            self.tell(event);
        }
    }
}

/// A panic elsewhere leaves plain values behind, never half a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
