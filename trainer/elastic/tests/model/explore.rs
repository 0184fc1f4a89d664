//! Explores all states breadth first, on several threads. A state is skipped if a known one differs
//! only by more messages in flight.

use std::{
    collections::hash_map::Entry,
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use crate::{
    interned::Shards,
    job::{Action, Job},
    sampling::path,
};

const THREADS: usize = 2;
/// The number of states that a thread takes at a time.
const BATCH: usize = 64;

/// The result of an exploration.
#[derive(Debug)]
pub(crate) enum Found {
    /// Every state within the bounds was visited, and none breaks a rule.
    Clean {
        /// The number of states.
        states: usize,
        /// The number of transitions between them.
        transitions: u64,
        /// The number of transitions to the farthest state.
        depth: u32,
        /// The largest number of steps that any process announced.
        told: usize,
    },
    /// A state breaks a rule. The path to it is a shortest one.
    Violation { rule: String, states: usize, path: Vec<String> },
    /// There are more states than the limit.
    TooMany { states: usize, depth: u32 },
}

struct Visit {
    job: Job,
    key: (u128, Box<[u32]>),
    trail: Option<Arc<Trail>>,
}

/// The path to a state.
struct Trail {
    action: Action,
    before: Option<Arc<Trail>>,
}

/// The known states: for each name, sets of messages of which none contains another.
#[derive(Default)]
struct Seen(Shards<Vec<Box<[u32]>>>);

impl Seen {
    /// Returns true and notes the state if no known state can do everything that it can.
    fn is_news(&self, (name, packets): &(u128, Box<[u32]>)) -> bool {
        self.0.with(*name, |entry| match entry {
            Entry::Vacant(entry) => {
                entry.insert(vec![packets.clone()]);
                true
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                let news = !known.iter().any(|known| contains(known, packets));
                if news {
                    known.retain(|known| !contains(packets, known));
                    known.push(packets.clone());
                }
                news
            }
        })
    }

    /// Returns true if no state that can do more is known by now.
    fn counts(&self, (name, packets): &(u128, Box<[u32]>)) -> bool {
        self.0.with(*name, |entry| match entry {
            Entry::Vacant(_) => false,
            Entry::Occupied(entry) => entry.get().contains(packets),
        })
    }
}

/// Returns true if `more` contains all of `fewer`. Both are sorted.
fn contains(more: &[u32], fewer: &[u32]) -> bool {
    let mut more = more.iter();
    fewer.iter().all(|number| more.any(|other| other == number))
}

impl Trail {
    fn actions(last: &Option<Arc<Self>>) -> Vec<Action> {
        let trails = std::iter::successors(last.as_ref(), |trail| trail.before.as_ref());
        let mut actions: Vec<_> = trails.map(|trail| trail.action).collect();
        actions.reverse();
        actions
    }
}

/// Visits every state within `depth_limit` transitions. It gives up beyond `limit` states.
pub(crate) fn explore(begin: Job, depth_limit: u32, limit: usize) -> Found {
    let seen = Seen::default();
    let key = begin.key();
    seen.is_news(&key);
    let mut level = vec![Visit { job: begin.clone(), key, trail: None }];
    let (states, transitions, told) = (AtomicUsize::new(1), AtomicU64::new(0), AtomicUsize::new(0));
    let broken: Mutex<Option<(String, Option<Arc<Trail>>)>> = Mutex::default();
    let mut depth = 0;
    while !level.is_empty() && depth < depth_limit {
        if states.load(Relaxed) > limit {
            return Found::TooMany { states: states.into_inner(), depth };
        }
        let batches = Mutex::new(level);
        let work = || {
            let mut next_level = Vec::new();
            loop {
                let mut left = batches.lock().unwrap_or_else(PoisonError::into_inner);
                let from = left.len().saturating_sub(BATCH);
                let batch = left.split_off(from);
                drop(left);
                if batch.is_empty() || states.load(Relaxed) > limit {
                    return next_level;
                }
                for Visit { job, key, trail } in batch {
                    if !seen.counts(&key) {
                        continue;
                    }
                    for action in job.actions() {
                        transitions.fetch_add(1, Relaxed);
                        let mut next = job.clone();
                        next.take(&action);
                        if next.beyond {
                            continue;
                        }
                        told.fetch_max(next.told.len(), Relaxed);
                        let trail = || Some(Arc::new(Trail { action, before: trail.clone() }));
                        let key = next.key();
                        if let Some(rule) = next.violation.take() {
                            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some((rule, trail()));
                        } else if seen.is_news(&key) {
                            states.fetch_add(1, Relaxed);
                            next_level.push(Visit { job: next, key, trail: trail() });
                        }
                    }
                }
            }
        };
        let next_levels: Vec<Vec<Visit>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        if let Some((rule, trail)) = mem::take(&mut *broken.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Found::Violation { rule, states: states.into_inner(), path: path(begin, &Trail::actions(&trail)) };
        }
        level = next_levels.into_iter().flatten().collect();
        depth += u32::from(!level.is_empty());
    }
    let (states, told) = (states.into_inner(), told.into_inner());
    Found::Clean { states, transitions: transitions.into_inner(), depth, told }
}
