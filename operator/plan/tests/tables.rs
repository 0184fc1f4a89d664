//! Plans by situation: tables in testdata/, and properties that no sequence of situations may
//! break.

mod situations;

use std::{collections::BTreeSet, fs, path::Path};

use jiff::SignedDuration;
use lockstep_api::{Phase, TrainingJobStatus, ValidJob};
use lockstep_launch::{
    BenchmarkReport, CheckpointMark, CollectivesReport, DamagedCheckpoint, Ending, GroupChange, Progress, ShortGrace,
    Straggler, Unsaved,
};
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

/// Returns the status after a failure, and the message of its condition Failed.
fn failed(situation: &str) -> (TrainingJobStatus, String) {
    let (job, seen) = situations::read(situation);
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed").expect("a condition");
    let message = failed.message.clone();
    (status, message)
}

#[test]
fn a_condition_gives_the_cause_in_one_sentence_and_the_status_keeps_the_log() {
    let situation = "Running; failures 1; attempt 1; all ready; worker 1 panicked before it could say why";
    let (status, message) = failed(situation);
    assert!(message.contains("(exit code 101): panicked: relative URL without a base"), "{message}");
    assert!(!message.contains('\n') && !message.contains("registry"), "{message}");
    let log = status.last_failure.expect("a failure").log;
    assert!(log.contains("serving metrics") && log.contains("panicked at"), "{log}");
}

#[test]
fn the_message_about_a_container_out_of_memory_names_the_limit_to_raise() {
    let (_, message) = failed("Running; failures 1; attempt 1; all ready; worker 1 out of memory");
    assert!(message.contains("OOMKilled (exit code 137)") && message.contains("resources.limits.memory"), "{message}");
}

#[test]
fn a_signal_is_not_blamed_on_memory() {
    let (_, message) = failed("Running; failures 1; attempt 1; all ready; worker 1 killed before its first step");
    let cause = "lenet-worker-1 on node-a: Crashed (exit code 137): signal 9 ended it before it could say why";
    assert!(message.ends_with(cause), "{message}");
}

#[test]
fn if_a_worker_and_the_coordinator_refuse_in_the_same_second_the_worker_is_the_cause() {
    let situation = "Starting; all running; coordinator refused its input; worker 1 refused its input";
    let (status, message) = failed(situation);
    assert_eq!(status.last_failure.and_then(|failure| failure.pod).as_deref(), Some("lenet-worker-1"), "{message}");
}

#[test]
fn an_image_that_cannot_be_pulled_is_reported_with_the_registrys_words_and_advice() {
    let (job, seen) = situations::read("Pending; all pending; worker 1 cannot be pulled");
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let running = status.conditions.iter().find(|condition| condition.type_ == "Running").expect("a condition");
    assert_eq!(running.status, "False");
    assert_eq!(running.reason, "ImageNotPulled");
    assert_eq!(
        running.message,
        "pod lenet-worker-1: cannot pull image x:1: not found; spec.template names no image, so this is the operator's: correct \
         trainer.image of its chart (--trainer-image), and these pods are replaced"
    );
}

/// Returns the message of the condition Running in a situation.
fn running_message(situation: &str, change: impl FnOnce(&mut ValidJob)) -> String {
    let (mut job, seen) = situations::read(situation);
    change(&mut job);
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let running = status.conditions.iter().find(|condition| condition.type_ == "Running").expect("a condition");
    running.message.clone()
}

fn with_template(spec: serde_json::Value) -> impl FnOnce(&mut ValidJob) {
    let template = serde_json::from_value(serde_json::json!({ "spec": spec })).expect("a template");
    |job| job.template = template
}

#[test]
fn the_advice_about_an_image_fits_where_the_image_came_from() {
    let pending = "Pending; all pending; worker 1 cannot be pulled";
    let by_template = running_message(
        pending,
        with_template(serde_json::json!({"containers": [{"name": "trainer", "image": "x:1"}]})),
    );
    assert!(by_template.contains("spec.template cannot change: for another image delete the job"), "{by_template}");
    let kept = running_message("Restarting; began with trainer:0; all ready; worker 1 cannot be pulled", |_| ());
    assert!(kept.contains("keeps the one with which it began, status.trainer: make that available"), "{kept}");
}

