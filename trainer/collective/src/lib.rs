//! Sums slices of `f32` across a group of ranks, over TCP, while the caller goes on computing.
//!
//! The story in the order of the modules: [`plan_buckets`] cuts the gradient arena into slices in the order in which
//! they become ready; a [`RingSchedule`] says who sends what to whom; frames carry it; a [`Listener`] and
//! [`Ring::form`] bind the members of one generation to each other; a [`Ring`] executes the schedule in place; a
//! [`Communicator`] does so on a thread of its own, and an [`Abort`] ends it from any other thread.
//!
//! The crate knows no layers and reads no environment.
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
mod communicator;
mod error;
mod forming;
mod frame;
mod link;
mod ring;
mod schedule;

pub use abort::Abort;
pub use buckets::{BYTES_PER_ELEMENT, FIRST_BUCKET_BYTES, plan as plan_buckets};
pub use communicator::{Communicator, Completed, Failed, MAX_PENDING, Statistics};
pub use error::{CollectiveError, Missing};
pub use forming::{JobId, Limits, Seat, Waiting};
pub use frame::{FrameError, HEADER_BYTES, Header, Kind, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES};
pub use link::Listener;
pub use ring::{Ring, Transferred};
pub use schedule::{Arrival, Hop, RingSchedule, Slot, Slots};

#[cfg(target_endian = "big")]
compile_error!("frames carry little-endian f32 taken straight from memory; this host is big-endian");
