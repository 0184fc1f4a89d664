//! A worker's half of the membership. Pure: events and the time in, commands out.
//!
//! ```text
//!            Commit                        Prepare                      the worker stopped
//! standing ─────────► training or copying ─────────► asked to seal ─────────────────────► standing, reports
//!     ▲    │                 │ a collective failed
//!     ├────┼─────────────────┘ Broken
//!     │    │ Follow
//!     │    └──────► following ─── the group changes, or feeds it no more
//!     └────────────────────────── ready to be let in
//! ```
//!
//! A member promises never to complete a collective of an older generation before it reports what it holds (it *seals*: the worker
//! stands still), and enters a generation only if that is newer than all it promised or entered, and names this very process.

mod following;

use std::time::Duration;

use self::following::Following;
use crate::{Active, Break, CheckpointMark, Digest, Follower, Group, Hello, Lead, Message, Report, State, Summing};

/// Time between two heartbeats.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// Time after which an unanswered message is said again.
pub const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// A coordinator that is silent this long is looked for anew.
pub const COORDINATOR_DEAD_AFTER: Duration = Duration::from_secs(10);

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a connection to a coordinator.
    Connected,
    /// It is gone.
    Disconnected,
    /// A message arrived.
    Received(Message),
    /// The worker holds the state that its group starts from.
    Entered,
    /// The worker gave the state of its generation up for one that it read from a checkpoint.
    Reloaded,
    /// How its group sums from a step on; told to every coordinator.
    Agreed(Summing),
    /// The worker holds a state of the group that it follows, and none that it held before.
    TookOver,
    /// The worker holds what the group holds that it follows, and goes on to follow it.
    CaughtUp,
    /// The worker stands still: it completes no collective until the next [`Command::Enter`].
    Stand {
        /// What it holds; `None` in the middle of a copy.
        held: Option<State>,
        /// What failed, if it was not asked to.
        broken: Option<Break>,
    },
    /// The worker reports how far it is; dropped while no coordinator listens.
    Progress {
        /// Optimiser steps that are done.
        step: u64,
        /// The worker's report.
        payload: Vec<u8>,
    },
    /// A checkpoint is whole; the newest one is told until a coordinator knows it.
    Checkpoint(CheckpointMark),
    /// The worker has to go.
    Leave {
        /// Why.
        reason: String,
    },
    /// The worker's training ended; told until a coordinator releases it.
    LastWord(LastWord),
    /// The training thread does nothing: the others are to go on without it. To be followed by [`Event::Connected`] once it moves.
    Stuck {
        /// For how long, and what it was about to do.
        reason: String,
    },
    /// Time has passed.
    Tick,
}

/// How a worker's training ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastWord {
    /// The last step is done and all results are stored.
    Finished {
        /// Optimiser steps that are done.
        step: u64,
        /// Digest of the final state.
        digest: Digest,
        /// The worker's last report.
        payload: Vec<u8>,
    },
    /// Stopped after this step, as was asked; a checkpoint holds it.
    Drained {
        /// Optimiser steps that are done.
        step: u64,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// What was attempted, on what, and what to do.
        message: String,
    },
    /// All have to begin anew with the newest checkpoint.
    Diverged {
        /// What differs, and what to do.
        message: String,
    },
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send a message.
    Send(Message),
    /// Close the connection and look for the coordinator anew.
    Reconnect,
    /// Have the worker stand still: at once, with every collective aborted, or if it is planned after a step that all agree on.
    Seal {
        /// The promised generation.
        generation: u64,
        /// Whether nobody was lost.
        planned: bool,
    },
    /// Train in this group.
    Enter(Group),
    /// Take over what this group holds while it trains, and stand when it changes or hands over nothing more.
    Follow(Lead),
    /// Hand what the group holds to this newcomer.
    Feed(Follower),
    /// Stop after a step that all agree on, and save it.
    Drain {
        /// Who asks, and why.
        reason: String,
    },
    /// The group is over; stop at once.
    Abort {
        /// Why.
        reason: String,
    },
    /// This process, which never belonged to the group, cannot.
    Refused {
        /// Why, and what to do.
        reason: String,
        /// Whether another one may in its place.
        may_retry: bool,
    },
    /// The process may end: its last word is recorded, or the group goes on without it.
    Released,
    /// Come back with [`Event::Tick`] at this time unless something happens before; replaces the former time.
    WakeAt(Duration),
}

