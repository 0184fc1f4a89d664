//! The exchange between the training thread and the membership's thread.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    event::MembershipEvent,
    reach::{Blocked, Obstacle},
};
use crate::{
    ActivityMonitor, Assignment, Break, CheckpointMark, FollowedGroup, HeldState, PlanAgreement,
    member::{self, FinalReport},
};

/// A leaving worker looks for a coordinator this long, if it trains or if the others lack nothing
/// that it holds.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// The thread that waits for an answer checks the time this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The data that the training thread and the membership's thread share.
pub(super) struct Mailbox {
    state: Mutex<MembershipState>,
    changed: Condvar,
    outbox: Mutex<Outbox>,
    filled: Notify,
    listener: Mutex<Listener>,
    pub(super) work: Arc<ActivityMonitor>,
}

#[derive(Debug)]
pub(super) struct MembershipState {
    /// The newest group, until the worker seals again.
    pub(super) group: Option<Assignment>,
    /// The group to follow, until the worker seals again.
    pub(super) lead: Option<FollowedGroup>,
    /// Set while a newer generation is being formed; true if the change is planned.
    pub(super) sealing: Option<bool>,
    pub(super) end: Option<End>,
    pub(super) draining: Option<String>,
    pub(super) leaving: Option<Leaving>,
    /// True if it was a member of a group, so that others may lack its state.
    pub(super) has_belonged: bool,
    /// The time since when there is no coordinator.
    alone: Option<Instant>,
    /// The result of the last attempt to connect.
    pub(super) blocked: Blocked,
}

impl MembershipState {
    /// Returns true if this worker has to leave and no coordinator is there to release it.
    pub(super) fn is_stranded(&self) -> bool {
        self.leaving.is_some() && self.alone.is_some_and(|since| since.elapsed() >= LEAVE_PATIENCE)
    }

    /// Returns true if a worker stops waiting for a coordinator, after it was `alone` for this long
    /// and with this `patience`.
    fn gives_up(&self, alone: Duration, patience: Duration) -> bool {
        let has_time = |leaving: &Leaving| self.has_belonged && leaving.since.elapsed() <= leaving.within;
        let is_to_go = self.leaving.as_ref().is_some_and(|leaving| alone > LEAVE_PATIENCE && !has_time(leaving));
        alone > patience || is_to_go
    }
}

/// The departure of a worker.
#[derive(Debug)]
pub(super) struct Leaving {
    since: Instant,
    /// The time that it may take to hand over its state.
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

/// The messages to send: all plans, and the newest message of each other kind.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) entered: bool,
    pub(super) reloaded: bool,
    pub(super) took_over: bool,
    pub(super) caught_up: bool,
    pub(super) plans: Vec<PlanAgreement>,
    pub(super) sealed: Option<(Option<HeldState>, Option<Break>)>,
    pub(super) progress: Option<(u64, Vec<u8>)>,
    pub(super) checkpoint: Option<CheckpointMark>,
    pub(super) leave: Option<String>,
    pub(super) final_report: Option<FinalReport>,
    pub(super) stop: bool,
}

type Callback = Box<dyn FnMut(&MembershipEvent) + Send>;

