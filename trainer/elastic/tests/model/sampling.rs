//! Samples random paths through states that are too many to visit. A seed decides each path, which
//! ends when nothing is left to happen.

use crate::job::{Action, Job};

/// The largest number of transitions of one path. Without it, messages could be exchanged for ever.
const LONGEST: usize = 400;
/// One transition in this many is a disturbance.
const DISTURBANCE: u64 = 12;

/// The result of the sampled paths.
#[derive(Debug)]
pub(crate) enum Sampled {
    /// No state on any path breaks a rule.
    Clean {
        transitions: usize,
        /// The number of paths that reached the last generation or did all steps.
        came_far: u64,
        told: usize,
    },
    Violation {
        rule: String,
        seed: u64,
        path: Vec<String>,
    },
}

pub(crate) fn sample(begin: &Job, seeds: std::ops::Range<u64>) -> Sampled {
    let (mut transitions, mut came_far, mut told) = (0, 0, 0);
    for seed in seeds {
        let mut dice = Dice(seed);
        let mut job = begin.clone();
        let mut taken = Vec::new();
        while let Some(action) = one_of(job.actions(), &mut dice).filter(|_| taken.len() < LONGEST) {
            let mut next = job.clone();
            next.take(&action);
            taken.push(action);
            if let Some(rule) = next.violation {
                return Sampled::Violation { rule, seed, path: path(begin.clone(), &taken) };
            }
            if next.beyond {
                break;
            }
            job = next;
            told = told.max(job.told.len());
        }
        transitions += taken.len();
        let newest = job.processes.iter().map(|process| process.entered).max();
        let all_done = job.told.len() as u64 == job.bounds.steps;
        came_far += u64::from(newest == Some(job.bounds.generations) || all_done);
    }
    Sampled::Clean { transitions, came_far, told }
}

/// Returns the events of a path from its start.
pub(crate) fn path(mut job: Job, actions: &[Action]) -> Vec<String> {
    let told = |action: &Action| {
        let description = job.describe(action);
        job.take(action);
        description
    };
    actions.iter().map(told).collect()
}

fn one_of(actions: Vec<Action>, dice: &mut Dice) -> Option<Action> {
    let disturbs = |action: &Action| match action {
        Action::Move(..) | Action::Kill(_) | Action::StartCoordinator | Action::Later(_) => true,
        Action::Deliver(_) | Action::LearnClose(_) | Action::Swap(_) | Action::Connect(..) | Action::Work(..) => false,
    };
    let (disturbances, others): (Vec<_>, Vec<_>) = actions.into_iter().partition(disturbs);
    let disturb = others.is_empty() || dice.below(DISTURBANCE) == 0 && !disturbances.is_empty();
    let choices = if disturb { disturbances } else { others };
    let count = choices.len() as u64;
    (count > 0).then(|| choices[dice.below(count) as usize])
}

/// SplitMix64 (Steele et al., 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
