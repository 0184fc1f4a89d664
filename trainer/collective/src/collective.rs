use crate::CollectiveError;
use crate::choice::Choice;
use crate::element::Reduction;
use crate::group::Group;
use crate::outcome::Transferred;
use crate::tag::Tag;

/// A collective for [`Communicator::start`](crate::Communicator::start). Each is the [`Group`]
/// method of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the group's methods are the documentation")]
pub enum Collective {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    Broadcast { root: usize },
    Reduce { root: usize, reduction: Reduction },
    Gather { root: usize },
    Scatter { root: usize },
    AllToAll,
    Send { to: usize },
    Receive { from: usize },
    Barrier,
}

impl Collective {
    /// Runs the collective. An all-reduce uses the algorithm that `choice` finds.
    pub(crate) fn carry_out(
        self,
        group: &mut Group,
        choice: Choice,
        tag: Tag,
        data: &mut [f32],
    ) -> Result<Transferred, CollectiveError> {
        match self {
            Self::AllReduce(reduction) if group.shares_memory() && matches!(choice, Choice::Cheapest(_)) => {
                group.all_reduce_in_memory(tag, data, reduction)
            }
            Self::AllReduce(reduction) => {
                let algorithm = choice.algorithm(group.hosts(), size_of_val(data));
                group.all_reduce(algorithm, tag, data, reduction)
            }
            Self::ReduceScatter(reduction) => group.reduce_scatter(tag, data, reduction),
            Self::AllGather => group.all_gather(tag, data),
            Self::Broadcast { root } => group.broadcast(root, tag, data),
            Self::Reduce { root, reduction } => group.reduce(root, tag, data, reduction),
            Self::Gather { root } => group.gather(root, tag, data),
            Self::Scatter { root } => group.scatter(root, tag, data),
            Self::AllToAll => group.all_to_all(tag, data),
            Self::Send { to } => group.send(to, tag, data),
            Self::Receive { from } => group.receive(from, tag, data),
            Self::Barrier => group.barrier(tag),
        }
    }

    /// Runs the collective in a group of one.
    ///
    /// # Panics
    /// If the method of [`Group`] would panic in a group of one.
    pub(crate) fn alone(self, data: &mut [f32]) {
        match self {
            Self::Broadcast { root } | Self::Reduce { root, .. } | Self::Gather { root } | Self::Scatter { root } => {
                assert!(root == 0, "root {root} is not in a group of 1");
            }
            Self::AllToAll => {
                let length = data.len() / 2;
                data.copy_within(..length, length);
            }
            Self::Send { to: other } | Self::Receive { from: other } => {
                panic!("rank 0 exchanges nothing with rank {other} in a group of 1")
            }
            Self::AllReduce(_) | Self::ReduceScatter(_) | Self::AllGather | Self::Barrier => {}
        }
    }
}
