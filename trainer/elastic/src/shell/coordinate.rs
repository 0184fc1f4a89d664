//! Runs a [`Coordinator`] on a listening socket.

use std::{
    collections::HashMap,
    future::{Future, pending},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    AwakeClock, Change, Coordinator, Digest, GenerationStore, MemberId, Message, Outcome, Record, Status, StoreError,
    Swap, Version,
    coordinator::{Command, Config, ConnectionId, Event},
    message::Decoder,
};

/// The largest number of connections at one time. More connections wait until others close.
const MAX_CONNECTIONS: usize = 4096;
/// The largest number of events that wait for the coordinator. Further senders wait.
const MAX_QUEUED_EVENTS: usize = 1024;
/// The largest number of messages that wait for one member. A slower reader is disconnected.
const MAX_QUEUED_MESSAGES: usize = 256;
/// A connection without a message is closed after this time.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// The time that a member gets to read the last messages before its connection closes.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

/// A store is retried for this long before the coordinator considers it away.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
/// The same limit for a store that refuses a coordinator that was asked to stop. Deleting a job
/// also deletes the rights to its record. A longer wait would delay its workers until they are
/// killed.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);
const STORE_RETRY: Duration = Duration::from_millis(250);
/// The pause after a failed accept. The process may have no file descriptors left for a moment.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// An announcement of the coordinator to its surroundings.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The stage of the group or its connected pods changed.
    Status(&'a Status),
    /// A new membership is recorded.
    Changed {
        /// The difference from the previous one.
        change: &'a Change,
        /// The digest of the chain of all memberships.
        history: Digest,
    },
    /// The record has a membership from before this coordinator started, or one that its
    /// coordinator did not announce.
    Found {
        /// The facts that the record contains about it.
        change: &'a Change,
        /// The digest of the chain of all memberships.
        history: Digest,
    },
    /// A member reported its progress.
    Progress {
        /// The member.
        member: &'a MemberId,
        /// The number of optimiser steps done.
        step: u64,
        /// The worker's report.
        payload: &'a [u8],
    },
}