#[derive(Default)]
struct Listener {
    callback: Option<Callback>,
    /// Events from before the first listener. Lost and found coordinators are not kept.
    past: Vec<MembershipEvent>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        let alone = Some(Instant::now());
        let blocked = Blocked { obstacle: Obstacle::Other, problem: "not tried yet".to_owned() };
        let state = MembershipState {
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

    /// Returns the first answer of `look`, or the time without a coordinator once that exceeds
    /// `patience`.
    pub(super) fn wait<T>(
        &self,
        patience: Duration,
        look: impl Fn(&MembershipState) -> Option<T>,
    ) -> Result<T, Duration> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(answer) = look(&state) {
                return Ok(answer);
            }
            // The full patience counts from the start of this wait, even if the coordinator left
            // long before.
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

    pub(super) fn state(&self) -> MutexGuard<'_, MembershipState> {
        lock(&self.state)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut MembershipState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(super) fn tell(&self, event: MembershipEvent) {
        let mut listener = lock(&self.listener);
        match &mut listener.callback {
            Some(callback) => callback(&event),
            None => match event {
                MembershipEvent::Abort { .. } | MembershipEvent::Drain { .. } | MembershipEvent::Feed(_) => {
                    listener.past.push(event)
                }
                // A worker that starts in a group asks if it is changing.
                MembershipEvent::Seal { .. } | MembershipEvent::CoordinatorLost | MembershipEvent::CoordinatorFound => {
                }
                // A worker computes for a group, or follows one, only after it listens.
                MembershipEvent::Stuck { .. } | MembershipEvent::Hung { .. } | MembershipEvent::Released => {}
            },
        }
    }

    /// Waits until the training thread has something to send.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    pub(super) fn stopped(&self) -> bool {
        lock(&self.outbox).stop
    }

    /// Takes everything that the training thread sends, the final report last.
    pub(super) fn take_outbox(&self) -> Vec<member::Event> {
        let mut outbox = lock(&self.outbox);
        let entered = std::mem::take(&mut outbox.entered).then_some(member::Event::Entered);
        let reloaded = std::mem::take(&mut outbox.reloaded).then_some(member::Event::Reloaded);
        let took_over = std::mem::take(&mut outbox.took_over).then_some(member::Event::TookOver);
        let caught_up = std::mem::take(&mut outbox.caught_up).then_some(member::Event::CaughtUp);
        let plans = std::mem::take(&mut outbox.plans).into_iter().map(member::Event::Agreed);
        let sealed = outbox.sealed.take().map(|(held, broken)| member::Event::Sealed { held, broken });
        let progress = outbox.progress.take().map(|(step, payload)| member::Event::Progress { step, payload });
        let checkpoint = outbox.checkpoint.take().map(member::Event::Checkpoint);
        let leave = outbox.leave.take().map(|reason| member::Event::Leave { reason });
        let final_report = outbox.final_report.take().map(member::Event::FinalReport);
        let before = [entered, reloaded, took_over, caught_up].into_iter().flatten();
        let after = [progress, checkpoint, leave, sealed, final_report].into_iter().flatten();
        before.chain(plans).chain(after).collect()
    }

    pub(super) fn connected(&self) {
        let in_group = self.state().group.is_some();
        self.change(|state| state.alone = None);
        if in_group {
            self.tell(MembershipEvent::CoordinatorFound);
        }
    }

    /// Notes that this worker closed the connection itself.
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
            self.tell(MembershipEvent::CoordinatorLost);
        }
    }

    pub(super) fn committed(&self, group: Assignment) {
        self.change(|state| {
            (state.group, state.lead, state.sealing, state.draining) = (Some(group), None, None, None);
            state.has_belonged = true;
        });
    }

    pub(super) fn follow(&self, lead: FollowedGroup) {
        // An earlier request to seal was fulfilled before.
        self.change(|state| (state.lead, state.sealing) = (Some(lead), None));
    }

    pub(super) fn drain(&self, reason: String) {
        self.change(|state| state.draining = Some(reason.clone()));
        self.tell(MembershipEvent::Drain { reason });
    }

    /// Notes that a new generation is being formed. An unplanned change never becomes a planned
    /// one.
    pub(super) fn seal(&self, planned: bool) {
        self.change(|state| state.sealing = Some(planned && state.sealing != Some(false)));
        self.tell(MembershipEvent::Seal { planned });
    }

    pub(super) fn ended(&self, end: End) {
        let event = match &end {
            End::Refused { reason, .. } | End::Aborted(reason) => {
                Some(MembershipEvent::Abort { reason: reason.clone() })
            }
            End::Released => Some(MembershipEvent::Released),
        };
        self.change(|state| state.end = Some(end));
        if let Some(event) = event {
            self.tell(event);
        }
    }
}

/// A panic of another thread leaves plain values behind, never half of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