/// A worker's view of its membership.
#[derive(Clone, Debug)]
pub struct Member {
    hello: Hello,
    /// The newest generation of which it holds the state.
    entered: Option<u64>,
    /// It followed that one.
    followed: bool,
    promised: u64,
    standing: Option<Standing>,
    following: Option<Following>,
    /// A coordinator waits for its standing.
    told_to_stand: bool,
    over: bool,
    connected: bool,
    heard: Duration,
    beaten: Duration,
    said: Duration,
    mark: Option<CheckpointMark>,
    /// How the newest group sums, from its first plan on.
    plans: Vec<(u64, Summing)>,
    leaving: Option<String>,
    draining: bool,
    last_word: Option<LastWord>,
    commands: Vec<Command>,
}

#[derive(Clone, Debug)]
struct Standing {
    held: Option<State>,
    broken: Option<Break>,
}

impl Member {
    /// A process that wants to join, holding a state.
    #[must_use]
    pub fn new(hello: Hello, held: State) -> Self {
        Self {
            hello,
            entered: None,
            followed: false,
            promised: 0,
            standing: Some(Standing { held: Some(held), broken: None }),
            following: None,
            told_to_stand: false,
            over: false,
            connected: false,
            heard: Duration::ZERO,
            beaten: Duration::ZERO,
            said: Duration::ZERO,
            mark: None,
            plans: Vec::new(),
            leaving: None,
            draining: false,
            last_word: None,
            commands: Vec::new(),
        }
    }

    /// What is to be done after `event`, where `now` counts from any fixed moment and never goes back; an [`Awake`](crate::Awake) clock's.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Connected => self.connected(now),
            Event::Disconnected => self.connected = false,
            Event::Received(message) => {
                self.heard = now;
                self.received(message, now);
            }
            Event::Entered => (self.entered, self.followed) = (self.hello.committed_generation, false),
            Event::Reloaded => (self.entered, self.followed) = (None, false),
            Event::Agreed(summing) => {
                let newest = self.hello.committed_generation.map(|generation| (generation, summing));
                self.plans.retain(|(generation, _)| Some(*generation) == self.hello.committed_generation);
                self.plans.extend(newest);
                newest.into_iter().for_each(|newest| self.say_plan(newest));
            }
            Event::TookOver => {
                (self.entered, self.followed) = (self.following.map(|following| following.generation), true);
            }
            Event::CaughtUp => self.caught_up(),
            Event::Stand { held, broken } => {
                // Half a copy replaced it: what this process holds from now on comes from elsewhere.
                if held.is_none() {
                    (self.entered, self.followed) = (None, false);
                }
                let broken = self.follows_no_more(broken);
                self.standing = Some(Standing { held, broken });
                self.last_word = None;
                // The group that was to drain is no more.
                self.draining = false;
                self.repeat(now);
                if std::mem::take(&mut self.told_to_stand) {
                    self.say_hello();
                }
            }
            Event::Progress { step, payload } => self.say(Message::Progress { step, payload }),
            Event::Checkpoint(mark) => {
                self.mark = Some(mark);
                self.say(Message::Checkpoint(mark));
            }
            Event::Leave { reason } => {
                self.leaving = Some(reason.clone());
                self.say(Message::Leave { reason });
            }
            Event::LastWord(word) => {
                self.last_word = Some(word);
                self.repeat(now);
            }
            Event::Stuck { reason } => {
                self.say(Message::Stuck { reason });
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
        // Who has to go says so again: this may be another coordinator, which knows of nobody who drains.
        self.draining = false;
        (self.heard, self.beaten) = (now, now);
        self.say_hello();
        if let Some(mark) = self.mark {
            self.say(Message::Checkpoint(mark));
        }
        self.plans.clone().into_iter().for_each(|plan| self.say_plan(plan));
        self.repeat(now);
    }

