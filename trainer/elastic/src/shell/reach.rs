//! Reaches the coordinator by its name, and says what is in the way.

use std::{fmt, io, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout},
};
use tracing::warn;

/// How long one attempt to look up the name may take, and one to connect.
const LIMIT: Duration = Duration::from_secs(2);
/// A coordinator that is missing for so long is told of; the time doubles up to the limit.
const TELL_AFTER: Duration = Duration::from_secs(5);
const TELL_LIMIT: Duration = Duration::from_secs(60);

/// What keeps a member from its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// DNS knows no address of its name, or does not answer.
    Name,
    /// Nobody listens at its address.
    Refused,
    /// Nothing comes back from its address.
    Silent,
    /// Anything else; the text says what.
    Other,
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) obstacle: Obstacle,
    pub(super) problem: String,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl From<io::Error> for Blocked {
    fn from(error: io::Error) -> Self {
        let problem = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
        Self { obstacle: Obstacle::Other, problem }
    }
}

/// Looks the name up and connects to the first of its addresses that answers.
pub(super) async fn reach(coordinator: &str) -> Result<TcpStream, Blocked> {
    let unnamed = |problem: String| Blocked { obstacle: Obstacle::Name, problem };
    let found = timeout(LIMIT, lookup_host(coordinator)).await;
    let found = found.map_err(|_| unnamed(format!("DNS did not answer for its name within {LIMIT:?}")))?;
    let addresses: Vec<_> = found.map_err(|error| unnamed(format!("DNS does not know its name: {error}")))?.collect();
    let mut blocked = unnamed("DNS knows no address of its name".to_owned());
    for address in addresses {
        let (obstacle, problem) = match timeout(LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => (obstacle(&error), format!("{address}: {error}")),
            Err(_) => (Obstacle::Silent, format!("{address}: timed out, nothing came back within {LIMIT:?}")),
        };
        blocked = Blocked { obstacle, problem };
    }
    Err(blocked)
}

fn obstacle(error: &io::Error) -> Obstacle {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Obstacle::Refused,
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Obstacle::Silent
        }
        _ => Obstacle::Other,
    }
}

/// Since when no coordinator answers, and when that is told again.
pub(super) struct Missing {
    since: Option<Instant>,
    tell_after: Duration,
}

impl Missing {
    pub(super) const fn new() -> Self {
        Self { since: None, tell_after: TELL_AFTER }
    }

    /// One has answered.
    pub(super) fn found(&mut self) {
        *self = Self::new();
    }

    /// Logs what is in the way, at growing intervals.
    pub(super) fn tell(&mut self, coordinator: &str, blocked: &Blocked) {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited >= self.tell_after {
            self.tell_after = waited + self.tell_after.min(TELL_LIMIT);
            warn!(%coordinator, problem = %blocked, waited_seconds = waited.as_secs(), "no coordinator answers");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn met(coordinator: &str) -> (Obstacle, String) {
        let Err(Blocked { obstacle, problem }) = reach(coordinator).await else { panic!("somebody answered") };
        (obstacle, problem)
    }

    #[tokio::test]
    async fn a_name_that_dns_does_not_know_and_a_port_where_nobody_listens_are_told_apart() {
        let (obstacle, problem) = met("nowhere.invalid:7070").await;
        assert!(obstacle == Obstacle::Name && problem.contains("DNS"), "{problem}");
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("its number").port()
        };
        let (obstacle, problem) = met(&format!("127.0.0.1:{port}")).await;
        assert_eq!(obstacle, Obstacle::Refused);
        assert!(problem.contains(&format!("127.0.0.1:{port}")) && problem.contains("refused"), "{problem}");
    }
}
