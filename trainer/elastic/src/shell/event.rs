//! The events of a membership for the training thread.

use crate::Follower;

/// An event that the training thread has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    /// A new generation is being formed: seal, and call
    /// [`Membership::regroup`](super::Membership::regroup). A planned change waits for a step on
    /// which all agree. Otherwise abort the collectives of this generation at once.
    Seal {
        /// True if no member was lost.
        planned: bool,
    },
    /// The group is over: abort the collective and end.
    Abort {
        /// The cause, with the name of the lost member.
        reason: String,
    },
    /// Stop after a step on which all agree, save it, and call
    /// [`Membership::drained`](super::Membership::drained).
    Drain {
        /// The members that have to leave, each with the cause.
        reason: String,
    },
    /// The group does not need this worker any more: abort the group that it follows.
    Released,
    /// A newcomer follows the group. After a step on which all agree, send it this member's part of
    /// the state. Then send this member's part of each summed gradient until the group changes.
    Feed(Follower),
    /// The coordinator is out of reach and looked for. The training goes on.
    CoordinatorLost,
    /// A coordinator is connected again.
    CoordinatorFound,
    /// The training thread does not move, so this worker left its group. The group goes on, and the
    /// worker joins again once it moves.
    Stuck {
        /// The time since its last move, and its activity.
        reason: String,
    },
    /// The training thread still does not move. Only a new process can help.
    Hung {
        /// The time since its last move, and its activity.
        reason: String,
    },
}
