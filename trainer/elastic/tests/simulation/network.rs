//! Connections between members and coordinators, and the faults of the network.

use std::time::Duration;

use lockstep_elastic::{
    Message,
    coordinator::{self, ConnectionId},
    member,
};

use crate::{
    process::Process,
    world::{Delivery, World},
};

/// The number that stands for a replaced process. No other process has it.
const OUTLIVED: u128 = 0;

/// A connection. Either end may have closed it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) pod: usize,
    pub(crate) incarnation: u128,
    pub(crate) coordinator: usize,
    pub(crate) open_there: bool,
    pub(crate) open_here: bool,
    /// True after a reset: no message in flight arrives.
    pub(crate) severed: bool,
    /// The arrival time of the last message, by direction.
    to_member: Duration,
    to_coordinator: Duration,
}

pub(crate) fn kind(message: &Message) -> u64 {
    match message {
        Message::Hello(_) => 0,
        Message::Refuse { .. } => 1,
        Message::Prepare { .. } => 2,
        Message::SealReport(_) => 3,
        Message::Broken { .. } => 4,
        Message::Commit { .. } => 5,
        Message::Heartbeat => 6,
        Message::Progress { .. } => 7,
        Message::Checkpoint(_) => 8,
        Message::Leave { .. } => 9,
        Message::Drain { .. } => 10,
        Message::Abort { .. } => 11,
        Message::Fatal { .. } => 12,
        Message::Finished { .. } => 13,
        Message::Drained { .. } => 14,
        Message::Release => 15,
        Message::Stuck { .. } => 16,
        Message::Follow(_) => 17,
        Message::Feed(_) => 18,
        Message::CaughtUp { .. } => 19,
        Message::Agreed { .. } => 20,
        Message::Seal { .. } => 21,
        Message::Diverged { .. } => 22,
    }
}

impl World {
    pub(crate) fn send_to_member(&mut self, connection: usize, message: Message) {
        if self.connections[connection].incarnation == OUTLIVED
            && !matches!(message, Message::Abort { .. } | Message::Refuse { .. })
        {
            self.fail(format!("an older process of pod {} is let in: {message:?}", self.connections[connection].pod));
        }
        if self.connections[connection].open_here {
            self.post(connection, true, |message| Delivery::ToMember(connection, message), message);
        }
    }

    pub(crate) fn send_to_coordinator(&mut self, connection: usize, message: Message) {
        if self.connections[connection].open_there {
            self.post(connection, false, |message| Delivery::ToCoordinator(connection, message), message);
        }
    }

    /// Sends a message over the network with all its faults.
    fn post(&mut self, connection: usize, down: bool, delivery: impl Fn(Message) -> Delivery, message: Message) {
        let faulty = self.is_faulty();
        let (lost, repeated) = (self.script.lost_percent, self.script.repeated_percent);
        if !self.script.ordered
            && (self.blocked_until(connection, down) > self.now || faulty && self.dice.percent(lost))
        {
            return;
        }
        if !self.script.ordered && faulty && self.dice.percent(repeated) {
            let at = self.arrival(connection, down);
            self.at(at, delivery(message.clone()));
        }
        let at = self.arrival(connection, down);
        self.at(at, delivery(message));
    }

    /// Sends the end of one side's messages.
    fn post_close(&mut self, connection: usize, down: bool, delivery: Delivery) {
        let at = self.arrival(connection, down).max(self.blocked_until(connection, down));
        self.at(at, delivery);
    }

    /// Returns the arrival time of a message that is sent now. A partition delays ordered messages
    /// and swallows the others.
    fn arrival(&mut self, connection: usize, down: bool) -> Duration {
        let late = self.is_faulty() && self.dice.percent(self.script.late_percent);
        let delay = if late { self.dice.millis(1, 300) } else { self.dice.micros(50, 1500) };
        let Connection { pod, coordinator, .. } = self.connections[connection];
        let delay = if late {
            delay
        } else {
            self.pace(pod, delay).max(self.coordinators[coordinator].slow.pace(self.now, delay))
        };
        let mut at = self.now + delay;
        if self.script.ordered {
            at = at.max(self.blocked_until(connection, down));
            let Connection { to_member, to_coordinator, .. } = &mut self.connections[connection];
            let last = if down { to_member } else { to_coordinator };
            at = at.max(*last + Duration::from_micros(1));
            *last = at;
        }
        at
    }

    fn blocked_until(&self, connection: usize, down: bool) -> Duration {
        let Process { deaf_until, mute_until, .. } = self.processes[self.connections[connection].pod];
        if down { deaf_until } else { mute_until }
    }

