//! The last word of a process that must end outside the training loop.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use lockstep_elastic::Membership;
use tracing::warn;

/// How long a last word may take if the job failed anyway.
pub(crate) const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

/// The membership of this process. A thread that prepares samples knows no session.
static MEMBERSHIP: Mutex<Weak<Membership>> = Mutex::new(Weak::new());

/// Last words go through this membership from here on.
pub(crate) fn go_through(membership: &Arc<Membership>) {
    *MEMBERSHIP.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(membership);
}

/// Tells all workers that the job cannot succeed, if this one has joined. Otherwise they would
/// begin anew without it, and meet the same.
pub(crate) fn fatal(message: &str) {
    let membership = MEMBERSHIP.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(Err(error)) = membership.map(|membership| membership.fatal(message, FAREWELL_PATIENCE)) {
        warn!(%error, "the coordinator does not know why this worker ends");
    }
}
