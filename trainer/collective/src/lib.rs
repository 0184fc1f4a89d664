//! Collective operations among a group of ranks, over TCP or memory that they share, if asked for while the caller goes on computing.
//!
//! The story in the order of the modules: an [`algorithm`] says who sends what to whom as a pure schedule; frames carry it; a
//! [`Listener`] and [`Group::form`] bind the members of one generation to each other, inside TLS where the listener has an [`Identity`],
//! each pair by as many connections as its [`Sockets`] say; a [`Group`] carries any schedule out in place, in
//! a [`Wire`] format of fewer bits if asked to, or reduces [`SharedArena`]s where they are; [`Group::split`] makes groups of its parts. [`merge`] says which gradients are best summed together, [`Group::agree`] gives all ranks
//! the same [`Plan`] of buckets and algorithms, and a [`Communicator`] follows it on a thread of its own while the caller computes, or
//! starts any other [`Collective`], until an [`Abort`] ends it from any other thread.
//!
//! The crate knows no layers and reads no environment: who starts the ranks tells each the addresses of all, those that the others reach
//! it by. `examples/bandwidth` is a program of several ranks.
//!
//! ```
//! use lockstep_collective::{Abort, CollectiveError, Communicator, JobId, Limits, Listener, Seat};
//! use std::net::Ipv4Addr;
//!
//! # fn main() -> Result<(), CollectiveError> {
//! let listener = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0)?;
//! let seat = Seat { job: JobId([7; 16]), generation: 1, rank: 0 };
//! // The addresses of all ranks: here a group of one.
//! let peers = [listener.address()];
//! let mut communicator = Communicator::form(&listener, seat, &peers, Limits::default(), &Abort::new())?;
//! communicator.submit(1, 0, vec![0.5_f32; 1000]);
//! // Backward goes on here.
//! for outcome in communicator.wait_all() {
//!     assert_eq!(outcome?.memory, [0.5; 1000]);
//! }
//! # Ok(())
//! # }
//! ```

mod abort;
pub mod algorithm;
mod buckets;
mod call;
mod choice;
mod collective;
mod communicator;
mod connection;
mod crc32c;
mod element;
mod engine;
mod error;
mod farewell;
mod forming;
mod frame;
mod group;
mod hosts;
mod identity;
mod idle;
mod limits;
mod link;
mod measure;
mod memory;
mod merging;
mod mesh;
mod outcome;
mod own_core;
mod plan;
mod position;
mod queue;
mod reducer;
mod seat;
mod session;
mod stripes;
mod waiting;
mod wire;

pub use abort::Abort;
pub use buckets::{FIRST_BUCKET_BYTES, plan as plan_buckets};
pub use call::Call;
pub use choice::{Choice, Costs};
pub use collective::Collective;
pub use communicator::{BESIDE, Communicator, MAX_PENDING, Statistics};
pub use element::{Element, ElementType, Reduction};
pub use error::{CollectiveError, Missing};
pub use frame::{FrameError, HEADER_BYTES, Header, Kind, MAX_PAYLOAD_BYTES};
pub use group::{Group, Tag, Transferred};
pub use hosts::Hosts;
pub use identity::{CredentialPart, Credentials, Identity, IdentityError};
pub use limits::Limits;
pub use link::Listener;
pub use measure::LENGTHS;
pub use memory::SharedArena;
pub use merging::{Ready, last_end, merge};
pub use outcome::{Completed, Failed};
pub use plan::{AgreedPlan, Plan};
pub use position::{Loss, Origin, Position};
pub use seat::{JobId, Seat};
pub use stripes::{MAX_SOCKETS, Sockets};
pub use waiting::Waiting;
pub use wire::Wire;

#[cfg(target_endian = "big")]
compile_error!("frames carry little-endian numbers taken straight from memory; this host is big-endian");
