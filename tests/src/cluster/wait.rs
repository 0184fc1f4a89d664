//! Waiting for a condition, with a deadline.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Checks a condition repeatedly until it holds.
///
/// # Errors
/// It did not hold within `patience`.
pub fn wait_for(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > patience {
            bail!("waited {patience:?} for {what}");
        }
        thread::park_timeout(LOOK_EVERY);
    }
    Ok(())
}
