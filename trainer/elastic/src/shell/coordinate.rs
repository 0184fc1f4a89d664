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
    Awake, Change, Coordinator, Digest, GenerationStore, MemberId, Message, Outcome, Record, Status, StoreError, Swap,
    Version,
    coordinator::{Command, Config, Connection, Event},
    message::Decoder,
};

/// Connections at a time; more wait until others close.
const MAX_CONNECTIONS: usize = 4096;
/// Events that wait for the coordinator; senders beyond it wait.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Messages that wait for one member; a member that reads so slowly is cut off.
const MAX_QUEUED_MESSAGES: usize = 256;
/// Who connects and says nothing is cut off.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// How long a member may take to read what was sent before its connection closed.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

/// How long a store is asked again and again before the coordinator hears that it is away.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
/// As long for a store that refuses a coordinator that was asked to stop: with a job go the rights to its record, and waiting for them would
/// hold its workers back until they are killed.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);
const STORE_RETRY: Duration = Duration::from_millis(250);
/// Pause after a failed accept: the process may be out of file descriptors for a moment.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What a coordinator has to tell the outside.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Who is here, or what the coordinator is doing, changed.
    Status(&'a Status),
    /// A new membership is recorded.
    Changed {
        /// How it differs from the one before.
        change: &'a Change,
        /// Digest of the chain of all memberships.
        history: Digest,
    },
    /// A membership was recorded before this coordinator, or by one that went before it told of it.
    Found {
        /// What the record tells of it.
        change: &'a Change,
        /// Digest of the chain of all memberships.
        history: Digest,
    },
    /// A member reported its progress.
    Progress {
        /// Who.
        member: &'a MemberId,
        /// Optimiser steps that are done.
        step: u64,
        /// The worker's report.
        payload: &'a [u8],
    },
}

/// Coordinates one group to its end. `stop` completes when the process is asked to end.
///
/// # Errors
/// The record cannot be loaded, or is of a newer version.
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
    let (started, mut clock) = (Instant::now(), Awake::default());
    let mut stored = record.clone();
    let mut coordinator = Coordinator::new(config, record, Duration::ZERO);
    let mut status = coordinator.status(Duration::ZERO);
    notify(Notice::Status(&status));
    if let Some(Record { active: Some(active), history, .. }) = &stored {
        notify(Notice::Found { change: &Change::found(active.clone()), history: *history });
    }

    let (report, mut events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let mut lines = Lines::new(report);
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
                    Err(error) if patience.is_lost(&error) => Event::StoreFailed(error.to_string()),
                    Err(error) => {
                        warn!(%error, "changes of the group wait for it");
                        Event::StoreAway
                    }
                }
            }
            event = events.recv() => event.unwrap_or(Event::Tick),
            () = lines.admit(&listener) => continue,
            () = sleep_until(wake) => Event::Tick,
        };
        let now = clock.look(started.elapsed());
        let is_news = !matches!(event, Event::Received(_, Message::Heartbeat));
        let mut ended = None;
        for command in coordinator.handle(event, now) {
            match command {
                Command::Send(connection, message) => lines.send(connection, &message),
                Command::Close(connection) => lines.close(connection),
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
            lines.finish().await;
            return Ok(outcome);
        }
    }
}

/// A swap that is under way: the record it stores, and what became of it.
type Replacing<'a> = Pin<Box<dyn Future<Output = Result<(Record, Swap), StoreError>> + Send + 'a>>;

async fn run_optional<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Compare-and-swap where the version may move although the record does not, and where an answer may get lost: what
/// the store holds then decides who won. A store that is not written within the patience is away, also where it can be read.
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
        let is_over = begun.elapsed() >= outcome.as_ref().err().map_or(STORE_PATIENCE, |error| patience.with(error));
        match found {
            Some((found, new)) if found == record => return Ok((record, Swap::Swapped(new))),
            found if found.as_ref().map(|(found, _)| found) != stored.as_ref() => return Ok((record, Swap::Conflict)),
            _ if is_over => return outcome,
            found => version = found.map(|(_, new)| new),
        }
    }
}

