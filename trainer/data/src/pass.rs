/// One pass over the training samples, by which their random changes are keyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Seed of the job.
    pub(crate) seed: u64,
    /// Passes before it.
    pub(crate) epoch: u64,
}
