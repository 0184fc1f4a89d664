//! The thread behind a [`super::Membership`]: it connects to the coordinator, exchanges messages
//! and reconnects.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    event::MembershipEvent,
    mailbox::{End, Mailbox},
    reach::{Blocked, Missing, reach},
};
use crate::{
    AwakeClock, HeldState, Hello, Member, Stuck, Watchdog,
    member::{Command, Event, HEARTBEAT_EVERY},
    message::{Decoder, FrameError},
};

/// The limit for the coordinator to accept a message.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// The pause before a new attempt. It doubles up to the limit.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_LIMIT: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 << 10;

/// Keeps a member connected until its group is over, or until the worker hangs up.
pub(super) fn keep(coordinator: &str, hello: Hello, held: HeldState, mailbox: &Mailbox) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return mailbox.disconnected(&error.into()),
    };
    let member = Member::new(hello, held);
    let watchdog = Watchdog::default();
    let (started, clock) = (Instant::now(), AwakeClock::default());
    let connection = Connection { member, started, clock, wake: started, watchdog, mailbox };
    runtime.block_on(connection.run(coordinator));
    // A name lookup that is still running delays nobody.
    runtime.shutdown_background();
}

struct Connection<'a> {
    member: Member,
    started: Instant,
    clock: AwakeClock,
    wake: Instant,
    watchdog: Watchdog,
    mailbox: &'a Mailbox,
}

/// The further use of the connection.
#[derive(PartialEq, Eq)]
enum Next {
    Talk,
    Reconnect,
    /// This worker left its group.
    Left,
    Over,
}

impl Connection<'_> {
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
                    // A process that accepts and closes at once deserves no quick retry.
                    if begun.elapsed() > BACKOFF_LIMIT {
                        backoff = BACKOFF;
                        missing.found();
                    }
                    match ended {
                        Ok(Next::Over) => return,
                        Ok(Next::Left) => {
                            self.member.handle(Event::Disconnected, self.clock.look(self.started.elapsed()));
                            self.mailbox.left();
                            continue;
                        }
                        Ok(Next::Talk | Next::Reconnect) => {
                            Blocked::from(io::Error::new(io::ErrorKind::TimedOut, "it sent nothing any more"))
                        }
                        Err(error) => error.into(),
                    }
                }
                Err(blocked) => blocked,
            };
            debug!(%coordinator, problem = %blocked, "no coordinator");
            missing.tell(coordinator, &blocked);
            self.member.handle(Event::Disconnected, self.clock.look(self.started.elapsed()));
            self.mailbox.disconnected(&blocked);
            tokio::select! {
                () = sleep(backoff) => {}
                () = self.stopped() => return,
            }
            backoff = (backoff * 2).min(BACKOFF_LIMIT);
        }
    }

    async fn stopped(&self) {
        while !self.mailbox.stopped() {
            self.mailbox.filled().await;
        }
    }

    /// Waits until the training thread moves, if it is stuck.
    async fn rest_while_stuck(&mut self) {
        let mut hung = false;
        while let Some(stuck) = self.stuck().filter(|_| !self.mailbox.stopped()) {
            if stuck.is_hung && !std::mem::replace(&mut hung, true) {
                self.mailbox.tell(MembershipEvent::Hung { reason: stuck.to_string() });
            }
            sleep(HEARTBEAT_EVERY).await;
        }
    }

    fn stuck(&mut self) -> Option<Stuck> {
        let is_awaited = self.mailbox.state().sealing == Some(false) && !self.member.has_sealed();
        self.watchdog.look(self.mailbox.work.sample(), is_awaited, self.started.elapsed())
    }

    async fn talk(&mut self, mut stream: TcpStream) -> io::Result<Next> {
        stream.set_nodelay(true)?;
        let mut answered = false;
        let mut decoder = Decoder::default();
        let mut bytes = vec![0; READ_BYTES];
        let mut next = self.handle(Event::Connected, &mut stream).await?;
        while next == Next::Talk {
            // Messages from the time without a connection go first, because their notification may
            // be used up. The member notes them even if they cannot be sent any more, so that it
            // tells the next coordinator.
            let mut broken = Ok(());
            for said in self.mailbox.take_outbox() {
                match self.handle(said, &mut stream).await {
                    Ok(Next::Talk) => {}
                    Ok(after) => next = after,
                    Err(error) => broken = broken.and(Err(error)),
                }
            }
            broken?;
            if next != Next::Talk {
                break;
            }
            if self.mailbox.stopped() {
                next = Next::Over;
                break;
            }
            if let Some(stuck) = self.stuck() {
                let reason = stuck.to_string();
                self.mailbox.tell(MembershipEvent::Stuck { reason: reason.clone() });
                self.handle(Event::Stuck { reason }, &mut stream).await?;
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
                                    self.mailbox.connected();
                                }
                                next = self.handle(Event::Received(message), &mut stream).await?;
                            }
                            Ok(None) => break,
                            Err(error) => return self.garbled(error),
                        }
                    }
                }
                () = sleep_until(self.wake) => next = self.handle(Event::Tick, &mut stream).await?,
                () = self.mailbox.filled() => {}
            }
        }
        if next == Next::Over {
            stream.shutdown().await?;
        }
        Ok(next)
    }

    fn garbled(&self, error: FrameError) -> io::Result<Next> {
        if matches!(error, FrameError::Version { .. }) && !self.member.has_belonged() {
            // The unreadable message may have said that a group trains.
            self.mailbox.ended(End::Refused { reason: error.to_string(), may_retry: true });
            return Ok(Next::Over);
        }
        warn!(%error, "a message of the coordinator cannot be read");
        Err(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    async fn handle(&mut self, event: Event, stream: &mut TcpStream) -> io::Result<Next> {
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
                Command::Seal { generation: _, planned } => self.mailbox.seal(planned),
                Command::Enter(group) => self.mailbox.committed(group),
                Command::Follow(lead) => self.mailbox.follow(lead),
                Command::Feed(follower) => self.mailbox.tell(MembershipEvent::Feed(follower)),
                Command::Drain { reason } => self.mailbox.drain(reason),
                Command::Abort { reason } => next = self.end(End::Aborted(reason)),
                Command::Refused { reason, may_retry } => next = self.end(End::Refused { reason, may_retry }),
                Command::Released => next = self.end(End::Released),
                Command::WakeAt(time) => self.wake = self.started + self.clock.real(time),
            }
        }
        Ok(next)
    }

    fn end(&self, end: End) -> Next {
        self.mailbox.ended(end);
        Next::Over
    }
}
