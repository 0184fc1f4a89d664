//! The rules for every state, and mutants of the product that each lack one of its own rules.

use lockstep_elastic::{Active, Message, SealReport};

use crate::{
    interned::Interned,
    job::{Job, Process},
    worker::{base, lineage},
};

/// A missing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// M1: a worker reports and goes on without sealing.
    ReportsBeforeSealing,
    /// M2: the holder of most steps counts, even if it did not take part in the last generation.
    CountsEverybody,
    /// M3: a step is announced when it is done by one worker, not by all.
    ToldAtLocalCompletion,
    /// M4: a membership is recorded without a check of the version.
    RecordsWithoutVersion,
    /// M5: a new process takes itself for the previous one.
    KeepsItsIncarnation,
    /// M7: a holder of the last generation's starting state counts, even if it is not a member.
    BaseInForeignHands,
}

impl Job {
    /// Checks that no announced step is missing where a generation starts, unless all its holders
    /// are gone and the record says so.
    pub(crate) fn check_base(&mut self, active: &Active) {
        let lineage = lineage(&base(active));
        let shared = self.told.iter().zip(&lineage).take_while(|(told, held)| told == held).count();
        if shared < self.told.len() {
            let holds =
                |process: &Process| process.worker.held.as_ref().is_some_and(|held| held.starts_with(&self.told));
            let holder = self.processes.iter().any(|process| holds(process));
            if holder || !active.rollback {
                let told = &self.told;
                let rule = format!(
                    "generation {} starts from {lineage:?}, but the announced steps are {told:?}",
                    active.generation
                );
                self.violated(rule);
            }
            self.told.truncate(shared);
        }
    }

    pub(crate) fn tell(&mut self, held: &[u64]) {
        let shared = self.told.len().min(held.len());
        if self.told[..shared] != held[..shared] {
            let rule = format!("the announced steps were {:?}, now {held:?} is announced", self.told);
            self.violated(rule);
        } else if held.len() > self.told.len() {
            self.told = held.to_vec();
        }
    }

    /// Returns the report as a coordinator without one of its rules reads it.
    pub(crate) fn twisted(&self, coordinator: usize, message: &Interned<Message>) -> Option<Interned<Message>> {
        let last = self.coordinators[coordinator].as_ref()?.record.active.as_ref()?;
        let Message::SealReport(report) = &**message else { return None };
        let counts = match self.mutant? {
            Mutant::CountsEverybody => true,
            Mutant::BaseInForeignHands => report.state == Some(base(last)),
            Mutant::ReportsBeforeSealing
            | Mutant::ToldAtLocalCompletion
            | Mutant::RecordsWithoutVersion
            | Mutant::KeepsItsIncarnation => false,
        };
        let twisted = SealReport { entered_generation: Some(last.generation), followed: false, ..report.clone() };
        counts.then(|| Interned::new(Message::SealReport(twisted)))
    }
}
