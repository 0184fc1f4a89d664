//! Handles pairs of members that reach the coordinator but not each other.
//!
//! The coordinator excludes one member of each pair, and the others go on. The excluded process
//! comes back like any newcomer: it follows the group, and it is not let in before it has a
//! connection to every member. If a pair fails again, the process is excluded at once and for
//! longer. A connection that carries nothing counts like a missing one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Coordinator, peer::Peer};
use crate::{Active, Incarnation, MemberId};

/// After the first report of an unreached rank, the coordinator waits this long for more reports.
pub(super) const PAIR_REPORT_WINDOW: Duration = Duration::from_millis(500);
/// The first exclusion of a process lasts this long. Each further one lasts twice as long.
const FIRST_EXCLUSION: Duration = Duration::from_secs(10);
const LONGEST_EXCLUSION: Duration = Duration::from_secs(600);

/// The pairs that cannot reach each other, and the processes excluded for this.
#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    /// Each pod of the newest group with the pods that it is not connected to.
    unreached: BTreeMap<String, BTreeSet<String>>,
    /// The pairs (from, to) over which nothing arrived, in groups that have done no step since.
    silent: BTreeSet<(String, String)>,
    excluded: BTreeMap<String, Exclusion>,
}

#[derive(Clone, Copy, Debug)]
struct Exclusion {
    process: Incarnation,
    times: u32,
    until: Duration,
}

impl Partition {
    /// Forgets the pairs of the previous group.
    pub(super) fn forget_pairs(&mut self) {
        self.unreached.clear();
    }

    pub(super) fn has_unreached(&self) -> bool {
        !self.unreached.is_empty()
    }

