//! Pods of operator and job are killed while the job trains.

use jiff::Timestamp;
use lockstep_tests::{
    chart::{NAMESPACE, OPERATOR},
    cluster::{Client, wait_for},
};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    answers::Lockstep,
    history::{assert_no_step_was_lost, assert_undisturbed, steps_between},
    installed::{cluster, cluster_alone},
    job::{Job, exact},
};

/// Epochs of a job that no machine finishes before one of its pods is killed: a million steps.
const LONG: u32 = 5000;

#[test]
fn training_goes_on_while_the_operator_is_killed_and_the_next_one_takes_over() {
    let test = "training_goes_on_while_the_operator_is_killed_and_the_next_one_takes_over";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "operator");
    let job = Job::apply(client, namespace.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_step(20);

    let killed = operator(client);
    // A forced deletion leaves the process no time to give up its lease.
    client
        .kubectl(&["-n", NAMESPACE, "delete", "pod", &killed, "--grace-period=0", "--force"])
        .expect("the pod is deleted");
    let gone = Timestamp::now();
    wait_for("the next operator to be ready", PATIENCE, || ready_operator(client).is_some_and(|next| next != killed))
        .expect("ready");
    let (ready, after) = (Timestamp::now(), job.reported_step());

    let progress = job.status()["progress"]["step"].as_u64();
    let status = job.wait("the next operator's status", |status| status["progress"]["step"].as_u64() > progress);
    assert_eq!((&status["restarts"], &status["failures"]), (&0.into(), &0.into()), "{status:#}");
    assert_undisturbed(&cluster, namespace.name(), &job, after);
    let done = steps_between(&cluster, namespace.name(), gone, ready);
    assert!(done > 0, "no step from {gone} to {ready}, while no operator ran");
}

#[test]
fn a_killed_worker_is_named_and_replaced_while_the_other_keeps_the_state() {
    let Some(cluster) = cluster("a_killed_worker_is_named_and_replaced_while_the_other_keeps_the_state") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "worker");
    let job = Job::apply(client, namespace.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_step(20);
    let survivor = job.uid_of("lenet-worker-0");
    let lockstep = Lockstep::of(client, namespace.name(), "lenet");
    let logs = lockstep.follow();
    logs.wait_for(&["worker-0 ", "worker-1 ", "coordinator ", "group formed"]);
    cluster.kill_container(namespace.name(), "lenet-worker-1").expect("killed");

    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    assert_eq!((&status["restarts"], &status["failures"]), (&0.into(), &1.into()), "{status:#}");
    let failure = &status["lastFailure"];
    assert_eq!((&failure["pod"], &failure["exitCode"]), (&"lenet-worker-1".into(), &137.into()), "{status:#}");
    let status =
        job.wait("both workers again", |now| now["replacing"].is_null() && generation(now) > generation(&status));
    assert_eq!(job.uid_of("lenet-worker-0"), survivor, "the other pod was replaced");
    let change = status["membership"]["lastChange"]["text"].as_str().unwrap_or_default();
    assert!(change.contains("lenet-worker-1 was lost") && change.contains("goes on from step"), "{status:#}");
    for event in ["WorkerLost", "WorkerReplaced", "Resized"] {
        job.wait_for_event(&[event]);
    }
    logs.wait_for(&["worker-1    -- another pod takes its place"]);
    lockstep.assert_that_both_workers_train();
    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn a_worker_that_hangs_is_replaced() {
    let Some(cluster) = cluster("a_worker_that_hangs_is_replaced") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "hung");
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1.into();
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    // A worker that was never ready counts as lost, not as failed.
    job.wait("both workers to be ready", |status| status["phase"] == "Running");
    cluster.freeze_container(namespace.name(), "lenet-worker-1").expect("frozen");

    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    assert_eq!((&status["restarts"], &status["failures"]), (&0.into(), &1.into()), "{status:#}");
    assert_eq!(status["lastFailure"]["reason"], "Hung", "{status:#}");
    job.wait("both workers again", |now| now["replacing"].is_null() && generation(now) > generation(&status));
    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn a_killed_worker_beyond_the_limit_ends_the_job_and_is_named() {
    let Some(cluster) = cluster("a_killed_worker_beyond_the_limit_ends_the_job_and_is_named") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "limit");
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["failurePolicy"] = serde_json::json!({"backoffLimit": 0});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    cluster.kill_container(namespace.name(), "lenet-worker-0").expect("killed");

    let status = job.wait_for_phase("Failed");
    let condition = condition(&status, "Failed");
    assert_eq!(condition["reason"], "BackoffLimitExceeded", "{status:#}");
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(message.contains("backoffLimit is 0") && message.contains("lenet-worker-0"), "{message}");
    assert_no_step_was_lost(&cluster, namespace.name(), &job);
}

