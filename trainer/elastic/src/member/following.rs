//! A newcomer, or one that was lost and came back, that takes over what a group holds while that trains.

use super::{Command, Member};
use crate::{Break, Lead, Message};

/// A group that it was told to follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    pub(super) generation: u64,
    way: Way,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It takes over what the group holds.
    Begun,
    /// It holds that, or cannot follow the group: it is to be let in with what it holds.
    Ended,
    /// It is not connected with all of the group, and would hold it up: it is told to follow again later.
    Barred,
}

impl Member {
    /// Another group trains than the one that it belongs to or follows.
    pub(super) fn stand(&mut self, generation: u64) {
        if self.standing.is_some() {
            self.say_hello();
        } else if !self.follows(generation) && !self.is_past(generation) {
            self.told_to_stand = true;
            self.commands.push(Command::Seal { generation, planned: false });
        }
    }

    fn follows(&self, generation: u64) -> bool {
        self.following.is_some_and(|following| following.generation == generation)
    }

    /// Whoever has told what it holds is let in as it is.
    pub(super) fn follow(&mut self, lead: Lead) {
        let generation = lead.generation;
        let barred = self.following.is_some_and(|following| following.way == Way::Barred);
        if self.standing.is_some() && (barred || !self.follows(generation)) {
            let told = self.is_asked() || self.is_past(generation);
            self.following = Some(Following { generation, way: if told { Way::Ended } else { Way::Begun } });
            if !told {
                self.standing = None;
                self.commands.push(Command::Follow(lead));
            }
        }
        self.ask_to_be_let_in();
    }

    pub(super) fn caught_up(&mut self) {
        self.following.iter_mut().for_each(|following| following.way = Way::Ended);
        self.ask_to_be_let_in();
    }

    /// It stands. Gives what failed of a group that it belonged to; none of that it follows.
    pub(super) fn follows_no_more(&mut self, broken: Option<Break>) -> Option<Break> {
        let Some(Following { generation, way }) = self.following else { return broken };
        let unreached = broken.and_then(|broken| broken.unreached).filter(|_| way == Way::Begun);
        if way != Way::Barred {
            let way = if unreached.is_some() { Way::Barred } else { Way::Ended };
            self.following = Some(Following { generation, way });
        }
        if unreached.is_some() {
            self.say(Message::CaughtUp { generation, unreached });
        }
        None
    }

    pub(super) fn ask_to_be_let_in(&mut self) {
        if let Some(Following { generation, way: Way::Ended }) = self.following {
            self.say(Message::CaughtUp { generation, unreached: None });
        }
    }
}
