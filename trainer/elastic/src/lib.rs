//! Who is in the group, and what a change means.
//!
//! [`Coordinator`] and [`Member`] are pure state machines: an event and the time go in, commands come out. The [`shell`]
//! gives them sockets, a clock and a thread. The durable [`Record`] is the one truth; it changes only by
//! compare-and-swap through a [`GenerationStore`], so that of two coordinators one gives up.

mod clock;
mod group;
mod identity;
mod record;
mod store;
mod watchdog;

pub mod message;

pub mod coordinator;
pub mod member;

pub mod shell;

pub use clock::Awake;
pub use coordinator::{Change, Coordinator, Outcome, Status};
pub use group::Group;
pub use identity::{Digest, Incarnation, MemberId, rank_order};
pub use member::Member;
pub use message::{Break, Follower, Hello, Lead, Message, Report, State, Summing};
pub use record::{Active, CheckpointMark, Record, RecordError, Sampler, Seat};
pub use shell::{Event, Farewell, FarewellError, JoinError, Membership, Notice, Obstacle, Place, coordinate};
pub use store::{FileStore, GenerationStore, StoreError, Swap, Version};
pub use watchdog::{Activity, Glimpse, Stuck, Watchdog, Work};
