//! The worker's side of the membership. Pure: an event and the time go in, commands come out.
//!
//! ```text
//!         Commit                        Prepare            the worker sealed
//! sealed ─────────► training or copying ─────────► asked to seal ─────────────► sealed, reports
//!    ▲   │                 │ a collective failed
//!    ├───┼─────────────────┘ Broken
//!    │   │ Follow
//!    │   └──────► following ─── the group changes, or feeds it no more
//!    └───────────────────────── has caught up and asks to be let in
//! ```
//!
//! A member promises never to complete a collective of an older generation before it reports its
//! state: it *seals*, and the worker pauses. It enters a generation only if that is newer
//! than all that it promised or entered, and names this very process.

mod catchup;

use std::time::Duration;

use self::catchup::CatchUp;
use crate::{
    Active, Assignment, Break, CheckpointMark, Digest, FollowedGroup, Follower, HeldState, Hello, Message,
    PlanAgreement, SealReport,
};

/// The time between two heartbeats.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// An unanswered message is repeated after this time.
pub const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// After this time without a message, the member reconnects to look for another coordinator.
pub const COORDINATOR_DEAD_AFTER: Duration = Duration::from_secs(10);

/// An event for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection to a coordinator exists.
    Connected,
    /// The connection is gone.
    Disconnected,
    /// A message arrived.
    Received(Message),
    /// The worker holds the state that its group starts from.
    Entered,
    /// The worker replaced the state of its generation by one from a checkpoint.
    Reloaded,
    /// The group agreed on a plan. Every coordinator is told.
    Agreed(PlanAgreement),
    /// The worker holds a state of the group that it follows instead of its own.
    TookOver,
    /// The worker has caught up with the group, and goes on to follow it.
    CaughtUp,
    /// The worker has sealed: it completes no collective until the next [`Command::Enter`].
    Sealed {
        /// The state that it holds, or `None` in the middle of a copy.
        held: Option<HeldState>,
        /// The failure, if it was not asked to seal.
        broken: Option<Break>,
    },
    /// The worker reports its progress. The report is dropped while there is no coordinator.
    Progress {
        /// The number of optimiser steps done.
        step: u64,
        /// The worker's report.
        payload: Vec<u8>,
    },
    /// A checkpoint is complete. The newest one is announced until a coordinator knows it.
    Checkpoint(CheckpointMark),
    /// The worker has to leave.
    Leave {
        /// The cause.
        reason: String,
    },
    /// The worker's training ended. The report is repeated until a coordinator releases the worker.
    FinalReport(FinalReport),
    /// The training thread does not move, and the others shall go on without it.
    /// [`Event::Connected`] follows once it moves.
    Stuck {
        /// The time since its last move, and its activity.
        reason: String,
    },
    /// Time has passed.
    Tick,
}

/// The end of a worker's training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinalReport {
    /// The last step is done and all results are stored.
    Finished {
        /// The number of optimiser steps done.
        step: u64,
        /// The digest of the final state.
        digest: Digest,
        /// The worker's last report.
        payload: Vec<u8>,
    },
    /// The worker stopped after this step as requested, and a checkpoint holds it.
    Drained {
        /// The number of optimiser steps done.
        step: u64,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// The failed attempt, its object and the remedy.
        message: String,
    },
    /// All members have to start again from the newest checkpoint.
    Diverged {
        /// The difference, and the remedy.
        message: String,
    },
}

