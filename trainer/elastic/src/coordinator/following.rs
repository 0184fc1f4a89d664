//! Newcomers take over the state of a group while it trains, and are let in once they have it: the group stands still no longer than
//! any other change takes.

use std::time::Duration;

use super::{Connection, Coordinator, Phase, peers::Peer};
use crate::{Active, Follower, Hello, Lead, MemberId, Message};

/// A newcomer's way into a group that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Following {
    generation: u64,
    pub(super) caught_up: bool,
}

impl Following {
    /// Of one that is to be let in with what it holds.
    pub(super) fn as_it_is(active: &Active) -> Self {
        Self { generation: active.generation, caught_up: true }
    }
}

impl Peer {
    /// Whether it was told to follow this group.
    pub(super) fn follows(&self, active: &Active) -> bool {
        self.following.is_some_and(|following| following.generation == active.generation)
    }

    /// Whether it follows this group and has yet to take over what that holds.
    pub(super) fn catches_up_with(&self, active: &Active) -> bool {
        self.follows(active) && self.following.is_some_and(|following| !following.caught_up)
    }
}

impl Coordinator {
    /// Those that are here, may stay, and do not belong to the group that trains.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = &Peer> {
        let belongs = |pod: &str| self.active().is_some_and(|active| active.members.iter().any(|seat| seat.pod == pod));
        let comes = move |pod: &str| !belongs(pod) && !self.leaving.contains_key(pod) && !self.is_aside(pod);
        self.peers.iter().filter(move |(pod, _)| comes(pod)).map(|(_, peer)| peer)
    }

    /// Has every newcomer follow the group, and all members hand over what they hold, where all of them can be told.
    pub(super) fn have_newcomers_follow(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        let active = running.active();
        let all_here = active.members.iter().all(|seat| self.is_here(&seat.id()));
        if !all_here || !running.is_at_work() || self.draining.is_some() {
            return;
        }
        let generation = active.generation;
        let lead = Lead { generation, addresses: active.members.iter().map(|seat| seat.address).collect() };
        let members: Vec<_> = active.members.iter().map(|seat| self.peers[&seat.pod].connection).collect();
        let told: Vec<_> = self
            .newcomers()
            .filter(|peer| !peer.follows(active))
            .map(|peer| (peer.connection, peer.hello.clone()))
            .collect();
        for (connection, Hello { member, address, stands, .. }) in told {
            if let Some(peer) = self.peers.get_mut(&member.pod) {
                peer.following = Some(Following { generation, caught_up: false });
                peer.hello.stands = false;
            }
            if !stands {
                self.send(connection, Message::Stand { generation });
                continue;
            }
            self.send(connection, Message::Follow(lead.clone()));
            let follower = Follower { generation, member, address };
            for member in &members {
                self.send(*member, Message::Feed(follower.clone()));
            }
        }
    }

    /// Tells a member of those that follow its group: they wait for every one.
    pub(super) fn repeat_feeds(&mut self, connection: Connection) {
        let Phase::Running(running) = &self.phase else { return };
        let generation = running.active().generation;
        let followers: Vec<_> = self
            .peers
            .values()
            .filter(|peer| peer.catches_up_with(running.active()))
            .map(|peer| Follower { generation, member: peer.hello.member.clone(), address: peer.hello.address })
            .collect();
        for follower in followers {
            self.send(connection, Message::Feed(follower));
        }
    }

    /// A newcomer holds what this generation holds, or cannot follow it. One that is not connected with all of the group would hold it up.
    pub(super) fn caught_up(&mut self, member: &MemberId, generation: u64, unreached: Option<u32>, now: Duration) {
        let Some(Peer { following, .. }) = self.peers.get_mut(&member.pod) else { return };
        let Some(known) = following.as_mut().filter(|known| known.generation == generation) else { return };
        if unreached.is_none() {
            known.caught_up = true;
        } else if !known.caught_up {
            *following = None;
            self.aside.bar(member, now);
        }
    }
}
