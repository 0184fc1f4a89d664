//! Plans by situation: tables in testdata/, and properties that no sequence of situations may
//! break.

mod situations;

use std::{collections::BTreeSet, fs, path::Path};

use lockstep_api::Phase;
use lockstep_launch::{BenchmarkReport, CheckpointMark, CollectivesReport, Ending, Progress};
use lockstep_plan::{Child, DefaultImage, GroupSeen, Observed, PodRole, PodState, plan};
use proptest::prelude::*;
use situations::{benchmark, default_image, job, now, outcome, pod};

const ARROW: &str = " ⇒ ";

/// Compares a table with the plans. `UPDATE=1` rewrites its right-hand sides, and a person reviews
/// them.
fn check(file: &str, situations: Option<Vec<String>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    let found = fs::read_to_string(&path).unwrap_or_default();
    let update = std::env::var_os("UPDATE").is_some();
    let lines: Vec<String> = match situations.filter(|_| update) {
        Some(situations) => {
            found.lines().take_while(|line| line.starts_with('#')).map(str::to_owned).chain(situations).collect()
        }
        None => found.lines().map(str::to_owned).collect(),
    };
    let right: Vec<String> = lines
        .iter()
        .map(|line| match line.split(ARROW).next().unwrap_or_default().trim_end() {
            "" => String::new(),
            comment if comment.starts_with('#') => line.clone(),
            situation => format!("{situation}{ARROW}{}", outcome(situation)),
        })
        .collect();
    let right = right.join("\n") + "\n";
    if update {
        fs::write(&path, &right).expect("write the table");
    }
    for (line, right) in found.lines().zip(right.lines()) {
        assert!(update || line == right, "{file}:\n  stated:  {line}\n  planned: {right}");
    }
    assert!(update || found.lines().count() > 1, "{file} is empty");
}

#[test]
fn the_start_follows_the_table() {
    check("phases.txt", None);
}

#[test]
fn the_answer_to_failures_follows_the_table() {
    check("failures.txt", None);
}

#[test]
fn suspension_and_resumption_follow_the_table() {
    check("suspended.txt", None);
}

#[test]
fn the_cleanup_of_a_finished_job_follows_the_table() {
    check("finished.txt", None);
}

const PHASES: [&str; 9] = [
    "new",
    "Pending",
    "Starting",
    "Running",
    "Running; to be suspended",
    "Restarting; attempt 1",
    "Suspended",
    "Complete",
    "Failed",
];
const EVENTS: [&str; 16] = [
    "all pending",
    "all running",
    "all ready",
    "all ready; no worker 1",
    "all ready; no coordinator",
    "all ready; worker 1 exited 0",
    "all done",
    "all ready; worker 1 exited 75",
    "all ready; worker 1 exited 76",
    "all ready; worker 1 refused its input",
    "all ready; worker 1 exited 137",
    "all ready; worker 1 evicted",
    "all ready; worker 1 terminating",
    "all ready; worker 1 stuck",
    "all ready; coordinator exited 1",
    "all pending; worker 1 cannot be pulled",
];

#[test]
fn every_event_has_an_answer_in_every_phase() {
    let pairs: Vec<String> =
        PHASES.iter().flat_map(|phase| EVENTS.iter().map(move |event| format!("{phase}; {event}"))).collect();
    check("every-phase-and-event.txt", Some(pairs.clone()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/every-phase-and-event.txt");
    let table = fs::read_to_string(path).expect("the table");
    let stated: BTreeSet<&str> = table.lines().filter_map(|line| line.split_once(ARROW)).map(|pair| pair.0).collect();
    for pair in &pairs {
        assert!(stated.contains(pair.as_str()), "no line for: {pair}");
    }
}

/// Returns a finished benchmark whose record holds a table with this algorithm.
fn measured_by(algorithm: &str) -> Observed {
    let mut report = CollectivesReport { workers: 2, ..CollectivesReport::default() };
    report.add(1 << 20, algorithm, 1e-3, true);
    let benchmark = Some(Box::new(BenchmarkReport::Collectives(report)));
    let progress = Some(Progress { step: 1, total_steps: 1, benchmark, ..Progress::default() });
    let ending = Some(Ending { progress, ..Ending::default() });
    let (_, seen) = situations::read("Running; all done");
    Observed { group: Some(GroupSeen { ending, ..GroupSeen::default() }), ..seen }
}

#[test]
fn the_table_of_a_benchmark_is_taken_from_its_record() {
    let status = plan(&benchmark(), &measured_by("ring"), &default_image(), now()).status.expect("a status");
    assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Complete), Some("BenchmarkComplete")));
    let complete = status.conditions.iter().find(|condition| condition.type_ == "Complete").expect("a condition");
    assert_eq!(complete.message, "best bus bandwidth 1.049 GB/s: ring, 1Mi over 2 workers");
    let Some(BenchmarkReport::Collectives(report)) = status.benchmark.as_deref() else { panic!("no table") };
    assert_eq!(report.rows.len(), 1);
}

