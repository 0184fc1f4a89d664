//! Connections between members and coordinators, and what the network does with them.

use std::time::Duration;

use lockstep_elastic::{
    Message,
    coordinator::{self, Connection},
    member,
};

use crate::{
    process::Process,
    world::{Delivery, World},
};

/// Stands for a process that was replaced: no other has this number.
const OUTLIVED: u128 = 0;

/// A connection: either end may have closed it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) pod: usize,
    pub(crate) incarnation: u128,
    pub(crate) chair: usize,
    pub(crate) open_there: bool,
    pub(crate) open_here: bool,
    /// Reset: nothing that is on its way arrives.
    pub(crate) severed: bool,
    /// When the last thing that was sent arrives, per direction.
    to_member: Duration,
    to_coordinator: Duration,
}

pub(crate) fn kind(message: &Message) -> u64 {
    match message {
        Message::Hello(_) => 0,
        Message::Refuse { .. } => 1,
        Message::Prepare { .. } => 2,
        Message::Report(_) => 3,
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
        Message::Stand { .. } => 21,
        Message::Diverged { .. } => 22,
    }
}

impl World {
    pub(crate) fn send_to_member(&mut self, line: usize, message: Message) {
        if self.lines[line].incarnation == OUTLIVED
            && !matches!(message, Message::Abort { .. } | Message::Refuse { .. })
        {
            self.fail(format!("an older process of pod {} is let in: {message:?}", self.lines[line].pod));
        }
        if self.lines[line].open_here {
            self.post(line, true, |message| Delivery::ToMember(line, message), message);
        }
    }

    pub(crate) fn send_to_coordinator(&mut self, line: usize, message: Message) {
        if self.lines[line].open_there {
            self.post(line, false, |message| Delivery::ToCoordinator(line, message), message);
        }
    }

    /// Sends over the network, whatever that does with it.
    fn post(&mut self, line: usize, down: bool, delivery: impl Fn(Message) -> Delivery, message: Message) {
        let faulty = self.is_faulty();
        let (lost, repeated) = (self.script.lost_percent, self.script.repeated_percent);
        if !self.script.ordered && (self.blocked_until(line, down) > self.now || faulty && self.dice.percent(lost)) {
            return;
        }
        if !self.script.ordered && faulty && self.dice.percent(repeated) {
            let at = self.arrival(line, down);
            self.at(at, delivery(message.clone()));
        }
        let at = self.arrival(line, down);
        self.at(at, delivery(message));
    }

    /// The end of what one side sends.
    fn post_close(&mut self, line: usize, down: bool, delivery: Delivery) {
        let at = self.arrival(line, down).max(self.blocked_until(line, down));
        self.at(at, delivery);
    }

    /// When something that is sent now arrives. A partition holds up what is in order and swallows the rest.
    fn arrival(&mut self, line: usize, down: bool) -> Duration {
        let late = self.is_faulty() && self.dice.percent(self.script.late_percent);
        let delay = if late { self.dice.millis(1, 300) } else { self.dice.micros(50, 1500) };
        let Line { pod, chair, .. } = self.lines[line];
        let delay = if late { delay } else { self.pace(pod, delay).max(self.chairs[chair].slow.pace(self.now, delay)) };
        let mut at = self.now + delay;
        if self.script.ordered {
            at = at.max(self.blocked_until(line, down));
            let Line { to_member, to_coordinator, .. } = &mut self.lines[line];
            let last = if down { to_member } else { to_coordinator };
            at = at.max(*last + Duration::from_micros(1));
            *last = at;
        }
        at
    }

    fn blocked_until(&self, line: usize, down: bool) -> Duration {
        let Process { deaf_until, mute_until, .. } = self.processes[self.lines[line].pod];
        if down { deaf_until } else { mute_until }
    }

    pub(crate) fn arrived_at_coordinator(&mut self, line: usize, message: Message) {
        let Line { open_here, severed, chair, pod, incarnation, .. } = self.lines[line];
        // By now the one that took its place may be gone as well.
        let may_come_in = incarnation == OUTLIVED && (self.outlived(pod).is_none() || self.seated() != Some(chair));
        if open_here && !severed && !may_come_in {
            let connection = Connection(line as u64);
            self.coordinate(chair, coordinator::Event::Received(connection, message));
        }
    }

