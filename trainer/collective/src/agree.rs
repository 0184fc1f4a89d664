//! How all ranks of a group get the same plan.

use crate::CollectiveError;
use crate::choice::Choice;
use crate::group::Group;
use crate::plan::{AgreedPlan, BucketPlan, HEAD, MAX_BUCKETS};
use crate::tag::{NO_STEP, Tag};

impl Group {
    /// Returns the plan of rank 0 on all ranks. `propose` is called on rank 0 only. A
    /// [`Communicator`](crate::Communicator) over the group follows the plan. A group cannot follow
    /// the plan of another group, because its ranks may have agreed on a different one.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// On rank 0, if the proposal is no plan for these ranks: the buckets must tile an arena from
    /// its beginning and be fewer than [`MAX_PENDING`](crate::MAX_PENDING) by a margin, the columns
    /// of a torus must divide the world size, and the hosts must be those of as many ranks.
    pub fn agree(&mut self, propose: impl FnOnce() -> BucketPlan) -> Result<AgreedPlan, CollectiveError> {
        let (tag, world) = (Tag { step: NO_STEP, bucket: 0 }, self.world());
        let fits = |plan: &BucketPlan| match plan.choice {
            _ if plan.hosts.world() != world => false,
            Choice::Always(algorithm) => algorithm.fits(world),
            Choice::Cheapest(_) => true,
        };
        let read = |words: &[u64]| BucketPlan::from_words(words).filter(fits);
        let mut words = Vec::new();
        if self.id().rank == 0 {
            let plan = propose();
            words = plan.to_words();
            assert!(read(&words).as_ref() == Some(&plan), "no plan for {world} ranks: {plan:?}");
        }
        let mut length = [words.len() as u64];
        self.broadcast(0, tag, bytemuck::cast_slice_mut::<u64, i64>(&mut length))?;
        let refused = |found: String| CollectiveError::WrongFrame {
            rank: 0,
            field: "plan",
            expected: format!("one that tiles the arena, for {world} ranks"),
            found,
            at: None,
        };
        let words_at_most = (HEAD + world + MAX_BUCKETS) as u64;
        let Some(length) = usize::try_from(length[0]).ok().filter(|_| length[0] <= words_at_most) else {
            return self.end(refused(format!("{} words", length[0])));
        };
        words.resize(length, 0);
        self.broadcast(0, tag, bytemuck::cast_slice_mut::<u64, i64>(&mut words))?;
        let Some(plan) = read(&words) else { return self.end(refused("another".to_owned())) };
        let agreed = AgreedPlan::of(plan);
        self.take_over(agreed.clone());
        Ok(agreed)
    }
}
