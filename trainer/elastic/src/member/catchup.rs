//! Catch-up of a newcomer, or of a lost member that came back, with a group that trains.

use super::{Command, Member};
use crate::{Break, FollowedGroup, Message};

/// The catch-up with a group that this process was told to follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatchUp {
    pub(super) generation: u64,
    stage: CatchUpStage,
}

/// The stage of a catch-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatchUpStage {
    /// The process receives the group's state.
    Running,
    /// The process has caught up, or cannot follow the group. It asks to be let in with the state
    /// that it holds.
    Done,
    /// The process has no connection to some member and would delay the group. It is told to follow
    /// again later.
    Unconnected,
}

impl Member {
    /// Seals, because the group that trains is not the one that it belongs to or follows.
    pub(super) fn seal(&mut self, generation: u64) {
        if self.sealed.is_some() {
            self.send_hello();
        } else if !self.follows(generation) && !self.is_past(generation) {
            self.told_to_seal = true;
            self.commands.push(Command::Seal { generation, planned: false });
        }
    }

    fn follows(&self, generation: u64) -> bool {
        self.catch_up.is_some_and(|catch_up| catch_up.generation == generation)
    }

    /// Starts to follow a group. A process that has already reported its state is let in as it is.
    pub(super) fn follow(&mut self, lead: FollowedGroup) {
        let generation = lead.generation;
        let unconnected = self.catch_up.is_some_and(|catch_up| catch_up.stage == CatchUpStage::Unconnected);
        if self.sealed.is_some() && (unconnected || !self.follows(generation)) {
            let reported = self.is_asked_to_report() || self.is_past(generation);
            self.catch_up =
                Some(CatchUp { generation, stage: if reported { CatchUpStage::Done } else { CatchUpStage::Running } });
            if !reported {
                self.sealed = None;
                self.commands.push(Command::Follow(lead));
            }
        }
        self.ask_to_be_let_in();
    }

    pub(super) fn caught_up(&mut self) {
        self.catch_up.iter_mut().for_each(|catch_up| catch_up.stage = CatchUpStage::Done);
        self.ask_to_be_let_in();
    }

    /// Ends the catch-up because the process sealed. It returns the failure of a group that the
    /// process belonged to, but not of a group that it followed.
    pub(super) fn stop_following(&mut self, broken: Option<Break>) -> Option<Break> {
        let Some(CatchUp { generation, stage }) = self.catch_up else { return broken };
        let unreached = broken.and_then(|broken| broken.unreached).filter(|_| stage == CatchUpStage::Running);
        if stage != CatchUpStage::Unconnected {
            let stage = if unreached.is_some() { CatchUpStage::Unconnected } else { CatchUpStage::Done };
            self.catch_up = Some(CatchUp { generation, stage });
        }
        if unreached.is_some() {
            self.send(Message::CaughtUp { generation, unreached });
        }
        None
    }

    pub(super) fn ask_to_be_let_in(&mut self) {
        if let Some(CatchUp { generation, stage: CatchUpStage::Done }) = self.catch_up {
            self.send(Message::CaughtUp { generation, unreached: None });
        }
    }
}
