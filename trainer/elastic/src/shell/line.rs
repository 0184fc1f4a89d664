//! The thread behind a [`super::Membership`]: it connects, talks, and connects anew.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    membership,
    reach::{Blocked, Missing, reach},
    shared::{End, Shared},
};
use crate::{
    Awake, Hello, Member, State, Stuck, Watchdog,
    member::{Command, Event, HEARTBEAT_EVERY},
    message::{Decoder, FrameError},
};

/// How long the coordinator may take to accept a message.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Pause before a new attempt; doubles up to the limit.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_LIMIT: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 << 10;

/// Keeps a member connected until its group is over or nobody wants it any more.
pub(super) fn keep(coordinator: &str, hello: Hello, held: State, shared: &Shared) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return shared.disconnected(&error.into()),
    };
    let member = Member::new(hello, held);
    let watchdog = Watchdog::default();
    let (started, clock) = (Instant::now(), Awake::default());
    let line = Line { member, started, clock, wake: started, watchdog, shared };
    runtime.block_on(line.run(coordinator));
    // A name that is still being looked up holds nobody up.
    runtime.shutdown_background();
}

struct Line<'a> {
    member: Member,
    started: Instant,
    clock: Awake,
    wake: Instant,
    watchdog: Watchdog,
    shared: &'a Shared,
}

/// Whether the connection is still of use.
#[derive(PartialEq, Eq)]
enum Next {
    Talk,
    Reconnect,
    /// This worker left its group.
    Left,
    Over,
}

impl Line<'_> {
    async fn run(mut self, coordinator: &str) {
        let (mut backoff, mut missing) = (BACKOFF, Missing::new());
        loop {
            self.rest_while_stuck().await;
            let connected = tokio::select! {
                connected = reach(coordinator) => connected,
                () = self.stopped() => return,
            };
            let blocked = match connected {
                Ok(stream) => {
                    let begun = Instant::now();
                    let ended = self.talk(stream).await;
                    // Somebody who accepts and hangs up at once is no coordinator to hurry back to.
                    if begun.elapsed() > BACKOFF_LIMIT {
                        backoff = BACKOFF;
                        missing.found();
                    }
                    match ended {
                        Ok(Next::Over) => return,
                        Ok(Next::Left) => {
                            self.member.handle(Event::Disconnected, self.clock.look(self.started.elapsed()));
                            self.shared.left();
                            continue;
                        }
                        Ok(Next::Talk | Next::Reconnect) => {
                            Blocked::from(io::Error::new(io::ErrorKind::TimedOut, "it fell silent"))
                        }
                        Err(error) => error.into(),
                    }
                }
                Err(blocked) => blocked,
            };
            debug!(%coordinator, problem = %blocked, "no coordinator");
            missing.tell(coordinator, &blocked);
            self.member.handle(Event::Disconnected, self.clock.look(self.started.elapsed()));
            self.shared.disconnected(&blocked);
            tokio::select! {
                () = sleep(backoff) => {}
                () = self.stopped() => return,
            }
            backoff = (backoff * 2).min(BACKOFF_LIMIT);
        }
    }

    async fn stopped(&self) {
        while !self.shared.stopped() {
            self.shared.filled().await;
        }
    }

    /// Completes once the training thread does something, or did all the time.
    async fn rest_while_stuck(&mut self) {
        let mut hung = false;
        while let Some(stuck) = self.stuck().filter(|_| !self.shared.stopped()) {
            if stuck.is_hung && !std::mem::replace(&mut hung, true) {
                self.shared.tell(membership::Event::Hung { reason: stuck.to_string() });
            }
            sleep(HEARTBEAT_EVERY).await;
        }
    }

    fn stuck(&mut self) -> Option<Stuck> {
        let is_awaited = self.shared.state().sealing == Some(false) && !self.member.stands();
        self.watchdog.look(self.shared.work.glimpse(), is_awaited, self.started.elapsed())
    }

    async fn talk(&mut self, mut stream: TcpStream) -> io::Result<Next> {
        stream.set_nodelay(true)?;
        let mut answered = false;
        let mut decoder = Decoder::default();
        let mut bytes = vec![0; READ_BYTES];
        let mut next = self.happened(Event::Connected, &mut stream).await?;
        while next == Next::Talk {
            // What was said while there was no connection comes first: its notice may be used up. It is taken in even where it cannot be
            // passed on any more: the next coordinator is told of it.
            let mut broken = Ok(());
            for said in self.shared.said() {
                match self.happened(said, &mut stream).await {
                    Ok(Next::Talk) => {}
                    Ok(after) => next = after,
                    Err(error) => broken = broken.and(Err(error)),
                }
            }
            broken?;
            if next != Next::Talk {
                break;
            }
            if self.shared.stopped() {
                next = Next::Over;
                break;
            }
            if let Some(stuck) = self.stuck() {
                let reason = stuck.to_string();
                self.shared.tell(membership::Event::Stuck { reason: reason.clone() });
                self.happened(Event::Stuck { reason }, &mut stream).await?;
                return Ok(Next::Left);
            }
            tokio::select! {
                count = stream.read(&mut bytes) => {
                    let count = count?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    decoder.push(&bytes[..count]);
                    while next == Next::Talk {
                        match decoder.next_message() {
                            Ok(Some(message)) => {
                                if !std::mem::replace(&mut answered, true) {
                                    self.shared.connected();
                                }
                                next = self.happened(Event::Received(message), &mut stream).await?;
                            }
                            Ok(None) => break,
                            Err(error) => return self.garbled(error),
                        }
                    }
                }
                () = sleep_until(self.wake) => next = self.happened(Event::Tick, &mut stream).await?,
                () = self.shared.filled() => {}
            }
        }
        if next == Next::Over {
            stream.shutdown().await?;
        }
        Ok(next)
    }

    fn garbled(&self, error: FrameError) -> io::Result<Next> {
        if matches!(error, FrameError::Version { .. }) && !self.member.has_belonged() {
            // Whether a group trains is in what cannot be understood.
            self.shared.ended(End::Refused { reason: error.to_string(), may_retry: true });
            return Ok(Next::Over);
        }
        warn!(%error, "the coordinator cannot be understood");
        Err(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    async fn happened(&mut self, event: Event, stream: &mut TcpStream) -> io::Result<Next> {
        let mut next = Next::Talk;
        let now = self.clock.look(self.started.elapsed());
        for command in self.member.handle(event, now) {
            match command {
                Command::Send(message) => {
                    timeout(WRITE_LIMIT, stream.write_all(&message.to_frame())).await.map_err(|_| {
                        io::Error::new(io::ErrorKind::TimedOut, format!("it read nothing for {WRITE_LIMIT:?}"))
                    })??;
                }
                Command::Reconnect => next = Next::Reconnect,
                Command::Seal { generation: _, planned } => self.shared.asked_to_seal(planned),
                Command::Enter(group) => self.shared.committed(group),
                Command::Follow(lead) => self.shared.told_to_follow(lead),
                Command::Feed(follower) => self.shared.tell(membership::Event::Feed(follower)),
                Command::Drain { reason } => self.shared.drain(reason),
                Command::Abort { reason } => next = self.over(End::Aborted(reason)),
                Command::Refused { reason, may_retry } => next = self.over(End::Refused { reason, may_retry }),
                Command::Released => next = self.over(End::Released),
                Command::WakeAt(time) => self.wake = self.started + self.clock.real(time),
            }
        }
        Ok(next)
    }

    fn over(&self, end: End) -> Next {
        self.shared.ended(end);
        Next::Over
    }
}
