use std::ops::Range;

/// Bytes of one element of the arena.
const BYTES_PER_ELEMENT: usize = size_of::<f32>();

/// The size of PyTorch DDP's first bucket. It is small, so that communication starts early. (Li et
/// al., 2020)
pub const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// Cuts the gradient arena into buckets in the order in which gradients become ready.
///
/// `ready_order` holds the element ranges of the parameters, the first to be ready first. Empty
/// ranges are left out. The buckets come in the same order. Each is a contiguous slice of the
/// arena, and together they hold every element of `ready_order` exactly once.
///
/// A bucket takes in the next range while the two are adjacent in the arena and together no longer
/// than the limit. The limit is `first_bucket_bytes` for the first bucket and `bucket_bytes` for
/// the others. Backward may run from either end of the arena. A range is never cut, since all of it
/// becomes ready at once: a longer one is a bucket of its own.
///
/// A bucket is ready when its last range in `ready_order` is ready.
///
/// # Panics
/// If two ranges overlap: an element would be summed twice.
pub fn plan(ready_order: &[Range<usize>], bucket_bytes: usize, first_bucket_bytes: usize) -> Vec<Range<usize>> {
    assert_disjoint(ready_order);
    let mut buckets: Vec<Range<usize>> = Vec::new();
    for range in ready_order.iter().filter(|range| !range.is_empty()) {
        let limit = if buckets.len() <= 1 { first_bucket_bytes } else { bucket_bytes };
        let joined = buckets.last().and_then(|bucket| join(bucket, range));
        match (joined, buckets.last_mut()) {
            (Some(joined), Some(bucket)) if joined.len() * BYTES_PER_ELEMENT <= limit => *bucket = joined,
            _ => buckets.push(range.clone()),
        }
    }
    buckets
}

fn join(bucket: &Range<usize>, range: &Range<usize>) -> Option<Range<usize>> {
    if range.end == bucket.start {
        return Some(range.start..bucket.end);
    }
    (bucket.end == range.start).then_some(bucket.start..range.end)
}

fn assert_disjoint(ranges: &[Range<usize>]) {
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_by_key(|range| range.start);
    for pair in sorted.windows(2) {
        assert!(pair[0].end <= pair[1].start, "parameter ranges {:?} and {:?} overlap", pair[0], pair[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn backward_from_the_arenas_end_yields_adjacent_slices_from_the_end() {
        assert_eq!(plan(&[90..100, 60..90, 20..60, 0..20], 240, 80), [90..100, 60..90, 0..60]);
    }

    #[test]
    fn backward_from_the_arenas_start_yields_adjacent_slices_from_the_start() {
        assert_eq!(plan(&[0..10, 10..20, 20..50], 160, 80), [0..20, 20..50]);
    }

    #[test]
    fn a_parameter_longer_than_a_bucket_is_a_bucket_of_its_own() {
        assert_eq!(plan(&[1000..1010, 10..1000, 0..10], 100, 100), [1000..1010, 10..1000, 0..10]);
    }

    #[test]
    fn ranges_apart_in_the_arena_are_never_joined() {
        assert_eq!(plan(&[50..60, 10..20], 1 << 20, 1 << 20), [50..60, 10..20]);
    }

    #[test]
    fn an_empty_arena_has_no_bucket() {
        assert!(plan(&[], 100, 100).is_empty());
        assert!(plan(&[3..3, 3..3], 100, 100).is_empty());
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_ranges_panic() {
        plan(&[0..10, 9..12], 100, 100);
    }

    proptest! {
        #[test]
        fn every_element_is_in_exactly_one_bucket_and_in_ready_order(
            lengths in prop::collection::vec(0usize..400, 0..40),
            from_the_end in any::<bool>(),
            bucket_bytes in 0usize..2000,
            first_bucket_bytes in 0usize..2000,
        ) {
            let mut start = 0;
            let mut ready: Vec<Range<usize>> = lengths.iter().map(|length| { start += length; start - length..start }).collect();
            if from_the_end { ready.reverse() }
            let buckets = plan(&ready, bucket_bytes, first_bucket_bytes);

            let mut rest = ready.iter().filter(|range| !range.is_empty());
            for (index, bucket) in buckets.iter().enumerate() {
                let limit = if index == 0 { first_bucket_bytes } else { bucket_bytes };
                let (mut covered, mut ranges) = (0, 0);
                while covered < bucket.len() {
                    let range = rest.next().expect("a bucket holds more than the parameters");
                    prop_assert!(bucket.start <= range.start && range.end <= bucket.end);
                    covered += range.len();
                    ranges += 1;
                }
                prop_assert_eq!(covered, bucket.len());
                prop_assert!(ranges == 1 || bucket.len() * BYTES_PER_ELEMENT <= limit);
            }
            prop_assert!(rest.next().is_none());
        }
    }
}
