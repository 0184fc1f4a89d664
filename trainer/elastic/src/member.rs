//! A worker's half of the membership. Pure: events and the time in, commands out.
//!
//! A member promises never to complete a collective of an older generation before it reports what it holds (it *seals*),
//! and enters a generation only if that is newer than all it promised or entered, and names this very process.

use std::{net::SocketAddr, time::Duration};

use crate::{Active, CheckpointMark, Digest, Hello, Message, Report, Sampler};

/// Time between two heartbeats.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// Time after which an unanswered message is said again.
pub const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// A coordinator that is silent this long is looked for anew.
pub const COORDINATOR_DEAD_AFTER: Duration = Duration::from_secs(10);

/// The membership that a member entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub generation: u64,
    /// This member's rank.
    pub rank: u32,
    /// How many ranks train together.
    pub world: u32,
    /// Where each rank listens for gradients, in rank order.
    pub addresses: Vec<SocketAddr>,
    /// The pod of each rank.
    pub pods: Vec<String>,
    /// Optimiser steps that the state holds which all start from.
    pub base_step: u64,
    /// Digest of that state; [`Digest::NONE`] before the first step.
    pub base_digest: Digest,
    /// Virtual shards of a global step.
    pub shards: u32,
    /// Where the sample sequence stands at `base_step`.
    pub sampler: Sampler,
}

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a connection to a coordinator.
    Connected,
    /// It is gone.
    Disconnected,
    /// A message arrived.
    Received(Message),
    /// The worker holds a new state.
    Applied {
        /// Optimiser steps that it holds.
        step: u64,
        /// Its digest.
        digest: Digest,
        /// Whether the reduced gradient of `step` is still there.
        holds_gradient: bool,
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
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send a message.
    Send(Message),
    /// Close the connection and look for the coordinator anew.
    Reconnect,
    /// Abort every collective of a generation older than this one, before anything else is sent.
    Seal {
        /// The promised generation.
        generation: u64,
    },
    /// Train in this group.
    Enter(Group),
    /// Stop after a step that all agree on.
    Drain {
        /// Who asks, and why.
        reason: String,
    },
    /// The group is over; stop at once.
    Abort {
        /// Why.
        reason: String,
    },
    /// This process cannot belong to the group.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The last word is recorded; the process may end.
    Released,
    /// Come back with [`Event::Tick`] at this time unless something happens before; replaces the former time.
    WakeAt(Duration),
}

/// A worker's view of its membership.
#[derive(Debug)]
pub struct Member {
    hello: Hello,
    applied: (u64, Digest, bool),
    promised: u64,
    stage: Stage,
    connected: bool,
    heard: Duration,
    beaten: Duration,
    said: Duration,
    mark: Option<CheckpointMark>,
    leaving: Option<String>,
    draining: bool,
    last_word: Option<LastWord>,
    commands: Vec<Command>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Joining,
    Sealed,
    Running { generation: u64 },
    Over,
}

impl Member {
    /// A process that wants to join.
    #[must_use]
    pub fn new(hello: Hello) -> Self {
        let (step, digest) = hello.checkpoint.map_or((0, Digest::NONE), |held| (held.step, held.digest));
        Self {
            hello,
            applied: (step, digest, false),
            promised: 0,
            stage: Stage::Joining,
            connected: false,
            heard: Duration::ZERO,
            beaten: Duration::ZERO,
            said: Duration::ZERO,
            mark: None,
            leaving: None,
            draining: false,
            last_word: None,
            commands: Vec::new(),
        }
    }

