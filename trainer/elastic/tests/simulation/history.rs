//! The checker to which every delivery reports. No run may break its rules.

use std::collections::{BTreeMap, HashMap};

use lockstep_elastic::{Active, Digest, HeldState, Sampler};

/// The number of samples in one pass and in one step. The last step of a pass is short.
pub(crate) const SAMPLES: u64 = 100;
const BATCH: u64 = 8;

/// The result of a check: an error names the broken rule in a sentence.
pub(crate) type Verdict = Result<(), String>;

/// The samples of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) epoch: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

pub(crate) fn batch(at: Sampler) -> Batch {
    Batch { epoch: at.epoch, first: at.cursor, count: BATCH.min(SAMPLES - at.cursor) }
}

/// The origin of a state: the previous state, and the samples of the step between.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: HeldState,
    samples: Batch,
}

/// Everything that was agreed, computed and announced. It survives all processes.
#[derive(Default)]
pub(crate) struct History {
    /// All states that were ever computed, by digest.
    links: HashMap<Digest, Link>,
    /// The state after each stable step, from step 1. A generation that gives steps up overwrites
    /// them.
    eras: Vec<(u64, Vec<HeldState>)>,
    /// Every membership that won its swap.
    pub(crate) agreed: BTreeMap<u64, Active>,
    /// The number of stable steps that were given up with a rollback in the record.
    pub(crate) given_up: u64,
    pub(crate) rollbacks: u64,
}

impl History {
    fn stable(&self) -> &[HeldState] {
        self.eras.last().map_or(&[], |(_, stable)| stable)
    }

    pub(crate) fn stable_steps(&self) -> u64 {
        self.stable().len() as u64
    }

    pub(crate) fn newest(&self) -> Option<&Active> {
        self.agreed.last_key_value().map(|(_, active)| active)
    }

    /// Returns the state after one more step. A sum depends on the ranks that add, so the same step
    /// in another generation has another digest.
    pub(crate) fn step(&mut self, before: HeldState, generation: u64) -> HeldState {
        let samples = batch(before.sampler);
        let mut bytes = before.digest.as_bytes().to_vec();
        for number in [before.step + 1, samples.epoch, samples.first, samples.count, generation] {
            bytes.extend(number.to_le_bytes());
        }
        let digest = Digest::of(&bytes);
        let end = samples.first + samples.count;
        let (epoch, cursor) = if end == SAMPLES { (samples.epoch + 1, 0) } else { (samples.epoch, end) };
        self.links.insert(digest, Link { before, samples });
        HeldState { step: before.step + 1, digest, sampler: Sampler { epoch, cursor, ..before.sampler } }
    }

    /// Returns true if this state is on the valid lineage.
    pub(crate) fn keeps(&self, state: HeldState) -> bool {
        state.step.checked_sub(1).and_then(|index| self.stable().get(index as usize)) == Some(&state)
    }

    /// Notes that a process announced this state as held by all members of a generation. A process
    /// that slept while steps were given up may announce an older truth.
    pub(crate) fn told(&mut self, generation: u64, state: HeldState) -> Verdict {
        if self.eras.is_empty() {
            self.eras.push((0, Vec::new()));
        }
        let era = self.eras.iter().rposition(|(from, _)| *from <= generation).unwrap_or_default();
        let stable = &self.eras[era].1;
        let known = stable.len() as u64;
        if state.step <= known {
            let before = state.step.checked_sub(1).map(|index| stable[index as usize]);
            return match before {
                Some(before) if before != state => {
                    Err(format!("step {} forked: it was announced as {before:?}, now as {state:?}", state.step))
                }
                _ => Ok(()),
            };
        }
        let added = self.lineage(state, known)?;
        let link = self.links[&added[0].digest];
        let base = stable.last().copied();
        if base.is_some_and(|base| base != link.before) {
            return Err(format!("step {} forked: {:?} follows {:?}, not {base:?}", known + 1, added[0], link.before));
        }
        self.eras[era].1.extend(added);
        Ok(())
    }

    /// Returns the states after step `from` on the way to this one.
    fn lineage(&self, mut state: HeldState, from: u64) -> Result<Vec<HeldState>, String> {
        let mut states = Vec::new();
        while state.step > from {
            states.push(state);
            let link = self.links.get(&state.digest).ok_or_else(|| format!("{state:?} was never computed"))?;
            if link.before.step + 1 != state.step {
                return Err(format!("{state:?} follows {:?}", link.before));
            }
            state = link.before;
        }
        states.reverse();
        Ok(states)
    }

    /// Checks a stored record: the memberships form one chain, and the newest lacks no announced
    /// step.
    pub(crate) fn stored(&mut self, active: &Active) -> Verdict {
        if let Some(known) = self.agreed.get(&active.generation) {
            return match known == active && self.newest() == Some(active) {
                true => Ok(()),
                false => Err(format!("generation {} is recorded again, or after a newer one", active.generation)),
            };
        }
        if let Some(newest) = self.newest().filter(|newest| newest.generation > active.generation) {
            return Err(format!("generation {} is recorded after {}", active.generation, newest.generation));
        }
        let base = HeldState { step: active.base_step, digest: active.base_digest, sampler: active.sampler };
        let lineage = self.lineage(base, 0)?;
        let shared = self.stable().iter().zip(&lineage).take_while(|(told, held)| told == held).count();
        let lost = self.stable().len() - shared;
        if lost > 0 && !active.rollback {
            return Err(format!(
                "generation {} starts from {base:?}, which lacks {lost} of {} announced steps and is not marked as a rollback",
                active.generation,
                self.stable().len()
            ));
        }
        if active.rollback {
            self.rollbacks += 1;
            self.given_up += lost as u64;
            let kept = self.stable()[..shared].to_vec();
            self.eras.push((active.generation, kept));
        }
        self.agreed.insert(active.generation, active.clone());
        Ok(())
    }

    /// Checks the end of a job: all steps were announced, and every sample of every pass counts
    /// once.
    pub(crate) fn finished(&self, step: u64, digest: Digest, total: u64) -> Verdict {
        let last = self.stable().last().copied();
        if step != total || last.map(|state| (state.step, state.digest)) != Some((step, digest)) {
            return Err(format!(
                "the job ended at step {step} with {digest:?}, but the last announced step is {last:?}"
            ));
        }
        let mut expected = (0, 0);
        for state in self.stable() {
            let Batch { epoch, first, count } = self.links[&state.digest].samples;
            if (epoch, first) != expected || count == 0 {
                return Err(format!(
                    "step {} takes samples {first} of pass {epoch} instead of {expected:?}",
                    state.step
                ));
            }
            expected = if first + count == SAMPLES { (epoch + 1, 0) } else { (epoch, first + count) };
        }
        Ok(())
    }
}