#[test]
fn a_crashing_sidecar_is_reported_before_the_trainer_runs_and_beside_it() {
    let why = "container proxy: it ended with exit code 3; `kubectl logs lenet-worker-1 -c proxy --previous` shows why";
    for situation in [
        "Pending; all running; worker 1 without a sidecar that runs",
        "Starting; all running; worker 1 beside a sidecar that crashes",
        "elastic 1 to 3; Running; all ready; worker 1 beside a sidecar that crashes",
    ] {
        let message = running_message(situation, |_| ());
        assert!(message.contains(why), "{situation}: {message}");
    }
}

#[test]
fn pods_on_the_hosts_network_without_a_node_are_reported_with_the_number_of_nodes_needed() {
    let ports = "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports";
    let (mut job, mut seen) = situations::read("Pending; all running; worker 1 unschedulable");
    with_template(serde_json::json!({"hostNetwork": true, "containers": [{"name": "trainer"}]}))(&mut job);
    for pod in &mut seen.pods {
        if let PodState::Pending(Some(waiting)) = &mut pod.state {
            waiting.message = ports.to_owned();
        }
    }
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let running = status.conditions.iter().find(|condition| condition.type_ == "Running").expect("a condition");
    let advice = "with hostNetwork a node takes one pod of a job, and the coordinator is one: 3 nodes are needed";
    assert_eq!(running.message, format!("pod lenet-worker-1: {ports}; {advice}"));
}

#[test]
fn a_job_without_room_for_its_least_workers_names_that_number_and_its_field() {
    let short = "elastic 2 to 3; wants 3; Pending; coordinator ready; worker 0 ready; worker 1 unschedulable; worker 2 unschedulable";
    let why = "pod lenet-worker-1: 0/3 nodes are available; free or add nodes, or delete the job and create it again with a spec.template \
               that asks for less";
    let attendance = "1 of at least 2 workers, spec.elastic.minReplicas, have joined";
    for (asked, condition, message) in [
        (100, "Running", format!("{attendance}; {why}")),
        (600, "Failed", format!("{attendance} within 600 s, failurePolicy.startupTimeoutSeconds: {why}")),
    ] {
        let (job, seen) = situations::read(&format!("{short}; asked {asked} s ago"));
        let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
        let found = status.conditions.iter().find(|found| found.type_ == condition).expect("a condition");
        assert_eq!(found.message, message);
    }
}

#[test]
fn a_growing_job_that_trains_says_why_a_pod_was_refused() {
    let quota = "make Pod lenet-worker-2: the API server refuses it: exceeded quota";
    let (job, seen) =
        situations::read(&format!("elastic 1 to 3; Running; all ready; wants 3; no worker 2; refused {quota}"));
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let running = status.conditions.iter().find(|condition| condition.type_ == "Running").expect("a condition");
    assert_eq!(running.message, format!("2 of 3 workers train; {quota}"));
}