    fn received(&mut self, message: Message, now: Duration) {
        match message {
            Message::Prepare { generation, planned } => self.prepare(generation, planned, now),
            Message::Commit { rank, active } => self.enter(rank, active),
            Message::Stand { generation } => self.stand(generation),
            Message::Follow(lead) => self.follow(lead),
            Message::Feed(follower) => self.commands.push(Command::Feed(follower)),
            // This group's coordinator has taken it in before: at its address is another one now.
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
            // A sign of life, or nothing that a coordinator says.
            Message::Heartbeat
            | Message::Hello(_)
            | Message::Report(_)
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
        if self.standing.is_some() {
            self.said = now;
            self.report();
        } else if news {
            self.commands.push(Command::Seal { generation, planned });
        }
    }

    fn enter(&mut self, rank: u32, active: Active) {
        let generation = active.generation;
        let mine = active.seat(&self.hello.member).is_some_and(|seat| seat.rank == rank);
        if self.is_past(generation) || !mine {
            return;
        }
        // Who is committed has reported, and stands still since.
        let Some(Standing { held, .. }) = self.standing.take() else { return };
        self.promised = generation;
        self.following = None;
        // Who drains is told so again in its new group.
        self.draining = false;
        self.hello.committed_generation = Some(generation);
        let group = Group::of(rank, active);
        // What it saved may have been given up since by those that it takes its state from.
        self.mark.take_if(|mark| !group.sources.contains(&rank) || group.base.step < mark.step);
        if held == Some(group.base) {
            (self.entered, self.followed) = (Some(generation), false);
        }
        self.commands.push(Command::Enter(group));
    }

    /// Whether its worker stands still.
    pub(crate) fn stands(&self) -> bool {
        self.standing.is_some()
    }

    /// Whether it was committed to a generation.
    pub(crate) fn has_belonged(&self) -> bool {
        self.hello.committed_generation.is_some()
    }

    /// Whether a newer one was promised, or this one or a newer one was committed.
    fn is_past(&self, generation: u64) -> bool {
        generation < self.promised || self.hello.committed_generation >= Some(generation)
    }

    fn over(&mut self, command: Command) {
        self.over = true;
        self.commands.push(command);
    }

    /// Heartbeats, repetitions, and doubts about a silent coordinator.
    fn keep_in_touch(&mut self, now: Duration) {
        if self.over {
            return;
        }
        if self.connected && now.saturating_sub(self.heard) > COORDINATOR_DEAD_AFTER {
            self.connected = false;
            self.commands.push(Command::Reconnect);
        }
        if self.connected && now.saturating_sub(self.said) >= REPEAT_AFTER {
            let waits = self.hello.committed_generation.is_none() || self.standing.is_some();
            if waits && !self.is_asked() {
                self.say_hello();
            }
            self.repeat(now);
        }
        if self.connected && now.saturating_sub(self.beaten) >= HEARTBEAT_EVERY {
            self.beaten = now;
            self.say(Message::Heartbeat);
        }
        let last = if self.connected { self.beaten } else { now };
        self.commands.push(Command::WakeAt(last + HEARTBEAT_EVERY));
    }

    /// Says again what was not answered.
    fn repeat(&mut self, now: Duration) {
        self.said = now;
        if let Some(reason) = self.leaving.clone().filter(|_| !self.draining) {
            self.say(Message::Leave { reason });
        }
        self.report();
        self.ask_to_be_let_in();
        self.say_last_word();
    }

    /// Whether a generation is being prepared that this member is not committed to yet.
    fn is_asked(&self) -> bool {
        Some(self.promised) > self.hello.committed_generation.or(Some(0))
    }

    fn report(&mut self) {
        let Some(Standing { held, broken }) = &self.standing else { return };
        if self.is_asked() {
            let report = Report {
                generation: self.promised,
                entered_generation: self.entered,
                followed: self.followed,
                state: *held,
            };
            self.say(Message::Report(report));
        } else if let (Some(generation), Some(broken)) = (self.hello.committed_generation, broken) {
            self.say(Message::Broken { generation, broken: broken.clone() });
        }
    }

    fn say_plan(&mut self, (generation, summing): (u64, Summing)) {
        self.say(Message::Agreed { generation, summing });
    }

    fn say_hello(&mut self) {
        self.say(Message::Hello(Hello { stands: self.standing.is_some(), ..self.hello.clone() }));
    }

    fn say_last_word(&mut self) {
        let (Some(word), newest) = (self.last_word.clone(), self.hello.committed_generation) else { return };
        match (word, newest) {
            (LastWord::Finished { step, digest, payload }, Some(generation)) => {
                self.say(Message::Finished { generation, step, digest, payload });
            }
            (LastWord::Drained { step }, Some(generation)) => self.say(Message::Drained { generation, step }),
            (LastWord::Fatal { message }, _) => self.say(Message::Fatal { message }),
            (LastWord::Diverged { message }, _) => self.say(Message::Diverged { message }),
            // It speaks for no group yet: the commitment that it missed is sent again.
            (LastWord::Finished { .. } | LastWord::Drained { .. }, None) => {}
        }
    }

    fn say(&mut self, message: Message) {
        if self.connected {
            self.commands.push(Command::Send(message));
        }
    }
}
