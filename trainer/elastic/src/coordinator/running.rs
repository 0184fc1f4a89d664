//! Watches a group that trains: losses, newcomers, departures and the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Command, ConnectionId, Coordinator, Gathering, JOIN_PATIENCE, JOIN_WINDOW, LEAVE_WINDOW, MAX_PLANS, Outcome, Phase,
    Purpose, REPLACED, RETURN_LIMIT, RETURN_SOON, partition::PAIR_REPORT_WINDOW, peer::Peer,
};
use crate::{Active, Break, Digest, MemberId, Message, PlanAgreement, RankedMember, Record};

/// The pause before a group is formed again that broke without a step and without a loss. Each
/// further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A group that trains.
#[derive(Clone, Debug)]
pub(super) struct Running {
    active: Active,
    /// Members that this coordinator has not seen yet may return until then.
    return_by: Duration,
    /// The members that it has seen.
    seen: BTreeSet<MemberId>,
    results: BTreeMap<MemberId, FinalResult>,
    lost: BTreeSet<MemberId>,
    /// The time since when the group cannot go on.
    broken: Option<Duration>,
    published: Option<u64>,
}

/// The end of a member's training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FinalResult {
    Finished { step: u64, digest: Digest, payload: Vec<u8> },
    Drained { step: u64 },
}

impl Running {
    pub(super) fn new(active: Active, return_by: Duration) -> Self {
        let (seen, lost) = (BTreeSet::new(), BTreeSet::new());
        Self { active, return_by, seen, results: BTreeMap::new(), lost, broken: None, published: None }
    }

    pub(super) fn active(&self) -> &Active {
        &self.active
    }

    /// Returns true while every member is believed to be training.
    pub(super) fn is_at_work(&self) -> bool {
        self.broken.is_none() && self.results.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(super) fn returned(&mut self, member: &MemberId) {
        self.seen.insert(member.clone());
    }

    /// Returns true once every member sent its result. The reporter's result is enough if all
    /// others are gone, because all members did its steps.
    fn is_over(&self) -> bool {
        let reporter = self.active.reporter().map(RankedMember::id);
        let told =
            reporter.is_some_and(|member| matches!(self.results.get(&member), Some(FinalResult::Finished { .. })));
        let ended = |ranked: &RankedMember| {
            self.results.contains_key(&ranked.id()) || (told && self.lost.contains(&ranked.id()))
        };
        self.active.members.iter().all(ended)
    }
}

impl Coordinator {
    /// Takes up the recorded group again, because one of its members trains.
    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(active) = self.active().cloned() {
            let mut running = Running::new(active, now + RETURN_LIMIT);
            for peer in self.peers.values() {
                running.returned(&peer.hello.member);
            }
            let generation = Some(running.active.generation);
            let sealed = self.peers.values().find(|Peer { hello, .. }| {
                hello.sealed
                    && hello.committed_generation == generation
                    && running.active.member(&hello.member).is_some()
            });
            let sealed = sealed.map(|peer| format!("{} has sealed", peer.hello.member.pod));
            self.phase = Phase::Running(Box::new(running));
            if let Some(reason) = sealed {
                self.break_up(reason, now);
            }
        }
    }

    /// Tells a member of the group its rank and the followers. It may have missed that, or this
    /// coordinator is new.
    pub(super) fn welcome_back(&mut self, member: &MemberId, connection: ConnectionId) {
        let Phase::Running(running) = &self.phase else { return };
        let Some(rank) = running.active.member(member).map(|ranked| ranked.rank) else { return };
        let (active, draining) = (running.active.clone(), self.draining.clone());
        self.send(connection, Message::Commit { rank, active });
        if let Some(reason) = draining {
            self.send(connection, Message::Drain { reason });
        }
        self.repeat_feeds(connection);
    }

