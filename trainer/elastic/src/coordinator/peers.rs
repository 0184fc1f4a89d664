//! The connected processes: they introduce themselves, fall silent and disappear.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::{
    Command, ConnectionId, Coordinator, DEAD_AFTER, DESERTED_AFTER, Gathering, Outcome, Phase, REPLACED, RETURN_LIMIT,
    RETURN_SOON, SUSPECT_AFTER, peer::Peer,
};
use crate::{Digest, Hello, Incarnation, MemberId, Message, message::FrameError};

const NO_WORKER_HEARD: &str = "no worker was heard any more";

impl Coordinator {
    /// Handles the introduction of a newcomer, of a member that returns, or of a process that does
    /// not belong to the job.
    pub(super) fn hello(&mut self, connection: ConnectionId, hello: Hello, now: Duration) {
        if let Err(reason) = self.admits(&hello) {
            tracing::warn!(member = %hello.member, reason, "member refused");
            self.refuse(connection, reason);
            self.commands.push(Command::Close(connection));
            return;
        }
        let Hello { member, committed_generation, sealed, .. } = hello.clone();
        // Another coordinator recorded a generation that this one does not know.
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
        self.attach(connection, hello, now);
        let newest = self.active().filter(|active| active.attempt == self.config.attempt).cloned();
        let is_member = newest.as_ref().and_then(|active| active.member(&member)).is_some();
        let takes_part = is_member && committed_generation == newest.as_ref().map(|active| active.generation);
        if takes_part && !sealed && self.record.rested.is_some() {
            // It sent its final report, as all members did, and missed the answer.
            self.peers.remove(&member.pod);
            self.pods.remove(&connection);
            self.send(connection, Message::Release);
            self.commands.push(Command::Close(connection));
            return;
        }
        if takes_part && !sealed && self.phase_is_start() && !self.is_changing() {
            self.resume(now);
        }
        match &mut self.phase {
            Phase::Running(_) if takes_part && sealed => {
                self.break_up(format!("{} has sealed", member.pod), now);
            }
            Phase::Running(running) if is_member => {
                running.returned(&member);
                self.welcome_back(&member, connection);
            }
            Phase::Preparing(_) => self.ask_late_process(&member, connection, takes_part && !sealed),
            Phase::Running(_) | Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    fn refuse(&mut self, connection: ConnectionId, reason: String) {
        let may_retry = self.active().is_some_and(|active| active.attempt == self.config.attempt);
        self.send(connection, Message::Refuse { reason, may_retry });
    }

    fn phase_is_start(&self) -> bool {
        matches!(self.phase, Phase::Gathering(Gathering::Start))
    }

    fn admits(&self, hello: &Hello) -> Result<(), String> {
        let Hello { job, attempt, member, address: _, workload, data, committed_generation: _, sealed: _ } = hello;
        let config = &self.config;
        differ("the job", job, &config.job)?;
        differ("the attempt", attempt, &config.attempt)?;
        if !config.members.contains(&member.pod) {
            return Err(format!("{} is not one of this job's workers: {}", member.pod, config.members.join(", ")));
        }
        for other in self.peers.values().map(|peer| &peer.hello).filter(|other| other.member.pod != member.pod) {
            agree_on("workload (model, training, version of lockstep)", (member, workload), (other, &other.workload))?;
            agree_on("data set", (member, data), (other, &other.data))?;
        }
        Ok(())
    }

    /// Returns true if a newer process of the same pod exists, for example when an isolated node is
    /// back. That newer process replaced this one here; or this one trained before, and the newer
    /// one is connected or belongs to the newest generation. A new process has trained in no
    /// generation.
    fn is_outlived(&self, hello: &Hello) -> bool {
        let Hello { member, committed_generation, .. } = hello;
        let another = |incarnation: Incarnation| incarnation != member.incarnation;
        let is_here = self.peers.get(&member.pod).is_some_and(|peer| another(peer.hello.member.incarnation));
        let ranked_members = self.active().into_iter().flat_map(|active| &active.members);
        let is_listed =
            ranked_members.filter(|ranked| ranked.pod == member.pod).any(|ranked| another(ranked.incarnation));
        let was_replaced = self.replaced.get(&member.pod) == Some(&member.incarnation);
        was_replaced || committed_generation.is_some() && (is_here || is_listed)
    }

    /// Notes the process on this connection. It replaces the previous process of the same pod.
    fn attach(&mut self, connection: ConnectionId, hello: Hello, now: Duration) {
        let pod = hello.member.pod.clone();
        let before = self.peers.get(&pod).map(|peer| (peer.hello.member.clone(), peer.connection));
        let same = self.peers.get(&pod).filter(|peer| peer.connection == connection);
        // A process that has sealed must be asked again to follow, unless it has caught up already.
        let catch_up = same.and_then(|peer| peer.catch_up).filter(|catch_up| !hello.sealed || catch_up.caught_up);
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
        self.absent_since.remove(&pod);
        self.peers.insert(pod, Peer { hello, connection, heard: now, catch_up });
    }

    pub(super) fn garbled(&mut self, connection: ConnectionId, error: &FrameError, now: Duration) {
        if let FrameError::Version { .. } = error {
            self.refuse(connection, error.to_string());
        }
        self.commands.push(Command::Close(connection));
        if let Some(pod) = self.pods.get(&connection).cloned() {
            self.gone(&pod, &error.to_string(), now);
        }
    }

    /// Removes a connected process. No other function does this.
    pub(super) fn gone(&mut self, pod: &str, reason: &str, now: Duration) {
        let Some(peer) = self.peers.remove(pod) else { return };
        self.pods.remove(&peer.connection);
        if self.leaving.remove(pod).is_some() {
            self.leaver_lost(&peer.hello.member);
        }
        self.absent_since.insert(pod.to_owned(), now);
        self.missed(&peer.hello.member, reason, now);
    }

    /// Returns true if a living process may be on its way to this coordinator. This holds for a
    /// while after a disconnection. After a start it holds for the members of the newest
    /// generation, and for a shorter time for other pods, most of which never existed.
    pub(super) fn process_may_return(&self, now: Duration) -> bool {
        let is_member =
            |pod: &String| self.active().is_some_and(|last| last.members.iter().any(|ranked| ranked.pod == *pod));
        let may_come = |pod: &String| {
            let (since, limit) = match self.absent_since.get(pod) {
                Some(since) => (*since, RETURN_LIMIT),
                None if is_member(pod) => (self.started, RETURN_LIMIT),
                None => (self.started, RETURN_SOON),
            };
            now.saturating_sub(since) <= limit
        };
        self.config.members.iter().any(|pod| !self.peers.contains_key(pod) && may_come(pod))
    }

    /// Drops silent processes while others are heard. If no process is heard, the coordinator's own
    /// network may have failed.
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

    /// Handles the silence of all processes. A group that trains goes on without a coordinator, so
    /// this one waits for it as after a start.
    fn lose_sight(&mut self, now: Duration) {
        let trains = matches!(&self.phase, Phase::Running(running) if !running.is_broken()) && !self.is_changing();
        let (pods, connections): (Vec<_>, Vec<_>) =
            self.peers.iter().map(|(pod, peer)| (pod.clone(), peer.connection)).unzip();
        self.commands.extend(connections.into_iter().map(Command::Close));
        if trains {
            self.absent_since.extend(pods.iter().map(|pod| (pod.clone(), now)));
            self.peers.clear();
            self.pods.clear();
            self.leaving.clear();
            // Members that have to leave repeat it when they return.
            self.draining.take_if(|_| self.record_failure.is_none());
            self.phase = Phase::Gathering(Gathering::Start);
            self.started = now;
        }
        for pod in pods {
            self.gone(&pod, NO_WORKER_HEARD, now);
        }
    }

    /// Returns true if all known processes have been away for long. A group that is over waits only
    /// for its record.
    pub(super) fn is_deserted(&self, now: Duration) -> bool {
        let waits = self.swapping.is_none() && matches!(self.phase, Phase::Gathering(_) | Phase::Preparing(_));
        let last = self.absent_since.values().max();
        waits && self.peers.is_empty() && last.is_some_and(|since| now.saturating_sub(*since) >= DESERTED_AFTER)
    }

    /// Returns true if this very process is connected.
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
