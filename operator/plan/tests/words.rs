//! What a plan says: the messages of conditions, and the events.

mod situations;

use jiff::SignedDuration;
use lockstep_api::{TrainingJobStatus, ValidJob};
use lockstep_launch::{CheckpointMark, DamagedCheckpoint, GroupChange, Progress, ShortGrace, Straggler, Unsaved};
use lockstep_plan::{GroupSeen, Observed, PodState, plan};
use situations::{default_image, now};

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