#[test]
fn the_trainers_own_words_reach_the_status() {
    let (job, seen) = situations::read("Starting; all running; worker 1 refused its input");
    let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let failure = status.last_failure.expect("a failure");
    assert_eq!(failure.message, "read /data: no such folder");
    assert_eq!(failure.exit_code, Some(78));
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed").expect("a condition");
    assert_eq!(failed.reason, "InvalidInput");
    assert!(failed.message.contains("read /data: no such folder"), "{}", failed.message);
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
fn if_workers_drain_together_the_one_that_was_taken_away_is_named() {
    let all = "Running; all ready; worker 0 exited 76; ";
    for taken in ["no worker 1", "worker 1 terminating", "worker 1 drained while terminating", "worker 1 disrupted"] {
        let (job, seen) = situations::read(&format!("{all}{taken}"));
        let status = plan(&job, &seen, &default_image(), now()).status.expect("a status");
        let named = status.last_failure.and_then(|failure| failure.pod);
        assert_eq!(named.as_deref(), Some("lenet-worker-1"), "{taken}");
        assert_eq!((status.restarts, status.failures), (1, 0), "{taken}");
    }
}

#[test]
fn a_worker_that_drained_with_a_known_loss_is_not_named() {
    let (job, seen) = situations::read("Running; all ready; worker 1 terminating");
    let known = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    let (_, seen) = situations::read("Running; all ready; worker 0 exited 76; no worker 1");
    let next = plan(&job, &Observed { status: known, ..seen }, &default_image(), now());
    let status = next.status.expect("a status");
    assert_eq!(status.last_failure.and_then(|failure| failure.pod).as_deref(), Some("lenet-worker-1"));
    assert_eq!((status.restarts, status.failures, status.replacements), (1, 0, 1));
    assert!(next.events.iter().all(|note| note.reason != "WorkerLost"), "the loss is known: {:?}", next.events);
}

#[test]
fn a_worker_that_drained_long_after_another_loss_is_named() {
    let (job, seen) = situations::read("Running; all ready; worker 1 terminating");
    let mut known = plan(&job, &seen, &default_image(), now()).status.expect("a status");
    known.replacing.iter_mut().for_each(|entry| entry.since.0 -= SignedDuration::from_hours(1));
    let (_, seen) = situations::read("Running; all ready; worker 0 exited 76; no worker 1");
    let status = plan(&job, &Observed { status: known, ..seen }, &default_image(), now()).status.expect("a status");
    assert_eq!(status.last_failure.and_then(|failure| failure.pod).as_deref(), Some("lenet-worker-0"));
    assert_eq!(status.restarts, 1);
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
fn a_change_of_the_group_is_one_event_and_a_rollback_is_a_warning() {
    let (job, mut seen) = situations::read("Running; all ready");
    let report = |seen: &mut Observed, changes: &[GroupChange]| {
        seen.group = Some(GroupSeen { changes: changes.to_vec(), ..GroupSeen::default() });
        let next = plan(&job, seen, &default_image(), now());
        seen.status = next.status.unwrap_or_else(|| seen.status.clone());
        next.events.iter().map(|note| (note.reason, note.warning, note.text.clone())).collect::<Vec<_>>()
    };
    let first =
        GroupChange { generation: 1, workers: 2, joined: vec!["w-0".into(), "w-1".into()], ..GroupChange::default() };
    assert_eq!(report(&mut seen, &[first]), [], "the first group is no change");
    let second = GroupChange { generation: 2, workers: 1, step: 70, seconds: 0.061, ..GroupChange::default() };
    let found = report(&mut seen, std::slice::from_ref(&second));
    let text = ": 1 worker, goes on from step 70; agreed on in 0.06 s".to_owned();
    assert_eq!(found, [("Resized", false, text)]);
    assert_eq!(report(&mut seen, std::slice::from_ref(&second)), [], "once");
    // The operator may see several changes at once.
    let back = GroupChange { generation: 3, workers: 1, rollback: true, ..GroupChange::default() };
    let more = GroupChange { generation: 4, workers: 2, ..GroupChange::default() };
    let found = report(&mut seen, &[more, second, back]);
    let kinds: Vec<_> = found.iter().map(|(reason, warning, _)| (*reason, *warning)).collect();
    assert_eq!(kinds, [("RolledBack", true), ("Resized", false)], "each, in their order");
    let last = seen.status.membership.expect("a membership").last_change.expect("a change");
    assert_eq!(last.generation, 4);
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

#[test]
fn a_damaged_checkpoint_is_one_event_and_stays_in_the_status_while_it_is_reported() {
    let (job, mut seen) = situations::read("Running; all ready");
    let mut report = |step: Option<u64>| {
        let damaged = |step| DamagedCheckpoint { step, uri: "file:///c".into(), reason: "torn".into() };
        let damaged_checkpoint = step.map(damaged);
        let progress = Some(Progress { step: 100, total_steps: 200, damaged_checkpoint, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        let next = plan(&job, &seen, &default_image(), now());
        seen.status = next.status.unwrap_or_else(|| seen.status.clone());
        // Otherwise the next report would come too soon.
        let progress = seen.status.progress.as_mut().expect("progress");
        progress.last_update_time = None;
        let events = next.events.iter().filter(|note| note.reason == "CheckpointDamaged" && note.warning).count();
        (events, progress.damaged_checkpoint.as_ref().map(|damaged| damaged.step))
    };
    let found = [None, Some(90), Some(90), Some(80), None].map(&mut report);
    assert_eq!(found, [(0, None), (1, Some(90)), (0, Some(90)), (1, Some(80)), (0, None)]);
}

#[test]
fn a_grace_period_that_becomes_too_short_is_an_event() {
    let (job, mut seen) = situations::read("Running; all ready");
    let mark = CheckpointMark { step: 90, uri: "file:///c".into(), time: now().to_string(), bytes: None };
    let mut report = |drain_seconds: Option<f64>, last_checkpoint: Option<&CheckpointMark>| {
        let short_grace = drain_seconds.map(|drain_seconds| ShortGrace { drain_seconds, grace_seconds: 30 });
        let last_checkpoint = last_checkpoint.cloned();
        let progress =
            Some(Progress { step: 100, total_steps: 200, short_grace, last_checkpoint, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        let next = plan(&job, &seen, &default_image(), now());
        seen.status = next.status.unwrap_or_else(|| seen.status.clone());
        // Otherwise the next report would come too soon.
        let progress = seen.status.progress.as_mut().expect("progress");
        progress.last_update_time = None;
        let events = next.events.into_iter().filter(|note| note.reason == "ShortGrace" && note.warning);
        (events.map(|note| note.text).collect::<Vec<_>>(), progress.short_grace.map(|short| short.drain_seconds))
    };
    let (events, status) = report(Some(45.0), Some(&mark));
    let [text] = &events[..] else { panic!("{events:?}") };
    assert!(text.contains("takes 45.0 s") && text.ends_with("terminationGracePeriodSeconds to 90"), "{text}");
    assert_eq!(status, Some(45.0));
    assert_eq!(report(Some(46.0), Some(&mark)), (vec![], Some(46.0)), "once");
    assert_eq!(report(None, None), (vec![], Some(46.0)), "the reporting worker has saved nothing yet");
    assert_eq!(report(None, Some(&mark)), (vec![], None), "it fits again");
    assert_eq!(report(Some(45.0), Some(&mark)), (events, Some(45.0)), "again");
}

#[test]
fn failing_saves_are_an_event_a_condition_and_shown_in_the_column_until_one_succeeds() {
    let (job, mut seen) = situations::read("Running; all ready");
    let mut report = |step, saved: Option<u64>, fails: Option<(&str, bool)>| {
        let last_checkpoint = saved.map(|step| CheckpointMark { step, ..CheckpointMark::default() });
        let unsaved = fails.map(|(reason, waits)| Unsaved::new(0, reason, waits));
        let progress = Some(Progress { step, total_steps: 200, last_checkpoint, unsaved, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        let next = plan(&job, &seen, &default_image(), now());
        seen.status = next.status.unwrap_or_else(|| seen.status.clone());
        // Otherwise the next report would come too soon.
        seen.status.progress.as_mut().expect("progress").last_update_time = None;
        let events = next.events.into_iter().filter(|note| note.reason == "CheckpointFailed" && note.warning);
        let condition = seen.status.conditions.iter().find(|known| known.type_ == "CheckpointsFailing");
        let shown = seen.status.display.clone().and_then(|display| display.progress).expect("a column");
        (
            events.map(|note| note.text).collect::<Vec<_>>(),
            condition.map(|known| (known.status.clone(), known.message.clone())),
            shown,
        )
    };
    let condition = |status: &str, message: &str| Some((status.to_owned(), message.to_owned()));
    let way_out = "to suspend without these steps: kubectl annotate tj lenet lockstep.dev/suspend-unsaved=true";
    assert_eq!(report(30, Some(20), None), (vec![], None, "15%".to_owned()));
    let full = "no checkpoint is saved since step 20: full; training goes on";
    let fails = condition("True", &format!("{full}; {way_out}"));
    assert_eq!(
        report(50, Some(20), Some(("full", false))),
        (vec![full.to_owned()], fails.clone(), "25%, 10% saved".to_owned())
    );
    assert_eq!(report(50, None, None), (vec![], fails, "25%, 10% saved".to_owned()), "another worker reports");
    let again = "no checkpoint is saved since step 20: read-only; training goes on";
    let fails = condition("True", &format!("{again}; {way_out}"));
    assert_eq!(report(60, None, Some(("read-only", false))), (vec![], fails, "30%, 10% saved".to_owned()), "once");
    let waits = "the workers wait for the storage, nothing is saved since step 20: full";
    let fails = condition("True", &format!("{waits}; they go on once the storage takes it; {way_out}"));
    let found = report(200, Some(20), Some(("full", true)));
    assert_eq!(found, (vec![waits.to_owned()], fails, "100%, 10% saved".to_owned()));
    let saved = condition("False", "the newest checkpoint holds step 200");
    assert_eq!(report(200, Some(200), None), (vec![], saved, "100%".to_owned()));
}

#[test]
fn a_waiting_suspension_names_what_it_waits_for_and_a_forced_one_names_its_losses() {
    let (job, mut seen) = situations::read("Running; to be suspended; all ready; saves fail");
    let next = plan(&job, &seen, &default_image(), now());
    let [note] = &next.events[..] else { panic!("{:?}", next.events) };
    let text = "spec.suspend: the pods stay until their state is saved. no checkpoint is saved since step 30: /c: no \
                space left; free some; training goes on; to suspend without these steps: kubectl annotate tj lenet \
                lockstep.dev/suspend-unsaved=true";
    assert_eq!((note.reason, note.warning, note.text.as_str()), ("SuspensionWaits", true, text));
    seen.status = next.status.expect("a status");
    let suspended = seen.status.conditions.iter().find(|known| known.type_ == "Suspended").expect("a condition");
    assert_eq!((suspended.status.as_str(), suspended.reason.as_str()), ("False", "SaveFailed"));
    assert_eq!(plan(&job, &seen, &default_image(), now()).events, [], "once");

    let (job, gone) = situations::read("Running; to be suspended; whatever is unsaved; saves fail");
    let next = plan(&job, &gone, &default_image(), now());
    let [note] = &next.events[..] else { panic!("{:?}", next.events) };
    let text = "no pods are left; the state of step 30 is kept; the 70 steps after it were not saved: /c: no space \
                left; free some";
    assert_eq!((note.reason, note.warning, note.text.as_str()), ("Suspended", true, text));
    let shown = next.status.and_then(|status| status.display).and_then(|display| display.progress);
    assert_eq!(shown.as_deref(), Some("15%"));
}

#[test]
fn a_worker_that_becomes_a_straggler_is_an_event() {
    let (job, mut seen) = situations::read("Running; all ready");
    let mut report = |stragglers: &[&str]| {
        let straggler = |pod: &&str| Straggler { pod: (*pod).to_owned(), times: 2.4 };
        let stragglers = stragglers.iter().map(straggler).collect();
        let progress = Some(Progress { step: 100, total_steps: 200, stragglers, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        let next = plan(&job, &seen, &default_image(), now());
        seen.status = next.status.unwrap_or_else(|| seen.status.clone());
        // Otherwise the next report would come too soon.
        seen.status.progress.as_mut().expect("progress").last_update_time = None;
        let slow = next.events.into_iter().filter(|note| note.reason == "Straggler");
        let named = seen.status.progress.clone().expect("progress").stragglers.into_iter().map(|slow| slow.pod);
        (slow.map(|note| note.text).collect::<Vec<_>>(), named.collect::<Vec<_>>())
    };
    let text = "w-1 takes 2.4 times as long for a step as most, 20 times in a row".to_owned();
    assert_eq!(report(&["w-1"]), (vec![text.clone()], vec!["w-1".to_owned()]));
    assert_eq!(report(&["w-1"]), (vec![], vec!["w-1".to_owned()]), "once");
    assert_eq!(report(&[]), (vec![], vec![]), "it is none any more");
    assert_eq!(report(&["w-1"]).0, [text], "again");
}
