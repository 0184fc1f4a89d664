//! Newcomers catch up with a group while it trains. Then the group lets them in, and pauses no
//! longer than for any other change.

use std::time::Duration;

use super::{
    ConnectionId, Coordinator, Phase,
    peer::{CatchUp, Peer},
};
use crate::{FollowedGroup, Follower, Hello, MemberId, Message};

impl Coordinator {
    /// Returns the connected workers that may join and do not belong to the current group.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = &Peer> {
        let belongs =
            |pod: &str| self.active().is_some_and(|active| active.members.iter().any(|ranked| ranked.pod == pod));
        let may_join = move |pod: &str| !belongs(pod) && !self.leaving.contains_key(pod) && !self.is_excluded(pod);
        self.peers.iter().filter(move |(pod, _)| may_join(pod)).map(|(_, peer)| peer)
    }

    /// Tells every newcomer to catch up with the group, and every member to send it the state.
    /// Waits for this until all members are connected to the coordinator.
    pub(super) fn start_catch_ups(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        let active = running.active();
        let all_connected = active.members.iter().all(|ranked| self.is_here(&ranked.id()));
        if !all_connected || !running.is_at_work() || self.draining.is_some() {
            return;
        }
        let generation = active.generation;
        let group =
            FollowedGroup { generation, addresses: active.members.iter().map(|ranked| ranked.address).collect() };
        let members: Vec<_> = active.members.iter().map(|ranked| self.peers[&ranked.pod].connection).collect();
        let newcomers: Vec<_> = self
            .newcomers()
            .filter(|peer| !peer.follows(active))
            .map(|peer| (peer.connection, peer.hello.clone()))
            .collect();
        for (connection, Hello { member, address, sealed, .. }) in newcomers {
            if let Some(peer) = self.peers.get_mut(&member.pod) {
                peer.catch_up = Some(CatchUp { generation, caught_up: false });
                peer.hello.sealed = false;
            }
            if !sealed {
                // The newcomer says hello again once it has sealed. Then its catch-up starts.
                self.send(connection, Message::Seal { generation });
                continue;
            }
            self.send(connection, Message::Follow(group.clone()));
            let follower = Follower { generation, member, address };
            for member in &members {
                self.send(*member, Message::Feed(follower.clone()));
            }
        }
    }

    /// Tells a member again to send the state to all newcomers that catch up. Each of them waits
    /// for every member.
    pub(super) fn repeat_feeds(&mut self, connection: ConnectionId) {
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

    /// Notes that a newcomer is ready to be let in: it has caught up, or has given that up. If it
    /// cannot connect to the rank `unreached`, it would delay the group as a member. It is then
    /// excluded for a while.
    pub(super) fn caught_up(&mut self, member: &MemberId, generation: u64, unreached: Option<u32>, now: Duration) {
        let Some(Peer { catch_up, .. }) = self.peers.get_mut(&member.pod) else { return };
        let Some(known) = catch_up.as_mut().filter(|known| known.generation == generation) else { return };
        if unreached.is_none() {
            known.caught_up = true;
        } else if !known.caught_up {
            *catch_up = None;
            self.partition.exclude_newcomer(member, now);
        }
    }
}
