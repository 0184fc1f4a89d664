//! The membership of a job's group: forming it, changing it and ending it.
//!
//! [`Coordinator`] and [`Member`] are pure state machines: an event and the time go in, commands
//! come out. The [`shell`] gives them sockets, a clock and a thread. The durable [`Record`] is the
//! one truth about a job. It changes only by compare-and-swap through a [`GenerationStore`], so of
//! two coordinators that compete, one always loses.

mod assignment;
mod clock;
mod identity;
mod record;
mod store;
mod watchdog;

pub mod message;

pub mod coordinator;
pub mod member;

pub mod shell;

pub use assignment::Assignment;
pub use clock::AwakeClock;
pub use coordinator::{Change, Coordinator, Outcome, Status};
pub use identity::{Digest, Incarnation, MemberId, rank_order};
pub use member::Member;
pub use message::{Break, FollowedGroup, Follower, HeldState, Hello, Message, SealReport};
pub use record::{Active, CheckpointMark, PlanAgreement, RankedMember, Record, RecordError, Sampler};
pub use shell::{
    Admission, FinalReply, FinalReportError, JoinError, Membership, MembershipEvent, Notice, Obstacle, coordinate,
};
pub use store::{FileStore, GenerationStore, StoreError, Swap, Version};
pub use watchdog::{Activity, ActivityMonitor, ActivitySample, Stuck, Watchdog};
