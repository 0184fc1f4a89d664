//! Members that all reach this coordinator, but not each other: of every two one stands aside, and the others go on without it. It comes
//! back as any newcomer does, by following the group, which needs a line to every member: until it has one it is not let in. Should it not
//! be reached even so it stands aside at once, and for longer. Lines that can be made, but carry nothing, count like those that cannot.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Coordinator, peers::Peer};
use crate::{Active, Incarnation, MemberId};

/// How long others may take to tell whom they did not reach, once one has.
pub(super) const HEARING: Duration = Duration::from_millis(500);
/// How long a process stands aside at first; each further time doubles it.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Who did not reach whom, and who stands aside for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Aside {
    /// Pods of the newest group, each with those that were not connected with it.
    unreached: BTreeMap<String, BTreeSet<String>>,
    /// From whom nothing came to whom, in groups that have done no step since.
    mute: BTreeSet<(String, String)>,
    standing: BTreeMap<String, Standing>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    process: Incarnation,
    times: u32,
    until: Duration,
}

impl Aside {
    /// The newest group is another one.
    pub(super) fn forget_lines(&mut self) {
        self.unreached.clear();
    }

    pub(super) fn is_heard(&self) -> bool {
        !self.unreached.is_empty()
    }

    /// A group trained with these.
    pub(super) fn forgive<'a>(&mut self, pods: impl Iterator<Item = &'a str>) {
        self.mute.clear();
        for pod in pods {
            self.standing.remove(pod);
        }
    }

    /// Is not connected with a member of the group that trains: it stays out, and tries again.
    pub(super) fn bar(&mut self, member: &MemberId, now: Duration) {
        let known = self.standing.get(&member.pod).filter(|known| known.process == member.incarnation);
        let times = known.map_or(0, |known| known.times);
        let standing = Standing { process: member.incarnation, times, until: now + FIRST };
        self.standing.insert(member.pod.clone(), standing);
    }

    fn cut(&mut self, one: &str, other: &str) {
        self.unreached.entry(one.to_owned()).or_default().insert(other.to_owned());
        self.unreached.entry(other.to_owned()).or_default().insert(one.to_owned());
    }

    /// Takes out whoever reaches the fewest of those that have a `place`, of several the one with the last place; gives it and those that it
    /// did not reach.
    fn take_worst<P: Ord>(&mut self, place: impl Fn(&str) -> Option<P>) -> Option<(String, BTreeSet<String>)> {
        let placed = self.unreached.iter().filter_map(|(pod, others)| Some(((others.len(), place(pod)?), pod)));
        let worst = placed.max()?.1.clone();
        let others = self.unreached.remove(&worst)?;
        for other in &others {
            if let Some(left) = self.unreached.get_mut(other) {
                left.remove(&worst);
            }
        }
        self.unreached.retain(|_, left| !left.is_empty());
        Some((worst, others))
    }
}

impl Coordinator {
    /// A member was not connected with this rank when its group was formed.
    pub(super) fn did_not_reach(&mut self, member: &MemberId, rank: u32) {
        let other = self.active().and_then(|active| active.members.get(rank as usize)).map(|seat| seat.pod.clone());
        if let Some(other) = other.filter(|other| *other != member.pod) {
            self.aside.cut(&member.pod, &other);
        }
    }

    /// Whether this pod's process, as it is connected, is left out for now: for a while, and until it has shown that it reaches all.
    pub(super) fn is_aside(&self, pod: &str) -> bool {
        let Some((standing, peer)) = self.aside.standing.get(pod).zip(self.peers.get(pod)) else { return false };
        let has_yet_to_follow = self.active().is_some_and(|active| peer.catches_up_with(active));
        standing.process == peer.hello.member.incarnation && (self.handled < standing.until || has_yet_to_follow)
    }

    /// Where the others are too few, those that stand aside are needed.
    pub(super) fn call_back(&mut self) {
        if !self.aside.standing.is_empty() && !self.suffice() {
            self.aside.standing.clear();
        }
    }