/// A command for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sends a message.
    Send(Message),
    /// Closes the connection and looks for a coordinator again.
    Reconnect,
    /// Makes the worker seal. An unplanned seal aborts every collective at once; a planned one
    /// waits for a step on which all agree.
    Seal {
        /// The promised generation.
        generation: u64,
        /// True if no member was lost.
        planned: bool,
    },
    /// Starts the training in this group.
    Enter(Assignment),
    /// Makes the worker catch up with this group while it trains. The worker seals when the group
    /// changes or feeds it no more.
    Follow(FollowedGroup),
    /// Makes the worker feed this newcomer.
    Feed(Follower),
    /// Makes the worker stop after a step on which all agree, and save it.
    Drain {
        /// The members that have to leave, each with the cause.
        reason: String,
    },
    /// Ends the group at once.
    Abort {
        /// The cause.
        reason: String,
    },
    /// Reports that this process cannot join. It never belonged to the group.
    Refused {
        /// The cause and the remedy.
        reason: String,
        /// True if another process of this pod may join.
        may_retry: bool,
    },
    /// Lets the process end. Its final report is recorded, or the group goes on without it.
    Released,
    /// Requests [`Event::Tick`] at this time unless another event comes first. It replaces the
    /// former time.
    WakeAt(Duration),
}

/// The membership from the view of one worker.
#[derive(Clone, Debug)]
pub struct Member {
    hello: Hello,
    /// The newest generation whose state it holds.
    entered: Option<u64>,
    /// True if it only followed this generation.
    followed: bool,
    promised: u64,
    sealed: Option<Sealed>,
    catch_up: Option<CatchUp>,
    /// True while a coordinator waits for it to seal.
    told_to_seal: bool,
    over: bool,
    connected: bool,
    heard_at: Duration,
    heartbeat_at: Duration,
    repeated_at: Duration,
    mark: Option<CheckpointMark>,
    /// The plans of the newest group, in order.
    plans: Vec<(u64, PlanAgreement)>,
    leaving: Option<String>,
    draining: bool,
    final_report: Option<FinalReport>,
    commands: Vec<Command>,
}

#[derive(Clone, Debug)]
struct Sealed {
    held: Option<HeldState>,
    broken: Option<Break>,
}

impl Member {
    /// Returns a process that wants to join and holds a state.
    #[must_use]
    pub fn new(hello: Hello, held: HeldState) -> Self {
        Self {
            hello,
            entered: None,
            followed: false,
            promised: 0,
            sealed: Some(Sealed { held: Some(held), broken: None }),
            catch_up: None,
            told_to_seal: false,
            over: false,
            connected: false,
            heard_at: Duration::ZERO,
            heartbeat_at: Duration::ZERO,
            repeated_at: Duration::ZERO,
            mark: None,
            plans: Vec::new(),
            leaving: None,
            draining: false,
            final_report: None,
            commands: Vec::new(),
        }
    }

