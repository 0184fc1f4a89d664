//! While a group trains: who is lost, who joins, who has to go, who is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Command, Connection, Coordinator, JOIN_PATIENCE, JOIN_WINDOW, LEAVE_WINDOW, MAX_PLANS, Outcome, Phase, Purpose,
    RETURN_LIMIT,
    aside::HEARING,
    forming::{Gathering, REPLACED},
    peers::Peer,
};
use crate::{Active, Break, Digest, MemberId, Message, Record, Seat, Summing};

/// Pause before a group that broke without a step, and without a loss, is formed again; every further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Members look for a coordinator more than once in this time: whoever is alive has found it by then.
pub(super) const RETURN_SOON: Duration = Duration::from_secs(3);

/// A group that trains.
#[derive(Clone, Debug)]
pub(super) struct Running {
    active: Active,
    /// Members that this coordinator has not seen yet may return until then.
    return_by: Duration,
    /// Those that it has seen.
    seen: BTreeSet<MemberId>,
    words: BTreeMap<MemberId, LastWord>,
    lost: BTreeSet<MemberId>,
    /// Since when it cannot go on.
    broken: Option<Duration>,
    published: Option<u64>,
}

/// How a member's training ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LastWord {
    Finished { step: u64, digest: Digest, payload: Vec<u8> },
    Drained { step: u64 },
}

impl Running {
    pub(super) fn new(active: Active, return_by: Duration) -> Self {
        let (seen, lost) = (BTreeSet::new(), BTreeSet::new());
        Self { active, return_by, seen, words: BTreeMap::new(), lost, broken: None, published: None }
    }

    pub(super) fn active(&self) -> &Active {
        &self.active
    }

    /// Whether all its members train, as far as is known.
    pub(super) fn is_at_work(&self) -> bool {
        self.broken.is_none() && self.words.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(super) fn returned(&mut self, member: &MemberId) {
        self.seen.insert(member.clone());
    }

    /// Everybody said its last word; or the member that reports told the result, whose steps all had done, and the others are gone.
    fn is_over(&self) -> bool {
        let reporter = self.active.reporter().map(Seat::id);
        let told = reporter.is_some_and(|member| matches!(self.words.get(&member), Some(LastWord::Finished { .. })));
        let ended = |seat: &Seat| self.words.contains_key(&seat.id()) || (told && self.lost.contains(&seat.id()));
        self.active.members.iter().all(ended)
    }
}

impl Coordinator {
    /// A member of the recorded generation trains: so does the group.
    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(active) = self.active().cloned() {
            let mut running = Running::new(active, now + RETURN_LIMIT);
            for peer in self.peers.values() {
                running.returned(&peer.hello.member);
            }
            let generation = Some(running.active.generation);
            let sealed = self.peers.values().find(|Peer { hello, .. }| {
                hello.stands && hello.committed_generation == generation && running.active.seat(&hello.member).is_some()
            });
            let sealed = sealed.map(|peer| format!("{} stands still", peer.hello.member.pod));
            self.phase = Phase::Running(Box::new(running));
            if let Some(reason) = sealed {
                self.break_up(reason, now);
            }
        }
    }

    /// Tells a member of the group where it sits and who follows: it may have missed that, or returned to a new coordinator.
    pub(super) fn welcome_back(&mut self, member: &MemberId, connection: Connection) {
        let Phase::Running(running) = &self.phase else { return };
        let Some(rank) = running.active.seat(member).map(|seat| seat.rank) else { return };
        let (active, draining) = (running.active.clone(), self.draining.clone());
        self.send(connection, Message::Commit { rank, active });
        if let Some(reason) = draining {
            self.send(connection, Message::Drain { reason });
        }
        self.repeat_feeds(connection);
    }

