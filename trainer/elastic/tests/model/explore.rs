//! Breadth first over all states, each visited once.

use std::{
    collections::{HashSet, VecDeque},
    rc::Rc,
};

use crate::job::{Action, Job};

/// What an exploration came to.
#[derive(Debug)]
pub(crate) enum Found {
    /// Every state within the bounds was visited, and none breaks a rule.
    Clean {
        /// How many.
        states: usize,
        /// Transitions between them.
        transitions: u64,
        /// Transitions to the farthest.
        depth: u32,
        /// Most steps that anybody was told of.
        told: usize,
    },
    /// A rule is broken, on the shortest path there is.
    Violation { rule: String, states: usize, path: Vec<String> },
    /// More states than were allowed.
    TooMany { states: usize, depth: u32 },
}

struct Visit {
    job: Job,
    depth: u32,
    trail: Option<Rc<Trail>>,
}

/// How a state was reached.
struct Trail {
    action: Action,
    before: Option<Rc<Trail>>,
}

/// What happened, from the beginning.
fn path(mut job: Job, trail: &Option<Rc<Trail>>) -> Vec<String> {
    let mut actions = Vec::new();
    let mut at = trail;
    while let Some(trail) = at {
        actions.push(trail.action);
        at = &trail.before;
    }
    let told = |action: &Action| {
        let description = job.describe(action);
        job.take(action);
        description
    };
    actions.iter().rev().map(told).collect()
}

/// Visits what can be reached by so many transitions at most, and gives up beyond `limit` states.
pub(crate) fn explore(begin: Job, depth_limit: u32, limit: usize) -> Found {
    let mut seen: HashSet<u128> = HashSet::new();
    seen.insert(begin.key());
    let mut queue = VecDeque::from([Visit { job: begin.clone(), depth: 0, trail: None }]);
    let (mut transitions, mut deepest, mut told) = (0, 0, 0);
    while let Some(Visit { job, depth, trail }) = queue.pop_front() {
        deepest = depth;
        told = told.max(job.told.len());
        if depth == depth_limit {
            continue;
        }
        for action in job.actions() {
            transitions += 1;
            let mut next = job.clone();
            next.take(&action);
            let key = next.key();
            if next.violation.is_none() && seen.contains(&key) {
                continue;
            }
            let trail = Some(Rc::new(Trail { action, before: trail.clone() }));
            if let Some(rule) = next.violation.take() {
                return Found::Violation { rule, states: seen.len(), path: path(begin, &trail) };
            }
            seen.insert(key);
            queue.push_back(Visit { job: next, depth: depth + 1, trail });
        }
        if seen.len() > limit {
            return Found::TooMany { states: seen.len(), depth };
        }
    }
    Found::Clean { states: seen.len(), transitions, depth: deepest, told }
}