    /// Handles `event` and returns the commands to execute. `now` counts from any fixed moment and
    /// never goes back; it comes from an [`AwakeClock`](crate::AwakeClock).
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Connected => self.connected(now),
            Event::Disconnected => self.connected = false,
            Event::Received(message) => {
                self.heard_at = now;
                self.received(message, now);
            }
            Event::Entered => (self.entered, self.followed) = (self.hello.committed_generation, false),
            Event::Reloaded => (self.entered, self.followed) = (None, false),
            Event::Agreed(summing) => {
                let newest = self.hello.committed_generation.map(|generation| (generation, summing));
                self.plans.retain(|(generation, _)| Some(*generation) == self.hello.committed_generation);
                self.plans.extend(newest);
                newest.into_iter().for_each(|newest| self.send_plan(newest));
            }
            Event::TookOver => {
                (self.entered, self.followed) = (self.catch_up.map(|catch_up| catch_up.generation), true);
            }
            Event::CaughtUp => self.caught_up(),
            Event::Sealed { held, broken } => {
                // A partial copy replaced its state. The next state comes from another process.
                if held.is_none() {
                    (self.entered, self.followed) = (None, false);
                }
                let broken = self.stop_following(broken);
                self.sealed = Some(Sealed { held, broken });
                self.final_report = None;
                // The group that should drain does not exist any more.
                self.draining = false;
                self.repeat(now);
                if std::mem::take(&mut self.told_to_seal) {
                    self.send_hello();
                }
            }
            Event::Progress { step, payload } => self.send(Message::Progress { step, payload }),
            Event::Checkpoint(mark) => {
                self.mark = Some(mark);
                self.send(Message::Checkpoint(mark));
            }
            Event::Leave { reason } => {
                self.leaving = Some(reason.clone());
                self.send(Message::Leave { reason });
            }
            Event::FinalReport(word) => {
                self.final_report = Some(word);
                self.repeat(now);
            }
            Event::Stuck { reason } => {
                self.send(Message::Stuck { reason });
                self.connected = false;
                self.commands.push(Command::Reconnect);
            }
            Event::Tick => {}
        }
        self.keep_in_touch(now);
        std::mem::take(&mut self.commands)
    }

    fn connected(&mut self, now: Duration) {
        self.connected = true;
        // A leaving member repeats it, because a new coordinator may not know of the drain.
        self.draining = false;
        (self.heard_at, self.heartbeat_at) = (now, now);
        self.send_hello();
        if let Some(mark) = self.mark {
            self.send(Message::Checkpoint(mark));
        }
        self.plans.clone().into_iter().for_each(|plan| self.send_plan(plan));
        self.repeat(now);
    }

    fn received(&mut self, message: Message, now: Duration) {
        match message {
            Message::Prepare { generation, planned } => self.prepare(generation, planned, now),
            Message::Commit { rank, active } => self.enter(rank, active),
            Message::Seal { generation } => self.seal(generation),
            Message::Follow(lead) => self.follow(lead),
            Message::Feed(follower) => self.commands.push(Command::Feed(follower)),
            // The group's coordinator accepted it before, so another coordinator has this address
            // now.
            Message::Refuse { .. } if self.has_belonged() => {
                self.connected = false;
                self.commands.push(Command::Reconnect);
            }
            Message::Refuse { reason, may_retry } => self.over(Command::Refused { reason, may_retry }),
            Message::Abort { reason } => self.over(Command::Abort { reason }),
            Message::Release => self.over(Command::Released),
            Message::Drain { reason } => {
                if !std::mem::replace(&mut self.draining, true) {
                    self.commands.push(Command::Drain { reason });
                }
            }
            // A sign of life, or a message that no coordinator sends.
            Message::Heartbeat
            | Message::Hello(_)
            | Message::SealReport(_)
            | Message::Broken { .. }
            | Message::CaughtUp { .. }
            | Message::Agreed { .. }
            | Message::Progress { .. }
            | Message::Checkpoint(_)
            | Message::Leave { .. }
            | Message::Stuck { .. }
            | Message::Fatal { .. }
            | Message::Diverged { .. }
            | Message::Finished { .. }
            | Message::Drained { .. } => {}
        }
    }

    fn prepare(&mut self, generation: u64, planned: bool, now: Duration) {
        if self.is_past(generation) {
            return;
        }
        let news = generation > self.promised;
        self.promised = generation;
        if self.sealed.is_some() {
            self.repeated_at = now;
            self.report();
        } else if news {
            self.commands.push(Command::Seal { generation, planned });
        }
    }

    fn enter(&mut self, rank: u32, active: Active) {
        let generation = active.generation;
        let mine = active.member(&self.hello.member).is_some_and(|ranked| ranked.rank == rank);
        if self.is_past(generation) || !mine {
            return;
        }
        // A committed member has reported and stayed sealed since.
        let Some(Sealed { held, .. }) = self.sealed.take() else { return };
        self.promised = generation;
        self.catch_up = None;
        // A draining member is told again in its new group.
        self.draining = false;
        self.hello.committed_generation = Some(generation);
        let group = Assignment::of(rank, active);
        // The checkpoint may hold steps that the sources have since given up.
        self.mark.take_if(|mark| !group.sources.contains(&rank) || group.base.step < mark.step);
        if held == Some(group.base) {
            (self.entered, self.followed) = (Some(generation), false);
        }
        self.commands.push(Command::Enter(group));
    }

    /// Returns true while its worker is sealed.
    pub(crate) fn has_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Returns true once it was committed to a generation.
    pub(crate) fn has_belonged(&self) -> bool {
        self.hello.committed_generation.is_some()
    }

    /// Returns true if a newer generation was promised, or this one or a newer one was committed.
    fn is_past(&self, generation: u64) -> bool {
        generation < self.promised || self.hello.committed_generation >= Some(generation)
    }

    fn over(&mut self, command: Command) {
        self.over = true;
        self.commands.push(command);
    }

    /// Sends heartbeats, repeats unanswered messages and leaves a silent coordinator.
    fn keep_in_touch(&mut self, now: Duration) {
        if self.over {
            return;
        }
        if self.connected && now.saturating_sub(self.heard_at) > COORDINATOR_DEAD_AFTER {
            self.connected = false;
            self.commands.push(Command::Reconnect);
        }
        if self.connected && now.saturating_sub(self.repeated_at) >= REPEAT_AFTER {
            let waits = self.hello.committed_generation.is_none() || self.sealed.is_some();
            if waits && !self.is_asked_to_report() {
                self.send_hello();
            }
            self.repeat(now);
        }
        if self.connected && now.saturating_sub(self.heartbeat_at) >= HEARTBEAT_EVERY {
            self.heartbeat_at = now;
            self.send(Message::Heartbeat);
        }
        let last = if self.connected { self.heartbeat_at } else { now };
        self.commands.push(Command::WakeAt(last + HEARTBEAT_EVERY));
    }

    /// Repeats every message that was not answered.
    fn repeat(&mut self, now: Duration) {
        self.repeated_at = now;
        if let Some(reason) = self.leaving.clone().filter(|_| !self.draining) {
            self.send(Message::Leave { reason });
        }
        self.report();
        self.ask_to_be_let_in();
        self.send_last_word();
    }

    /// Returns true while a generation is being prepared to which this member is not committed yet.
    fn is_asked_to_report(&self) -> bool {
        Some(self.promised) > self.hello.committed_generation.or(Some(0))
    }

    fn report(&mut self) {
        let Some(Sealed { held, broken }) = &self.sealed else { return };
        if self.is_asked_to_report() {
            let report = SealReport {
                generation: self.promised,
                entered_generation: self.entered,
                followed: self.followed,
                state: *held,
            };
            self.send(Message::SealReport(report));
        } else if let (Some(generation), Some(broken)) = (self.hello.committed_generation, broken) {
            self.send(Message::Broken { generation, broken: broken.clone() });
        }
    }

    fn send_plan(&mut self, (generation, summing): (u64, PlanAgreement)) {
        self.send(Message::Agreed { generation, summing });
    }

    fn send_hello(&mut self) {
        self.send(Message::Hello(Hello { sealed: self.sealed.is_some(), ..self.hello.clone() }));
    }

    fn send_last_word(&mut self) {
        let (Some(word), newest) = (self.final_report.clone(), self.hello.committed_generation) else { return };
        match (word, newest) {
            (FinalReport::Finished { step, digest, payload }, Some(generation)) => {
                self.send(Message::Finished { generation, step, digest, payload });
            }
            (FinalReport::Drained { step }, Some(generation)) => self.send(Message::Drained { generation, step }),
            (FinalReport::Fatal { message }, _) => self.send(Message::Fatal { message }),
            (FinalReport::Diverged { message }, _) => self.send(Message::Diverged { message }),
            // It does not belong to a group yet: it missed the commit, which is sent again.
            (FinalReport::Finished { .. } | FinalReport::Drained { .. }, None) => {}
        }
    }

    fn send(&mut self, message: Message) {
        if self.connected {
            self.commands.push(Command::Send(message));
        }
    }
}
