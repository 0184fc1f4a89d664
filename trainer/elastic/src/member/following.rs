//! A newcomer, or one that was lost and came back, that takes over what a group holds while that trains.

use super::{Command, Member};
use crate::{Lead, Message};

/// A group that it was told to follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    pub(super) generation: u64,
    /// It holds what the group holds, or follows it no more.
    caught_up: bool,
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
        if self.standing.is_some() && !self.follows(generation) {
            let told = self.is_asked() || self.is_past(generation);
            self.following = Some(Following { generation, caught_up: told });
            if !told {
                self.standing = None;
                self.commands.push(Command::Follow(lead));
            }
        }
        self.ask_to_be_let_in();
    }

    pub(super) fn caught_up(&mut self) {
        self.follows_no_more();
        self.ask_to_be_let_in();
    }

    /// It holds what there is to hold, and is to be let in with that.
    pub(super) fn follows_no_more(&mut self) {
        self.following.iter_mut().for_each(|following| following.caught_up = true);
    }

    pub(super) fn ask_to_be_let_in(&mut self) {
        if let Some(Following { generation, caught_up: true }) = self.following {
            self.say(Message::CaughtUp { generation });
        }
    }
}
