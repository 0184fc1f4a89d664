//! Who is connected: processes that say who they are, fall silent, and go.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::{
    Command, Connection, Coordinator, DEAD_AFTER, DESERTED_AFTER, Gathering, Outcome, Phase, RETURN_LIMIT,
    SUSPECT_AFTER, following::Following, forming::REPLACED, running::RETURN_SOON,
};
use crate::{Digest, Hello, Incarnation, MemberId, Message, message::FrameError};

const NOBODY: &str = "nobody was heard any more";

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) hello: Hello,
    pub(super) connection: Connection,
    pub(super) heard: Duration,
    pub(super) following: Option<Following>,
}

impl Coordinator {
    /// A process says who it is: a newcomer, a member that returns, or one that does not belong here.
    pub(super) fn greeted(&mut self, connection: Connection, hello: Hello, now: Duration) {
        if let Err(reason) = self.admits(&hello) {
            tracing::warn!(member = %hello.member, reason, "member refused");
            self.refuse(connection, reason);
            self.commands.push(Command::Close(connection));
            return;
        }
        let Hello { member, committed_generation, stands, .. } = hello.clone();
        // Another coordinator recorded a generation that this one does not know of.
        if committed_generation > self.active().map(|active| active.generation) {
            self.end(Outcome::Superseded);
            return;
        }
        if self.is_outlived(&hello) {
            tracing::warn!(member = %hello.member, "an older process of a pod came back");
            self.send(connection, Message::Abort { reason: REPLACED.to_owned() });
            self.commands.push(Command::Close(connection));
            return;
        }
        self.seat_connection(connection, hello, now);
        let newest = self.active().filter(|active| active.attempt == self.config.attempt).cloned();
        let seated = newest.as_ref().and_then(|active| active.seat(&member)).is_some();
        let takes_part = seated && committed_generation == newest.as_ref().map(|active| active.generation);
        if takes_part && !stands && self.record.rested.is_some() {
            // It said its last word, as all did, and missed the answer.
            self.peers.remove(&member.pod);
            self.pods.remove(&connection);
            self.send(connection, Message::Release);
            self.commands.push(Command::Close(connection));
            return;
        }
        if takes_part && !stands && self.phase_is_start() && !self.is_changing() {
            self.resume(now);
        }
        match &mut self.phase {
            Phase::Running(_) if takes_part && stands => {
                self.break_up(format!("{} stands still", member.pod), now);
            }
            Phase::Running(running) if seated => {
                running.returned(&member);
                self.welcome_back(&member, connection);
            }
            Phase::Preparing(_) => self.ask_one_more(&member, connection, takes_part && !stands),
            Phase::Running(_) | Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    fn refuse(&mut self, connection: Connection, reason: String) {
        let may_retry = self.active().is_some_and(|active| active.attempt == self.config.attempt);
        self.send(connection, Message::Refuse { reason, may_retry });
    }

    fn phase_is_start(&self) -> bool {
        matches!(self.phase, Phase::Gathering(Gathering::Start))
    }

    fn admits(&self, hello: &Hello) -> Result<(), String> {
        let Hello { job, attempt, member, address: _, workload, data, committed_generation: _, stands: _ } = hello;
        let config = &self.config;
        differ("the job", job, &config.job)?;
        differ("the attempt", attempt, &config.attempt)?;
        if !config.members.contains(&member.pod) {
            return Err(format!("{} is none of this job's workers: {}", member.pod, config.members.join(", ")));
        }
        for other in self.peers.values().map(|peer| &peer.hello).filter(|other| other.member.pod != member.pod) {
            agree_on("workload (model, training, version of lockstep)", (member, workload), (other, &other.workload))?;
            agree_on("data set", (member, data), (other, &other.data))?;
        }
        Ok(())
    }

    /// Whether a newer process has its pod, as when a node that was cut off is back: one that took its place here, or, if it trained
    /// before, one that is connected or belongs to the newest generation. A new process has trained in none.
    fn is_outlived(&self, hello: &Hello) -> bool {
        let Hello { member, committed_generation, .. } = hello;
        let another = |incarnation: Incarnation| incarnation != member.incarnation;
        let is_here = self.peers.get(&member.pod).is_some_and(|peer| another(peer.hello.member.incarnation));
        let seats = self.active().into_iter().flat_map(|active| &active.members);
        let is_seated = seats.filter(|seat| seat.pod == member.pod).any(|seat| another(seat.incarnation));
        let was_replaced = self.replaced.get(&member.pod) == Some(&member.incarnation);
        was_replaced || committed_generation.is_some() && (is_here || is_seated)
    }

    /// Notes who is on this connection. Another process of the same pod takes the place of the one before.
    fn seat_connection(&mut self, connection: Connection, hello: Hello, now: Duration) {
        let pod = hello.member.pod.clone();
        let before = self.peers.get(&pod).map(|peer| (peer.hello.member.clone(), peer.connection));
        let same = self.peers.get(&pod).filter(|peer| peer.connection == connection);
        // Whoever stands, and has not caught up, does not know that it is to follow.
        let following = same.and_then(|peer| peer.following).filter(|following| !hello.stands || following.caught_up);
        if let Some((member, old)) = before {
            if member != hello.member {
                let reason = format!("{member} was replaced by a new process of {pod}");
                self.send(old, Message::Abort { reason: reason.clone() });
                self.gone(&pod, &reason, now);
                self.replaced.insert(pod.clone(), member.incarnation);
            }
            if old != connection {
                self.commands.push(Command::Close(old));
                self.pods.remove(&old);
            }
        }
        if let Some(former) = self.pods.get(&connection).cloned().filter(|former| *former != pod) {
            self.gone(&former, &format!("its connection now speaks for {pod}"), now);
        }
        self.pods.insert(connection, pod.clone());
        self.away.remove(&pod);
        self.peers.insert(pod, Peer { hello, connection, heard: now, following });
    }

    pub(super) fn garbled(&mut self, connection: Connection, error: &FrameError, now: Duration) {
        if let FrameError::Version { .. } = error {
            self.refuse(connection, error.to_string());
        }
        self.commands.push(Command::Close(connection));
        if let Some(pod) = self.pods.get(&connection).cloned() {
            self.gone(&pod, &error.to_string(), now);
        }
    }

    /// The one place where a connected member disappears.
    pub(super) fn gone(&mut self, pod: &str, reason: &str, now: Duration) {
        let Some(peer) = self.peers.remove(pod) else { return };
        self.pods.remove(&peer.connection);
        if self.leaving.remove(pod).is_some() {
            self.lost_a_leaver(&peer.hello.member);
        }
        self.away.insert(pod.to_owned(), now);
        self.missed(&peer.hello.member, reason, now);
    }

    /// Whether a process that lives may be on its way here: one whose connection went a moment ago, or, after a start, a member of the
    /// newest generation, and for a shorter while any other, of which most never were.
    pub(super) fn may_miss_somebody(&self, now: Duration) -> bool {
        let is_member =
            |pod: &String| self.active().is_some_and(|last| last.members.iter().any(|seat| seat.pod == *pod));
        let may_come = |pod: &String| {
            let (since, limit) = match self.away.get(pod) {
                Some(since) => (*since, RETURN_LIMIT),
                None if is_member(pod) => (self.started, RETURN_LIMIT),
                None => (self.started, RETURN_SOON),
            };
            now.saturating_sub(since) <= limit
        };
        self.config.members.iter().any(|pod| !self.peers.contains_key(pod) && may_come(pod))
    }

    /// Who is silent while others are heard is lost. While nobody is, that may be as well this coordinator's line.
    pub(super) fn drop_the_silent(&mut self, now: Duration) {
        let silent = |peer: &Peer| now.saturating_sub(peer.heard) > DEAD_AFTER;
        let is_heard = |peer: &Peer| now.saturating_sub(peer.heard) <= SUSPECT_AFTER;
        if !self.peers.is_empty() && !self.peers.values().any(is_heard) {
            if self.peers.values().all(silent) {
                self.lose_sight(now);
            }
            return;
        }
        let dead: Vec<_> =
            self.peers.iter().filter(|(_, p)| silent(p)).map(|(pod, p)| (pod.clone(), p.connection)).collect();
        for (pod, connection) in dead {
            self.commands.push(Command::Close(connection));
            self.gone(&pod, &format!("sent nothing for {} s", DEAD_AFTER.as_secs_f64()), now);
        }
    }

    /// Nobody is heard any more. A group that trains goes on without a coordinator: as after a start it is waited for.
    fn lose_sight(&mut self, now: Duration) {
        let trains = matches!(&self.phase, Phase::Running(running) if !running.is_broken()) && !self.is_changing();
        let (pods, connections): (Vec<_>, Vec<_>) =
            self.peers.iter().map(|(pod, peer)| (pod.clone(), peer.connection)).unzip();
        self.commands.extend(connections.into_iter().map(Command::Close));
        if trains {
            self.away.extend(pods.iter().map(|pod| (pod.clone(), now)));
            self.peers.clear();
            self.pods.clear();
            self.leaving.clear();
            // Those that have to go say so to whomever they return to.
            self.draining.take_if(|_| self.unkept.is_none());
            self.phase = Phase::Gathering(Gathering::Start);
            self.started = now;
        }
        for pod in pods {
            self.gone(&pod, NOBODY, now);
        }
    }

    /// Whether all whom it has seen have been gone for long. A group that is over waits for its record, and for nobody.
    pub(super) fn is_deserted(&self, now: Duration) -> bool {
        let waits = self.swapping.is_none() && matches!(self.phase, Phase::Gathering(_) | Phase::Preparing(_));
        let last = self.away.values().max();
        waits && self.peers.is_empty() && last.is_some_and(|since| now.saturating_sub(*since) >= DESERTED_AFTER)
    }

    /// Whether this very process is connected.
    pub(super) fn is_here(&self, member: &MemberId) -> bool {
        self.peers.get(&member.pod).is_some_and(|peer| peer.hello.member == *member)
    }

    pub(super) fn silent_pods(&self, now: Duration) -> BTreeSet<&str> {
        let silent = |peer: &Peer| now.saturating_sub(peer.heard) > SUSPECT_AFTER;
        self.peers.iter().filter(|(_, peer)| silent(peer)).map(|(pod, _)| pod.as_str()).collect()
    }
}

fn differ<T: PartialEq + fmt::Display>(what: &str, theirs: &T, ours: &T) -> Result<(), String> {
    if theirs == ours { Ok(()) } else { Err(format!("{what} is {theirs} there and {ours} at this coordinator")) }
}

fn agree_on(what: &str, a: (&MemberId, &Digest), b: (&Hello, &Digest)) -> Result<(), String> {
    if a.1 == b.1 {
        return Ok(());
    }
    let (pod, other) = (&a.0.pod, &b.0.member.pod);
    Err(format!("the {what} of {pod} has digest {:.12}, that of {other} {:.12}: give all workers the same", a.1, b.1))
}
