//! A check that the model fits into memory, before any of it is allocated: the kernel kills without
//! a word.

use std::fmt;

use lockstep_launch::{AND_MAY_HAVE, Ending, Launch, MemoryLimit, RecordStore, in_words};

use crate::failure::{Failure, leave};

/// The bytes that a worker needs for its copy of the model and for its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub samples: u64,
}

/// The needs of all workers that share the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    each: Needs,
    workers: u64,
}

/// Refuses a model that cannot fit. Otherwise writes its needs as the ending of this process, in
/// case the kernel kills it before its first step.
///
/// # Errors
/// Fatal: there is not enough memory for weights, gradients and optimiser.
pub(crate) fn check(launch: &Launch, each: &Needs) -> Result<(), Failure> {
    let Some(limit) = MemoryLimit::of_this_process() else { return Ok(()) };
    let in_cluster = launch.store == RecordStore::Kubernetes;
    let needs = Shared { each: *each, workers: if in_cluster { 1 } else { launch.replicas.into() } };
    let words = format!("{needs}{AND_MAY_HAVE}{limit}; {}", remedy(in_cluster));
    if !needs.may_fit(&limit) {
        return Err(Failure::fatal(format!("spec.model: out of memory: the model does not fit: {words}")));
    }
    leave(&launch.ending, &Ending { message: words, ..Ending::default() });
    Ok(())
}

/// Removes the ending that [`check`] wrote. From now on the log of a killed process tells more.
pub(crate) fn has_fit(launch: &Launch) {
    // If this cannot be written, the other could not be either.
    let _ = std::fs::write(&launch.ending, "");
}

const fn remedy(in_cluster: bool) -> &'static str {
    match in_cluster {
        true => "raise resources.limits.memory of the container trainer in spec.template, or choose a smaller model",
        false => "give the run more memory, or choose fewer workers or a smaller model",
    }
}

impl Needs {
    /// Returns the bytes by kind, for the metrics.
    pub(crate) fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let Self { weights, gradients, optimizer, activations, samples } = *self;
        vec![
            ("weights", weights),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("activations", activations),
            ("samples", samples),
        ]
    }

    /// Returns the bytes of one worker.
    const fn total(&self) -> u64 {
        let Self { weights, gradients, optimizer, activations, samples } = *self;
        weights + gradients + optimizer + activations + samples
    }
}

impl Shared {
    /// Activations are only estimated. Without the rest there is no step.
    const fn may_fit(&self, limit: &MemoryLimit) -> bool {
        let Needs { weights, gradients, optimizer, .. } = self.each;
        (weights + gradients + optimizer) * self.workers <= limit.bytes + limit.swap
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { each: needs, workers } = *self;
        let each = in_words(needs.total());
        match workers {
            1 => write!(f, "this worker needs about {each}")?,
            _ => write!(
                f,
                "{workers} workers need about {}, each {each}",
                in_words(needs.total().saturating_mul(workers))
            )?,
        }
        let Needs { weights, gradients, optimizer, activations, samples } = needs;
        let [weights, gradients, optimizer, activations, samples] =
            [weights, gradients, optimizer, activations, samples].map(in_words);
        write!(
            f,
            " (weights {weights}, gradients {gradients}, optimiser {optimizer}, activations {activations}, samples {samples})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bytes: u64) -> MemoryLimit {
        MemoryLimit { bytes, swap: 0, source: "memory.max".to_owned() }
    }

    /// The needs of an mlp with hidden layers of 12,000 and 6,000.
    const LARGE: Needs = Needs {
        weights: 325_944_000,
        gradients: 325_944_000,
        optimizer: 325_944_000,
        activations: 4_600_000,
        samples: 7_840_000,
    };

    #[test]
    fn a_model_fits_if_all_workers_of_the_host_have_room_for_a_step() {
        for (workers, bytes, fits) in [(1, 700_000_000, false), (1, 1_000_000_000, true), (2, 1_000_000_000, false)] {
            assert_eq!(
                Shared { each: LARGE, workers }.may_fit(&limit(bytes)),
                fits,
                "{workers} workers, {bytes} bytes"
            );
        }
        assert!(
            Shared { each: LARGE, workers: 2 }.may_fit(&MemoryLimit { swap: 1 << 31, ..limit(700_000_000) }),
            "pages may be moved out"
        );
    }

    #[test]
    fn each_part_of_the_needs_is_named() {
        assert_eq!(
            Shared { each: LARGE, workers: 2 }.to_string(),
            "2 workers need about 2.0 GB, each 990 MB (weights 326 MB, gradients 326 MB, optimiser 326 MB, \
             activations 5 MB, samples 8 MB)"
        );
    }
}
