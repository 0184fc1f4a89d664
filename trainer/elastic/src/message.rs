//! What coordinator and members say to each other, and how it lies on the wire.
//!
//! A frame is `length: u32 | version: u16 | crc32c: u32 | body`, little-endian; the length counts the body, the checksum
//! covers it, and the body is one [`Message`] in postcard.

use std::net::SocketAddr;

use lockstep_collective::Origin;
use serde::{Deserialize, Serialize};

use crate::{Active, CheckpointMark, Digest, MemberId, Sampler};

/// Changes whenever a message does. Two sides of different versions refuse each other by name.
pub const PROTOCOL_VERSION: u16 = 10;
/// Greatest body of a frame: a commit to two thousand members.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Greatest payload of a progress report or a result.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;
/// Greatest text in a message; a longer one is cut.
pub const MAX_REASON_BYTES: usize = 4 << 10;

const HEADER_BYTES: usize = 10;

/// How the members of a group sum from some step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summing {
    /// Steps that were done before.
    pub after: u64,
    /// Digest of the plan.
    pub plan: Digest,
}

/// What failed for a member that could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// What, naming the peer.
    pub reason: String,
    /// The rank that it was not connected with when the group was formed.
    pub unreached: Option<u32>,
    /// What broke an operation, as far as the member knows.
    pub origin: Option<Origin>,
}

impl<T: Into<String>> From<T> for Break {
    fn from(reason: T) -> Self {
        Self { reason: reason.into(), unreached: None, origin: None }
    }
}

/// Everything that is said on a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Member: who I am. First on every connection.
    Hello(Hello),
    /// Coordinator: you cannot belong to this group.
    Refuse {
        /// What differs from what, and what to do.
        reason: String,
        /// Whether others of this attempt have trained: another process in your place may belong to them, and they need not end with you.
        /// Otherwise trying again is useless.
        may_retry: bool,
    },
    /// Coordinator: a new generation is being formed; promise never to complete a collective of an older one, and report.
    Prepare {
        /// Its number.
        generation: u64,
        /// Seal after a step that all agree on: nobody was lost, so no step needs to be.
        planned: bool,
    },
    /// Member: I sealed, and this is what I hold.
    Report(Report),
    /// Member: a collective of this generation failed, and I stand still.
    Broken {
        /// The generation.
        generation: u64,
        /// What failed.
        broken: Break,
    },
    /// Coordinator: the generation is agreed and recorded; enter it.
    Commit {
        /// Your rank in it.
        rank: u32,
        /// The membership.
        active: Active,
    },
    /// Coordinator: another group trains than the one that you may belong to; stand still, and say so, unless you follow it.
    Stand {
        /// The other group's number.
        generation: u64,
    },
    /// Coordinator: a group trains without you; follow it until you hold what it holds.
    Follow(Lead),
    /// Coordinator: a newcomer follows your group; hand it your part of the state, and of every summed gradient from then on.
    Feed(Follower),
    /// Member: I hold what the group holds, or cannot follow it. Let me in, unless there is a rank that I am not connected with.
    CaughtUp {
        /// The group's number.
        generation: u64,
        /// That rank: I would hold the group up.
        unreached: Option<u32>,
    },
    /// Member: how my group sums.
    Agreed {
        /// The group's number.
        generation: u64,
        /// What its members agreed on.
        summing: Summing,
    },
    /// Either side: I am alive.
    Heartbeat,
    /// Member: how far the training is.
    Progress {
        /// Optimiser steps that are done.
        step: u64,
        /// The worker's report, opaque here.
        payload: Vec<u8>,
    },
    /// Member: a checkpoint is whole.
    Checkpoint(CheckpointMark),
    /// Member: I have to go; let the others go on without me after a step.
    Leave {
        /// Why.
        reason: String,
    },
    /// Member: my training thread does nothing; go on without me. The last message on its connection.
    Stuck {
        /// For how long, and what it was about to do.
        reason: String,
    },
    /// Coordinator: too few can stay; stop together after a step, and save it.
    Drain {
        /// Who has to go, and why.
        reason: String,
    },
    /// Coordinator: the group is over; stop at once.
    Abort {
        /// Why, naming the member that was lost.
        reason: String,
    },
    /// Member: the job cannot succeed as it is described.
    Fatal {
        /// What was attempted, on what, and what to do.
        message: String,
    },
    /// Member: what the members hold differs, or is not what they computed; all have to begin anew with the newest checkpoint.
    Diverged {
        /// What differs, and what to do.
        message: String,
    },
    /// Member: the last step is done and all results are stored.
    Finished {
        /// The generation in which it was done.
        generation: u64,
        /// Optimiser steps that are done.
        step: u64,
        /// Digest of the final state, the same on every member.
        digest: Digest,
        /// The worker's last report, opaque here.
        payload: Vec<u8>,
    },
    /// Member: stopped after this step, as was asked; a checkpoint holds it.
    Drained {
        /// The generation that stopped.
        generation: u64,
        /// Optimiser steps that are done.
        step: u64,
    },
    /// Coordinator: you may go; your last word is recorded, or the group goes on without you.
    Release,
}

