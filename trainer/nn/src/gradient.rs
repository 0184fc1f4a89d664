//! The gradients of a step, handed out bucket by bucket.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::Device;
use crate::error::Error;
use crate::plan::Plan;

/// One bucket's gradients: a slice of the gradient arena, owned until dropped, usable from any
/// thread.
///
/// The first use waits for the device. What is written (an average over a group) is what `update`
/// will see. Behind the last bucket's gradients lie the elements that were asked for
/// [beside](crate::Replica::set_gradient_memory) them: the step's sum of losses, then others with
/// whatever values they were left with.
pub struct Gradient<V> {
    view: V,
    _claim: Claim,
}

impl<V: AsMut<[f32]>> AsMut<[f32]> for Gradient<V> {
    fn as_mut(&mut self) -> &mut [f32] {
        self.view.as_mut()
    }
}

/// Counts gradients that are out. Declared after the view, so it is given up after the view is.
struct Claim(Arc<AtomicUsize>);

impl Claim {
    fn on(outstanding: &Arc<AtomicUsize>) -> Claim {
        outstanding.fetch_add(1, Ordering::Relaxed);
        Claim(Arc::clone(outstanding))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The buckets of a step.
pub(crate) struct Buckets<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) ranges: &'a [Range<usize>],
    /// Elements behind the gradients that go with the last bucket.
    pub(crate) beside: usize,
}

impl Buckets<'_> {
    /// Announces those from `announced` on that end at or before `ready`; gives the first one that
    /// does not.
    pub(crate) fn announce_until<D: Device>(
        &self,
        device: &mut D,
        announced: usize,
        ready: usize,
        outstanding: &Arc<AtomicUsize>,
        on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>),
    ) -> usize {
        let complete = self.ranges[announced..].iter().take_while(|bucket| bucket.end <= ready).count();
        if complete == 0 {
            return announced;
        }
        let event = device.ready();
        for (index, bucket) in self.ranges.iter().enumerate().skip(announced).take(complete) {
            let beside = if index + 1 == self.ranges.len() { self.beside } else { 0 };
            let region = self.plan.gradients.region(bucket.start..bucket.end + beside);
            on_bucket(
                index,
                Gradient { view: device.host_view(region, event.clone()), _claim: Claim::on(outstanding) },
            );
        }
        announced + complete
    }
}

/// True if `buckets` tile an arena of so many elements, in order.
pub(crate) fn check_buckets(buckets: &[Range<usize>], elements: usize) -> Result<(), Error> {
    let mut expected_start = 0;
    for (index, bucket) in buckets.iter().enumerate() {
        if bucket.start != expected_start || bucket.end <= bucket.start || bucket.end > elements {
            return Err(Error::Buckets { index, bucket: bucket.clone(), expected_start, elements });
        }
        expected_start = bucket.end;
    }
    if expected_start != elements {
        let bucket = elements..elements;
        return Err(Error::Buckets { index: buckets.len(), bucket, expected_start, elements });
    }
    Ok(())
}
