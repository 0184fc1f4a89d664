//! What messages cost in a group, found by sending some.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::algorithm::Algorithm;
use crate::element::Reduction;
use crate::group::{Group, Tag};
use crate::reducer::reducer;
use crate::{CollectiveError, Costs};

/// Bytes of the slices that are summed: from where only the messages count to where only the bytes do.
const SIZES: [usize; 7] = [256, 4 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// How often each is summed; the median counts.
const REPETITIONS: usize = 5;
/// No further size is begun after so long, but the last.
const LIMIT: Duration = Duration::from_millis(100);

impl Group {
    /// The [`Costs`] of this group, the same on all ranks, as rank 0 sees them: fitted to ring all-reduces of seven sizes, which take
    /// less than 0.2 s at 1 Gb/s. `None` where the times fit no costs.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn measure_costs(&mut self) -> Result<Option<Costs>, CollectiveError> {
        let started = Instant::now();
        let mut data = vec![0.0_f32; SIZES[SIZES.len() - 1] / size_of::<f32>()];
        let reduced_byte = reduction_seconds(&mut data) / size_of_val(&data[..]) as f64;
        let mut measured = Vec::new();
        for (bucket, bytes) in (0..).zip(SIZES) {
            let tag = Tag { step: u64::MAX, bucket };
            let mut seconds = [0.0; REPETITIONS];
            for seconds in &mut seconds {
                let slice = &mut data[..bytes / size_of::<f32>()];
                let moved = self.all_reduce(Algorithm::Ring, tag, slice, Reduction::Sum)?;
                *seconds = moved.took.as_secs_f64();
            }
            seconds.sort_by(f64::total_cmp);
            measured.push((bytes, seconds[REPETITIONS / 2]));
            let mut goes_on = [u8::from(started.elapsed() < LIMIT)];
            self.broadcast(0, tag, &mut goes_on)?;
            if goes_on == [0] {
                break;
            }
        }
        let fitted = Costs::fit(self.world(), &measured, reduced_byte);
        let mut costs = fitted.map_or([f64::NAN; 3], |costs| [costs.message, costs.wire_byte, costs.reduced_byte]);
        self.broadcast(0, Tag { step: u64::MAX, bucket: u32::MAX }, &mut costs)?;
        let [message, wire_byte, reduced_byte] = costs;
        Ok((!message.is_nan()).then_some(Costs { message, wire_byte, reduced_byte }))
    }
}

/// The time to reduce all of `data` once.
fn reduction_seconds(data: &mut [f32]) -> f64 {
    let terms = data.to_vec();
    let reduce = reducer::<f32>(Reduction::Sum);
    let mut seconds = [0.0; REPETITIONS];
    for seconds in &mut seconds {
        let started = Instant::now();
        reduce(black_box(bytemuck::cast_slice_mut(&mut *data)), bytemuck::cast_slice(&terms));
        *seconds = started.elapsed().as_secs_f64();
    }
    seconds.sort_by(f64::total_cmp);
    seconds[REPETITIONS / 2]
}
