//! From strangers to a group: greet, allocate, prepare, agree, commit.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Command, Connection, Coordinator, Outcome, Peer, Phase, running::Running};
use crate::{Active, Digest, Hello, MemberId, Message, Report, Seat};

impl Coordinator {
    /// A process says who it is: a newcomer, a member that returns, or one that does not belong here.
    pub(super) fn greeted(&mut self, connection: Connection, hello: Hello, now: Duration) {
        if let Err(reason) = self.admits(&hello) {
            tracing::warn!(member = %hello.member, reason, "member refused");
            self.send(connection, Message::Refuse { reason });
            self.commands.push(Command::Close(connection));
            return;
        }
        let member = hello.member.clone();
        let returns = hello.entered_generation.is_some();
        let repeated = self.seat_connection(connection, hello, now);
        if returns && matches!(self.phase, Phase::Gathering | Phase::Allocating { .. } | Phase::Preparing { .. }) {
            self.resume(now);
        }
        match &self.phase {
            Phase::Running(_) => self.welcome_back(&member, connection),
            Phase::Preparing { generation, reports } if repeated && !reports.contains_key(&member.pod) => {
                self.send(connection, Message::Prepare { generation: *generation });
            }
            Phase::Gathering
            | Phase::Allocating { .. }
            | Phase::Preparing { .. }
            | Phase::Activating
            | Phase::Ended => {}
        }
    }

    fn admits(&self, hello: &Hello) -> Result<(), String> {
        let Hello { job, attempt, member, address: _, workload, data, checkpoint: _, entered_generation } = hello;
        let config = &self.config;
        differ("the job", job, &config.job)?;
        differ("the attempt", attempt, &config.attempt)?;
        if !config.members.contains(&member.pod) {
            return Err(format!("{} is none of this job's workers: {}", member.pod, config.members.join(", ")));
        }
        if let Some(entered) = entered_generation {
            let still_active = self.active().is_some_and(|a| a.generation == *entered && a.seat(member).is_some());
            if !still_active || matches!(self.phase, Phase::Activating) {
                return Err(format!("generation {entered} of {} is over", member.pod));
            }
        }
        for other in self.peers.values().map(|peer| &peer.hello).filter(|other| other.member.pod != member.pod) {
            agree_on("workload (model, training, version of lockstep)", (member, workload), (other, &other.workload))?;
            agree_on("data set", (member, data), (other, &other.data))?;
        }
        Ok(())
    }

    /// Notes who is on this connection; true when this very process was known before. Another process of the same pod
    /// takes its place.
    fn seat_connection(&mut self, connection: Connection, hello: Hello, now: Duration) -> bool {
        let pod = hello.member.pod.clone();
        let before = self.peers.get(&pod).map(|peer| (peer.hello.member.clone(), peer.connection));
        let repeated = before.as_ref().is_some_and(|(member, _)| *member == hello.member);
        if let Some((member, old)) = before {
            if !repeated {
                let reason = format!("{member} was replaced by a new process of {pod}");
                self.send(old, Message::Abort { reason: reason.clone() });
                self.gone(&pod, &reason);
            }
            if old != connection {
                self.commands.push(Command::Close(old));
                self.pods.remove(&old);
            }
        }
        if let Some(former) = self.pods.get(&connection).cloned().filter(|former| *former != pod) {
            self.gone(&former, &format!("its connection now speaks for {pod}"));
        }
        self.pods.insert(connection, pod.clone());
        self.peers.insert(pod, Peer { hello, connection, heard: now });
        repeated
    }

    /// Once everybody is here, a new generation is allocated.
    pub(super) fn gather(&mut self, now: Duration) {
        let missing = self.missing();
        let waited = now.saturating_sub(self.started);
        if !missing.is_empty() {
            if self.config.join_limit.is_some_and(|limit| waited > limit) {
                self.abort_all(&format!("gave up waiting for {}", missing.join(", ")));
                self.end(Outcome::Incomplete { missing, waited });
            }
            return;
        }
        if self.swapping.is_none() {
            let record = self.record.allocate(&self.config.name);
            self.phase = Phase::Allocating { generation: record.alloc_generation };
            self.swap(record);
        }
    }

