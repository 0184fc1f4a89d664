//! Collectives among a group of ranks, over TCP or shared memory, beside the caller's computation.
//!
//! An [`algorithm`] is a pure schedule: it says which rank sends which elements to which. Frames
//! carry the elements. A [`Listener`] and [`Group::form`] connect the members of one generation,
//! inside TLS if the listener has an [`Identity`], each pair by as many connections as [`Sockets`]
//! says.
//!
//! A [`Group`] runs any schedule in place, in a narrower [`Wire`] format on request, or reduces
//! [`SharedArena`]s in shared memory. [`Group::split`] forms groups of its parts.
//!
//! [`merge`] finds the gradients that are best summed together. [`Group::agree`] gives all ranks
//! the same [`BucketPlan`]. A [`Communicator`] follows it on a thread of its own while the caller
//! computes, and runs any other [`Collective`]. [`Collectives`] is the trait of all who may take
//! its place. An [`Abort`] ends everything from any other thread.
//!
//! The crate knows no layers and reads no environment: its caller passes every rank the addresses
//! at which the others reach it. `examples/bandwidth` is a program of several ranks.
//!
//! ```
//! use lockstep_collective::{Abort, CollectiveError, Communicator};
//! use lockstep_collective::{JobId, Limits, Listener, RankId};
//! use std::net::Ipv4Addr;
//!
//! # fn main() -> Result<(), CollectiveError> {
//! let listener = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0)?;
//! let id = RankId { job: JobId([7; 16]), generation: 1, rank: 0 };
//! // The addresses of all ranks: here a group of one.
//! let peers = [listener.address()];
//! let (limits, abort) = (Limits::default(), Abort::new());
//! let mut communicator = Communicator::form(&listener, id, &peers, limits, &abort)?;
//! communicator.submit(1, 0, vec![0.5_f32; 1000]);
//! // Backward goes on here.
//! for outcome in communicator.wait_all() {
//!     assert_eq!(outcome?.memory, [0.5; 1000]);
//! }
//! # Ok(())
//! # }
//! ```

// Numbers, and the schedules of their exchange.
pub mod algorithm;
mod choice;
mod costs;
mod element;
mod hosts;
mod operation;
mod reducer;
mod wire;

// Names of ranks and operations, limits and errors.
mod abort;
mod error;
mod error_site;
mod limits;
mod outcome;
mod rank_id;
mod sockets;
mod tag;

// Frames and links, from the socket up.
mod connection;
mod crc32c;
mod frame;
mod frame_check;
mod handshake;
mod identity;
mod link_error;
mod listener;
mod mesh;
mod poll_set;
mod socket;
mod stripes;
mod tls;

// Operations: over links, or in shared memory.
mod engine;
mod failure_notice;
mod group;
mod idle;
mod own_core;
mod shared_memory;
mod waiting;

// Plans, and sums beside the caller's computation.
mod agree;
mod buckets;
mod collective;
mod collectives;
mod communicator;
mod measure_costs;
mod merge;
mod plan;
mod queue;

pub use abort::Abort;
pub use buckets::{FIRST_BUCKET_BYTES, plan as plan_buckets};
pub use choice::Choice;
pub use collective::Collective;
pub use collectives::{Collectives, Handle};
pub use communicator::{Communicator, Statistics};
pub use costs::Costs;
pub use element::{Element, ElementType, Reduction};
pub use error::{CollectiveError, Missing};
pub use error_site::{ErrorSite, Origin, PeerFault};
pub use frame::{FrameError, FrameKind, HEADER_BYTES, Header, MAX_PAYLOAD_BYTES};
pub use group::Group;
pub use hosts::Hosts;
pub use identity::{CredentialPart, Credentials, Identity, IdentityError};
pub use limits::{Limits, MAX_PENDING};
pub use listener::Listener;
pub use measure_costs::LENGTHS;
pub use merge::{ReadyGradient, last_end, merge};
pub use operation::OperationCode;
pub use outcome::{Completed, Failed, Transferred};
pub use plan::{AgreedPlan, BucketPlan};
pub use rank_id::{JobId, RankId};
pub use shared_memory::SharedArena;
pub use sockets::{MAX_SOCKETS, Sockets};
pub use tag::{BESIDE, Tag};
pub use waiting::Waiting;
pub use wire::Wire;

#[cfg(target_endian = "big")]
compile_error!("frames carry little-endian numbers taken straight from memory; this host is big-endian");
