//! Worker processes: they start, connect, freeze, leave and die.

use std::time::Duration;

use lockstep_elastic::{
    AwakeClock, Hello, Member, MemberId, Message,
    member::{Command, Event},
};

use crate::{
    fixtures::{NOTHING, hello, member},
    slow::Slow,
    worker::{Doing, Worker, WorkerTask},
    world::{Bug, Delivery, World},
};

/// A training thread that does nothing for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The process of one pod, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) incarnation: u128,
    pub(crate) index: usize,
    pub(crate) alive: bool,
    /// True while a signal stops it.
    pub(crate) frozen: bool,
    pub(crate) backlog: Vec<Delivery>,
    /// True while a start is pending.
    pub(crate) due: bool,
    pub(crate) member: Option<Member>,
    /// The previous process of its pod. It may live on unseen.
    former: Option<Member>,
    pub(crate) connection: Option<usize>,
    /// The events of the worker that the membership's thread has not taken yet.
    pub(crate) outbox: Vec<Event>,
    pub(crate) worker: Worker,
    /// True once it has to leave.
    pub(crate) leaving: bool,
    /// True while it has taken part in no generation.
    pub(crate) newcomer: bool,
    /// The ends of its partitions: of incoming and of outgoing messages.
    pub(crate) deaf_until: Duration,
    pub(crate) mute_until: Duration,
    /// The end of the time in which its training thread does nothing. Its other threads go on.
    pub(crate) stuck_until: Duration,
    /// The speed of its machine, for every process on it.
    pub(crate) slow: Slow,
    clock: AwakeClock,
    /// The time by which its clock is ahead.
    ahead: Duration,
    wanted: Duration,
    alarm: Option<Duration>,
}

impl Process {
    pub(crate) fn absent() -> Self {
        Self::default()
    }

    pub(crate) fn id(&self) -> MemberId {
        member(self.index, self.incarnation)
    }
}

impl World {
    pub(crate) fn is_alive(&self, pod: usize, incarnation: u128) -> bool {
        self.processes[pod].alive && self.processes[pod].incarnation == incarnation
    }

    pub(crate) fn start_later(&mut self, pod: usize, delay: Duration) {
        if !self.processes[pod].due {
            self.processes[pod].due = true;
            self.after(delay, Delivery::Start { pod });
        }
    }

    /// Starts a new process of this pod with the newest checkpoint.
    pub(crate) fn start(&mut self, pod: usize) {
        self.processes[pod].due = false;
        if self.processes[pod].alive {
            return;
        }
        let before = self.processes[pod].incarnation;
        self.incarnations += 1;
        let fresh = before == 0 || self.script.bug != Some(Bug::KeepsItsIncarnation);
        let incarnation = if fresh { self.incarnations } else { before };
        let held = self.newest_checkpoint();
        let former = self.processes[pod].member.take();
        let Process { deaf_until, mute_until, slow, .. } = self.processes[pod];
        let member = Some(Member::new(hello(pod, incarnation, self.attempt), held));
        let worker = Worker { held: Some(held), ..Worker::default() };
        let (alive, newcomer) = (true, true);
        self.processes[pod] = Process {
            incarnation,
            index: pod,
            alive,
            member,
            former,
            worker,
            newcomer,
            deaf_until,
            mute_until,
            slow,
            ..Process::default()
        };
        let delay = self.dice.millis(0, 20);
        self.after(delay, Delivery::Connect { pod, incarnation });
    }

    pub(crate) fn newest_checkpoint(&self) -> lockstep_elastic::HeldState {
        self.checkpoints.last_key_value().map_or(NOTHING, |(_, state)| *state)
    }

    /// Kills the process. Its pod starts it again, or stays away until it is needed if enough
    /// others are left.
    pub(crate) fn kill(&mut self, pod: usize) {
        if !self.processes[pod].alive {
            return;
        }
        let leaves = self.processes[pod].leaving;
        self.end_process(pod);
        let others = self.processes.iter().filter(|process| process.alive || process.due).count();
        if others < self.script.least || !leaves && self.dice.percent(85) {
            let delay = if self.dice.percent(80) { self.dice.millis(50, 600) } else { self.dice.millis(600, 4000) };
            self.start_later(pod, delay);
        }
    }

