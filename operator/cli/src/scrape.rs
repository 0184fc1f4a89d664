//! The metrics that a worker serves, and what changed between two looks at them.

use std::{collections::BTreeMap, time::Duration};

use lockstep_metrics::table;

/// Time between two looks that tell how workers spend their time.
pub(crate) const BETWEEN_SCRAPES: Duration = Duration::from_secs(2);

/// The metrics of a worker at one moment, as far as people ask for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scrape {
    /// Optimiser steps that the worker has done.
    steps: f64,
    /// Seconds by phase since the process began. They add up to the whole time.
    phases: BTreeMap<String, f64>,
    /// Time of its newest step, in seconds since 1970.
    heartbeat: f64,
    /// Bytes of memory that the process holds.
    memory: Option<f64>,
}

/// The way in which a worker spent the time between two scrapes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "camelCase", default))]
pub(crate) struct WorkerTime {
    /// Name of its pod.
    pub(crate) worker: String,
    /// Steps that it did.
    pub(crate) steps: f64,
    /// Milliseconds from step to step; none if it did no step.
    pub(crate) step_ms: Option<f64>,
    /// Share of the time in which it computed, 0 to 1.
    pub(crate) compute: f64,
    /// Share in which it waited for sums that computation did not hide.
    pub(crate) communication: f64,
    /// Share in which it waited for samples.
    pub(crate) data: f64,
    /// Share in which it waited for slower workers.
    pub(crate) waiting: f64,
    /// Share of evaluations, checkpoints, changes of the group and the rest.
    pub(crate) other: f64,
    /// Milliseconds that it came later than the first worker, in a mean step.
    pub(crate) lag_ms: Option<f64>,
    /// Time of its newest step, in seconds since 1970.
    pub(crate) heartbeat: f64,
    /// Bytes of memory that it holds.
    pub(crate) memory: Option<f64>,
}

impl Scrape {
    /// Reads the text format of Prometheus. Returns `None` if it is not the page of a worker.
    pub(crate) fn parse(page: &str) -> Option<Self> {
        let mut scrape = Self::default();
        let mut is_worker = false;
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let name = series.split('{').next().unwrap_or(series);
            if name == table::STEPS.name {
                (scrape.steps, is_worker) = (value, true);
            } else if name == table::PHASE_SECONDS.name {
                scrape.phases.extend(label(series, "phase").map(|phase| (phase.to_owned(), value)));
            } else if name == table::HEARTBEAT.name {
                scrape.heartbeat = value;
            } else if name == "process_resident_memory_bytes" {
                scrape.memory = Some(value);
            }
        }
        is_worker.then_some(scrape)
    }

    fn phase(&self, phase: &str) -> f64 {
        self.phases.get(phase).copied().unwrap_or_default()
    }
}

fn label<'a>(series: &'a str, label: &str) -> Option<&'a str> {
    series.split_once(&format!("{label}=\""))?.1.split('"').next()
}

