//! From members that stand to a group: greet, allocate, prepare, agree, commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    time::Duration,
};

use super::{
    Change, Command, Connection, Coordinator, Phase, Purpose, RETURN_LIMIT, START_LIMIT,
    base::{self, Base, NoBase},
    following::Following,
    peers::Peer,
    reasons::Reasons,
    running::Running,
};
use crate::{Active, Digest, Hello, MemberId, Message, Report, Seat, State, member::REPEAT_AFTER, rank_order};

/// How long newcomers that have caught up may take for the last steps before a planned change, while the members stand still: the copy
/// that they would need instead takes longer.
const LAST_STEPS_LIMIT: Duration = Duration::from_secs(10);

const DID_NOT_RETURN: &str = "it did not come back";
/// Why a member is lost of whose pod another process is here.
pub(super) const REPLACED: &str = "a new process took its place";
const WENT_MEANWHILE: &str = "it went while the group was formed";

/// What is waited for before a group can be formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathering {
    /// This coordinator has just begun, or heard nobody for a while: for everybody, for a while.
    Start,
    /// Its group broke and too few were left.
    Paused,
}

/// A generation that is being agreed on.
#[derive(Clone, Debug)]
pub(super) struct Preparing {
    generation: u64,
    planned: bool,
    /// Who was asked.
    expected: BTreeSet<String>,
    reports: BTreeMap<String, Report>,
    /// A planned change that cannot come about: a member was lost on the way to it.
    disturbed: bool,
    since: Duration,
    /// When they were asked last.
    asked: Duration,
    /// Since when only newcomers are waited for, which take over the last steps.
    sealed: Option<Duration>,
}

impl Coordinator {
    /// Once enough are here, a new generation is allocated.
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
                let here = |seat: &Seat| self.peers.contains_key(&seat.pod);
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

    /// The generation is allocated: everybody who is here is asked what it holds.
    pub(super) fn prepare(&mut self, planned: bool, now: Duration) {
        let generation = self.record.alloc_generation;
        let planned = match &self.phase {
            Phase::Running(running) => planned && !running.is_broken(),
            Phase::Gathering(_) | Phase::Preparing(_) | Phase::Ended => false,
        };
        if matches!(&self.phase, Phase::Running(running) if running.is_broken()) {
            self.stand_aside(now);
            self.fruitless = self.fruitless.saturating_add(1);
        }
        // While others may still come, the members train.
        self.reasons.since.take_if(|_| planned);
        self.reasons.begin(now);
        let expected = match planned {
            true => self.ready(),
            false => self.peers.keys().filter(|pod| !self.is_aside(pod)).cloned().collect(),
        };
        let (reports, disturbed, sealed) = (BTreeMap::new(), false, None);
        let (since, asked) = (now, now);
        self.phase =
            Phase::Preparing(Preparing { generation, planned, expected, reports, disturbed, since, asked, sealed });
        self.ask();
    }

    /// Whom a planned change asks: newcomers that have yet to take the state over are left to it.
    pub(super) fn ready(&self) -> BTreeSet<String> {
        let late = |peer: &Peer| self.active().is_some_and(|active| peer.catches_up_with(active));
        self.peers.iter().filter(|(pod, peer)| !late(peer) && !self.is_aside(pod)).map(|(pod, _)| pod.clone()).collect()
    }

    /// Calls for the reports that are not here. Members that train, and those that follow them, seal after a step if the change is
    /// planned.
    fn ask(&mut self) {
        let Phase::Preparing(preparing) = &self.phase else { return };
        let generation = preparing.generation;
        let is_silent = |pod: &str| preparing.expected.contains(pod) && !preparing.reports.contains_key(pod);
        let silent = self.peers.iter().filter(|(pod, _)| is_silent(pod));
        let asked: Vec<_> = silent
            .map(|(_, peer)| {
                let goes_on = |active: &Active| active.seat(&peer.hello.member).is_some() || peer.follows(active);
                (peer.connection, preparing.planned && self.active().is_some_and(goes_on))
            })
            .collect();
        for (connection, planned) in asked {
            self.send(connection, Message::Prepare { generation, planned });
        }
    }

    /// Calls for the report of a process that came meanwhile, which may train in the group that was to change as planned. To such a
    /// change a newcomer comes too late: it has a group to follow once that is formed.
    pub(super) fn ask_one_more(&mut self, member: &MemberId, connection: Connection, trains: bool) {
        let belongs = self.active().is_some_and(|active| active.seat(member).is_some());
        let is_aside = self.is_aside(&member.pod);
        let Phase::Preparing(preparing) = &mut self.phase else { return };
        if is_aside || preparing.planned && !belongs && !preparing.expected.contains(&member.pod) {
            return;
        }
        preparing.expected.insert(member.pod.clone());
        if !preparing.reports.contains_key(&member.pod) {
            let (generation, planned) = (preparing.generation, preparing.planned && trains);
            self.send(connection, Message::Prepare { generation, planned });
        }
    }

