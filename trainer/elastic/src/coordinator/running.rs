//! From the first step to the last word, or to the first loss.

use std::{collections::BTreeMap, time::Duration};

use super::{Command, Connection, Coordinator, Outcome, Phase, RETURN_LIMIT};
use crate::{Active, CheckpointMark, Digest, MemberId, Message, Record};

/// A group that trains.
#[derive(Debug)]
pub(super) struct Running {
    active: Active,
    /// Members that are not connected may return until then.
    return_by: Duration,
    words: BTreeMap<String, LastWord>,
    /// The first member that was seen to go, and how.
    lost: Option<(MemberId, String)>,
    leaving: Option<String>,
    /// The newest checkpoint that the record does not have yet.
    mark: Option<CheckpointMark>,
    /// A record that the store did not take, or took without saying so, and when to try it again. Another one could look like
    /// somebody else's.
    unstored: Option<(Record, Duration)>,
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
        Self {
            active,
            return_by,
            words: BTreeMap::new(),
            lost: None,
            leaving: None,
            mark: None,
            unstored: None,
            published: None,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.active.generation
    }

    /// A member went. Before its last word that is a loss, and acted on at once.
    pub(super) fn missed(&mut self, member: &MemberId, reason: &str) {
        if self.active.seat(member).is_some() && !self.words.contains_key(&member.pod) && self.lost.is_none() {
            self.lost = Some((member.clone(), reason.to_owned()));
        }
    }

    pub(super) fn remember(&mut self, mark: CheckpointMark) {
        if self.mark.is_none_or(|known| known.step < mark.step) {
            self.mark = Some(mark);
        }
    }
}

impl Running {
    /// Keeps a record that could not be stored, to be tried again at a time.
    pub(super) fn keep(&mut self, record: Record, again: Duration) {
        self.unstored = Some((record, again));
    }

    fn is_over(&self) -> bool {
        self.words.len() == self.active.members.len()
    }
}

impl Coordinator {
    /// A member of the recorded generation found this coordinator: the group runs, whatever was being formed.
    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(active) = self.active().cloned() {
            self.phase = Phase::Running(Box::new(Running::new(active, now + RETURN_LIMIT)));
        }
    }

    /// Tells a member of the group where it sits: it may have missed that, or returned to a new coordinator.
    pub(super) fn welcome_back(&mut self, member: &MemberId, connection: Connection) {
        let Phase::Running(running) = &self.phase else { return };
        let Some(rank) = running.active.seat(member).map(|seat| seat.rank) else { return };
        let (active, leaving) = (running.active.clone(), running.leaving.clone());
        self.send(connection, Message::Commit { rank, active });
        if let Some(reason) = leaving {
            self.send(connection, Message::Drain { reason });
        }
    }

    pub(super) fn progressed(&mut self, member: MemberId, step: u64, payload: Vec<u8>) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.active.seat(&member).is_some() && running.published <= Some(step) {
            running.published = Some(step);
            self.commands.push(Command::Publish { member, step, payload });
        }
    }

    pub(super) fn leaving(&mut self, member: &MemberId, reason: &str) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.active.seat(member).is_some() {
            let first = || format!("{} has to go: {reason}", member.pod);
            let reason = running.leaving.get_or_insert_with(first).clone();
            self.send_to_all(&Message::Drain { reason });
        }
    }

    pub(super) fn last_word(&mut self, member: &MemberId, word: LastWord) {
        if let Phase::Running(running) = &mut self.phase
            && running.active.seat(member).is_some()
        {
            running.words.entry(member.pod.clone()).or_insert(word);
        }
    }

    /// Is anybody lost? Is everybody done? Is there a checkpoint to record?
    pub(super) fn watch(&mut self, now: Duration) {
        let Phase::Running(running) = &mut self.phase else { return };
        let absent = running.active.members.iter().find(|seat| {
            let here = self.peers.get(&seat.pod).is_some_and(|peer| peer.hello.member == seat.id());
            !here && !running.words.contains_key(&seat.pod)
        });
        if let Some(seat) = absent {
            let replaced = self.peers.contains_key(&seat.pod);
            let reason = if replaced { "a new process took its place" } else { "it is not connected" };
            if running.lost.is_none() && (replaced || now >= running.return_by) {
                running.lost = Some((seat.id(), reason.to_owned()));
            }
        }
        if let Some((member, reason)) = running.lost.clone() {
            self.abort_all(&format!("{} was lost: {reason}", member.pod));
            self.end(Outcome::Lost { member, reason });
            return;
        }
        if self.swapping.is_some() {
            return;
        }
        match &running.unstored {
            // The result does not wait for a store that is away.
            Some(_) if running.is_over() => self.conclude(),
            Some((_, again)) if *again > now => {}
            Some(_) => {
                if let Some((record, _)) = running.unstored.take() {
                    self.swap(record);
                }
            }
            None => match running.mark.take() {
                Some(mark) => {
                    let record = self.record.mark(mark);
                    self.swap(record);
                }
                None if running.is_over() => self.conclude(),
                None => {}
            },
        }
    }

    /// Everybody said its last word, and the record is as up to date as the store lets it be.
    fn conclude(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        match verdict(&running.active, &running.words) {
            Ok(outcome) => {
                self.send_to_all(&Message::Release);
                self.end(outcome);
            }
            Err((member, message)) => {
                self.abort_all(&message);
                self.end(Outcome::Fatal { member, message });
            }
        }
    }
}

fn verdict(active: &Active, words: &BTreeMap<String, LastWord>) -> Result<Outcome, (MemberId, String)> {
    let mut drained: Option<u64> = None;
    let mut finished: Option<(&str, u64, Digest)> = None;
    let mut result: &[u8] = &[];
    for seat in &active.members {
        match &words[&seat.pod] {
            LastWord::Drained { step } => drained = Some(drained.map_or(*step, |least| least.min(*step))),
            LastWord::Finished { step, digest, payload } => {
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
        }
    }
    Ok(match (drained, finished) {
        (None, Some((_, step, digest))) => Outcome::Finished { step, digest, payload: result.to_vec() },
        (drained, _) => Outcome::Drained { step: drained.unwrap_or(active.base_step) },
    })
}