    pub(crate) fn arrived_at_coordinator(&mut self, connection: usize, message: Message) {
        let Connection { open_here, severed, coordinator, pod, incarnation, .. } = self.connections[connection];
        // By now its replacement may be gone as well.
        let may_come_in =
            incarnation == OUTLIVED && (self.outlived(pod).is_none() || self.active_coordinator() != Some(coordinator));
        if open_here && !severed && !may_come_in {
            let connection = ConnectionId(connection as u64);
            self.coordinate(coordinator, coordinator::Event::Received(connection, message));
        }
    }

    pub(crate) fn arrived_at_member(&mut self, connection: usize, message: Message) {
        let Connection { open_there, severed, pod, incarnation, .. } = self.connections[connection];
        if open_there && !severed && self.is_alive(pod, incarnation) {
            self.act(pod, member::Event::Received(message));
        }
    }

    pub(crate) fn coordinator_learns_of_close(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].open_here, false) {
            let coordinator = self.connections[connection].coordinator;
            let closed = coordinator::Event::Closed(ConnectionId(connection as u64), "closed its connection".into());
            self.coordinate(coordinator, closed);
        }
    }

    /// Closes the member's end. The member looks for a coordinator again.
    pub(crate) fn hang_up(&mut self, connection: usize) {
        let Connection { pod, incarnation, .. } = self.connections[connection];
        if !std::mem::replace(&mut self.connections[connection].open_there, false) || !self.is_alive(pod, incarnation) {
            return;
        }
        self.post_close(connection, false, Delivery::CoordinatorLearnsOfClose(connection));
        self.processes[pod].connection = None;
        self.act(pod, member::Event::Disconnected);
        let delay = self.dice.millis(50, 250);
        self.after(delay, Delivery::Connect { pod, incarnation });
    }

    /// Closes the coordinator's end after everything was sent.
    pub(crate) fn close_here(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].open_here, false) {
            self.post_close(connection, true, Delivery::MemberLearnsOfClose(connection));
        }
    }

    /// Ends the connection of a dead process: its kernel sends the remaining messages and the end.
    pub(crate) fn close_there(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].open_there, false) {
            self.post_close(connection, false, Delivery::CoordinatorLearnsOfClose(connection));
        }
    }

    /// Resets the connection.
    pub(crate) fn cut(&mut self, pod: usize) {
        if let Some(connection) = self.processes[pod].connection {
            self.connections[connection].severed = true;
            let (here, there) = (self.dice.micros(100, 30_000), self.dice.micros(100, 30_000));
            self.after(here, Delivery::CoordinatorLearnsOfClose(connection));
            self.after(there, Delivery::MemberLearnsOfClose(connection));
        }
    }

    pub(crate) fn connect(&mut self, pod: usize, incarnation: u128) {
        if !self.is_alive(pod, incarnation) || self.processes[pod].connection.is_some() {
            return;
        }
        let Process { deaf_until, mute_until, .. } = self.processes[pod];
        let listening: Vec<usize> =
            (0..self.coordinators.len()).filter(|coordinator| self.coordinators[*coordinator].listens()).collect();
        let may_talk = deaf_until.max(mute_until) <= self.now && !self.is_stuck(pod);
        let newest = listening.last().copied().filter(|_| may_talk);
        let Some(newest) = newest else {
            let delay = self.dice.millis(100, 500);
            self.after(delay, Delivery::Connect { pod, incarnation });
            return;
        };
        let coordinator = if self.dice.percent(80) { newest } else { self.dice.one_of(&listening) };
        let connection = self.lay(pod, incarnation, coordinator);
        self.processes[pod].connection = Some(connection);
        self.act(pod, member::Event::Connected);
        self.flush(pod);
    }

    fn lay(&mut self, pod: usize, incarnation: u128, coordinator: usize) -> usize {
        let (to_member, to_coordinator) = (self.now, self.now);
        let (open_there, open_here, severed) = (true, true, false);
        let connection =
            Connection { pod, incarnation, coordinator, open_there, open_here, severed, to_member, to_coordinator };
        self.connections.push(connection);
        self.connections.len() - 1
    }

    /// Lets the previous process of this pod find the coordinator.
    pub(crate) fn come_back(&mut self, pod: usize) {
        if let (Some(hello), Some(coordinator)) = (self.outlived(pod), self.active_coordinator()) {
            let connection = self.lay(pod, OUTLIVED, coordinator);
            self.send_to_coordinator(connection, Message::Hello(hello));
        }
    }
}