    pub(crate) fn arrived_at_member(&mut self, line: usize, message: Message) {
        let Line { open_there, severed, pod, incarnation, .. } = self.lines[line];
        if open_there && !severed && self.is_alive(pod, incarnation) {
            self.act(pod, member::Event::Received(message));
        }
    }

    pub(crate) fn coordinator_learns_of_close(&mut self, line: usize) {
        if std::mem::replace(&mut self.lines[line].open_here, false) {
            let chair = self.lines[line].chair;
            let closed = coordinator::Event::Closed(Connection(line as u64), "closed its connection".into());
            self.coordinate(chair, closed);
        }
    }

    /// The member's end of a connection closes: it looks for a coordinator anew.
    pub(crate) fn hang_up(&mut self, line: usize) {
        let Line { pod, incarnation, .. } = self.lines[line];
        if !std::mem::replace(&mut self.lines[line].open_there, false) || !self.is_alive(pod, incarnation) {
            return;
        }
        self.post_close(line, false, Delivery::CoordinatorLearnsOfClose(line));
        self.processes[pod].line = None;
        self.act(pod, member::Event::Disconnected);
        let delay = self.dice.millis(50, 250);
        self.after(delay, Delivery::Connect { pod, incarnation });
    }

    /// The coordinator's end closes after all was sent.
    pub(crate) fn close_here(&mut self, line: usize) {
        if std::mem::replace(&mut self.lines[line].open_here, false) {
            self.post_close(line, true, Delivery::MemberLearnsOfClose(line));
        }
    }

    /// A process died: its kernel sends what it had said, and the end.
    pub(crate) fn close_there(&mut self, line: usize) {
        if std::mem::replace(&mut self.lines[line].open_there, false) {
            self.post_close(line, false, Delivery::CoordinatorLearnsOfClose(line));
        }
    }

    /// The connection is reset in the middle.
    pub(crate) fn cut(&mut self, pod: usize) {
        if let Some(line) = self.processes[pod].line {
            self.lines[line].severed = true;
            let (here, there) = (self.dice.micros(100, 30_000), self.dice.micros(100, 30_000));
            self.after(here, Delivery::CoordinatorLearnsOfClose(line));
            self.after(there, Delivery::MemberLearnsOfClose(line));
        }
    }

    pub(crate) fn connect(&mut self, pod: usize, incarnation: u128) {
        if !self.is_alive(pod, incarnation) || self.processes[pod].line.is_some() {
            return;
        }
        let Process { deaf_until, mute_until, .. } = self.processes[pod];
        let listening: Vec<usize> = (0..self.chairs.len()).filter(|chair| self.chairs[*chair].listens()).collect();
        let may_talk = deaf_until.max(mute_until) <= self.now && !self.is_stuck(pod);
        let newest = listening.last().copied().filter(|_| may_talk);
        let Some(newest) = newest else {
            let delay = self.dice.millis(100, 500);
            self.after(delay, Delivery::Connect { pod, incarnation });
            return;
        };
        let chair = if self.dice.percent(80) { newest } else { self.dice.one_of(&listening) };
        let line = self.lay(pod, incarnation, chair);
        self.processes[pod].line = Some(line);
        self.act(pod, member::Event::Connected);
        self.flush(pod);
    }

    fn lay(&mut self, pod: usize, incarnation: u128, chair: usize) -> usize {
        let (to_member, to_coordinator) = (self.now, self.now);
        let (open_there, open_here, severed) = (true, true, false);
        let line = Line { pod, incarnation, chair, open_there, open_here, severed, to_member, to_coordinator };
        self.lines.push(line);
        self.lines.len() - 1
    }

    /// The process before this one of its pod finds the coordinator.
    pub(crate) fn come_back(&mut self, pod: usize) {
        if let (Some(hello), Some(chair)) = (self.outlived(pod), self.seated()) {
            let line = self.lay(pod, OUTLIVED, chair);
            self.send_to_coordinator(line, Message::Hello(hello));
        }
    }
}
