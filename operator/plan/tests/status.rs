//! Facts of a status that follow from a job's history: its resizes, its best checkpoint, and the
//! nodes that it avoids.

mod situations;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::{ExcludedNode, JobMembership, TrainingJobStatus, ValidJob};
use lockstep_launch::{BestMark, BestMetric, GroupChange, Progress};
use lockstep_plan::{Child, GroupSeen, JobPlan, Observed, plan};
use situations::{default_image, now, read};

fn next(job: &ValidJob, seen: &Observed) -> JobPlan {
    plan(job, seen, &default_image(), now())
}

/// Returns the status after a plan, whether it changed or not.
fn status(job: &ValidJob, seen: &Observed) -> TrainingJobStatus {
    next(job, seen).status.unwrap_or_else(|| seen.status.clone())
}

fn condition<'a>(status: &'a TrainingJobStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns a job that trains with `world` workers.
fn trains_with(world: u32, situation: &str) -> (ValidJob, Observed) {
    let (job, mut seen) = read(situation);
    seen.status.membership = Some(JobMembership { generation: 3, world_size: world, last_change: None });
    (job, seen)
}

#[test]
fn a_job_is_resizing_while_its_group_does_not_have_the_workers_that_it_is_to_have() {
    let running = "elastic 1 to 8; Running; reported 1 s ago; all ready";
    for (world, wants, message) in [
        (2, "wants 3", "the group goes from 2 to 3 workers"),
        (2, "wants 1", "the group goes from 2 to 1 workers"),
        (1, "wants 1", "1 workers that the group does not need any more have yet to end"),
    ] {
        let (job, seen) = trains_with(world, &format!("{wants}; {running}"));
        let status = status(&job, &seen);
        let resizing = condition(&status, "Resizing").expect("a condition");
        assert_eq!((resizing.status.as_str(), resizing.message.as_str()), ("True", message), "{wants}");
    }
}

#[test]
fn a_resize_ends_with_the_last_worker_and_with_the_job() {
    let running = "elastic 1 to 8; Running; reported 1 s ago; all ready";
    let (job, seen) = trains_with(1, running);
    let during = status(&job, &seen);
    assert_eq!(condition(&during, "Resizing").expect("a condition").status, "True");
    for (situation, reason, message) in
        [(running, "GroupComplete", "the group has 2 workers"), ("Running; all done", "NoGroup", "no worker trains")]
    {
        let (job, mut seen) = read(situation);
        seen.status.conditions.clone_from(&during.conditions);
        seen.status.membership = Some(JobMembership { generation: 4, world_size: 2, last_change: None });
        let after = status(&job, &seen);
        let resizing = condition(&after, "Resizing").expect("a condition");
        assert_eq!((resizing.status.as_str(), resizing.reason.as_str()), ("False", reason));
        assert_eq!(resizing.message, message);
    }
}

#[test]
fn a_job_whose_group_never_changed_does_not_speak_of_resizes() {
    let (job, seen) = trains_with(2, "Running; reported 1 s ago; all ready");
    assert_eq!(condition(&status(&job, &seen), "Resizing"), None);
    let (job, seen) = read("Pending; all running");
    assert_eq!(condition(&status(&job, &seen), "Resizing"), None);
}

fn change(generation: u64, workers: u32) -> GroupChange {
    GroupChange { generation, workers, ..GroupChange::default() }
}

#[test]
fn each_change_of_a_group_that_exists_counts_once_as_a_resize() {
    let (job, mut seen) = read("Running; all ready");
    seen.group = Some(GroupSeen { changes: vec![change(1, 2), change(2, 1), change(3, 2)], ..GroupSeen::default() });
    let first = status(&job, &seen);
    assert_eq!(first.resizes, 2, "the first group is no change");
    seen.status = first;
    assert_eq!(status(&job, &seen).resizes, 2);
    seen.group.as_mut().expect("a record").changes.push(change(4, 1));
    assert_eq!(status(&job, &seen).resizes, 3);
}

