//! Resolves the coordinator's name, connects, and reports the obstacle if that fails.

use std::{fmt, io, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout},
};
use tracing::warn;

/// The limit for one attempt to resolve the name, and for one to connect.
const LIMIT: Duration = Duration::from_secs(2);
/// A coordinator that is missing for this long is logged. The time doubles up to the limit.
const TELL_AFTER: Duration = Duration::from_secs(5);
const TELL_LIMIT: Duration = Duration::from_secs(60);

/// The kind of obstacle between a member and its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// DNS knows no address of its name, or does not answer.
    Name,
    /// No process listens at its address.
    Refused,
    /// No answer comes from its address.
    Silent,
    /// Another obstacle, which the text describes.
    Other,
}

/// A failed attempt.
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

/// Resolves the name and connects to the first of its addresses that answers.
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

/// The time since when no coordinator answers, and the time of the next log line about it.
pub(super) struct Missing {
    since: Option<Instant>,
    tell_after: Duration,
}

impl Missing {
    pub(super) const fn new() -> Self {
        Self { since: None, tell_after: TELL_AFTER }
    }

    /// Notes that a coordinator answered.
    pub(super) fn found(&mut self) {
        *self = Self::new();
    }

    /// Logs the obstacle at growing intervals.
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
        let Err(Blocked { obstacle, problem }) = reach(coordinator).await else { panic!("a process answered") };
        (obstacle, problem)
    }

    #[tokio::test]
    async fn an_unknown_name_and_a_closed_port_are_different_obstacles() {
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
