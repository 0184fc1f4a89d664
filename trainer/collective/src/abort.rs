use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::CollectiveError;

/// Ends the collectives of one generation from any thread.
///
/// Clones are handles on the same generation. [`Abort::abort`] stops the forming of the group and
/// shuts the sockets down both ways, so that the peers notice too. Every pending and later
/// operation then fails with [`CollectiveError::Aborted`].
#[derive(Clone, Debug, Default)]
pub struct Abort {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    reason: OnceLock<String>,
    /// Weak, so that a handle that outlives the group keeps no socket open.
    sockets: Mutex<Vec<Weak<TcpStream>>>,
}

impl Abort {
    /// Returns a handle for a generation that has yet to form.
    pub fn new() -> Self {
        Self::default()
    }

    /// Aborts everything of this generation and returns at once. The first reason is the one
    /// reported.
    pub fn abort(&self, reason: impl Into<String>) {
        // The first reason stays.
        let _ = self.shared.reason.set(reason.into());
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // The peer may have closed the socket already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns the reason for which this generation was aborted, if it was.
    pub fn reason(&self) -> Option<&str> {
        self.shared.reason.get().map(String::as_str)
    }

    /// Fails once this generation has been aborted.
    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        match self.reason() {
            Some(reason) => Err(CollectiveError::Aborted { reason: reason.to_owned(), waited_for: None, at: None }),
            None => Ok(()),
        }
    }

    /// Returns the abort instead of `error`, if there was one. Sockets that an abort shut down look
    /// as if the peer had closed them.
    pub(crate) fn or(&self, error: CollectiveError) -> CollectiveError {
        match (self.check(), &error) {
            (Ok(()), _) | (_, CollectiveError::Aborted { .. }) => error,
            // The site and the rank in this error are another rank's, not this one's.
            (Err(aborted), CollectiveError::PeerGaveUp { .. }) => aborted,
            (Err(aborted), _) => {
                let aborted = error.peer().into_iter().fold(aborted, CollectiveError::awaiting);
                error.origin().into_iter().fold(aborted, |aborted, origin| aborted.at_site(origin.site))
            }
        }
    }

    /// Lets an abort shut `socket` down. Fails after an abort.
    pub(crate) fn guard(&self, socket: &Arc<TcpStream>) -> Result<(), CollectiveError> {
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
        self.check()
    }
}
