//! Forms a group from sealed processes: gather, allocate, prepare, agree, commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    time::Duration,
};

use super::{
    Change, Command, ConnectionId, Coordinator, Gathering, Phase, Purpose, REPLACED, RETURN_LIMIT, START_LIMIT,
    base_state::{self, BaseState, NoBase},
    peer::{CatchUp, Peer},
    reasons::Reasons,
    running::Running,
};
use crate::{
    Active, Digest, HeldState, Hello, MemberId, Message, RankedMember, SealReport, member::REPEAT_AFTER, rank_order,
};

/// In a planned change, sealed members wait this long for the last steps of newcomers that have
/// caught up. A full copy would take longer.
const LAST_STEPS_LIMIT: Duration = Duration::from_secs(10);

const DID_NOT_RETURN: &str = "it did not come back";
const LOST_MEANWHILE: &str = "it disappeared while the group was formed";

/// A generation that is being agreed on.
#[derive(Clone, Debug)]
pub(super) struct Preparing {
    generation: u64,
    planned: bool,
    /// The pods that were asked for a report.
    expected: BTreeSet<String>,
    reports: BTreeMap<String, SealReport>,
    /// True if a member was lost during a planned change, which can then not happen.
    disturbed: bool,
    since: Duration,
    /// The time of the last request for reports.
    asked: Duration,
    /// The time since when only newcomers are missing, which still receive the last steps.
    sealed: Option<Duration>,
}

impl Coordinator {
    /// Allocates a new generation once enough processes are connected.
    pub(super) fn gather(&mut self, now: Duration) {
        let Phase::Gathering(gathering) = self.phase else { return };
        self.drain_if_deserted(now);
        if !self.suffice() {
            return;
        }
        let waited = now.saturating_sub(self.started);
        let awaited =
            self.active().filter(|active| active.attempt == self.config.attempt && self.record.rested.is_none());
        let complete = match (gathering, awaited) {
            (Gathering::Paused, _) => true,
            (Gathering::Start, None) => self.peers.len() >= self.config.replicas || waited > START_LIMIT,
            (Gathering::Start, Some(active)) => {
                let here = |ranked: &RankedMember| self.peers.contains_key(&ranked.pod);
                active.members.iter().all(here) || waited > RETURN_LIMIT
            }
        };
        if complete || self.draining.is_some() {
            self.allocate(false);
        }
    }

    pub(super) fn allocate(&mut self, planned: bool) {
        let record = self.record.allocate(&self.config.name);
        self.swap(Purpose::Allocate { planned }, record);
    }

    /// Asks every connected process for its state, once the generation is allocated.
    pub(super) fn prepare(&mut self, planned: bool, now: Duration) {
        let generation = self.record.alloc_generation;
        let planned = match &self.phase {
            Phase::Running(running) => planned && !running.is_broken(),
            Phase::Gathering(_) | Phase::Preparing(_) | Phase::Ended => false,
        };
        if matches!(&self.phase, Phase::Running(running) if running.is_broken()) {
            self.exclude_unconnected(now);
            self.generations_without_step = self.generations_without_step.saturating_add(1);
        }
        // While more newcomers may come, the members train.
        self.reasons.since.take_if(|_| planned);
        self.reasons.begin(now);
        let expected = match planned {
            true => self.ready(),
            false => self.peers.keys().filter(|pod| !self.is_excluded(pod)).cloned().collect(),
        };
        let (reports, disturbed, sealed) = (BTreeMap::new(), false, None);
        let (since, asked) = (now, now);
        self.phase =
            Phase::Preparing(Preparing { generation, planned, expected, reports, disturbed, since, asked, sealed });
        self.ask();
    }

    /// Returns the pods that a planned change asks. A newcomer that has not caught up is not
    /// disturbed.
    pub(super) fn ready(&self) -> BTreeSet<String> {
        let late = |peer: &Peer| self.active().is_some_and(|active| peer.catches_up_with(active));
        self.peers
            .iter()
            .filter(|(pod, peer)| !late(peer) && !self.is_excluded(pod))
            .map(|(pod, _)| pod.clone())
            .collect()
    }

