//! The messages between coordinator and members, and their form on the wire.
//!
//! A frame is `length: u32 | version: u16 | crc32c: u32 | body`, little-endian. The length counts
//! the body, the checksum covers it, and the body is one [`Message`] in postcard.

use std::net::SocketAddr;

use lockstep_collective::Origin;
use serde::{Deserialize, Serialize};

use crate::{Active, CheckpointMark, Digest, MemberId, PlanAgreement, Sampler};

/// Changes whenever a message changes. Two sides with different versions refuse each other and name
/// both versions.
pub const PROTOCOL_VERSION: u16 = 10;
/// The largest body of a frame: a commit to two thousand members.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// The largest payload of a progress report or a result.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;
/// The longest text in a message. A longer text is cut.
pub const MAX_REASON_BYTES: usize = 4 << 10;

const HEADER_BYTES: usize = 10;

/// The failure of a member that could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// The cause, with the name of the peer.
    pub reason: String,
    /// The rank that the member could not connect to when the group was formed.
    pub unreached: Option<u32>,
    /// The origin of a broken operation, as far as the member knows it.
    pub origin: Option<Origin>,
}

impl<T: Into<String>> From<T> for Break {
    fn from(reason: T) -> Self {
        Self { reason: reason.into(), unreached: None, origin: None }
    }
}

/// Every message on a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From a member: introduces itself. This is the first message on every connection.
    Hello(Hello),
    /// From the coordinator: refuses a process that cannot belong to this group.
    Refuse {
        /// The difference that was found, and the remedy.
        reason: String,
        /// True if other processes of this attempt have already trained. Another process of this
        /// pod may then belong to the group, and the group need not end. Otherwise a retry is
        /// useless.
        may_retry: bool,
    },
    /// From the coordinator: announces a new generation. The member seals and reports its state.
    /// From then on it completes no collective of an older generation.
    Prepare {
        /// The number of the new generation.
        generation: u64,
        /// True if no member was lost. The member then seals after a step on which all agree, so
        /// that no step is lost.
        planned: bool,
    },
    /// From a member: has sealed and holds this state.
    SealReport(SealReport),
    /// From a member: a collective of this generation failed, and the member has sealed.
    Broken {
        /// The generation.
        generation: u64,
        /// The failure.
        broken: Break,
    },
    /// From the coordinator: the generation is agreed and recorded, and the member may enter it.
    Commit {
        /// The member's rank in it.
        rank: u32,
        /// The membership.
        active: Active,
    },
    /// From the coordinator: another group trains. The process seals and says so, unless it follows
    /// that group.
    Seal {
        /// The number of the other group's generation.
        generation: u64,
    },
    /// From the coordinator: a group trains without this newcomer, which follows it to catch up.
    Follow(FollowedGroup),
    /// From the coordinator: a newcomer follows the group. The member sends its part of the state,
    /// then its part of every summed gradient.
    Feed(Follower),
    /// From a newcomer: has caught up or cannot, and wants to join. If it cannot connect to a rank,
    /// it does not want to join yet.
    CaughtUp {
        /// The number of the group's generation.
        generation: u64,
        /// The rank that the newcomer cannot connect to. As a member it would delay the group.
        unreached: Option<u32>,
    },
    /// From a member: its group agreed on a plan.
    Agreed {
        /// The number of the group's generation.
        generation: u64,
        /// The agreement.
        summing: PlanAgreement,
    },
    /// From either side: it is alive.
    Heartbeat,
    /// From a member: the progress of the training.
    Progress {
        /// The number of optimiser steps done.
        step: u64,
        /// The worker's report, opaque to this crate.
        payload: Vec<u8>,
    },
    /// From a member: a checkpoint is complete.
    Checkpoint(CheckpointMark),
    /// From a member: has to leave, and the others may go on without it after a step.
    Leave {
        /// The cause.
        reason: String,
    },
    /// From a member: its training thread does not move, and the group goes on without it. This is
    /// the last message on its connection.
    Stuck {
        /// The time since its last move, and its activity.
        reason: String,
    },
    /// From the coordinator: too few members can stay. All stop together after a step and save it.
    Drain {
        /// The members that have to leave, each with the cause.
        reason: String,
    },
    /// From the coordinator: the group is over, and the member stops at once.
    Abort {
        /// The cause, with the name of the lost member.
        reason: String,
    },
    /// From a member: the job cannot succeed as it is described.
    Fatal {
        /// The failed attempt, its object and the remedy.
        message: String,
    },
    /// From a member: the members' states differ from each other or from their computation. All
    /// start again from the newest checkpoint.
    Diverged {
        /// The difference, and the remedy.
        message: String,
    },
    /// From a member: the last step is done and all results are stored.
    Finished {
        /// The generation that did the last step.
        generation: u64,
        /// The number of optimiser steps done.
        step: u64,
        /// The digest of the final state, which is the same on every member.
        digest: Digest,
        /// The worker's last report, opaque to this crate.
        payload: Vec<u8>,
    },
    /// From a member: has stopped after this step as requested, and a checkpoint holds it.
    Drained {
        /// The generation that stopped.
        generation: u64,
        /// The number of optimiser steps done.
        step: u64,
    },
    /// From the coordinator: the process may end. Its final report is recorded, or the group goes
    /// on without it.
    Release,
}