#[test]
fn the_best_checkpoint_stays_until_a_better_one_is_reported() {
    let best = |value: f64| BestMark {
        step: 40,
        uri: "file:///c/step-40".into(),
        time: "2026-11-28T06:00:00Z".into(),
        metric: BestMetric::Accuracy,
        value,
    };
    let (job, mut seen) = read("Running; all ready");
    let mut report = |step, best_checkpoint| {
        let progress = Some(Progress { step, total_steps: 100, best_checkpoint, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        seen.status.progress = None;
        seen.status = status(&job, &seen);
        seen.status.best_checkpoint.clone().map(|best| best.value)
    };
    assert_eq!(report(50, Some(best(0.9))), Some(0.9));
    assert_eq!(report(60, None), Some(0.9), "the reporting worker is new and has not looked yet");
    assert_eq!(report(70, Some(best(f64::NAN))), Some(0.9));
    assert_eq!(report(80, Some(best(0.95))), Some(0.95));
}

#[test]
fn figures_have_six_digits_and_an_infinite_one_leaves_the_last() {
    let (job, mut seen) = read("Running; all ready");
    let mut loss = |loss| {
        let progress = Some(Progress { step: 50, total_steps: 100, loss: Some(loss), ..Progress::default() });
        seen.group = Some(GroupSeen { progress, ..GroupSeen::default() });
        seen.status = status(&job, &seen);
        seen.status.progress.as_ref().and_then(|progress| progress.loss)
    };
    assert_eq!(loss(8.710_793_086_460_658e-5), Some(8.71079e-5));
    assert_eq!(loss(f64::INFINITY), Some(8.71079e-5));
}

#[test]
fn figures_of_a_group_do_not_hold_for_the_next_one() {
    let (job, mut seen) = read("Running; all ready");
    let mut balance = |generation, load_balance, changes: &[GroupChange]| {
        let progress = Some(Progress { step: 50, total_steps: 100, generation, load_balance, ..Progress::default() });
        seen.group = Some(GroupSeen { progress, changes: changes.to_vec(), ..GroupSeen::default() });
        seen.status = status(&job, &seen);
        let progress = seen.status.progress.as_mut().expect("a report");
        // The next report comes long after this one.
        progress.last_update_time = None;
        progress.load_balance
    };
    let changes = [change(1, 2), change(2, 1)];
    assert_eq!(balance(1, Some(0.5), &changes[..1]), Some(0.5));
    assert_eq!(balance(1, None, &changes), Some(0.5), "the new group has not reported yet");
    assert_eq!(balance(2, None, &changes), None);
}

fn lost(node: &str, losses: u32, minutes_ago: i64) -> ExcludedNode {
    let last_loss = Time(now() - SignedDuration::from_mins(minutes_ago));
    ExcludedNode { node: node.into(), losses, last_loss }
}

#[test]
fn the_losses_of_a_node_are_counted_for_an_hour() {
    let (job, mut seen) = read("Running; all ready; worker 1 unreachable");
    seen.status.excluded_nodes = vec![lost("node-a", 1, 59), lost("node-b", 7, 60)];
    assert_eq!(status(&job, &seen).excluded_nodes, [lost("node-a", 2, 0)]);
    seen.status.excluded_nodes = vec![lost("node-a", 1, 61)];
    assert_eq!(status(&job, &seen).excluded_nodes, [lost("node-a", 1, 0)]);
}

#[test]
fn the_pods_that_a_node_takes_with_it_are_one_loss_though_they_are_seen_one_by_one() {
    let (job, mut seen) = read("Running; all ready; worker 1 unreachable");
    seen.status.excluded_nodes = vec![lost("node-a", 1, 0)];
    assert_eq!(status(&job, &seen).excluded_nodes, [lost("node-a", 1, 0)]);
}

#[test]
fn an_eviction_or_a_crash_is_no_loss_of_the_node() {
    for end in ["evicted", "exited 1", "disrupted", "out of memory"] {
        let (job, seen) = read(&format!("Running; all ready; worker 1 {end}"));
        assert_eq!(status(&job, &seen).excluded_nodes, [], "{end}");
    }
}

#[test]
fn new_pods_avoid_a_node_that_was_lost_twice() {
    let preferences = |excluded: Vec<ExcludedNode>| {
        let (job, mut seen) = read("Running; all ready; no worker 1; lost worker 1 gone 5 s ago");
        seen.status.excluded_nodes = excluded;
        let made = next(&job, &seen).create;
        let pod = made.into_iter().find_map(|child| if let Child::Pod(pod) = child { Some(*pod) } else { None });
        let pod = serde_json::to_value(pod.expect("a pod")).expect("JSON");
        let path = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        pod.pointer(path).cloned().unwrap_or_default()
    };
    let avoids = |node: &str| serde_json::json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    assert_eq!(preferences(vec![lost("node-a", 1, 5)]), serde_json::Value::Null);
    assert_eq!(preferences(vec![lost("node-a", 2, 60)]), serde_json::Value::Null, "an hour later it is forgotten");
    assert_eq!(
        preferences(vec![lost("node-a", 2, 5), lost("node-b", 1, 4), lost("node-c", 3, 3)]),
        serde_json::json!([{"weight": 100, "preference": {"matchFields": [avoids("node-a"), avoids("node-c")]}}])
    );
}