    /// Sends a request for each missing report. In a planned change, members and followers seal
    /// after a step.
    fn ask(&mut self) {
        let Phase::Preparing(preparing) = &self.phase else { return };
        let generation = preparing.generation;
        let is_silent = |pod: &str| preparing.expected.contains(pod) && !preparing.reports.contains_key(pod);
        let silent = self.peers.iter().filter(|(pod, _)| is_silent(pod));
        let asked: Vec<_> = silent
            .map(|(_, peer)| {
                let goes_on = |active: &Active| active.member(&peer.hello.member).is_some() || peer.follows(active);
                (peer.connection, preparing.planned && self.active().is_some_and(goes_on))
            })
            .collect();
        for (connection, planned) in asked {
            self.send(connection, Message::Prepare { generation, planned });
        }
    }

    /// Asks a process that connected meanwhile. It may train in the group that is about to change.
    /// A newcomer is too late for a planned change and follows the next group instead.
    pub(super) fn ask_late_process(&mut self, member: &MemberId, connection: ConnectionId, trains: bool) {
        let belongs = self.active().is_some_and(|active| active.member(member).is_some());
        let is_excluded = self.is_excluded(&member.pod);
        let Phase::Preparing(preparing) = &mut self.phase else { return };
        if is_excluded || preparing.planned && !belongs && !preparing.expected.contains(&member.pod) {
            return;
        }
        preparing.expected.insert(member.pod.clone());
        if !preparing.reports.contains_key(&member.pod) {
            let (generation, planned) = (preparing.generation, preparing.planned && trains);
            self.send(connection, Message::Prepare { generation, planned });
        }
    }

