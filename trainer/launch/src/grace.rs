//! The time that a process has to end once it is asked to.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Seconds that Kubernetes gives a pod whose template does not say.
pub const DEFAULT_GRACE_SECONDS: u32 = 30;

/// How many times what a drain took there should be: storage is not always as fast.
const MARGIN: f64 = 2.0;

/// A time to end in which a drain does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShortGrace {
    /// Seconds that a drain takes: two steps, an evaluation and a checkpoint, by the newest ones.
    pub drain_seconds: f64,
    /// Seconds after which a process that was asked to end is killed.
    pub grace_seconds: u32,
}

impl ShortGrace {
    /// Seconds that would do.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    pub fn advised_seconds(&self) -> u32 {
        (self.drain_seconds * MARGIN).ceil() as u32
    }
}

/// As one sentence: what it would take, what there is, what to do.
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
    fn what_to_set_is_twice_what_a_drain_takes() {
        let short = ShortGrace { drain_seconds: 45.25, grace_seconds: 30 };
        let text = short.to_string();
        assert!(text.starts_with("a drain takes 45.2 s") && text.contains("killed after 30 s"), "{text}");
        assert!(text.ends_with("terminationGracePeriodSeconds to 91"), "{text}");
    }
}