    /// Returns the hello of the previous process of this pod, as if it had lived on behind a
    /// partition and the coordinator knew that this one trains.
    pub(crate) fn outlived(&self, pod: usize) -> Option<Hello> {
        let newest = self.history.newest()?;
        newest.member(&self.processes[pod].id())?;
        self.coordinators[self.active_coordinator()?].active().filter(|active| *active == newest)?;
        let said = self.processes[pod].former.clone()?.handle(Event::Connected, self.now);
        said.into_iter().find_map(|command| match command {
            Command::Send(Message::Hello(hello)) => Some(hello).filter(|hello| hello.committed_generation.is_some()),
            _ => None,
        })
    }

    pub(crate) fn end_process(&mut self, pod: usize) {
        let process = &mut self.processes[pod];
        if !std::mem::replace(&mut process.alive, false) {
            return;
        }
        process.frozen = false;
        process.backlog.clear();
        let connection = process.connection.take();
        let generation = process.worker.generation;
        process.worker.doing = Doing::Gone;
        if let Some(connection) = connection {
            self.close_there(connection);
        }
        if let Some(generation) = generation {
            self.desert(pod, generation);
        }
    }

    pub(crate) fn freeze(&mut self, pod: usize, lasts: Duration) {
        self.processes[pod].frozen = true;
        let incarnation = self.processes[pod].incarnation;
        self.after(lasts, Delivery::Thaw { pod, incarnation });
    }

    /// Makes the training thread stuck. It does its work afterwards. If it computes, it is found
    /// before.
    pub(crate) fn stick(&mut self, pod: usize, lasts: Duration) {
        self.processes[pod].stuck_until = self.now + lasts;
        let incarnation = self.processes[pod].incarnation;
        if self.is_stuck(pod) && lasts > STUCK_AFTER {
            self.after(STUCK_AFTER, Delivery::Stuck { pod, incarnation });
        }
    }

    /// Returns true if it does not compute although it should.
    pub(crate) fn is_stuck(&self, pod: usize) -> bool {
        let process = &self.processes[pod];
        process.stuck_until > self.now && process.worker.doing == Doing::Computing
    }

    pub(crate) fn found_stuck(&mut self, pod: usize, incarnation: u128) {
        if self.is_alive(pod, incarnation) && self.is_stuck(pod) && self.processes[pod].connection.is_some() {
            self.act(pod, Event::Stuck { reason: "it does not move".into() });
        }
    }

    /// Continues a frozen process. All waiting messages arrive at once, and all its threads run at
    /// the same time.
    pub(crate) fn thaw(&mut self, pod: usize, incarnation: u128) {
        if !self.is_alive(pod, incarnation) {
            return;
        }
        self.processes[pod].frozen = false;
        let mut spoken = self.now;
        for delivery in std::mem::take(&mut self.processes[pod].backlog) {
            let wire = matches!(delivery, Delivery::ToMember(..) | Delivery::MemberLearnsOfClose(_));
            if wire && self.script.ordered {
                spoken += self.dice.micros(1, 200);
                self.at(spoken, delivery);
            } else {
                let delay = self.dice.micros(0, 2000);
                self.after(delay, delivery);
            }
        }
    }

    /// Returns the time that something takes this process.
    pub(crate) fn pace(&self, pod: usize, takes: Duration) -> Duration {
        self.processes[pod].slow.pace(self.now, takes)
    }

    pub(crate) fn wake_member(&mut self, pod: usize, incarnation: u128) {
        if !self.is_alive(pod, incarnation) {
            return;
        }
        let process = &mut self.processes[pod];
        process.alarm = None;
        if process.connection.is_none() {
            return;
        }
        if process.wanted > self.now {
            let wanted = process.wanted;
            self.set_member_alarm(pod, wanted);
        } else {
            self.act(pod, Event::Tick);
        }
    }