    pub(super) fn reported(&mut self, member: &MemberId, connection: ConnectionId, report: SealReport, now: Duration) {
        let newest = self.active().filter(|active| active.member(member).is_some()).map(|active| active.generation);
        match &mut self.phase {
            Phase::Preparing(preparing) => {
                let generation = preparing.generation;
                if report.generation == generation {
                    // A member that sealed before it took part would block all members that train.
                    preparing.disturbed |= preparing.planned && newest.is_some() && report.entered_generation != newest;
                    preparing.reports.insert(member.pod.clone(), report);
                } else {
                    // It answers an older request, so it missed this one. It has already sealed.
                    self.send(connection, Message::Prepare { generation, planned: false });
                }
            }
            Phase::Running(running) if running.active().member(member).is_some() => {
                if report.generation > running.active().generation {
                    self.break_up(format!("{} sealed for a generation that was never formed", member.pod), now);
                } else {
                    self.welcome_back(member, connection);
                }
            }
            // It sealed for a generation that was formed without it.
            Phase::Running(running) => {
                let catch_up = CatchUp::as_it_is(running.active());
                self.peers.get_mut(&member.pod).into_iter().for_each(|peer| peer.catch_up = Some(catch_up));
            }
            Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    /// Counts members as lost from the previous membership, if they disappeared before a new one
    /// could be stored.
    pub(super) fn lose_unstored(&mut self, unstored: Option<Active>) {
        let trained = |ranked: &RankedMember| self.active().is_some_and(|active| active.member(&ranked.id()).is_some());
        let ranked_members = unstored.into_iter().flat_map(|active| active.members);
        for ranked in ranked_members.filter(|ranked| trained(ranked) && !self.is_here(&ranked.id())).collect::<Vec<_>>()
        {
            self.reasons.lose(&ranked.id(), LOST_MEANWHILE);
        }
    }

    /// Returns true if the membership that is being stored contains this process.
    pub(super) fn is_being_stored(&self, member: &MemberId) -> bool {
        self.swapping.as_ref().is_some_and(|(purpose, record)| {
            let is_member = record.active.as_ref().is_some_and(|active| active.member(member).is_some());
            *purpose == Purpose::Activate && is_member
        })
    }

    /// Handles the loss of a member during a planned change. If it had sealed, it had done every
    /// step that the others wait for.
    pub(super) fn missed_while_preparing(&mut self, member: &MemberId) {
        let last = self.record.active.as_ref();
        let belongs = |pod: &String| last.is_some_and(|last| last.members.iter().any(|ranked| ranked.pod == *pod));
        let trained = last.is_some_and(|last| last.member(member).is_some());
        if let Phase::Preparing(preparing) = &mut self.phase {
            preparing.expected.remove(&member.pod);
            let sealed = preparing.reports.remove(&member.pod).is_some();
            // Newcomers may lack the data that this member had to send.
            let reports = &preparing.reports;
            let lacks = preparing.expected.iter().any(|pod| !belongs(pod) && !reports.contains_key(pod));
            preparing.disturbed |= preparing.planned && trained && (!sealed || lacks);
        }
    }

    /// Notes that a member cannot do the step after which it should have sealed.
    pub(super) fn disturb(&mut self) {
        if let Phase::Preparing(preparing) = &mut self.phase {
            preparing.disturbed |= preparing.planned;
        }
    }

    /// Records the membership once all reports are here and a starting state is chosen.
    pub(super) fn agree(&mut self, now: Duration) {
        let Phase::Preparing(preparing) = &mut self.phase else { return };
        if preparing.expected.is_empty() {
            self.phase = Phase::Gathering(Gathering::Paused);
            return;
        }
        if preparing.disturbed {
            self.allocate(false);
            return;
        }
        let last = self.record.active.as_ref();
        let belongs = |pod: &String| last.is_some_and(|last| last.members.iter().any(|ranked| ranked.pod == *pod));
        let mut missing = preparing.expected.iter().filter(|pod| !preparing.reports.contains_key(*pod)).peekable();
        if missing.peek().is_some() {
            if preparing.planned && missing.all(|pod| !belongs(pod)) {
                let sealed = *preparing.sealed.get_or_insert(now);
                preparing.disturbed = now.saturating_sub(sealed) > LAST_STEPS_LIMIT;
            }
            if now.saturating_sub(preparing.asked) >= REPEAT_AFTER {
                preparing.asked = now;
                self.ask();
            }
            return;
        }
        let Phase::Preparing(preparing) = &self.phase else { return };
        if !self.are_enough(&preparing.expected) {
            if self.suffice() {
                self.allocate(false);
            } else {
                self.release_leavers();
                self.phase = Phase::Gathering(Gathering::Paused);
            }
            return;
        }
        match self.membership(preparing, now) {
            Ok(active) => match self.unread(&active) {
                Some((step, unread)) => {
                    let reason = format!("there is a checkpoint of step {step}, and no connected worker has read it");
                    self.send_to_reread(&reason, unread, now);
                }
                None => {
                    let record = self.with_plans().activate(active);
                    self.swap(Purpose::Activate, record);
                }
            },
            // A further report decides, or the time.
            Err(NoBase::Unqualified) => {}
            Err(NoBase::Fork(fork)) => {
                let stale = self.stale(preparing);
                let [(one, a), (other, b)] = *fork;
                let message =
                    format!("{} would start from {}, {} from {}", one.pod, Described(a), other.pod, Described(b));
                let report = |member: &MemberId| preparing.reports.get(&member.pod);
                let trained = |member| report(member).is_some_and(|report| report.entered_generation.is_some());
                if trained(&one) && trained(&other) {
                    let cause = "they trained together: the memory or a processor of one of their hosts is faulty";
                    return self.diverged(other, format!("{message}; {cause}"));
                }
                match stale.is_empty() {
                    true => self.fatal(other, format!("{message}: every worker must see the same checkpoints")),
                    false => self.send_to_reread(&message, stale, now),
                }
            }
        }
    }

    /// Releases the leaving members if a member that stays holds the whole state of the group. That
    /// member waits for more. Otherwise all stop together.
    fn release_leavers(&mut self) {
        let (Phase::Preparing(preparing), Some(last)) = (&self.phase, self.active()) else { return };
        let holds = |ranked: &RankedMember| {
            let report = preparing.reports.get(&ranked.pod).filter(|_| self.is_here(&ranked.id()));
            report.is_some_and(|report| {
                report.entered_generation == Some(last.generation) && !report.followed && report.state.is_some()
            })
        };
        let stays = |ranked: &&RankedMember| !self.leaving.contains_key(&ranked.pod);
        if !last.members.iter().filter(stays).any(holds) {
            return;
        }
        let mut staying = last.clone();
        staying.members.retain(|ranked| !self.leaving.contains_key(&ranked.pod));
        let left = self.dismiss(&staying);
        self.left.extend(left);
    }

    fn membership(&self, preparing: &Preparing, now: Duration) -> Result<Active, NoBase> {
        let last = self.active();
        let report = |pod: &str| Some((&self.peers.get(pod)?.hello, preparing.reports.get(pod)?));
        // Processes that may hold more were waited for before any process was restarted to read.
        let waited = now.saturating_sub(preparing.since) > RETURN_LIMIT || !self.sent_to_reread.is_empty();
        let are_all_anew = last.is_some_and(|last| last.attempt < self.config.attempt);
        let have_all_reported = self.peers.keys().all(|pod| preparing.reports.contains_key(pod));
        let may_roll_back = waited || are_all_anew || have_all_reported && !self.process_may_return(now);
        let choose = |pods: &[&str], may_roll_back| {
            let reports: Vec<_> =
                pods.iter().filter_map(|pod| report(pod)).map(|(hello, report)| (&hello.member, report)).collect();
            base_state::choose(last, self.record.rested, &reports, may_roll_back)
        };
        let stayers: Vec<&str> = self.stayers().collect();
        let everybody: Vec<&str> = self.peers.keys().map(String::as_str).collect();
        // A leaving process that alone holds the last steps first hands them over. Only without
        // such a process does an older state count.
        let choices = [(&stayers, false), (&everybody, false), (&stayers, may_roll_back), (&everybody, may_roll_back)];
        let (pods, chosen) = choices
            .into_iter()
            .map(|(pods, may_roll_back)| (pods, choose(pods, may_roll_back)))
            .find(|(_, chosen)| !matches!(chosen, Err(NoBase::Unqualified)))
            .ok_or(NoBase::Unqualified)?;
        let BaseState { state, holders, rollback } = chosen?;
        let mut pods = pods.clone();
        pods.sort_by(|a, b| rank_order(a, b));
        let hellos: Vec<&Hello> = pods.iter().filter_map(|pod| report(pod)).map(|(hello, _)| hello).collect();
        let ranked = |(rank, hello): (u32, &&Hello)| RankedMember {
            pod: hello.member.pod.clone(),
            incarnation: hello.member.incarnation,
            address: hello.address,
            rank,
        };
        let holds = |(rank, hello): (u32, &&Hello)| holders.contains(&hello.member).then_some(rank);
        let lacks = |(rank, hello): (u32, &&Hello)| {
            let held = preparing.reports.get(&hello.member.pod).and_then(|report| report.state);
            (held != Some(state)).then_some(rank)
        };
        Ok(Active {
            generation: preparing.generation,
            attempt: self.config.attempt,
            members: (0..).zip(&hellos).map(ranked).collect(),
            base_step: state.step,
            base_digest: state.digest,
            shards: self.config.shards,
            sampler: state.sampler,
            sources: (0..).zip(&hellos).filter_map(holds).collect(),
            copiers: (0..).zip(&hellos).filter_map(lacks).collect(),
            rollback,
        })
    }

    /// Returns the step of a checkpoint that is newer than the starting state of this membership,
    /// and the pods whose processes may not have read it. If new processes do not find it either,
    /// it is unreadable and the older state counts. An earlier attempt does not matter: its
    /// checkpoints were complete before this attempt's processes started.
    fn unread(&self, active: &Active) -> Option<(u64, Vec<String>)> {
        let is_of_this_attempt = |active: &Active| active.attempt == self.config.attempt;
        let recorded = self.active().filter(|last| is_of_this_attempt(last)).and(self.record.last_durable_checkpoint);
        let step = recorded.max(self.mark)?.step;
        let unread: Vec<_> =
            self.peers.iter().filter(|(_, peer)| !self.has_read(peer)).map(|(pod, _)| pod.clone()).collect();
        (active.rollback && active.base_step < step && !unread.is_empty()).then_some((step, unread))
    }

    /// Returns the pods whose processes only read a checkpoint. The previous group may since have
    /// replaced it by another one of the same step. No group before the first one could do so.
    fn stale(&self, preparing: &Preparing) -> Vec<String> {
        let has_only_read = |(pod, report): &(&String, &SealReport)| {
            let has_read_once = self.peers.get(*pod).is_some_and(|peer| !self.has_read(peer));
            self.record.active.is_some() && report.entered_generation.is_none() && has_read_once
        };
        preparing.reports.iter().filter(has_only_read).map(|(pod, _)| pod.clone()).collect()
    }

    /// Returns true if this process replaced one that was stopped to read again.
    fn has_read(&self, peer: &Peer) -> bool {
        let MemberId { pod, incarnation } = &peer.hello.member;
        self.sent_to_reread.get(pod).is_some_and(|sent| sent != incarnation)
    }

    /// Stops these processes. New processes of their pods read the storage when they start.
    fn send_to_reread(&mut self, reason: &str, pods: Vec<String>, now: Duration) {
        let reason = format!("{reason}: new processes read the storage again");
        for pod in pods {
            if let Some(Peer { hello, connection, .. }) = self.peers.get(&pod) {
                let (connection, incarnation) = (*connection, hello.member.incarnation);
                self.send(connection, Message::Abort { reason: reason.clone() });
                self.commands.push(Command::Close(connection));
                self.gone(&pod, &reason, now);
                self.sent_to_reread.insert(pod, incarnation);
            }
        }
    }

    /// Sends the recorded membership to its members and releases the processes that had to leave. A
    /// member that disappeared meanwhile is lost.
    pub(super) fn commit(&mut self, now: Duration) {
        let Some(active) = self.active().cloned() else { return };
        self.finishing &= !active.rollback;
        self.plans.clear();
        self.sent_to_reread.clear();
        self.partition.forget_pairs();
        self.mark.take_if(|mark| active.rollback && active.base_step < mark.step);
        // The process that had to leave may have been lost before.
        self.draining.take_if(|_| self.leaving.is_empty());
        self.phase = Phase::Running(Box::new(Running::new(active.clone(), now)));
        for ranked in &active.members {
            if self.is_here(&ranked.id()) {
                let connection = self.peers[&ranked.pod].connection;
                self.send(connection, Message::Commit { rank: ranked.rank, active: active.clone() });
                if let Some(reason) = self.draining.clone() {
                    self.send(connection, Message::Drain { reason });
                }
            }
        }
        let mut left = mem::take(&mut self.left);
        left.extend(self.dismiss(&active));
        self.announce_change(active.clone(), left, now);
        for ranked in active.members.iter().filter(|ranked| !self.is_here(&ranked.id())).collect::<Vec<_>>() {
            self.missed(&ranked.id(), LOST_MEANWHILE, now);
        }
    }

    /// Releases the processes that had to leave and do not belong to the group any more.
    pub(super) fn dismiss(&mut self, active: &Active) -> Vec<(String, String)> {
        let dismissed: Vec<String> = self
            .leaving
            .keys()
            .filter(|pod| !active.members.iter().any(|ranked| ranked.pod == **pod))
            .cloned()
            .collect();
        let mut left = Vec::new();
        for pod in dismissed {
            if let (Some(peer), Some(reason)) = (self.peers.remove(&pod), self.leaving.remove(&pod)) {
                self.pods.remove(&peer.connection);
                self.send(peer.connection, Message::Release);
                self.commands.push(Command::Close(peer.connection));
                left.push((pod, reason));
            }
        }
        left
    }

    fn announce_change(&mut self, active: Active, left: Vec<(String, String)>, now: Duration) {
        let mut reasons = mem::take(&mut self.reasons);
        // Some members disappeared while no coordinator saw it.
        let is_there = |pod: &str| active.members.iter().any(|ranked| ranked.pod == pod);
        let has_left = |member: &MemberId| left.iter().any(|(pod, _)| *pod == member.pod);
        for gone in self.announced.iter().filter(|member| active.member(member).is_none() && !has_left(member)) {
            reasons.lose(gone, if is_there(&gone.pod) { REPLACED } else { DID_NOT_RETURN });
        }
        // A loss already explains the failures that its peers saw.
        let broken = reasons.broken().filter(|_| reasons.lost.is_empty());
        let Reasons { since, lost, .. } = reasons;
        let before = mem::replace(&mut self.announced, active.members.iter().map(RankedMember::id).collect());
        let joined =
            active.members.iter().filter(|ranked| !before.contains(&ranked.id())).map(|ranked| ranked.pod.clone());
        let joined = joined.collect();
        let took = now.saturating_sub(since.unwrap_or(now));
        self.commands.push(Command::Changed(Change { active, joined, left, lost, broken, took }));
    }
}

struct Described(HeldState);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(HeldState { step, digest, .. }) = self;
        if *digest == Digest::NONE { f.write_str("nothing") } else { write!(f, "step {step} with digest {digest:.12}") }
    }
}
