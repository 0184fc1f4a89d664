use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::CollectiveError;

/// Ends the collectives of one generation from any thread.
///
/// Clones are handles on the same generation. After [`Abort::abort`] forming stops, the sockets are shut down both ways
/// so that the peers notice too, and every pending and later operation fails with [`CollectiveError::Aborted`].
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
    /// A handle for a generation that is yet to form.
    pub fn new() -> Self {
        Self::default()
    }

    /// Aborts everything of this generation. Returns at once; the first reason given is the one reported.
    pub fn abort(&self, reason: impl Into<String>) {
        // A reason that is already set was the first, and stays.
        let _ = self.shared.reason.set(reason.into());
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // A socket that its peer has closed already is as good as shut down.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Why this generation was aborted, if it was.
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

    /// What befell an operation, if that was no abort: sockets that one shut down look as if the peer had closed them.
    pub(crate) fn or(&self, error: CollectiveError) -> CollectiveError {
        match (self.check(), &error) {
            (Ok(()), _) | (_, CollectiveError::Aborted { .. }) => error,
            // Where another rank stood, and whom it waited for, is not told of this one.
            (Err(aborted), CollectiveError::PeerGaveUp { .. }) => aborted,
            (Err(aborted), _) => {
                let aborted = error.peer().into_iter().fold(aborted, CollectiveError::awaiting);
                error.origin().into_iter().fold(aborted, |aborted, origin| aborted.at_site(origin.site))
            }
        }
    }

    /// Has an abort shut `socket` down. Fails when it came before.
    pub(crate) fn guard(&self, socket: &Arc<TcpStream>) -> Result<(), CollectiveError> {
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
        self.check()
    }
}