    pub(super) fn reported(&mut self, member: &MemberId, connection: Connection, report: Report, now: Duration) {
        let newest = self.active().filter(|active| active.seat(member).is_some()).map(|active| active.generation);
        match &mut self.phase {
            Phase::Preparing(preparing) => {
                let generation = preparing.generation;
                if report.generation == generation {
                    // Who sealed before it took part is waited for in vain by all that do.
                    preparing.disturbed |= preparing.planned && newest.is_some() && report.entered_generation != newest;
                    preparing.reports.insert(member.pod.clone(), report);
                } else {
                    // It answers an older call, so it missed this one. It stands already.
                    self.send(connection, Message::Prepare { generation, planned: false });
                }
            }
            Phase::Running(running) if running.active().seat(member).is_some() => {
                if report.generation > running.active().generation {
                    self.break_up(format!("{} stands still for a generation that never came", member.pod), now);
                } else {
                    self.welcome_back(member, connection);
                }
            }
            // It was asked for a generation that came about without it, and stands since.
            Phase::Running(running) => {
                let following = Following::as_it_is(running.active());
                self.peers.get_mut(&member.pod).into_iter().for_each(|peer| peer.following = Some(following));
            }
            Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    /// A membership that was to be stored counts for nothing: those in it that went meanwhile are lost from the one before.
    pub(super) fn lose_unseated(&mut self, unstored: Option<Active>) {
        let trained = |seat: &Seat| self.active().is_some_and(|active| active.seat(&seat.id()).is_some());
        let seats = unstored.into_iter().flat_map(|active| active.members);
        for seat in seats.filter(|seat| trained(seat) && !self.is_here(&seat.id())).collect::<Vec<_>>() {
            self.reasons.lose(&seat.id(), WENT_MEANWHILE);
        }
    }

    /// Whether the membership that is being stored names this process.
    pub(super) fn is_being_seated(&self, member: &MemberId) -> bool {
        self.swapping.as_ref().is_some_and(|(purpose, record)| {
            let seated = record.active.as_ref().is_some_and(|active| active.seat(member).is_some());
            *purpose == Purpose::Activate && seated
        })
    }

    /// A member went on the way to a planned change. Whoever had sealed had done all that the others wait for.
    pub(super) fn missed_while_preparing(&mut self, member: &MemberId) {
        let last = self.record.active.as_ref();
        let belongs = |pod: &String| last.is_some_and(|last| last.members.iter().any(|seat| seat.pod == *pod));
        let trained = last.is_some_and(|last| last.seat(member).is_some());
        if let Phase::Preparing(preparing) = &mut self.phase {
            preparing.expected.remove(&member.pod);
            let sealed = preparing.reports.remove(&member.pod).is_some();
            // Newcomers may lack what it was to hand over.
            let reports = &preparing.reports;
            let lacks = preparing.expected.iter().any(|pod| !belongs(pod) && !reports.contains_key(pod));
            preparing.disturbed |= preparing.planned && trained && (!sealed || lacks);
        }
    }

    /// A member that was to seal after a step cannot do that step.
    pub(super) fn disturb(&mut self) {
        if let Phase::Preparing(preparing) = &mut self.phase {
            preparing.disturbed |= preparing.planned;
        }
    }

    /// Once everybody who was asked has reported, the membership is recorded, if there is a state to start from.
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
        let belongs = |pod: &String| last.is_some_and(|last| last.members.iter().any(|seat| seat.pod == *pod));
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
                self.let_go_of_leavers();
                self.phase = Phase::Gathering(Gathering::Paused);
            }
            return;
        }
        match self.membership(preparing, now) {
            Ok(active) => match self.unread(&active) {
                Some((step, unread)) => {
                    let reason = format!("there is a checkpoint of step {step}, and nobody here has read it");
                    self.send_to_read(&reason, unread, now);
                }
                None => {
                    let record = self.with_plans().activate(active);
                    self.swap(Purpose::Activate, record);
                }
            },
            // Another one that may hold the last steps, or the time, decides.
            Err(NoBase::Unqualified) => {}
            Err(NoBase::Fork(fork)) => {
                let stale = self.stale(preparing);
                let [(one, a), (other, b)] = *fork;
                let message = format!("{} would start from {}, {} from {}", one.pod, Held(a), other.pod, Held(b));
                let report = |member: &MemberId| preparing.reports.get(&member.pod);
                let trained = |member| report(member).is_some_and(|report| report.entered_generation.is_some());
                if trained(&one) && trained(&other) {
                    let cause = "they trained together: the memory or a processor of one of their hosts is faulty";
                    return self.diverged(other, format!("{message}; {cause}"));
                }
                match stale.is_empty() {
                    true => self.fatal(other, format!("{message}: every worker must see the same checkpoints")),
                    false => self.send_to_read(&message, stale, now),
                }
            }
        }
    }

    /// Too few stay to train. Where one of them holds all that the group did, those that have to go
    /// may go: it waits for others. Else all stop together.
    fn let_go_of_leavers(&mut self) {
        let (Phase::Preparing(preparing), Some(last)) = (&self.phase, self.active()) else { return };
        let holds = |seat: &Seat| {
            let report = preparing.reports.get(&seat.pod).filter(|_| self.is_here(&seat.id()));
            report.is_some_and(|report| {
                report.entered_generation == Some(last.generation) && !report.followed && report.state.is_some()
            })
        };
        let stays = |seat: &&Seat| !self.leaving.contains_key(&seat.pod);
        if !last.members.iter().filter(stays).any(holds) {
            return;
        }
        let mut staying = last.clone();
        staying.members.retain(|seat| !self.leaving.contains_key(&seat.pod));
        let left = self.dismiss(&staying);
        self.left.extend(left);
    }

    fn membership(&self, preparing: &Preparing, now: Duration) -> Result<Active, NoBase> {
        let last = self.active();
        let report = |pod: &str| Some((&self.peers.get(pod)?.hello, preparing.reports.get(pod)?));
        // Before anybody is sent to read, those that may hold more were waited for.
        let waited = now.saturating_sub(preparing.since) > RETURN_LIMIT || !self.sent_to_read.is_empty();
        let are_all_anew = last.is_some_and(|last| last.attempt < self.config.attempt);
        let have_all_reported = self.peers.keys().all(|pod| preparing.reports.contains_key(pod));
        let may_roll_back = waited || are_all_anew || have_all_reported && !self.may_miss_somebody(now);
        let choose = |pods: &[&str], may_roll_back| {
            let reports: Vec<_> =
                pods.iter().filter_map(|pod| report(pod)).map(|(hello, report)| (&hello.member, report)).collect();
            base::choose(last, self.record.rested, &reports, may_roll_back)
        };
        let stayers: Vec<&str> = self.stayers().collect();
        let everybody: Vec<&str> = self.peers.keys().map(String::as_str).collect();
        // Whoever has to go and alone holds the last steps hands them over first; only then does an older state count.
        let choices = [(&stayers, false), (&everybody, false), (&stayers, may_roll_back), (&everybody, may_roll_back)];
        let (pods, chosen) = choices
            .into_iter()
            .map(|(pods, may_roll_back)| (pods, choose(pods, may_roll_back)))
            .find(|(_, chosen)| !matches!(chosen, Err(NoBase::Unqualified)))
            .ok_or(NoBase::Unqualified)?;
        let Base { state, holders, rollback } = chosen?;
        let mut pods = pods.clone();
        pods.sort_by(|a, b| rank_order(a, b));
        let hellos: Vec<&Hello> = pods.iter().filter_map(|pod| report(pod)).map(|(hello, _)| hello).collect();
        let seat = |(rank, hello): (u32, &&Hello)| Seat {
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
            members: (0..).zip(&hellos).map(seat).collect(),
            base_step: state.step,
            base_digest: state.digest,
            shards: self.config.shards,
            sampler: state.sampler,
            sources: (0..).zip(&hellos).filter_map(holds).collect(),
            copiers: (0..).zip(&hellos).filter_map(lacks).collect(),
            rollback,
        })
    }

    /// The step of a checkpoint before which this membership would begin, and the pods here whose processes may not know of it, having read
    /// what was stored before it was. Where new ones find no more, it cannot be read: then the older state counts. All processes of an
    /// attempt began after those of the one before were gone, so they have read what those had stored.
    fn unread(&self, active: &Active) -> Option<(u64, Vec<String>)> {
        let is_of_this_attempt = |active: &Active| active.attempt == self.config.attempt;
        let recorded = self.active().filter(|last| is_of_this_attempt(last)).and(self.record.last_durable_checkpoint);
        let step = recorded.max(self.mark)?.step;
        let unread: Vec<_> =
            self.peers.iter().filter(|(_, peer)| !self.has_read(peer)).map(|(pod, _)| pod.clone()).collect();
        (active.rollback && active.base_step < step && !unread.is_empty()).then_some((step, unread))
    }

    /// The pods whose processes may have read a checkpoint that the group before, which had not seen it, replaced by another of the same
    /// step: all that have only read. Before the first group nobody replaced any.
    fn stale(&self, preparing: &Preparing) -> Vec<String> {
        let has_only_read = |(pod, report): &(&String, &Report)| {
            let has_read_once = self.peers.get(*pod).is_some_and(|peer| !self.has_read(peer));
            self.record.active.is_some() && report.entered_generation.is_none() && has_read_once
        };
        preparing.reports.iter().filter(has_only_read).map(|(pod, _)| pod.clone()).collect()
    }

    /// Whether it took the place of a process that was sent to read.
    fn has_read(&self, peer: &Peer) -> bool {
        let MemberId { pod, incarnation } = &peer.hello.member;
        self.sent_to_read.get(pod).is_some_and(|sent| sent != incarnation)
    }

    /// New processes take their places, and read what is stored when they begin.
    fn send_to_read(&mut self, reason: &str, pods: Vec<String>, now: Duration) {
        let reason = format!("{reason}: what is stored is read again");
        for pod in pods {
            if let Some(Peer { hello, connection, .. }) = self.peers.get(&pod) {
                let (connection, incarnation) = (*connection, hello.member.incarnation);
                self.send(connection, Message::Abort { reason: reason.clone() });
                self.commands.push(Command::Close(connection));
                self.gone(&pod, &reason, now);
                self.sent_to_read.insert(pod, incarnation);
            }
        }
    }

    /// The membership is recorded: those in it enter, those that had to go may go. Whoever went meanwhile is lost.
    pub(super) fn commit(&mut self, now: Duration) {
        let Some(active) = self.active().cloned() else { return };
        self.finishing &= !active.rollback;
        self.plans.clear();
        self.sent_to_read.clear();
        self.aside.forget_lines();
        self.mark.take_if(|mark| active.rollback && active.base_step < mark.step);
        // Whoever had to go may be lost before it went.
        self.draining.take_if(|_| self.leaving.is_empty());
        self.phase = Phase::Running(Box::new(Running::new(active.clone(), now)));
        for seat in &active.members {
            if self.is_here(&seat.id()) {
                let connection = self.peers[&seat.pod].connection;
                self.send(connection, Message::Commit { rank: seat.rank, active: active.clone() });
                if let Some(reason) = self.draining.clone() {
                    self.send(connection, Message::Drain { reason });
                }
            }
        }
        let mut left = mem::take(&mut self.left);
        left.extend(self.dismiss(&active));
        self.tell_change(active.clone(), left, now);
        for seat in active.members.iter().filter(|seat| !self.is_here(&seat.id())).collect::<Vec<_>>() {
            self.missed(&seat.id(), WENT_MEANWHILE, now);
        }
    }

    /// Those that had to go, and do not belong to the group any more, may go.
    pub(super) fn dismiss(&mut self, active: &Active) -> Vec<(String, String)> {
        let dismissed: Vec<String> =
            self.leaving.keys().filter(|pod| !active.members.iter().any(|seat| seat.pod == **pod)).cloned().collect();
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

    fn tell_change(&mut self, active: Active, left: Vec<(String, String)>, now: Duration) {
        let mut reasons = mem::take(&mut self.reasons);
        // Whom a coordinator did not see go.
        let is_there = |pod: &str| active.members.iter().any(|seat| seat.pod == pod);
        let has_left = |member: &MemberId| left.iter().any(|(pod, _)| *pod == member.pod);
        for gone in self.told.iter().filter(|member| active.seat(member).is_none() && !has_left(member)) {
            reasons.lose(gone, if is_there(&gone.pod) { REPLACED } else { DID_NOT_RETURN });
        }
        // A loss explains what its peers saw of it.
        let broken = reasons.broken().filter(|_| reasons.lost.is_empty());
        let Reasons { since, lost, .. } = reasons;
        let before = mem::replace(&mut self.told, active.members.iter().map(Seat::id).collect());
        let joined = active.members.iter().filter(|seat| !before.contains(&seat.id())).map(|seat| seat.pod.clone());
        let joined = joined.collect();
        let took = now.saturating_sub(since.unwrap_or(now));
        self.commands.push(Command::Changed(Change { active, joined, left, lost, broken, took }));
    }
}

struct Held(State);

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(State { step, digest, .. }) = self;
        if *digest == Digest::NONE { f.write_str("nothing") } else { write!(f, "step {step} with digest {digest:.12}") }
    }
}