#[test]
fn a_deleted_worker_counts_as_lost_not_as_failed() {
    let Some(cluster) = cluster("a_deleted_worker_counts_as_lost_not_as_failed") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "deleted");
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["failurePolicy"] = serde_json::json!({"backoffLimit": 0});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    job.kubectl(&["delete", "pod", "lenet-worker-1", "--wait=false"]);

    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    assert_eq!(status["failures"], 0, "{status:#}");
    assert_eq!(status["lastFailure"]["pod"], "lenet-worker-1", "{status:#}");
    job.wait("both workers again", |now| now["replacing"].is_null() && generation(now) > generation(&status));
    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn a_killed_coordinator_is_replaced_while_training_goes_on() {
    let Some(cluster) = cluster("a_killed_coordinator_is_replaced_while_training_goes_on") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "coordinator");
    let job = Job::apply(client, namespace.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_step(20);
    cluster.kill_container(namespace.name(), "lenet-coordinator").expect("killed");

    wait_for("the event", PATIENCE, || job.describe().contains("lenet-coordinator is replaced"))
        .unwrap_or_else(|error| panic!("{error}\n{}", job.describe()));
    let last = job.reported_step();
    let status = job.wait("the report of a later step", |status| status["progress"]["step"].as_u64() > Some(last));
    assert_eq!((&status["restarts"], &status["failures"]), (&0.into(), &0.into()), "{status:#}");
    assert_undisturbed(&cluster, namespace.name(), &job, last + 1);
}

#[test]
fn a_coordinator_that_hangs_or_is_disconnected_is_replaced_while_training_goes_on() {
    let test = "a_coordinator_that_hangs_or_is_disconnected_is_replaced_while_training_goes_on";
    let Some(cluster) = cluster(test) else { return };
    let client = cluster.client();
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1.into();
    let (hung, lonely) = (restricted(client, "hung"), restricted(client, "lonely"));
    let jobs = [&hung, &lonely].map(|space| Job::apply(client, space.name(), "lenet", &manifest.to_string()));
    jobs.iter().for_each(|job| job.wait_for_step(20));
    cluster.freeze_container(hung.name(), "lenet-coordinator").expect("frozen");
    cluster.cut_off(lonely.name(), "lenet-coordinator").expect("cut off");

    for (job, namespace) in jobs.iter().zip([&hung, &lonely]) {
        wait_for("the event", 2 * PATIENCE, || job.describe().contains("lenet-coordinator is replaced"))
            .unwrap_or_else(|error| panic!("{error}\n{}", job.describe()));
        let last = job.reported_step();
        let status = job.wait("the report of a later step", |status| status["progress"]["step"].as_u64() > Some(last));
        let counts = ["restarts", "replacements", "failures"].map(|count| &status[count]);
        assert_eq!(counts, [&0, &0, &0], "{status:#}");
        assert_no_step_was_lost(&cluster, namespace.name(), job);
    }
}

#[test]
fn a_worker_that_runs_out_of_memory_in_mid_run_is_named_and_replaced() {
    let Some(cluster) = cluster("a_worker_that_runs_out_of_memory_in_mid_run_is_named_and_replaced") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "oom");
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] =
        serde_json::json!({"limits": {"memory": "256Mi"}});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    cluster.exhaust_memory(namespace.name(), "lenet-worker-1").expect("killed by the kernel");

    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    assert_eq!((&status["restarts"], &status["failures"]), (&0.into(), &1.into()), "{status:#}");
    let failure = &status["lastFailure"];
    assert_eq!((&failure["pod"], &failure["reason"]), (&"lenet-worker-1".into(), &"OOMKilled".into()), "{status:#}");
    job.wait("both workers again", |now| now["replacing"].is_null() && generation(now) > generation(&status));
    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

/// Returns the generation that trains.
fn generation(status: &serde_json::Value) -> Option<u64> {
    status["membership"]["generation"].as_u64()
}

fn condition<'a>(status: &'a serde_json::Value, type_: &str) -> &'a serde_json::Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap_or(&serde_json::Value::Null)
}

/// Returns the operator's pod that is not being deleted.
fn operator(client: &Client) -> String {
    ready_operator(client).expect("an operator is ready")
}

fn ready_operator(client: &Client) -> Option<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp} \
                {.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";
    let listed = client.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", OPERATOR, "-o", path]).ok()?;
    listed.lines().find_map(|line| line.strip_suffix("  True").map(str::to_owned))
}