    /// Forgets the silent pairs and ends the exclusion of these pods, because a group trained with
    /// them.
    pub(super) fn readmit<'a>(&mut self, pods: impl Iterator<Item = &'a str>) {
        self.silent.clear();
        for pod in pods {
            self.excluded.remove(pod);
        }
    }

    /// Excludes a newcomer that has no connection to a member of the group that trains. It tries
    /// again later.
    pub(super) fn exclude_newcomer(&mut self, member: &MemberId, now: Duration) {
        let known = self.excluded.get(&member.pod).filter(|known| known.process == member.incarnation);
        let times = known.map_or(0, |known| known.times);
        let exclusion = Exclusion { process: member.incarnation, times, until: now + FIRST_EXCLUSION };
        self.excluded.insert(member.pod.clone(), exclusion);
    }

    fn add_pair(&mut self, one: &str, other: &str) {
        self.unreached.entry(one.to_owned()).or_default().insert(other.to_owned());
        self.unreached.entry(other.to_owned()).or_default().insert(one.to_owned());
    }

    /// Removes the pod that misses the most of the others and returns it with the pods that it
    /// misses. Only a pod with a `priority` can be taken; of equals the one with the highest is.
    fn take_least_connected<P: Ord>(
        &mut self,
        priority: impl Fn(&str) -> Option<P>,
    ) -> Option<(String, BTreeSet<String>)> {
        let candidates = self.unreached.iter().filter_map(|(pod, others)| Some(((others.len(), priority(pod)?), pod)));
        let worst = candidates.max()?.1.clone();
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
    /// Notes that a member had no connection to this rank when its group was formed.
    pub(super) fn add_unreached(&mut self, member: &MemberId, rank: u32) {
        let other = self.active().and_then(|active| active.members.get(rank as usize)).map(|ranked| ranked.pod.clone());
        if let Some(other) = other.filter(|other| *other != member.pod) {
            self.partition.add_pair(&member.pod, &other);
        }
    }

    /// Returns true while this pod's process is excluded: for a limited time, and until it has
    /// caught up over connections to all members.
    pub(super) fn is_excluded(&self, pod: &str) -> bool {
        let Some((exclusion, peer)) = self.partition.excluded.get(pod).zip(self.peers.get(pod)) else { return false };
        let has_yet_to_follow = self.active().is_some_and(|active| peer.catches_up_with(active));
        exclusion.process == peer.hello.member.incarnation && (self.handled < exclusion.until || has_yet_to_follow)
    }

    /// Ends all exclusions if the remaining processes are too few for a group.
    pub(super) fn readmit_if_needed(&mut self) {
        if !self.partition.excluded.is_empty() && !self.suffice() {
            self.partition.excluded.clear();
        }
    }

    /// Adds the pairs over which nothing arrived although no member was lost. If a group had
    /// trained, the silence may have been a pause of one process or its wait for another
    /// connection. Such pairs therefore do not count while other pairs could not even connect.
    fn add_silent_pairs(&mut self, active: &Active) {
        let pod = |rank: usize| active.members.get(rank).map(|ranked| ranked.pod.clone());
        let pair = self.reasons.silent_pair().filter(|_| self.reasons.lost.is_empty());
        if let Some((from, to)) =
            pair.and_then(|(from, to)| Some((pod(from)?, pod(to)?))).filter(|(from, to)| from != to)
        {
            self.partition.silent.insert((from, to));
        }
        if self.partition.has_unreached() {
            return;
        }
        let is_here = |pod: &String| self.peers.contains_key(pod);
        let both_here = |(from, to): &&(String, String)| is_here(from) && is_here(to);
        let lines: Vec<_> = self.partition.silent.iter().filter(both_here).cloned().collect();
        lines.iter().for_each(|(from, to)| self.partition.add_pair(from, to));
    }

    /// Excludes one member of each unconnected pair before the next group is formed, if the last
    /// group made no step. Enough members must stay, and one of them must hold the state that the
    /// last group started from. If one member of a pair lacks that state, it is the excluded one.
    pub(super) fn exclude_unconnected(&mut self, now: Duration) {
        let Some(active) = self.active().cloned() else { return };
        self.add_silent_pairs(&active);
        let again = self.partition.unreached.keys().any(|pod| self.partition.excluded.contains_key(pod));
        if self.generations_without_step == 0 && !again {
            return;
        }
        let ranked_member = |pod: &str| active.members.iter().find(|ranked| ranked.pod == pod);
        let is_source = |pod: &str| {
            ranked_member(pod).is_some_and(|ranked| active.sources.contains(&ranked.rank) && self.is_here(&ranked.id()))
        };
        let mut sources: BTreeSet<String> =
            self.peers.keys().filter(|pod| is_source(pod) && !self.is_excluded(pod)).cloned().collect();
        while self.stayers().count() > self.least() {
            let priority = |pod: &str| {
                let holds = sources.contains(pod);
                (!holds || sources.len() > 1).then(|| (!holds, ranked_member(pod).map(|ranked| ranked.rank)))
            };
            let Some((pod, others)) = self.partition.take_least_connected(priority) else { return };
            sources.remove(&pod);
            let Some(Peer { hello, .. }) = self.peers.get(&pod) else { continue };
            let member = hello.member.clone();
            let known = self.partition.excluded.get(&pod).filter(|known| known.process == member.incarnation);
            let times = known.map_or(0, |known| known.times + 1);
            let lasts = FIRST_EXCLUSION.saturating_mul(2_u32.saturating_pow(times)).min(LONGEST_EXCLUSION);
            self.partition.excluded.insert(pod, Exclusion { process: member.incarnation, times, until: now + lasts });
            let others = Vec::from_iter(others).join(", ");
            self.reasons.lose(&member, &format!("it and {others} cannot reach each other"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_connected_pod_is_excluded_and_of_a_pair_the_later_one() {
        let taken = |lines: &[(&str, &str)], stays: &str| {
            let mut partition = Partition::default();
            lines.iter().for_each(|(one, other)| partition.add_pair(one, other));
            let priority = |pod: &str| (pod != stays).then(|| pod.to_owned());
            let worst = std::iter::from_fn(|| partition.take_least_connected(priority).map(|(pod, _)| pod));
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