/// How long a store is waited for.
#[derive(Clone, Copy)]
struct Patience<'a> {
    /// Set once the coordinator is asked to stop.
    stopping: &'a AtomicBool,
}

impl Patience<'_> {
    fn is_stopping(self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// For as long as the store answers with this error.
    fn with(self, error: &StoreError) -> Duration {
        match error {
            StoreError::Forbidden { .. } if self.is_stopping() => REFUSAL_PATIENCE,
            _ => STORE_PATIENCE,
        }
    }

    /// Whether nobody waits for a store any more that answered with this error to the end.
    fn is_lost(self, error: &StoreError) -> bool {
        is_final(error) || matches!(error, StoreError::Forbidden { .. }) && self.is_stopping()
    }

    async fn load<S: GenerationStore>(self, store: &S) -> Result<Option<(Record, Version)>, StoreError> {
        let begun = Instant::now();
        loop {
            match store.load().await {
                Err(error) if !is_final(&error) && begun.elapsed() < self.with(&error) => {
                    warn!(%error, "trying again");
                    sleep(STORE_RETRY).await;
                }
                result => return result,
            }
        }
    }
}

/// Whether trying again does not help.
fn is_final(error: &StoreError) -> bool {
    !matches!(error, StoreError::Unavailable { .. } | StoreError::Forbidden { .. })
}

/// All control connections.
struct Lines {
    report: mpsc::Sender<Event>,
    outboxes: HashMap<Connection, mpsc::Sender<Vec<u8>>>,
    tasks: JoinSet<()>,
    places: Arc<Semaphore>,
    next: u64,
}

impl Lines {
    fn new(report: mpsc::Sender<Event>) -> Self {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { report, outboxes: HashMap::new(), tasks: JoinSet::new(), places, next: 0 }
    }