    /// A line over which nothing came although nobody was lost. That of a group which had trained may have been the pause of a process, or
    /// the wait for another line; so none counts where one could not even be made.
    fn count_mute_lines(&mut self, active: &Active) {
        let pod = |rank: usize| active.members.get(rank).map(|seat| seat.pod.clone());
        let line = self.reasons.mute_line().filter(|_| self.reasons.lost.is_empty());
        if let Some((from, to)) =
            line.and_then(|(from, to)| Some((pod(from)?, pod(to)?))).filter(|(from, to)| from != to)
        {
            self.aside.mute.insert((from, to));
        }
        if self.aside.is_heard() {
            return;
        }
        let is_here = |pod: &String| self.peers.contains_key(pod);
        let both_here = |(from, to): &&(String, String)| is_here(from) && is_here(to);
        let lines: Vec<_> = self.aside.mute.iter().filter(both_here).cloned().collect();
        lines.iter().for_each(|(from, to)| self.aside.cut(from, to));
    }

    /// Before a group is formed anew: if the last one made no step, of those that did not reach each other some are left out, as long as
    /// enough stay, and one that holds what the group began with. Of two the one stands aside that held less.
    pub(super) fn stand_aside(&mut self, now: Duration) {
        let Some(active) = self.active().cloned() else { return };
        self.count_mute_lines(&active);
        let again = self.aside.unreached.keys().any(|pod| self.aside.standing.contains_key(pod));
        if self.fruitless == 0 && !again {
            return;
        }
        let seat = |pod: &str| active.members.iter().find(|seat| seat.pod == pod);
        let is_source =
            |pod: &str| seat(pod).is_some_and(|seat| active.sources.contains(&seat.rank) && self.is_here(&seat.id()));
        let mut sources: BTreeSet<String> =
            self.peers.keys().filter(|pod| is_source(pod) && !self.is_aside(pod)).cloned().collect();
        while self.stayers().count() > self.least() {
            let place = |pod: &str| {
                let holds = sources.contains(pod);
                (!holds || sources.len() > 1).then(|| (!holds, seat(pod).map(|seat| seat.rank)))
            };
            let Some((pod, others)) = self.aside.take_worst(place) else { return };
            sources.remove(&pod);
            let Some(Peer { hello, .. }) = self.peers.get(&pod) else { continue };
            let member = hello.member.clone();
            let known = self.aside.standing.get(&pod).filter(|known| known.process == member.incarnation);
            let times = known.map_or(0, |known| known.times + 1);
            let lasts = FIRST.saturating_mul(2_u32.saturating_pow(times)).min(LONGEST);
            self.aside.standing.insert(pod, Standing { process: member.incarnation, times, until: now + lasts });
            let others = Vec::from_iter(others).join(", ");
            self.reasons.lose(&member, &format!("it and {others} do not reach each other"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_reaches_the_fewest_stands_aside_and_of_two_the_later_one() {
        let taken = |lines: &[(&str, &str)], stays: &str| {
            let mut aside = Aside::default();
            lines.iter().for_each(|(one, other)| aside.cut(one, other));
            let place = |pod: &str| (pod != stays).then(|| pod.to_owned());
            let worst = std::iter::from_fn(|| aside.take_worst(place).map(|(pod, _)| pod));
            worst.collect::<Vec<_>>()
        };
        assert_eq!(taken(&[("w0", "w2")], ""), ["w2"]);
        assert_eq!(taken(&[("w0", "w2")], "w2"), ["w0"]);
        assert_eq!(taken(&[("w2", "w0"), ("w1", "w0"), ("w0", "w1")], ""), ["w0"]);
        assert_eq!(taken(&[("w2", "w0"), ("w1", "w0"), ("w0", "w1")], "w0"), ["w2", "w1"]);
        assert_eq!(taken(&[("w0", "w1"), ("w2", "w3")], ""), ["w3", "w1"]);
        assert_eq!(taken(&[], ""), [""; 0]);
    }
}
