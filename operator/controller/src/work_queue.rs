//! The jobs with news that wait for their reconciliation.
//!
//! The library that drives the reconciler does not tell how many wait and how long, so this notes
//! each job when its news arrives and when its turn has come.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Namespace and name of a job.
pub(crate) type Key = (String, String);

/// Jobs with news, and since when the oldest of it waits.
#[derive(Default)]
pub(crate) struct WorkQueue {
    waiting: Mutex<HashMap<Key, Instant>>,
}

impl WorkQueue {
    /// Notes the news of a job. Further news does not make it wait anew.
    pub(crate) fn news(&self, job: Key, now: Instant) {
        self.lock().entry(job).or_insert(now);
    }

    /// Notes that the turn of a job has come. Returns how long it waited; `None` if no news but a
    /// timer brought it here.
    pub(crate) fn turn(&self, job: &Key, now: Instant) -> Option<Duration> {
        self.lock().remove(job).map(|since| now.saturating_duration_since(since))
    }

    /// The number of waiting jobs.
    pub(crate) fn depth(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_from_its_first_news_until_its_turn() {
        let (queue, start) = (WorkQueue::default(), Instant::now());
        let (job, other) = (("team".to_owned(), "a".to_owned()), ("team".to_owned(), "b".to_owned()));
        let second = |seconds| start + Duration::from_secs(seconds);
        queue.news(job.clone(), second(1));
        queue.news(job.clone(), second(2));
        queue.news(other, second(3));
        assert_eq!(queue.depth(), 2);
        assert_eq!(queue.turn(&job, second(4)), Some(Duration::from_secs(3)));
        assert_eq!((queue.depth(), queue.turn(&job, second(5))), (1, None), "a timer brought it here");
    }
}