#[test]
fn the_table_is_kept_if_the_coordinator_was_lost_before_its_last_word() {
    let mut seen = measured_by("ring");
    let ending = seen.group.take().and_then(|group| group.ending).expect("an ending");
    seen.group = Some(GroupSeen { progress: ending.progress, ..GroupSeen::default() });
    let status = plan(&benchmark(), &seen, &default_image(), now()).status.expect("a status");
    assert_eq!(status.phase, Some(Phase::Complete));
    assert!(status.benchmark.is_some() && status.progress.is_some_and(|progress| progress.percent == 100));
}

#[test]
fn a_table_that_the_schema_would_refuse_is_not_taken_over() {
    let status = plan(&benchmark(), &measured_by(&"x".repeat(33)), &default_image(), now()).status.expect("a status");
    assert_eq!((status.phase, status.benchmark), (Some(Phase::Complete), None));
}

#[test]
fn a_suspended_job_is_left_alone() {
    let (job, mut seen) = situations::read("Running; to be suspended");
    seen.status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    assert_eq!(seen.status.phase, Some(Phase::Suspended));
    let of_type = |wanted: &str| {
        let found = seen.status.conditions.iter().find(|condition| condition.type_ == wanted);
        found.map(|condition| condition.status.clone())
    };
    assert_eq!((of_type("Suspended").as_deref(), of_type("Running").as_deref()), (Some("True"), Some("False")));
    assert_eq!(plan(&job, &seen, &default_image(), now()), lockstep_plan::JobPlan::default());
}

#[test]
fn a_finished_job_shows_the_workers_that_saw_its_end() {
    for (situation, workers) in [
        ("Running; all running; worker 0 ready", "1/2"),
        ("Running; all done", "2/2"),
        ("Running; elastic 1 to 2; reported 1 s ago; wants 3; all done", "2/3"),
        ("Running; all ready; coordinator refused its input", "-"),
        ("Running; to be suspended", "0/2"),
    ] {
        let (job, seen) = situations::read(situation);
        let display = plan(&job, &seen, &default_image(), now()).status.and_then(|status| status.display);
        assert_eq!(display.map(|display| display.workers).as_deref(), Some(workers), "{situation}");
    }
}

#[test]
fn a_restart_claims_no_step_that_leaving_workers_may_have_passed() {
    let mark =
        |step| CheckpointMark { step, uri: "file:///c".into(), time: "2026-01-02T03:04:05Z".into(), bytes: None };
    for (situation, known, message) in [
        ("Running; all exited 76", None, "restart 1 from the newest checkpoint, if there is one; 0 of 1 failures used"),
        (
            "Running; all exited 76",
            Some(mark(1400)),
            "restart 1 from the newest checkpoint, of step 1400 or later; 0 of 1 failures used",
        ),
        ("Suspended", None, "from the newest checkpoint, if there is one"),
        ("Suspended", Some(mark(7)), "from the newest checkpoint, of step 7 or later"),
    ] {
        let (job, mut seen) = situations::read(situation);
        seen.status.last_checkpoint = known;
        let events = plan(&job, &seen, &default_image(), now()).events;
        assert!(events.iter().any(|note| note.text == message), "{message}: {events:?}");
    }
}

#[test]
fn an_updated_operator_gives_its_image_only_to_jobs_that_have_not_begun() {
    let updated = DefaultImage { name: "trainer:2".into(), pull_policy: "Never".into() };
    for (situation, image) in [
        ("new", "trainer:2"),
        ("Pending; all pending; no worker 1", "trainer:1"),
        ("Running; all ready; no worker 1", "trainer:1"),
        ("Restarting; attempt 1; began with trainer:0", "trainer:0"),
        ("Suspended; began with trainer:0", "trainer:0"),
    ] {
        let (job, seen) = situations::read(situation);
        let made = plan(&job, &seen, &updated, now()).create;
        let pods = made.iter().filter_map(|child| if let Child::Pod(pod) = child { pod.spec.as_ref() } else { None });
        let images: BTreeSet<_> = pods.filter_map(|spec| spec.containers[0].image.as_deref()).collect();
        assert_eq!(images, BTreeSet::from([image]), "{situation}");
    }
}

#[test]
fn a_job_keeps_the_image_of_its_workers_by_digest_if_the_node_reports_it() {
    let (job, mut seen) = situations::read("Running; all ready; worker 1 pending");
    let kept = |seen: &Observed| plan(&job, seen, &default_image(), now()).status.and_then(|status| status.trainer);
    let first = kept(&seen).expect("kept");
    assert_eq!((first.image.as_str(), first.image_pull_policy.as_str()), ("trainer:1", "IfNotPresent"));
    let worker = seen.pods.iter_mut().find(|pod| pod.role == PodRole::Worker(0)).and_then(|pod| pod.image.as_mut());
    worker.expect("an image").id = Some("docker.io/library/trainer@sha256:ab".to_owned());
    assert_eq!(kept(&seen).expect("kept").image, "trainer:1@sha256:ab");
    let (_, pending) = situations::read("Pending; all pending; coordinator running");
    assert_eq!(kept(&pending), None, "no worker has run");
}