/// Coordinates one group to its end. `stop` completes when the process is asked to end.
///
/// # Errors
/// Fails if the record cannot be loaded, or has a newer version.
pub async fn coordinate<S: GenerationStore>(
    listener: TcpListener,
    config: Config,
    store: S,
    mut notify: impl FnMut(Notice<'_>),
    stop: impl Future<Output = ()>,
) -> Result<Outcome, StoreError> {
    let stopping = AtomicBool::new(false);
    let patience = Patience { stopping: &stopping };
    let loaded = patience.load(&store).await?;
    let (record, mut version) = match loaded {
        Some((record, version)) => (Some(record), Some(version)),
        None => (None, None),
    };
    let (started, mut clock) = (Instant::now(), AwakeClock::default());
    let mut stored = record.clone();
    let mut coordinator = Coordinator::new(config, record, Duration::ZERO);
    let mut status = coordinator.status(Duration::ZERO);
    notify(Notice::Status(&status));
    if let Some(Record { active: Some(active), history, .. }) = &stored {
        notify(Notice::Found { change: &Change::found(active.clone()), history: *history });
    }

    let (report, mut events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let mut connections = Connections::new(report);
    let mut swap: Option<Replacing<'_>> = None;
    let mut wake = started;
    let mut stop = pin!(stop);
    loop {
        let event = tokio::select! {
            biased;
            () = &mut stop, if !patience.is_stopping() => {
                stopping.store(true, Ordering::Relaxed);
                Event::Stop
            }
            done = run_optional(&mut swap) => {
                swap = None;
                match done {
                    Ok((record, Swap::Swapped(new))) => {
                        (stored, version) = (Some(record), Some(new));
                        Event::Swapped
                    }
                    Ok((_, Swap::Conflict)) => Event::Conflict,
                    Err(error) if patience.is_given_up(&error) => Event::StoreFailed(error.to_string()),
                    Err(error) => {
                        warn!(%error, "changes of the group wait for the store");
                        Event::StoreAway
                    }
                }
            }
            event = events.recv() => event.unwrap_or(Event::Tick),
            () = connections.admit(&listener) => continue,
            () = sleep_until(wake) => Event::Tick,
        };
        let now = clock.look(started.elapsed());
        let is_news = !matches!(event, Event::Received(_, Message::Heartbeat));
        let mut ended = None;
        for command in coordinator.handle(event, now) {
            match command {
                Command::Send(connection, message) => connections.send(connection, &message),
                Command::Close(connection) => connections.close(connection),
                Command::Swap(record) => {
                    swap = Some(Box::pin(replace(&store, stored.clone(), version.clone(), record, patience)));
                }
                Command::Publish { member, step, payload } => {
                    notify(Notice::Progress { member: &member, step, payload: &payload });
                }
                Command::Changed(change) => {
                    let history = stored.as_ref().map_or(Digest::NONE, |record| record.history);
                    notify(Notice::Changed { change: &change, history });
                }
                Command::WakeAt(time) => wake = started + clock.real(time),
                Command::End(outcome) => ended = Some(outcome),
            }
        }
        if is_news {
            let before = std::mem::replace(&mut status, coordinator.status(now));
            if status != before {
                info!(%status, "group");
                notify(Notice::Status(&status));
            }
        }
        if let Some(outcome) = ended {
            drop(events);
            connections.finish().await;
            return Ok(outcome);
        }
    }
}

/// A swap in progress: the record that it stores, and the result.
type Replacing<'a> = Pin<Box<dyn Future<Output = Result<(Record, Swap), StoreError>> + Send + 'a>>;

async fn run_optional<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Replaces the record by compare-and-swap. The version may change although the record does not,
/// and an answer may get lost, so the content of the store decides which process won. A store that
/// cannot be written within the limit is away, even if it can be read.
async fn replace<S: GenerationStore>(
    store: &S,
    stored: Option<Record>,
    mut version: Option<Version>,
    record: Record,
    patience: Patience<'_>,
) -> Result<(Record, Swap), StoreError> {
    let begun = Instant::now();
    loop {
        let outcome = match store.compare_and_swap(version.as_ref(), &record).await {
            Ok(Swap::Swapped(version)) => return Ok((record, Swap::Swapped(version))),
            Ok(Swap::Conflict) => Ok((record.clone(), Swap::Conflict)),
            Err(error) if !is_final(&error) => {
                warn!(%error, "trying again");
                sleep(STORE_RETRY).await;
                Err(error)
            }
            Err(error) => return Err(error),
        };
        let found = patience.load(store).await?;
        let is_over =
            begun.elapsed() >= outcome.as_ref().err().map_or(STORE_PATIENCE, |error| patience.limit_for(error));
        match found {
            Some((found, new)) if found == record => return Ok((record, Swap::Swapped(new))),
            found if found.as_ref().map(|(found, _)| found) != stored.as_ref() => return Ok((record, Swap::Conflict)),
            _ if is_over => return outcome,
            found => version = found.map(|(_, new)| new),
        }
    }
}

/// The time limits for a store.
#[derive(Clone, Copy)]
struct Patience<'a> {
    /// True once the coordinator was asked to stop.
    stopping: &'a AtomicBool,
}

impl Patience<'_> {
    fn is_stopping(self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns the time limit for a store that answers with this error.
    fn limit_for(self, error: &StoreError) -> Duration {
        match error {
            StoreError::Forbidden { .. } if self.is_stopping() => REFUSAL_PATIENCE,
            _ => STORE_PATIENCE,
        }
    }

    /// Returns true if a store that still answers with this error is given up.
    fn is_given_up(self, error: &StoreError) -> bool {
        is_final(error) || matches!(error, StoreError::Forbidden { .. }) && self.is_stopping()
    }

    async fn load<S: GenerationStore>(self, store: &S) -> Result<Option<(Record, Version)>, StoreError> {
        let begun = Instant::now();
        loop {
            match store.load().await {
                Err(error) if !is_final(&error) && begun.elapsed() < self.limit_for(&error) => {
                    warn!(%error, "trying again");
                    sleep(STORE_RETRY).await;
                }
                result => return result,
            }
        }
    }
}

/// Returns true if a retry is useless.
fn is_final(error: &StoreError) -> bool {
    !matches!(error, StoreError::Unavailable { .. } | StoreError::Forbidden { .. })
}

/// All control connections.
struct Connections {
    report: mpsc::Sender<Event>,
    outboxes: HashMap<ConnectionId, mpsc::Sender<Vec<u8>>>,
    tasks: JoinSet<()>,
    permits: Arc<Semaphore>,
    next: u64,
}

impl Connections {
    fn new(report: mpsc::Sender<Event>) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { report, outboxes: HashMap::new(), tasks: JoinSet::new(), permits, next: 0 }
    }

    /// Accepts one connection. Cancelling this loses none.
    async fn admit(&mut self, listener: &TcpListener) {
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return pending().await };
        match listener.accept().await {
            Ok((stream, from)) => {
                let connection = ConnectionId(self.next);
                self.next += 1;
                debug!(connection = connection.0, %from, "connected");
                let (outbox, outgoing) = mpsc::channel(MAX_QUEUED_MESSAGES);
                self.outboxes.insert(connection, outbox);
                self.outboxes.retain(|_, outbox| !outbox.is_closed());
                self.tasks.spawn(serve(stream, connection, outgoing, self.report.clone(), permit));
                while self.tasks.try_join_next().is_some() {}
            }
            Err(error) => {
                warn!(%error, "a control connection could not be accepted");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }

    fn send(&mut self, connection: ConnectionId, message: &Message) {
        if let Some(outbox) = self.outboxes.get(&connection)
            && outbox.try_send(message.to_frame()).is_err()
        {
            self.outboxes.remove(&connection);
        }
    }

    /// Closes a connection: without its outbox, its task sends the rest and ends.
    fn close(&mut self, connection: ConnectionId) {
        self.outboxes.remove(&connection);
    }

    /// Waits until the other sides have read everything that was sent, for a limited time.
    async fn finish(mut self) {
        self.outboxes.clear();
        let _ = timeout(FAREWELL_LIMIT, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// Reads and writes one connection until either side closes it.
async fn serve(
    stream: TcpStream,
    connection: ConnectionId,
    outgoing: mpsc::Receiver<Vec<u8>>,
    report: mpsc::Sender<Event>,
    _permit: OwnedSemaphorePermit,
) {
    // Without this option messages only arrive later.
    let _ = stream.set_nodelay(true);
    let (mut incoming, writer) = stream.into_split();
    let mut writing = pin!(write(writer, outgoing));
    let end = {
        let mut reading = pin!(read(&mut incoming, connection, &report));
        tokio::select! {
            reason = &mut reading => ClosedBy::Theirs(reason),
            written = &mut writing => match written {
                Ok(open) => ClosedBy::Ours(open),
                Err(error) => ClosedBy::Broken(format!("its connection broke: {error}")),
            },
        }
    };
    match end {
        // A refusal of an unreadable message may still be on its way.
        ClosedBy::Theirs(reason) => {
            let _ = report.send(Event::Closed(connection, reason)).await;
            let _ = timeout(FAREWELL_LIMIT, writing).await;
        }
        ClosedBy::Broken(reason) => {
            let _ = report.send(Event::Closed(connection, reason)).await;
        }
        // The other side reads to the end and closes as well, so that no reset overtakes the last
        // message.
        ClosedBy::Ours(_open) => {
            let _ = timeout(FAREWELL_LIMIT, tokio::io::copy(&mut incoming, &mut tokio::io::sink())).await;
        }
    }
}

/// The side that closed a connection.
enum ClosedBy {
    Theirs(String),
    Broken(String),
    Ours(tcp::OwnedWriteHalf),
}

/// Forwards messages and returns the reason why there are no more.
async fn read(incoming: &mut tcp::OwnedReadHalf, connection: ConnectionId, report: &mpsc::Sender<Event>) -> String {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; READ_BYTES];
    let mut greeted = false;
    loop {
        let patience = if greeted { Duration::MAX } else { GREETING_LIMIT };
        let count = match timeout(patience, incoming.read(&mut bytes)).await {
            Ok(Ok(0)) => return "closed its connection".to_owned(),
            Ok(Ok(count)) => count,
            Ok(Err(error)) => return format!("its connection broke: {error}"),
            Err(_) => return "did not introduce itself".to_owned(),
        };
        decoder.push(&bytes[..count]);
        loop {
            let event = match decoder.next_message() {
                Ok(Some(message)) => Event::Received(connection, message),
                Ok(None) => break,
                Err(error) => {
                    warn!(connection = connection.0, %error, "closing a control connection");
                    let reason = error.to_string();
                    let _ = report.send(Event::Garbled(connection, error)).await;
                    return reason;
                }
            };
            greeted = true;
            if report.send(event).await.is_err() {
                return "the coordinator ended".to_owned();
            }
        }
    }
}

/// Returns the open half at the end of the queue, so that the caller decides when to close it.
async fn write(
    mut writer: tcp::OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
) -> io::Result<tcp::OwnedWriteHalf> {
    while let Some(frame) = outgoing.recv().await {
        writer.write_all(&frame).await?;
    }
    writer.shutdown().await?;
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that can be read and not written.
    struct ReadOnly(Option<(Record, Version)>);

    impl GenerationStore for ReadOnly {
        async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
            Ok(self.0.clone())
        }

        async fn compare_and_swap(&self, _: Option<&Version>, _: &Record) -> Result<Swap, StoreError> {
            Err(StoreError::Unavailable { place: "record".into(), cause: "no space left".into() })
        }
    }

    /// A store to which the coordinator has lost its rights.
    struct Forbidden;

    impl Forbidden {
        fn error() -> StoreError {
            StoreError::Forbidden { place: "record".into(), cause: "Unauthorized (401)".into(), advice: "let it in" }
        }
    }

    impl GenerationStore for Forbidden {
        async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
            Err(Self::error())
        }

        async fn compare_and_swap(&self, _: Option<&Version>, _: &Record) -> Result<Swap, StoreError> {
            Err(Self::error())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_only_store_is_away_and_not_a_conflict() {
        let stored = Record::empty().allocate("before");
        let stopping = AtomicBool::new(true);
        for stored in [None, Some((stored, Version("1".into())))] {
            let (record, version) = stored.clone().unzip();
            let next = Record::empty().allocate("coordinator");
            let patience = Patience { stopping: &stopping };
            let ended = replace(&ReadOnly(stored), record, version, next, patience).await;
            assert!(ended.is_err_and(|error| !patience.is_given_up(&error)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_another_process_changed_is_a_conflict() {
        let theirs = Record::empty().allocate("another");
        let store = ReadOnly(Some((theirs, Version("2".into()))));
        let next = Record::empty().allocate("coordinator");
        let stopping = AtomicBool::new(false);
        let (_, swap) = replace(&store, None, None, next, Patience { stopping: &stopping }).await.expect("readable");
        assert_eq!(swap, Swap::Conflict);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_a_stopping_coordinator_is_given_up_soon() {
        for (stop, limit, is_given_up) in [(false, STORE_PATIENCE, false), (true, REFUSAL_PATIENCE, true)] {
            let stopping = AtomicBool::new(stop);
            let patience = Patience { stopping: &stopping };
            let begun = Instant::now();
            let error = replace(&Forbidden, None, None, Record::empty(), patience).await.expect_err("refused");
            assert_eq!(patience.is_given_up(&error), is_given_up, "{error}");
            assert!((limit..2 * limit).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        }
    }
}