/// A member's account of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The job's uid.
    pub job: String,
    /// How often all processes of the job were started anew.
    pub attempt: u32,
    /// Who.
    pub member: MemberId,
    /// Where it listens for gradients.
    pub address: SocketAddr,
    /// Of everything that decides what is computed: model, training, program version.
    pub workload: Digest,
    /// Of the data set.
    pub data: Digest,
    /// The newest generation that it was committed to, when it returns.
    pub committed_generation: Option<u64>,
    /// Whether it stands still: it completes no collective before it is committed to a newer generation.
    pub stands: bool,
}

/// A group that a newcomer follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lead {
    /// Its number.
    pub generation: u64,
    /// Where each rank listens for gradients, in rank order.
    pub addresses: Vec<SocketAddr>,
}

/// A newcomer that follows a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follower {
    /// The group's number.
    pub generation: u64,
    /// Who.
    pub member: MemberId,
    /// Where it listens for what the members hand it.
    pub address: SocketAddr,
}

/// A training state, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Optimiser steps that it holds.
    pub step: u64,
    /// Its digest; [`Digest::NONE`] before the first step.
    pub digest: Digest,
    /// Where the sample sequence stands.
    pub sampler: Sampler,
}

/// What a member holds after it sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The generation that is being prepared.
    pub generation: u64,
    /// The last one of which it holds the state.
    pub entered_generation: Option<u64>,
    /// It followed that one, and may lack the last steps.
    pub followed: bool,
    /// What it holds; `None` while a state was being copied.
    pub state: Option<State>,
}

/// A frame that cannot be read. The connection is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The other side is of another version.
    #[error(
        "the other side speaks version {theirs} of the membership protocol, this one {PROTOCOL_VERSION}: run the same version of lockstep everywhere"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// A body beyond [`MAX_MESSAGE_BYTES`].
    #[error("a message of {bytes} bytes was announced, the limit is {MAX_MESSAGE_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The body is not what was sent.
    #[error("the checksum of a message does not match its bytes")]
    Checksum,
    /// The body is no message.
    #[error("a frame holds no message of this protocol")]
    Malformed,
}

impl Message {
    /// The frame that carries this message. A text beyond [`MAX_REASON_BYTES`] is cut.
    ///
    /// # Panics
    /// When a payload or the members of a commit do not fit into [`MAX_MESSAGE_BYTES`].
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        // Postcard fails only where serde cannot know a length beforehand, which no message contains.
        let body = postcard::to_stdvec(&self.within_limits())
            .unwrap_or_else(|error| unreachable!("a message always serialises: {error}"));
        assert!(body.len() <= MAX_MESSAGE_BYTES, "a message of {} bytes, the limit is {MAX_MESSAGE_BYTES}", body.len());
        let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
        frame.extend((body.len() as u32).to_le_bytes());
        frame.extend(PROTOCOL_VERSION.to_le_bytes());
        frame.extend(crc32c(&body).to_le_bytes());
        frame.extend(body);
        frame
    }

    fn within_limits(&self) -> Self {
        let mut message = self.clone();
        match &mut message {
            Self::Refuse { reason: text, .. }
            | Self::Leave { reason: text }
            | Self::Stuck { reason: text }
            | Self::Drain { reason: text }
            | Self::Broken { broken: Break { reason: text, .. }, .. }
            | Self::Abort { reason: text }
            | Self::Fatal { message: text }
            | Self::Diverged { message: text } => text.truncate(text.floor_char_boundary(MAX_REASON_BYTES)),
            Self::Hello(_)
            | Self::Prepare { .. }
            | Self::Report(_)
            | Self::Commit { .. }
            | Self::Stand { .. }
            | Self::Follow(_)
            | Self::Feed(_)
            | Self::CaughtUp { .. }
            | Self::Agreed { .. }
            | Self::Heartbeat
            | Self::Progress { .. }
            | Self::Checkpoint(_)
            | Self::Finished { .. }
            | Self::Drained { .. }
            | Self::Release => {}
        }
        message
    }
}

/// Cuts a stream of bytes into messages. Holds at most one frame and what came behind it in one read.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, or `None` until more was read.
    ///
    /// # Errors
    /// A frame that cannot be read; every later call says the same.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        let rest = &self.buffer[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [l0, l1, l2, l3, v0, v1, c0, c1, c2, c3] = *header;
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::Version { theirs });
        }
        let bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if bytes > MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLong { bytes });
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        if crc32c(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(FrameError::Checksum);
        }
        let (message, left) = postcard::take_from_bytes(body).map_err(|_| FrameError::Malformed)?;
        if !left.is_empty() {
            return Err(FrameError::Malformed);
        }
        self.taken += HEADER_BYTES + bytes;
        Ok(Some(message))
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}