    /// Takes one connection in. Cancelling it loses none.
    async fn admit(&mut self, listener: &TcpListener) {
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return pending().await };
        match listener.accept().await {
            Ok((stream, from)) => {
                let connection = Connection(self.next);
                self.next += 1;
                debug!(connection = connection.0, %from, "connected");
                let (outbox, outgoing) = mpsc::channel(MAX_QUEUED_MESSAGES);
                self.outboxes.insert(connection, outbox);
                self.outboxes.retain(|_, outbox| !outbox.is_closed());
                self.tasks.spawn(serve(stream, connection, outgoing, self.report.clone(), place));
                while self.tasks.try_join_next().is_some() {}
            }
            Err(error) => {
                warn!(%error, "a control connection could not be accepted");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }

    fn send(&mut self, connection: Connection, message: &Message) {
        if let Some(outbox) = self.outboxes.get(&connection)
            && outbox.try_send(message.to_frame()).is_err()
        {
            self.outboxes.remove(&connection);
        }
    }

    /// Without its outbox, a connection's task sends what it has and ends.
    fn close(&mut self, connection: Connection) {
        self.outboxes.remove(&connection);
    }

    /// Lets everything that was said reach the other side, if that reads it.
    async fn finish(mut self) {
        self.outboxes.clear();
        let _ = timeout(FAREWELL_LIMIT, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// Reads and writes one connection until either side closes it.
async fn serve(
    stream: TcpStream,
    connection: Connection,
    outgoing: mpsc::Receiver<Vec<u8>>,
    report: mpsc::Sender<Event>,
    _place: OwnedSemaphorePermit,
) {
    // Without it messages only come later.
    let _ = stream.set_nodelay(true);
    let (mut incoming, writer) = stream.into_split();
    let mut writing = pin!(write(writer, outgoing));
    let end = {
        let mut reading = pin!(read(&mut incoming, connection, &report));
        tokio::select! {
            reason = &mut reading => LineEnd::Theirs(reason),
            written = &mut writing => match written {
                Ok(open) => LineEnd::Ours(open),
                Err(error) => LineEnd::Broken(format!("its connection broke: {error}")),
            },
        }
    };
    match end {
        // A refusal of what could not be read may still be on its way out.
        LineEnd::Theirs(reason) => {
            let _ = report.send(Event::Closed(connection, reason)).await;
            let _ = timeout(FAREWELL_LIMIT, writing).await;
        }
        LineEnd::Broken(reason) => {
            let _ = report.send(Event::Closed(connection, reason)).await;
        }
        // The other side reads to the end and closes too, and no reset overtakes the last message.
        LineEnd::Ours(_open) => {
            let _ = timeout(FAREWELL_LIMIT, tokio::io::copy(&mut incoming, &mut tokio::io::sink())).await;
        }
    }
}

/// Who closed a connection.
enum LineEnd {
    Theirs(String),
    Broken(String),
    Ours(tcp::OwnedWriteHalf),
}

/// Passes messages on; ends with the reason why there are no more.
async fn read(incoming: &mut tcp::OwnedReadHalf, connection: Connection, report: &mpsc::Sender<Event>) -> String {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; READ_BYTES];
    let mut greeted = false;
    loop {
        let patience = if greeted { Duration::MAX } else { GREETING_LIMIT };
        let count = match timeout(patience, incoming.read(&mut bytes)).await {
            Ok(Ok(0)) => return "closed its connection".to_owned(),
            Ok(Ok(count)) => count,
            Ok(Err(error)) => return format!("its connection broke: {error}"),
            Err(_) => return "did not say who it is".to_owned(),
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

/// Hands the open half back at the end of the queue, so that the caller decides when it closes for good.
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

    /// A store that can be read, and not written.
    struct ReadOnly(Option<(Record, Version)>);

    impl GenerationStore for ReadOnly {
        async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
            Ok(self.0.clone())
        }

        async fn compare_and_swap(&self, _: Option<&Version>, _: &Record) -> Result<Swap, StoreError> {
            Err(StoreError::Unavailable { place: "record".into(), cause: "no space left".into() })
        }
    }

    /// A store to which the coordinator has no right any more.
    struct Closed;

    impl Closed {
        fn error() -> StoreError {
            StoreError::Forbidden { place: "record".into(), cause: "Unauthorized (401)".into(), advice: "let it in" }
        }
    }

    impl GenerationStore for Closed {
        async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
            Err(Self::error())
        }

        async fn compare_and_swap(&self, _: Option<&Version>, _: &Record) -> Result<Swap, StoreError> {
            Err(Self::error())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_can_only_be_read_is_away_and_nobody_elses() {
        let stored = Record::empty().allocate("before");
        let stopping = AtomicBool::new(true);
        for stored in [None, Some((stored, Version("1".into())))] {
            let (record, version) = stored.clone().unzip();
            let next = Record::empty().allocate("coordinator");
            let patience = Patience { stopping: &stopping };
            let ended = replace(&ReadOnly(stored), record, version, next, patience).await;
            assert!(ended.is_err_and(|error| !patience.is_lost(&error)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_somebody_else_has_changed_is_his() {
        let theirs = Record::empty().allocate("another");
        let store = ReadOnly(Some((theirs, Version("2".into()))));
        let next = Record::empty().allocate("coordinator");
        let stopping = AtomicBool::new(false);
        let (_, swap) = replace(&store, None, None, next, Patience { stopping: &stopping }).await.expect("readable");
        assert_eq!(swap, Swap::Conflict);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_whoever_has_to_stop_is_lost_soon() {
        for (stop, limit, is_lost) in [(false, STORE_PATIENCE, false), (true, REFUSAL_PATIENCE, true)] {
            let stopping = AtomicBool::new(stop);
            let patience = Patience { stopping: &stopping };
            let begun = Instant::now();
            let error = replace(&Closed, None, None, Record::empty(), patience).await.expect_err("refused");
            assert_eq!(patience.is_lost(&error), is_lost, "{error}");
            assert!((limit..2 * limit).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        }
    }
}