    pub(super) fn prepare(&mut self, generation: u64) {
        self.phase = Phase::Preparing { generation, reports: BTreeMap::new() };
        self.send_to_all(&Message::Prepare { generation });
    }

    pub(super) fn reported(&mut self, member: &MemberId, connection: Connection, report: Report) {
        match &mut self.phase {
            Phase::Preparing { generation, reports } if report.generation == *generation => {
                reports.insert(member.pod.clone(), report);
            }
            // It answers an older call, so it missed this one.
            Phase::Preparing { generation, .. } if report.generation < *generation => {
                let generation = *generation;
                self.send(connection, Message::Prepare { generation });
            }
            Phase::Running(running) if running.generation() == report.generation => {
                self.welcome_back(member, connection);
            }
            Phase::Gathering
            | Phase::Allocating { .. }
            | Phase::Preparing { .. }
            | Phase::Activating
            | Phase::Running(_)
            | Phase::Ended => {}
        }
    }

    /// Once everybody reported, the membership is recorded, if all can start from the same state.
    pub(super) fn agree(&mut self) {
        let Phase::Preparing { generation, reports } = &self.phase else { return };
        if reports.len() < self.config.members.len() {
            return;
        }
        match self.membership(*generation, reports) {
            Ok(active) => {
                self.phase = Phase::Activating;
                self.swap(self.record.activate(active));
            }
            Err((member, message)) => self.fatal(member, message),
        }
    }

    fn membership(&self, generation: u64, reports: &BTreeMap<String, Report>) -> Result<Active, (MemberId, String)> {
        let hellos: Vec<&Hello> = self.config.members.iter().map(|pod| &self.peers[pod].hello).collect();
        let state = |hello: &Hello| (reports[&hello.member.pod].applied_step, reports[&hello.member.pod].state_digest);
        let sampler = |hello: &Hello| hello.checkpoint.map_or(self.config.sampler, |checkpoint| checkpoint.sampler);
        let first = hellos[0];
        for other in &hellos[1..] {
            if state(other) != state(first) || sampler(other) != sampler(first) {
                let message = format!(
                    "{} would start from {}, {} from {}: every worker must see the same checkpoints",
                    first.member.pod,
                    State(state(first)),
                    other.member.pod,
                    State(state(other)),
                );
                return Err((other.member.clone(), message));
            }
        }
        let seat = |(rank, hello): (u32, &&Hello)| Seat {
            pod: hello.member.pod.clone(),
            incarnation: hello.member.incarnation,
            address: hello.address,
            rank,
        };
        let (base_step, base_digest) = state(first);
        Ok(Active {
            generation,
            members: (0..).zip(&hellos).map(seat).collect(),
            base_step,
            base_digest,
            shards: self.config.shards,
            sampler: sampler(first),
            sources: (0..).zip(&hellos).map(|(rank, _)| rank).collect(),
            rollback: self.record.active.is_some(),
        })
    }

    /// The membership is recorded. Whoever left meanwhile is lost, as the group cannot run without it.
    pub(super) fn commit(&mut self, now: Duration) {
        let Some(active) = self.active().cloned() else { return };
        let present: Vec<_> = active
            .members
            .iter()
            .filter_map(|seat| Some((self.peers.get(&seat.pod)?, seat)))
            .filter(|(peer, seat)| peer.hello.member == seat.id())
            .map(|(peer, seat)| (peer.connection, seat.rank))
            .collect();
        self.phase = Phase::Running(Box::new(Running::new(active.clone(), now)));
        for (connection, rank) in present {
            self.send(connection, Message::Commit { rank, active: active.clone() });
        }
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

struct State((u64, Digest));

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self((step, digest)) = self;
        if *digest == Digest::NONE { f.write_str("nothing") } else { write!(f, "step {step} with digest {digest:.12}") }
    }
}
