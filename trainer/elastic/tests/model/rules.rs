//! The rules that every state is held to, and what becomes of the product when one of its own is left out.

use lockstep_elastic::{Active, Message, State};

use crate::{
    job::Job,
    worker::{base, state},
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
        let lineage = self.lineage(&base(active));
        let shared = self.told.iter().zip(&lineage).take_while(|(told, held)| told == held).count();
        if shared < self.told.len() {
            let holder = self
                .processes
                .iter()
                .any(|process| process.worker.held.as_ref().is_some_and(|held| held.starts_with(&self.told)));
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

    /// The steps that a state came from: every lineage is a list of at most two generations.
    pub(crate) fn lineage(&self, of: &State) -> Vec<u64> {
        let generations = 1..=self.bounds.generations;
        let ones = generations.clone().map(|one| vec![one]);
        let twos = generations.clone().flat_map(|one| generations.clone().map(move |two| vec![one, two]));
        let mut all = std::iter::once(Vec::new()).chain(ones).chain(twos);
        all.find(|lineage| state(lineage) == *of).unwrap_or_else(|| panic!("{of:?} was never computed"))
    }

    /// What a coordinator without one of its rules would make of a report.
    pub(crate) fn twisted(&self, chair: usize, message: Message) -> Message {
        let last = self.chairs[chair].as_ref().and_then(|chair| chair.record.active.as_ref());
        match (message, last, self.mutant) {
            (Message::Report(mut report), Some(last), Some(Mutant::CountsEverybody)) => {
                (report.entered_generation, report.followed) = (Some(last.generation), false);
                Message::Report(report)
            }
            (Message::Report(mut report), Some(last), Some(Mutant::BaseInForeignHands))
                if report.state == Some(base(last)) =>
            {
                (report.entered_generation, report.followed) = (Some(last.generation), false);
                Message::Report(report)
            }
            (message, _, _) => message,
        }
    }
}