/// The introduction of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The uid of the job.
    pub job: String,
    /// The number of the attempt: it grows when all processes of the job start again.
    pub attempt: u32,
    /// The identity of the member.
    pub member: MemberId,
    /// The address on which it listens for gradients.
    pub address: SocketAddr,
    /// The digest of everything that decides the computation: model, training, program version.
    pub workload: Digest,
    /// The digest of the data set.
    pub data: Digest,
    /// The newest generation that this process was committed to, if it returns.
    pub committed_generation: Option<u64>,
    /// True once it has sealed: it completes no collective before it is committed to a newer
    /// generation.
    pub sealed: bool,
}

/// A group that a newcomer follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedGroup {
    /// The number of its generation.
    pub generation: u64,
    /// The address on which each rank listens for gradients, in rank order.
    pub addresses: Vec<SocketAddr>,
}

/// A newcomer that follows a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follower {
    /// The number of the group's generation.
    pub generation: u64,
    /// The identity of the newcomer.
    pub member: MemberId,
    /// The address on which it listens for the members' parts.
    pub address: SocketAddr,
}

/// The identity of a training state that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldState {
    /// The number of optimiser steps that it contains.
    pub step: u64,
    /// Its digest. It is [`Digest::NONE`] before the first step.
    pub digest: Digest,
    /// The position in the sample sequence.
    pub sampler: Sampler,
}

/// The state that a member holds after it sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealReport {
    /// The generation that is being prepared.
    pub generation: u64,
    /// The last generation whose state it holds.
    pub entered_generation: Option<u64>,
    /// True if it only followed this generation, so that it may lack the last steps.
    pub followed: bool,
    /// The state, or `None` in the middle of a copy.
    pub state: Option<HeldState>,
}

/// A frame that cannot be read. The connection is useless from then on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The other side speaks another version.
    #[error(
        "the other side speaks version {theirs} of the membership protocol, this one {PROTOCOL_VERSION}: run the same version of lockstep everywhere"
    )]
    Version {
        /// The version of the other side.
        theirs: u16,
    },
    /// The body exceeds [`MAX_MESSAGE_BYTES`].
    #[error("a message of {bytes} bytes was announced, the limit is {MAX_MESSAGE_BYTES}")]
    TooLong {
        /// The announced length.
        bytes: usize,
    },
    /// The body differs from the one that was sent.
    #[error("the checksum of a message does not match its bytes")]
    Checksum,
    /// The body is not a message.
    #[error("a frame holds no message of this protocol")]
    Malformed,
}

impl Message {
    /// Returns the frame that carries this message. It cuts a text beyond [`MAX_REASON_BYTES`].
    ///
    /// # Panics
    /// Panics if a payload or the members of a commit do not fit into [`MAX_MESSAGE_BYTES`].
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        // Postcard fails only if serde cannot know a length in advance. No message contains such a
        // value.
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
            | Self::SealReport(_)
            | Self::Commit { .. }
            | Self::Seal { .. }
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

/// Cuts a stream of bytes into messages. It holds at most one frame and the bytes that were read
/// with it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Adds bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails if the frame cannot be read. Every later call fails with the same error.
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