#[test]
fn pods_that_cannot_start_are_replaced_once_the_operators_image_changes() {
    let updated = DefaultImage { name: "trainer:2".into(), ..default_image() };
    let (job, seen) = situations::read("Pending; all running; worker 0 pending; worker 1 cannot be pulled");
    let next = plan(&job, &seen, &updated, now());
    assert_eq!(next.delete.len(), 3, "{next:?}");
    assert_eq!(next.events.iter().map(|note| note.reason).collect::<Vec<_>>(), ["ImageChanged"]);
    let status = next.status.expect("a status");
    assert_eq!((status.attempt, status.restarts, status.failures), (1, 0, 0));
    let gone = Observed { status, pods: Vec::new(), ..seen.clone() };
    let next = plan(&job, &gone, &updated, now());
    assert_eq!(next.create.iter().filter(|child| matches!(child, Child::Pod(_))).count(), 3);
    let same = plan(&job, &seen, &default_image(), now());
    assert_eq!((same.delete.len(), same.create.len()), (0, 0), "nothing changed: {same:?}");
}

#[test]
fn a_pod_that_cannot_start_with_another_image_than_the_jobs_is_replaced() {
    let (job, seen) = situations::read("Restarting; began with trainer:0; all ready; worker 1 cannot be pulled");
    let next = plan(&job, &seen, &default_image(), now());
    assert_eq!(next.delete.iter().map(|gone| gone.pod.as_str()).collect::<Vec<_>>(), ["lenet-worker-1"]);
}

#[test]
fn an_invalid_job_is_refused_once_and_gets_no_pods() {
    let wrong = [lockstep_launch::InvalidField::new("spec.dataset.uri", "missing", "required for format idx")];
    let next = lockstep_plan::refuse(&wrong, &Observed::default(), now());
    assert!(next.create.is_empty() && next.delete.is_empty());
    let status = next.status.expect("a status");
    assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Failed), Some("InvalidSpec")));
    let again = lockstep_plan::refuse(&wrong, &Observed { status, ..Observed::default() }, now());
    assert_eq!(again, lockstep_plan::JobPlan::default());
}

const STATES: [&str; 14] = [
    "ready",
    "running",
    "pending",
    "unschedulable",
    "terminating",
    "stuck",
    "disrupted",
    "evicted",
    "refused its input",
    "done",
    "exited 75",
    "exited 76",
    "drained while terminating",
    "exited 137",
];

/// Generates a state for each pod, or none.
fn world() -> impl Strategy<Value = Vec<Option<&'static str>>> {
    proptest::collection::vec(proptest::option::weighted(0.8, proptest::sample::select(&STATES[..])), 3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Carries each plan out while pods change at random, and checks the cluster after each step.
    #[test]
    fn no_sequence_makes_too_many_pods_or_any_for_a_finished_job(worlds in proptest::collection::vec(world(), 1..24)) {
        let job = job();
        let mut seen = Observed { generation: Some(1), ..Observed::default() };
        let mut time = now();
        for world in worlds {
            time += jiff::SignedDuration::from_secs(20);
            let finished = seen.status.phase.is_some_and(Phase::is_finished);
            let next = plan(&job, &seen, &default_image(), time);
            prop_assert!(!finished || (next.create.is_empty() && next.status.is_none()), "{next:?}");
            if let Some(status) = next.status {
                prop_assert!(status.restarts >= seen.status.restarts, "restarts never go back");
                prop_assert!(status.failures <= status.restarts + status.replacements + 1);
                let known = status.conditions.iter().map(|condition| condition.type_.clone()).collect::<BTreeSet<_>>();
                prop_assert_eq!(known.len(), status.conditions.len(), "one condition of each type");
                seen.status = status;
            }
            seen.pods.retain(|pod| !next.delete.iter().any(|deletion| deletion.uid == pod.uid));
            for child in &next.create {
                let Child::Pod(made) = child else { continue };
                let name = made.metadata.name.clone().unwrap_or_default();
                prop_assert!(seen.pods.iter().all(|pod| pod.name != name), "{name} is there already");
                let role = [PodRole::Coordinator, PodRole::Worker(0), PodRole::Worker(1)]
                    .into_iter()
                    .find(|role| lockstep_plan::pod_name(&job, *role) == name);
                prop_assert!(role.is_some(), "{name} is no member");
                seen.pods.extend(role.and_then(|role| pod(role, seen.status.restarts, "pending")));
            }
            prop_assert!(seen.pods.len() <= 3);
            seen.pods = seen.pods.iter().filter_map(|there| {
                let chosen = match there.role { PodRole::Coordinator => 0, PodRole::Worker(index) => index as usize + 1 };
                // An ended pod stays ended.
                if matches!(there.state, PodState::Ended(_)) { return Some(there.clone()); }
                world[chosen].and_then(|state| pod(there.role, there.attempt, state))
            }).collect();
        }
    }
}