    /// What is to be done after `event`, where `now` counts from any fixed moment and never goes back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if self.stage == Stage::Over {
            return Vec::new();
        }
        match event {
            Event::Connected => self.connected(now),
            Event::Disconnected => self.connected = false,
            Event::Received(message) => {
                self.heard = now;
                self.received(message, now);
            }
            Event::Applied { step, digest, holds_gradient } => self.applied = (step, digest, holds_gradient),
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
            Event::Tick => {}
        }
        self.keep_in_touch(now);
        std::mem::take(&mut self.commands)
    }

    fn connected(&mut self, now: Duration) {
        self.connected = true;
        (self.heard, self.beaten, self.said) = (now, now, now);
        self.say(Message::Hello(self.hello.clone()));
        if let Some(mark) = self.mark {
            self.say(Message::Checkpoint(mark));
        }
        self.say_last_word();
    }

    fn received(&mut self, message: Message, now: Duration) {
        match message {
            Message::Prepare { generation } => self.seal(generation, now),
            Message::Commit { rank, active } => self.enter(rank, active),
            Message::Refuse { reason } => self.over(Command::Refused { reason }),
            Message::Abort { reason } => self.over(Command::Abort { reason }),
            Message::Release => self.released(),
            Message::Drain { reason } => {
                if !std::mem::replace(&mut self.draining, true) {
                    self.commands.push(Command::Drain { reason });
                }
            }
            // A sign of life, or nothing that a coordinator says.
            Message::Heartbeat
            | Message::Hello(_)
            | Message::Report(_)
            | Message::Done { .. }
            | Message::Stable { .. }
            | Message::Progress { .. }
            | Message::Checkpoint(_)
            | Message::Leave { .. }
            | Message::Fatal { .. }
            | Message::Finished { .. }
            | Message::Drained { .. } => {}
        }
    }

    fn seal(&mut self, generation: u64, now: Duration) {
        let stale = generation < self.promised || self.hello.entered_generation >= Some(generation);
        if stale {
            return;
        }
        if generation > self.promised {
            self.promised = generation;
            self.commands.push(Command::Seal { generation });
        }
        self.stage = Stage::Sealed;
        self.said = now;
        self.say(self.report());
    }

    fn enter(&mut self, rank: u32, active: Active) {
        let generation = active.generation;
        let stale = generation < self.promised || self.hello.entered_generation >= Some(generation);
        let mine = active.seat(&self.hello.member).is_some_and(|seat| seat.rank == rank);
        if stale || !mine {
            return;
        }
        let (step, digest, _) = self.applied;
        if (step, digest) != (active.base_step, active.base_digest) {
            let message = format!(
                "{} holds step {step} with digest {digest:.12}, generation {generation} starts from step {} with digest {:.12}",
                self.hello.member.pod, active.base_step, active.base_digest
            );
            self.over_with_word(LastWord::Fatal { message });
            return;
        }
        self.promised = generation;
        self.hello.entered_generation = Some(generation);
        self.stage = Stage::Running { generation };
        self.commands.push(Command::Enter(group(rank, active)));
    }

    fn report(&self) -> Message {
        let (applied_step, state_digest, holds_gradient) = self.applied;
        Message::Report(Report {
            generation: self.promised,
            entered_generation: self.hello.entered_generation,
            applied_step,
            state_digest,
            holds_gradient,
        })
    }

    fn released(&mut self) {
        if self.last_word.is_some() {
            self.over(Command::Released);
        }
    }

    fn over(&mut self, command: Command) {
        self.stage = Stage::Over;
        self.commands.push(command);
    }

    fn over_with_word(&mut self, word: LastWord) {
        let LastWord::Fatal { message } = &word else { return };
        let reason = message.clone();
        self.last_word = Some(word);
        self.say_last_word();
        self.over(Command::Refused { reason });
    }

    /// Heartbeats, repetitions, and doubts about a silent coordinator.
    fn keep_in_touch(&mut self, now: Duration) {
        if self.stage == Stage::Over {
            return;
        }
        if self.connected && now.saturating_sub(self.heard) > COORDINATOR_DEAD_AFTER {
            self.connected = false;
            self.commands.push(Command::Reconnect);
        }
        if self.connected && now.saturating_sub(self.said) >= REPEAT_AFTER {
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
        match self.stage {
            Stage::Joining => self.say(Message::Hello(self.hello.clone())),
            Stage::Sealed => self.say(self.report()),
            Stage::Running { .. } | Stage::Over => {}
        }
        if let Some(reason) = self.leaving.clone().filter(|_| !self.draining) {
            self.say(Message::Leave { reason });
        }
        self.say_last_word();
    }

    fn say_last_word(&mut self) {
        match self.last_word.clone() {
            Some(LastWord::Finished { step, digest, payload }) => {
                self.say(Message::Finished { step, digest, payload });
            }
            Some(LastWord::Drained { step }) => self.say(Message::Drained { step }),
            Some(LastWord::Fatal { message }) => self.say(Message::Fatal { message }),
            None => {}
        }
    }

    fn say(&mut self, message: Message) {
        if self.connected {
            self.commands.push(Command::Send(message));
        }
    }
}

fn group(rank: u32, active: Active) -> Group {
    let Active { generation, members, base_step, base_digest, shards, sampler, sources: _, rollback: _ } = active;
    let world = members.iter().map(|seat| seat.rank + 1).max().unwrap_or(0);
    let (addresses, pods) = members.into_iter().map(|seat| (seat.address, seat.pod)).unzip();
    Group { generation, rank, world, addresses, pods, base_step, base_digest, shards, sampler }
}
