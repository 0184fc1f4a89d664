//! The rules that every state is held to, and what becomes of the product when one of its own is left out.

use lockstep_elastic::{Active, Message, Report};

use crate::{
    job::{Job, Process},
    part::Part,
    worker::{base, lineage},
};

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// M1: a worker reports and goes on.
    ReportsBeforeSealing,
    /// M2: whoever holds most steps counts, whether or not it took part in the last generation.
    CountsEverybody,
    /// M3: a step is told when it is done here, not when it is done by all.
    ToldAtLocalCompletion,
    /// M4: a membership is recorded without looking at the version.
    RecordsWithoutVersion,
    /// M5: a new process takes itself for the one before.
    KeepsItsIncarnation,
    /// M7: who holds the last generation's first state counts, member or not.
    BaseInForeignHands,
}

impl Job {
    /// No step that anybody was told of is missing where a generation begins, unless all who held it are gone and the record says so.
    pub(crate) fn check_base(&mut self, active: &Active) {
        let lineage = lineage(&base(active));
        let shared = self.told.iter().zip(&lineage).take_while(|(told, held)| told == held).count();
        if shared < self.told.len() {
            let holds =
                |process: &Process| process.worker.held.as_ref().is_some_and(|held| held.starts_with(&self.told));
            let holder = self.processes.iter().any(|process| holds(process));
            if holder || !active.rollback {
                let told = &self.told;
                let rule = format!("generation {} starts from {lineage:?}, told were {told:?}", active.generation);
                self.violated(rule);
            }
            self.told.truncate(shared);
        }
    }

    pub(crate) fn tell(&mut self, held: &[u64]) {
        let shared = self.told.len().min(held.len());
        if self.told[..shared] != held[..shared] {
            let rule = format!("told were {:?}, now {held:?} is told", self.told);
            self.violated(rule);
        } else if held.len() > self.told.len() {
            self.told = held.to_vec();
        }
    }

    /// What a coordinator without one of its rules would make of a report.
    pub(crate) fn twisted(&self, chair: usize, message: &Part<Message>) -> Option<Part<Message>> {
        let last = self.chairs[chair].as_ref()?.record.active.as_ref()?;
        let Message::Report(report) = &**message else { return None };
        let counts = match self.mutant? {
            Mutant::CountsEverybody => true,
            Mutant::BaseInForeignHands => report.state == Some(base(last)),
            Mutant::ReportsBeforeSealing
            | Mutant::ToldAtLocalCompletion
            | Mutant::RecordsWithoutVersion
            | Mutant::KeepsItsIncarnation => false,
        };
        let twisted = Report { entered_generation: Some(last.generation), followed: false, ..report.clone() };
        counts.then(|| Part::new(Message::Report(twisted)))
    }
}