    /// Moves the member's clock ahead, as after a sleep of the machine. All its alarms are due.
    pub(crate) fn clock_jumps(&mut self, pod: usize, ahead: Duration) {
        self.processes[pod].ahead += ahead;
        if self.processes[pod].connection.is_some() {
            self.act(pod, Event::Tick);
        }
    }

    fn set_member_alarm(&mut self, pod: usize, wanted: Duration) {
        let process = &mut self.processes[pod];
        process.wanted = wanted;
        if process.alarm.is_none_or(|alarm| alarm > wanted) {
            process.alarm = Some(wanted);
            let incarnation = process.incarnation;
            self.at(wanted, Delivery::WakeMember { pod, incarnation });
        }
    }

    /// Sends an event of the worker. The membership's thread takes it while there is a connection.
    pub(crate) fn say(&mut self, pod: usize, event: Event) {
        let process = &mut self.processes[pod];
        process.outbox.push(event);
        let incarnation = process.incarnation;
        if process.connection.is_some() {
            let delay = self.dice.micros(1, 300);
            let delay = self.pace(pod, delay);
            self.after(delay, Delivery::Flush { pod, incarnation });
        }
    }

    pub(crate) fn flush(&mut self, pod: usize) {
        if self.processes[pod].connection.is_some() {
            for event in std::mem::take(&mut self.processes[pod].outbox) {
                self.act(pod, event);
            }
        }
    }

    pub(crate) fn act(&mut self, pod: usize, event: Event) {
        let Process { member: Some(member), clock, ahead, .. } = &mut self.processes[pod] else { return };
        for command in member.handle(event, clock.look(self.now + *ahead)) {
            if !self.processes[pod].alive {
                return;
            }
            match command {
                Command::Send(message) => {
                    if let Some(connection) = self.processes[pod].connection {
                        self.send_to_coordinator(connection, message);
                    }
                }
                Command::Reconnect => {
                    if let Some(connection) = self.processes[pod].connection {
                        self.hang_up(connection);
                    }
                }
                Command::Enter(group) => self.committed(pod, group),
                Command::Follow(lead) => self.told_to_follow(pod, &lead),
                Command::Feed(follower) => {
                    self.processes[pod].worker.fed.insert((follower.generation, follower.member));
                }
                Command::Seal { generation: _, planned } => self.asked_to_seal(pod, planned),
                Command::Drain { .. } => self.processes[pod].worker.draining = true,
                Command::Abort { .. } => self.kill(pod),
                Command::Refused { reason, .. } => self.fail(format!("worker {pod} was refused: {reason}")),
                Command::Released => self.end_process(pod),
                Command::WakeAt(time) => {
                    let Process { clock, ahead, .. } = &self.processes[pod];
                    let wanted = clock.real(time).saturating_sub(*ahead);
                    self.set_member_alarm(pod, wanted);
                }
            }
        }
    }

    /// Lets the worker notice a request at its next look.
    pub(crate) fn notice_later(&mut self, pod: usize) {
        let delay = self.dice.micros(50, 6000);
        self.work_later(pod, delay, WorkerTask::Notice);
    }

    pub(crate) fn work_later(&mut self, pod: usize, delay: Duration, work: WorkerTask) {
        let incarnation = self.processes[pod].incarnation;
        let takes = match work {
            // These waits depend on a clock or on other processes.
            WorkerTask::Break(_) | WorkerTask::Unformed(..) | WorkerTask::Reload(_) | WorkerTask::StopAtLast(_) => {
                delay
            }
            WorkerTask::Begin(_)
            | WorkerTask::Follow(_)
            | WorkerTask::Connected(_)
            | WorkerTask::Copied(_)
            | WorkerTask::Contribute(_)
            | WorkerTask::Heard(_)
            | WorkerTask::Summed(_)
            | WorkerTask::Notice
            | WorkerTask::Saved(_) => self.pace(pod, delay),
        };
        self.after(takes, Delivery::WorkerTask { pod, incarnation, work });
    }
}