    /// A member went. Before its last word that is a loss, and acted on at once.
    pub(super) fn missed(&mut self, member: &MemberId, reason: &str, now: Duration) {
        let belongs = self.active().is_some_and(|active| active.seat(member).is_some());
        match &mut self.phase {
            Phase::Running(running) if belongs && !running.words.contains_key(member) => {
                if running.lost.insert(member.clone()) {
                    running.broken.get_or_insert(now);
                    self.reasons.lose(member, reason);
                    self.reasons.begin(now);
                }
            }
            Phase::Preparing(_) => {
                self.missed_while_preparing(member);
                // The membership that is being stored still has it: it is lost from that one, not from the one before.
                if belongs && !self.is_being_seated(member) {
                    self.reasons.lose(member, reason);
                }
            }
            Phase::Gathering(_) if belongs => self.reasons.lose(member, reason),
            Phase::Running(_) | Phase::Gathering(_) | Phase::Ended => {}
        }
    }

    /// The group cannot go on as it is, although nobody is known to be lost.
    pub(super) fn break_up(&mut self, reason: String, now: Duration) {
        if let Phase::Running(running) = &mut self.phase {
            running.broken.get_or_insert(now);
            self.reasons.fail(reason);
            self.reasons.begin(now);
        }
    }

    /// A member's collective failed, and it stands still.
    pub(super) fn broken(&mut self, member: &MemberId, generation: u64, mut broken: Break, now: Duration) {
        let Some(newest) = self.active().filter(|active| active.generation == generation) else { return };
        let Some(rank) = newest.seat(member).map(|seat| seat.rank) else { return };
        // Collectives know ranks, and whoever reads it pods.
        let is_blamed = |seat: &&Seat| broken.origin.is_some_and(|origin| origin.rank == seat.rank as usize);
        if let Some(Seat { rank, pod, .. }) = newest.members.iter().find(is_blamed) {
            broken.reason = format!("{} (rank {rank} is {pod})", broken.reason);
        }
        if let Some(other) = broken.unreached {
            self.did_not_reach(member, other);
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

    /// A member tells how its group sums. Members that summed in different ways would have different models.
    pub(super) fn agreed(&mut self, member: MemberId, generation: u64, summing: Summing) {
        if !self.active().is_some_and(|active| active.generation == generation && active.seat(&member).is_some()) {
            return;
        }
        let Summing { after, plan } = summing;
        let known = *self.plans.entry(after).or_insert(plan);
        if known != plan {
            let message = format!(
                "it sums by the plan {plan:.12} after step {after}, others of generation {generation} by {known:.12}"
            );
            self.fatal(member, message);
        } else if self.plans.len() > MAX_PLANS {
            self.fatal(member, format!("generation {generation} sums by more than {MAX_PLANS} plans"));
        }
    }

    /// The record, with how its newest membership summed, unless a coordinator before this one has recorded that.
    pub(super) fn with_plans(&self) -> Record {
        if self.record.summed {
            return self.record.clone();
        }
        let summed =
            |record: Record, (after, plan): (&u64, &Digest)| record.summed_by(&Summing { after: *after, plan: *plan });
        self.plans.iter().fold(self.record.clone(), summed)
    }

    pub(super) fn progressed(&mut self, member: MemberId, step: u64, payload: Vec<u8>) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.active.seat(&member).is_some() && running.published <= Some(step) {
            running.published = Some(step);
            if step > running.active.base_step {
                self.fruitless = 0;
                self.aside.forgive(running.active.members.iter().map(|seat| seat.pod.as_str()));
            }
            self.commands.push(Command::Publish { member, step, payload });
        }
    }

    /// A member has to go. The others go on without it where enough of them are left.
    pub(super) fn wants_to_leave(&mut self, member: &MemberId, reason: String, now: Duration) {
        if self.leaving.insert(member.pod.clone(), reason).is_none() {
            self.reasons.begin(now);
        }
        if let Some(reason) = self.draining.clone() {
            self.send_to_all(&Message::Drain { reason });
        }
    }

    /// Whether a member stays, and may keep the state until others come.
    fn somebody_stays(&self) -> bool {
        let stays = |seat: &Seat| {
            self.is_here(&seat.id()) && !self.leaving.contains_key(&seat.pod) && !self.is_aside(&seat.pod)
        };
        self.active().is_some_and(|active| active.members.iter().any(stays))
    }

    /// Where nobody can stay, all stop together after a step, and save it. Who may still return is
    /// waited for.
    pub(super) fn drain_if_deserted(&mut self, now: Duration) {
        let known = match &self.phase {
            Phase::Running(running) => running.active.members.iter().all(|seat| {
                self.is_here(&seat.id()) || running.lost.contains(&seat.id()) || running.words.contains_key(&seat.id())
            }),
            Phase::Gathering(Gathering::Paused) => true,
            Phase::Gathering(Gathering::Start) => {
                let all_leave = self.peers.keys().all(|pod| self.leaving.contains_key(pod));
                all_leave && now.saturating_sub(self.started) > RETURN_SOON
            }
            Phase::Preparing(_) | Phase::Ended => false,
        };
        // A group that is whole lets those that have to go do so after a step: who stays waits for
        // company.
        let is_whole = matches!(&self.phase, Phase::Running(running) if !running.is_broken());
        let waits = self.suffice() || (is_whole && self.somebody_stays());
        if !known || self.draining.is_some() || self.leaving.is_empty() || waits {
            return;
        }
        let who: Vec<String> = self.leaving.iter().map(|(pod, reason)| format!("{pod} has to go: {reason}")).collect();
        let reason = who.join("; ");
        self.draining = Some(reason.clone());
        if matches!(self.phase, Phase::Running(_)) {
            self.send_to_all(&Message::Drain { reason });
        }
    }

    /// Who had to go went before it had said its last word. Once nobody is left for whom all stop, too few wait for company again.
    pub(super) fn lost_a_leaver(&mut self, member: &MemberId) {
        let is_done = matches!(&self.phase, Phase::Running(running) if running.words.contains_key(member));
        self.draining.take_if(|_| !is_done && self.leaving.is_empty() && self.unkept.is_none());
    }

    /// A word of an older generation may come late, of a member that trains on in the newest: it says nothing of that.
    pub(super) fn last_word(&mut self, member: &MemberId, generation: u64, word: LastWord) {
        if self.active().is_some_and(|active| active.generation == generation && active.seat(member).is_some()) {
            // Also while too few are here to train: the last step is done.
            self.finishing |= matches!(word, LastWord::Finished { .. });
            if let Phase::Running(running) = &mut self.phase {
                running.words.insert(member.clone(), word);
            }
        }
    }

    /// Is everybody done? Is anybody lost? Is there a checkpoint to record, or somebody to let in or out?
    pub(super) fn watch(&mut self, now: Duration) {
        self.count_the_absent(now);
        self.dismiss_strangers();
        self.drain_if_deserted(now);
        self.have_newcomers_follow();
        let wishes = self.somebody_waits();
        let Phase::Running(running) = &self.phase else { return };
        if running.broken.is_none() {
            match wishes {
                true => self.reasons.begin(now),
                false => self.reasons.since = None,
            }
        }
        if running.is_over() {
            // Only the record's last writer may say how the group ended: another one may have formed the next by now.
            if now < self.store_again {
                return;
            }
            let outcome = verdict(&running.active, &running.words);
            let record = self.with_plans();
            let record = self.mark.take().map_or_else(|| record.clone(), |mark| record.mark(mark));
            let saved = record.last_durable_checkpoint.map(|mark| mark.step);
            let record = match outcome {
                Ok(Outcome::Drained { step }) if saved >= Some(step) => record.rest(step),
                _ => record,
            };
            self.swap(Purpose::Conclude, record);
        } else if let Some(since) = running.broken {
            let hearing = if self.aside.is_heard() { HEARING } else { Duration::ZERO };
            let patience = if running.lost.is_empty() { pause(self.fruitless).max(hearing) } else { Duration::ZERO };
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

    /// Members that left before this coordinator knew of them, or that it waited for in vain.
    fn count_the_absent(&mut self, now: Duration) {
        let Phase::Running(running) = &self.phase else { return };
        let is_absent = |member: &MemberId| {
            let counted = running.words.contains_key(member) || running.lost.contains(member);
            !counted && !self.is_here(member)
        };
        let is_replaced = |member: &MemberId| self.peers.contains_key(&member.pod);
        let gone: Vec<_> = running
            .active
            .members
            .iter()
            .map(Seat::id)
            .filter(is_absent)
            .filter(|member| is_replaced(member) || running.seen.contains(member) || now >= running.return_by)
            .map(|member| (is_replaced(&member), member))
            .collect();
        for (replaced, member) in gone {
            let reason = if replaced { REPLACED } else { "it is not connected" };
            self.missed(&member, reason, now);
        }
    }

    /// Who has to go before it was let in may go at once.
    fn dismiss_strangers(&mut self) {
        if let Phase::Running(running) = &self.phase
            && !self.leaving.is_empty()
        {
            let active = running.active.clone();
            self.dismiss(&active);
        }
    }

    /// Whether a process is to be let into the group, or out of it.
    fn somebody_waits(&self) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        self.somebody_leaves() || self.newcomers().any(|peer| !peer.catches_up_with(&running.active))
    }

    fn somebody_leaves(&self) -> bool {
        let belongs = |pod: &str| self.active().is_some_and(|active| active.members.iter().any(|seat| seat.pod == pod));
        self.leaving.keys().any(|pod| belongs(pod))
    }

    /// Somebody waits, others may have come meanwhile, and all members can go on to a step on which they agree.
    fn change_is_due(&self, now: Duration) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        let others_come = self.newcomers().any(|peer| peer.catches_up_with(&running.active));
        let pauses = self.somebody_leaves() && self.somebody_stays() && !self.suffice();
        let window = match () {
            () if pauses => LEAVE_WINDOW,
            () if others_come && !self.somebody_leaves() => JOIN_PATIENCE,
            () => JOIN_WINDOW,
        };
        let waited = self.reasons.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let enough = pauses || self.are_enough(&self.ready()) || (waited >= JOIN_PATIENCE && self.suffice());
        let all_here = running.active.members.iter().all(|seat| self.is_here(&seat.id()));
        let undisturbed = self.draining.is_none() && running.words.is_empty() && all_here;
        self.somebody_waits() && waited >= window && undisturbed && enough
    }

    /// Everybody said its last word, and the record is as up to date as the store lets it be.
    pub(super) fn conclude(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        match (verdict(&running.active, &running.words), self.unkept.clone()) {
            // Their state is saved; the next ones begin with it once a record can be kept.
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

fn pause(fruitless: u32) -> Duration {
    match fruitless.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE),
    }
}

fn verdict(active: &Active, words: &BTreeMap<MemberId, LastWord>) -> Result<Outcome, (MemberId, String)> {
    let mut drained: Option<u64> = None;
    let mut finished: Option<(&str, u64, Digest)> = None;
    let mut result: &[u8] = &[];
    for seat in &active.members {
        match words.get(&seat.id()) {
            Some(LastWord::Drained { step }) => drained = drained.max(Some(*step)),
            Some(LastWord::Finished { step, digest, payload }) => {
                let (first, first_step, first_digest) = *finished.get_or_insert((&seat.pod, *step, *digest));
                if (first_step, first_digest) != (*step, *digest) {
                    let message = format!(
                        "the workers ended with different models: {first} at step {first_step} with digest \
                         {first_digest:.12}, {} at step {step} with digest {digest:.12}",
                        seat.pod
                    );
                    return Err((seat.id(), message));
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