/// Returns how workers spent the time between two scrapes. A worker that only the second one knows
/// is left out: means over its whole life would look like figures of now. One that did fewer steps
/// in all than before is another process, which began between them and is counted from there.
pub(crate) fn between(before: &BTreeMap<String, Scrape>, after: &BTreeMap<String, Scrape>) -> Vec<WorkerTime> {
    let nothing = Scrape::default();
    let mut workers: Vec<(WorkerTime, f64)> = Vec::new();
    for (worker, after) in after {
        let Some(before) = before.get(worker) else { continue };
        let before = if before.steps <= after.steps { before } else { &nothing };
        let spent = |phase: &str| (after.phase(phase) - before.phase(phase)).max(0.0);
        let all: f64 = after.phases.keys().map(|phase| spent(phase)).sum();
        let share = |phase: &str| if all > 0.0 { spent(phase) / all } else { 0.0 };
        let steps = after.steps - before.steps;
        let named = ["compute", "exposed_comm", "data", "barrier_wait"].map(share);
        let [compute, communication, data, waiting] = named;
        let in_steps = all * (compute + communication + data + waiting);
        let time = WorkerTime {
            worker: worker.clone(),
            steps,
            step_ms: (steps > 0.0).then(|| in_steps / steps * 1e3),
            compute,
            communication,
            data,
            waiting,
            other: if all > 0.0 { (1.0 - named.iter().sum::<f64>()).max(0.0) } else { 0.0 },
            lag_ms: None,
            heartbeat: after.heartbeat,
            memory: after.memory,
        };
        workers.push((time, if steps > 0.0 { spent("barrier_wait") / steps * 1e3 } else { 0.0 }));
    }
    // The worker that comes first waits longest for the others.
    let longest = workers.iter().map(|(_, waited)| *waited).fold(0.0, f64::max);
    workers
        .into_iter()
        .map(|(time, waited)| WorkerTime { lag_ms: time.step_ms.map(|_| longest - waited), ..time })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(steps: u32, compute: f64, waiting: f64, data: f64) -> String {
        format!(
            "# HELP lockstep_steps_total x\nlockstep_steps_total{{job_name=\"lenet\"}} {steps}\n\
             lockstep_phase_seconds_total{{job_name=\"lenet\",phase=\"compute\"}} {compute}\n\
             lockstep_phase_seconds_total{{job_name=\"lenet\",phase=\"barrier_wait\"}} {waiting}\n\
             lockstep_phase_seconds_total{{job_name=\"lenet\",phase=\"data\"}} {data}\n\
             lockstep_heartbeat_timestamp_seconds 1000.5\nprocess_resident_memory_bytes 2048\n"
        )
    }

    #[test]
    fn two_scrapes_tell_how_each_worker_spent_its_time() {
        let scrapes = |pages: [String; 2]| -> BTreeMap<String, Scrape> {
            let names = ["w-0", "w-1"].map(str::to_owned);
            names.into_iter().zip(pages.map(|page| Scrape::parse(&page).expect("a worker"))).collect()
        };
        let before = scrapes([page(10, 1.0, 1.0, 0.0), page(10, 2.0, 0.0, 0.0)]);
        let after = scrapes([page(30, 2.0, 2.0, 0.0), page(30, 3.0, 0.0, 1.0)]);
        let [fast, slow] = &between(&before, &after)[..] else { panic!("two workers") };
        assert_eq!((fast.step_ms, fast.compute, fast.waiting, fast.lag_ms), (Some(100.0), 0.5, 0.5, Some(0.0)));
        assert_eq!((slow.step_ms, slow.data, slow.lag_ms), (Some(100.0), 0.5, Some(50.0)));
        assert_eq!((slow.memory, slow.heartbeat), (Some(2048.0), 1000.5));
    }

    #[test]
    fn a_worker_that_was_not_seen_before_distorts_nothing() {
        let scrape = |page: String| Scrape::parse(&page).expect("a worker");
        let before: BTreeMap<_, _> = [("w-0".to_owned(), scrape(page(10, 1.0, 0.0, 0.0)))].into();
        let mut after: BTreeMap<_, _> = [("w-0".to_owned(), scrape(page(30, 3.0, 0.0, 0.0)))].into();
        let alone = between(&before, &after);
        after.insert("w-1".to_owned(), scrape(page(1000, 10.0, 900.0, 0.0)));
        assert_eq!(between(&before, &after), alone);
        assert_eq!((alone.len(), alone[0].lag_ms), (1, Some(0.0)));
    }

    #[test]
    fn another_process_of_a_worker_is_counted_from_its_beginning() {
        let at = |steps, compute| -> BTreeMap<_, _> {
            [("w-0".to_owned(), Scrape::parse(&page(steps, compute, 0.0, 0.0)).expect("a worker"))].into()
        };
        let [again] = &between(&at(500, 90.0), &at(10, 1.0))[..] else { panic!("one worker") };
        assert_eq!((again.steps, again.step_ms), (10.0, Some(100.0)));
    }

    #[test]
    fn a_worker_without_a_step_has_no_step_time() {
        let scrapes: BTreeMap<_, _> = [("w-0".to_owned(), Scrape::parse(&page(7, 1.0, 0.0, 0.0)).expect("one"))].into();
        let [still] = &between(&scrapes, &scrapes)[..] else { panic!("one worker") };
        assert_eq!((still.step_ms, still.lag_ms, still.other), (None, None, 0.0));
    }

    #[test]
    fn the_page_of_another_process_is_not_a_workers() {
        assert_eq!(Scrape::parse("lockstep_global_step 7\n"), None);
    }
}
