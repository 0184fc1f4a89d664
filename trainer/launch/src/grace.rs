//! The time between the request to end and the kill of a process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Seconds that Kubernetes gives a pod whose template does not set the grace period.
pub const DEFAULT_GRACE_SECONDS: u32 = 30;

/// Advised grace period, in times of the measured drain. Storage may be slower later.
const MARGIN: f64 = 2.0;

/// A grace period that is too short for a drain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShortGrace {
    /// Seconds of a drain: two steps, an evaluation and a checkpoint, as the newest ones took.
    pub drain_seconds: f64,
    /// Seconds from the request to end until a process is killed.
    pub grace_seconds: u32,
}

impl ShortGrace {
    /// Returns the seconds that would be enough.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn advised_seconds(&self) -> u32 {
        (self.drain_seconds * MARGIN).ceil() as u32
    }
}

/// One sentence: the need, the present value and the remedy.
impl fmt::Display for ShortGrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drain_seconds, grace_seconds } = self;
        write!(
            f,
            "a drain takes {drain_seconds:.1} s, two steps, an evaluation and a checkpoint, but a process that is asked to end is killed after \
             {grace_seconds} s, and then the steps since the newest checkpoint may be lost: set \
             spec.template.spec.terminationGracePeriodSeconds to {}",
            self.advised_seconds()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advised_grace_period_is_twice_the_time_of_a_drain() {
        let short = ShortGrace { drain_seconds: 45.25, grace_seconds: 30 };
        let text = short.to_string();
        assert!(text.starts_with("a drain takes 45.2 s") && text.contains("killed after 30 s"), "{text}");
        assert!(text.ends_with("terminationGracePeriodSeconds to 91"), "{text}");
    }
}