    /// Handles the disappearance of a member. Before its result this is a loss, and the group
    /// changes at once.
    pub(super) fn missed(&mut self, member: &MemberId, reason: &str, now: Duration) {
        let belongs = self.active().is_some_and(|active| active.member(member).is_some());
        match &mut self.phase {
            Phase::Running(running) if belongs && !running.results.contains_key(member) => {
                if running.lost.insert(member.clone()) {
                    running.broken.get_or_insert(now);
                    self.reasons.lose(member, reason);
                    self.reasons.begin(now);
                }
            }
            Phase::Preparing(_) => {
                self.missed_while_preparing(member);
                // The membership that is being stored still contains it, so it is lost from that
                // one.
                if belongs && !self.is_being_stored(member) {
                    self.reasons.lose(member, reason);
                }
            }
            Phase::Gathering(_) if belongs => self.reasons.lose(member, reason),
            Phase::Running(_) | Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    /// Notes that the group cannot go on, although no loss is known.
    pub(super) fn break_up(&mut self, reason: String, now: Duration) {
        if let Phase::Running(running) = &mut self.phase {
            running.broken.get_or_insert(now);
            self.reasons.fail(reason);
            self.reasons.begin(now);
        }
    }

    /// Handles the report of a member whose collective failed and that has sealed.
    pub(super) fn broken(&mut self, member: &MemberId, generation: u64, mut broken: Break, now: Duration) {
        let Some(newest) = self.active().filter(|active| active.generation == generation) else { return };
        let Some(rank) = newest.member(member).map(|ranked| ranked.rank) else { return };
        // Collectives know ranks, but users know pods.
        let is_blamed =
            |ranked: &&RankedMember| broken.origin.is_some_and(|origin| origin.rank == ranked.rank as usize);
        if let Some(RankedMember { rank, pod, .. }) = newest.members.iter().find(is_blamed) {
            broken.reason = format!("{} (rank {rank} is {pod})", broken.reason);
        }
        if let Some(other) = broken.unreached {
            self.add_unreached(member, other);
        }
        let reason = format!("{}: {}", member.pod, broken.reason);
        match &self.phase {
            Phase::Running(_) => {
                self.reasons.fail_for(member, rank, broken);
                self.break_up(reason, now);
            }
            Phase::Preparing(_) => {
                self.reasons.fail_for(member, rank, broken);
                self.disturb();
            }
            Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    /// Notes the plan that a member reports. Members that summed by different plans would have
    /// different models.
    pub(super) fn agreed(&mut self, member: MemberId, generation: u64, summing: PlanAgreement) {
        if !self.active().is_some_and(|active| active.generation == generation && active.member(&member).is_some()) {
            return;
        }
        let PlanAgreement { after, plan } = summing;
        let known = *self.plans.entry(after).or_insert(plan);
        if known != plan {
            let message = format!(
                "it sums by plan {plan:.12} after step {after}, but others of generation {generation} by plan {known:.12}"
            );
            self.fatal(member, message);
        } else if self.plans.len() > MAX_PLANS {
            self.fatal(member, format!("generation {generation} uses more than {MAX_PLANS} plans"));
        }
    }

    /// Returns the record with the plans of its newest membership, unless an earlier coordinator
    /// already added them.
    pub(super) fn with_plans(&self) -> Record {
        if self.record.summed {
            return self.record.clone();
        }
        let summed = |record: Record, (after, plan): (&u64, &Digest)| {
            record.summed_by(&PlanAgreement { after: *after, plan: *plan })
        };
        self.plans.iter().fold(self.record.clone(), summed)
    }

    pub(super) fn progressed(&mut self, member: MemberId, step: u64, payload: Vec<u8>) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.active.member(&member).is_some() && running.published <= Some(step) {
            running.published = Some(step);
            if step > running.active.base_step {
                self.generations_without_step = 0;
                self.partition.readmit(running.active.members.iter().map(|ranked| ranked.pod.as_str()));
            }
            self.commands.push(Command::Publish { member, step, payload });
        }
    }

    /// Notes that a member has to leave. The others go on without it if they are enough.
    pub(super) fn wants_to_leave(&mut self, member: &MemberId, reason: String, now: Duration) {
        if self.leaving.insert(member.pod.clone(), reason).is_none() {
            self.reasons.begin(now);
        }
        if let Some(reason) = self.draining.clone() {
            self.send_to_all(&Message::Drain { reason });
        }
    }

    /// Returns true if a member stays, so that it may keep the state until more members come.
    fn member_stays(&self) -> bool {
        let stays = |ranked: &RankedMember| {
            self.is_here(&ranked.id()) && !self.leaving.contains_key(&ranked.pod) && !self.is_excluded(&ranked.pod)
        };
        self.active().is_some_and(|active| active.members.iter().any(stays))
    }

    /// Drains all members if none can stay. It first waits for members that may still return.
    pub(super) fn drain_if_deserted(&mut self, now: Duration) {
        let known = match &self.phase {
            Phase::Running(running) => running.active.members.iter().all(|ranked| {
                self.is_here(&ranked.id())
                    || running.lost.contains(&ranked.id())
                    || running.results.contains_key(&ranked.id())
            }),
            Phase::Gathering(Gathering::Paused) => true,
            Phase::Gathering(Gathering::Start) => {
                let all_leave = self.peers.keys().all(|pod| self.leaving.contains_key(pod));
                all_leave && now.saturating_sub(self.started) > RETURN_SOON
            }
            Phase::Preparing(_) | Phase::Ended => false,
        };
        // A whole group releases its leaving members after a step. A member that stays waits for
        // more.
        let is_whole = matches!(&self.phase, Phase::Running(running) if !running.is_broken());
        let waits = self.suffice() || (is_whole && self.member_stays());
        if !known || self.draining.is_some() || self.leaving.is_empty() || waits {
            return;
        }
        let leavers: Vec<String> =
            self.leaving.iter().map(|(pod, reason)| format!("{pod} has to leave: {reason}")).collect();
        let reason = leavers.join("; ");
        self.draining = Some(reason.clone());
        if matches!(self.phase, Phase::Running(_)) {
            self.send_to_all(&Message::Drain { reason });
        }
    }

    /// Ends a drain if its last leaver disappeared before it sent its result. The others then wait
    /// for more members.
    pub(super) fn leaver_lost(&mut self, member: &MemberId) {
        let is_done = matches!(&self.phase, Phase::Running(running) if running.results.contains_key(member));
        self.draining.take_if(|_| !is_done && self.leaving.is_empty() && self.record_failure.is_none());
    }

    /// Notes the result of a member. A late result of an older generation says nothing about the
    /// newest one.
    pub(super) fn final_result(&mut self, member: &MemberId, generation: u64, result: FinalResult) {
        if self.active().is_some_and(|active| active.generation == generation && active.member(member).is_some()) {
            // This counts even if too few members are left to train, because the last step is done.
            self.finishing |= matches!(result, FinalResult::Finished { .. });
            if let Phase::Running(running) = &mut self.phase {
                running.results.insert(member.clone(), result);
            }
        }
    }

    /// Handles the end of the group, its losses, a new checkpoint and a pending change, in this
    /// order.
    pub(super) fn watch(&mut self, now: Duration) {
        self.lose_absent_members(now);
        self.dismiss_leaving_newcomers();
        self.drain_if_deserted(now);
        self.start_catch_ups();
        let wishes = self.change_is_wanted();
        let Phase::Running(running) = &self.phase else { return };
        if running.broken.is_none() {
            match wishes {
                true => self.reasons.begin(now),
                false => self.reasons.since = None,
            }
        }
        if running.is_over() {
            // Only the last writer of the record may announce the end. Another coordinator may have
            // formed the next group.
            if now < self.store_again {
                return;
            }
            let outcome = verdict(&running.active, &running.results);
            let record = self.with_plans();
            let record = self.mark.take().map_or_else(|| record.clone(), |mark| record.mark(mark));
            let saved = record.last_durable_checkpoint.map(|mark| mark.step);
            let record = match outcome {
                Ok(Outcome::Drained { step }) if saved >= Some(step) => record.rest(step),
                _ => record,
            };
            self.swap(Purpose::Conclude, record);
        } else if let Some(since) = running.broken {
            let hearing = if self.partition.has_unreached() { PAIR_REPORT_WINDOW } else { Duration::ZERO };
            let patience = if running.lost.is_empty() {
                pause(self.generations_without_step).max(hearing)
            } else {
                Duration::ZERO
            };
            if now.saturating_sub(since) < patience {
                return;
            }
            if self.suffice() {
                self.allocate(false);
            } else {
                self.phase = Phase::Gathering(Gathering::Paused);
            }
        } else if let Some(mark) = self.mark.take_if(|_| self.store_again <= now) {
            self.swap(Purpose::Mark, self.record.mark(mark));
        } else if self.change_is_due(now) {
            self.allocate(true);
        }
    }

    /// Counts members as lost that left before this coordinator started, or that did not return in
    /// time.
    fn lose_absent_members(&mut self, now: Duration) {
        let Phase::Running(running) = &self.phase else { return };
        let is_absent = |member: &MemberId| {
            let counted = running.results.contains_key(member) || running.lost.contains(member);
            !counted && !self.is_here(member)
        };
        let is_replaced = |member: &MemberId| self.peers.contains_key(&member.pod);
        let gone: Vec<_> = running
            .active
            .members
            .iter()
            .map(RankedMember::id)
            .filter(is_absent)
            .filter(|member| is_replaced(member) || running.seen.contains(member) || now >= running.return_by)
            .map(|member| (is_replaced(&member), member))
            .collect();
        for (replaced, member) in gone {
            let reason = if replaced { REPLACED } else { "it is not connected" };
            self.missed(&member, reason, now);
        }
    }

    /// Releases newcomers that have to leave before they were let in.
    fn dismiss_leaving_newcomers(&mut self) {
        if let Phase::Running(running) = &self.phase
            && !self.leaving.is_empty()
        {
            let active = running.active.clone();
            self.dismiss(&active);
        }
    }

    /// Returns true if a process waits to join or to leave.
    fn change_is_wanted(&self) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        self.member_leaves() || self.newcomers().any(|peer| !peer.catches_up_with(&running.active))
    }

    fn member_leaves(&self) -> bool {
        let belongs =
            |pod: &str| self.active().is_some_and(|active| active.members.iter().any(|ranked| ranked.pod == pod));
        self.leaving.keys().any(|pod| belongs(pod))
    }

    /// Returns true if a process has waited long enough for others, and all members can do a common
    /// last step.
    fn change_is_due(&self, now: Duration) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        let others_come = self.newcomers().any(|peer| peer.catches_up_with(&running.active));
        let pauses = self.member_leaves() && self.member_stays() && !self.suffice();
        let window = match () {
            () if pauses => LEAVE_WINDOW,
            () if others_come && !self.member_leaves() => JOIN_PATIENCE,
            () => JOIN_WINDOW,
        };
        let waited = self.reasons.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let enough = pauses || self.are_enough(&self.ready()) || (waited >= JOIN_PATIENCE && self.suffice());
        let all_here = running.active.members.iter().all(|ranked| self.is_here(&ranked.id()));
        let undisturbed = self.draining.is_none() && running.results.is_empty() && all_here;
        self.change_is_wanted() && waited >= window && undisturbed && enough
    }

    /// Announces the end after every member sent its result. The record is as current as the store
    /// allows.
    pub(super) fn conclude(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        match (verdict(&running.active, &running.results), self.record_failure.clone()) {
            // Their state is saved. The next group starts from it once a record can be stored
            // again.
            (Ok(Outcome::Drained { .. }), Some(message)) => self.give_up(message),
            (Ok(outcome), _) => {
                self.send_to_all(&Message::Release);
                self.end(outcome);
            }
            (Err((member, message)), _) => {
                self.abort_all(&message);
                self.end(Outcome::Fatal { member, message });
            }
        }
    }
}

fn pause(generations_without_step: u32) -> Duration {
    match generations_without_step.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE),
    }
}

fn verdict(active: &Active, results: &BTreeMap<MemberId, FinalResult>) -> Result<Outcome, (MemberId, String)> {
    let mut drained: Option<u64> = None;
    let mut finished: Option<(&str, u64, Digest)> = None;
    let mut result: &[u8] = &[];
    for ranked in &active.members {
        match results.get(&ranked.id()) {
            Some(FinalResult::Drained { step }) => drained = drained.max(Some(*step)),
            Some(FinalResult::Finished { step, digest, payload }) => {
                let (first, first_step, first_digest) = *finished.get_or_insert((&ranked.pod, *step, *digest));
                if (first_step, first_digest) != (*step, *digest) {
                    let message = format!(
                        "the workers ended with different models: {first} at step {first_step} with digest \
                         {first_digest:.12}, {} at step {step} with digest {digest:.12}",
                        ranked.pod
                    );
                    return Err((ranked.id(), message));
                }
                if result.is_empty() {
                    result = payload;
                }
            }
            None => {}
        }
    }
    Ok(match (drained, finished) {
        (None, Some((_, step, digest))) => Outcome::Finished { step, digest, payload: result.to_vec() },
        (drained, _) => Outcome::Drained { step: drained.unwrap_or(active.base_step) },
    })
}
