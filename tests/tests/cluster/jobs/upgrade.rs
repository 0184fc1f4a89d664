//! The operator is upgraded, installed again, or loses a namespace while jobs train.

use std::time::Instant;

use lockstep_tests::{
    chart::{self, NAMESPACE, OPERATOR, RELEASE},
    cluster::{Client, wait_for},
    root,
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    history::assert_undisturbed,
    installed::{any_cluster, cluster_alone},
    job::{Job, exact, glyphs},
};

/// Epochs for more than the tests take: a million steps.
const LONG: u32 = 5000;

/// Other values of the chart until this is dropped.
struct Upgraded<'a>(&'a Client);

impl<'a> Upgraded<'a> {
    fn with(client: &'a Client, values: &[&str]) -> Self {
        let chart = root().join("charts/lockstep").display().to_string();
        let upgraded = Self(client);
        let words = ["upgrade", RELEASE, chart.as_str(), "--namespace", NAMESPACE, "--wait", "--timeout", "120s"];
        client.helm(&[&words[..], values].concat()).expect("helm upgrades");
        upgraded
    }
}

impl Drop for Upgraded<'_> {
    fn drop(&mut self) {
        if let Err(error) = chart::install(self.0) {
            eprintln!("the tests after this one have another operator: {error:#}");
        }
    }
}

fn image_of(job: &Job<'_>, pod: &str) -> String {
    job.kubectl(&["get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.spec.containers[0].image}"])
}

#[test]
fn an_upgrade_to_a_missing_image_spares_running_jobs_and_waiting_jobs_get_the_next_image() {
    let test = "an_upgrade_to_a_missing_image_spares_running_jobs_and_waiting_jobs_get_the_next_image";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let (trains, waits) = (restricted(client, "upgrade"), restricted(client, "upgraded"));
    let job = Job::apply(client, trains.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_phase("Running");
    let image = image_of(&job, "lenet-worker-1");

    let upgraded = Upgraded::with(client, &["--set", "trainer.image.tag=9.9.9"]);
    job.kubectl(&["delete", "pod", "lenet-worker-1", "--wait=false"]);
    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    let both = |now: &Value| now["replacing"].is_null() && now["readyReplicas"] == 2 && now["phase"] == "Running";
    let generation = |status: &Value| status["membership"]["generation"].as_u64();
    job.wait("both workers again", |now| both(now) && generation(now) > generation(&status));
    assert_eq!(image_of(&job, "lenet-worker-1"), image);
    let status = job.status();
    assert!(status["trainer"]["image"].as_str().is_some_and(|kept| kept.starts_with(&image)), "{status:#}");
    assert_eq!(status["failures"], 0, "{status:#}");

    let late = Job::apply(client, waits.name(), "lenet", &glyphs("lenet", 1).to_string());
    let advises = |status: &Value| status["conditions"].to_string().contains("correct trainer.image of its chart");
    late.wait("advice", advises);
    // Dropping it rolls the upgrade back.
    drop(upgraded);
    late.wait_for_phase("Complete");
    assert_eq!(late.status()["restarts"], 0);
    assert_undisturbed(&cluster, trains.name(), &job, 0);
}

/// Tells how long a step of the chart's life took.
fn timed(what: &str, step: impl FnOnce()) {
    let begun = Instant::now();
    step();
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
}

#[test]
fn a_job_trains_through_upgrade_rollback_uninstall_and_a_new_installation_of_the_chart() {
    let test = "a_job_trains_through_upgrade_rollback_uninstall_and_a_new_installation_of_the_chart";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "life");
    let job = Job::apply(client, namespace.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_step(20);
    let helm = |words: &[&str]| {
        client.helm(words).unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
    };
    let trains_on = || job.wait_for_step(job.reported_step() + 50);
    // Nothing is released yet. This is the chart as it would be with the next version's number.
    let folder = tempfile::tempdir().expect("a folder");
    let (chart, place) = (root().join("charts/lockstep"), folder.path().display().to_string());
    helm(&["package", &chart.display().to_string(), "--version", "0.1.999", "--destination", &place]);
    let next = format!("{place}/lockstep-0.1.999.tgz");
    let options = ["--namespace", NAMESPACE, "--wait", "--timeout", "120s"];
    // If the test fails on the way, the tests after it find an operator.
    let _mended = Upgraded(client);
    timed("upgrade, to two operators", || {
        helm(&[&["upgrade", RELEASE, next.as_str(), "--set", "replicas=2"][..], &options].concat());
        trains_on();
    });
    timed("rollback", || {
        helm(&[&["rollback", RELEASE][..], &options].concat());
        trains_on();
    });
    timed("uninstall", || {
        helm(&[&["uninstall", RELEASE][..], &options].concat());
        trains_on();
    });
    let changes = job.group()["status"]["changes"].take();
    assert_eq!(changes.as_array().map(Vec::len), Some(1), "workers came or went: {changes:#}");
    // The definitions stay, and with them the jobs. Nobody replaces what is lost meanwhile.
    job.kubectl(&["delete", "pod", "lenet-worker-1", "--wait=false"]);
    timed("installation", || {
        chart::install(client).expect("helm installs");
        let is_whole = |status: &Value| status["replacements"] == 1 && status["readyReplicas"] == 2;
        let status = job.wait("a replacement", |status| is_whole(status) && status["phase"] == "Running");
        assert_eq!((&status["failures"], &status["restarts"]), (&json!(0), &json!(0)), "{status:#}");
        trains_on();
    });
    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn the_operator_serves_other_namespaces_while_a_watched_namespace_is_missing() {
    let test = "the_operator_serves_other_namespaces_while_a_watched_namespace_is_missing";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let (stays, goes) = (restricted(client, "stays"), restricted(client, "goes"));
    let namespaces = format!("watchNamespaces={{{},{}}}", stays.name(), goes.name());
    let _upgraded = Upgraded::with(client, &["--set", &namespaces]);
    let gone = goes.name().to_owned();
    client.kubectl(&["delete", "namespace", &gone, "--timeout=60s"]).expect("deleted");
    // A restarted node also starts an operator that has never seen the namespace.
    client.kubectl(&["-n", NAMESPACE, "delete", "pods", "-l", OPERATOR]).expect("deleted");
    client
        .kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment", "--timeout=60s"])
        .expect("the operator is ready");
    let job = Job::apply(client, stays.name(), "lenet", &glyphs("lenet", 1).to_string());
    job.wait_for_phase("Complete");
    let log = client.kubectl(&["-n", NAMESPACE, "logs", "-l", OPERATOR, "--tail=-1"]).expect("a log");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&gone)).collect();
    assert!((1..=4).contains(&lines.len()), "one line for each kind: {lines:#?}");
    assert!(lines.iter().all(|line| line.len() < 700), "{lines:#?}");
}

#[test]
fn the_node_selection_of_a_suspended_job_can_change_before_it_begins() {
    let Some((cluster, _turn)) = any_cluster("the_node_selection_of_a_suspended_job_can_change_before_it_begins")
    else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "admitted");
    let mut manifest = glyphs("lenet", LONG);
    manifest["spec"]["suspend"] = json!(true);
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_phase("Suspended");
    let patch = |spec: Value| {
        let text = json!({ "spec": spec }).to_string();
        client.kubectl(&["-n", namespace.name(), "patch", "tj", "lenet", "--type=merge", "-p", &text])
    };
    let image = json!({"template": {"spec": {"containers": [{"name": "trainer", "image": "other"}]}}});
    let refused = patch(image).expect_err("another image").to_string();
    assert!(refused.contains("spec.template: cannot change"), "{refused}");
    let template = |node: &str| {
        json!({
            "metadata": {"labels": {"kueue.x-k8s.io/podset": "worker"}},
            "spec": {"nodeSelector": {"kubernetes.io/os": node}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        })
    };
    patch(json!({"suspend": false, "template": template("linux")})).expect("admitted");
    job.wait("the first pods", |status| status["replicas"] == 2);
    let found =
        job.kubectl(&["get", "pod", "lenet-worker-0", "-o", "jsonpath={.spec.nodeSelector} {.metadata.labels}"]);
    assert!(found.contains("linux") && found.contains("kueue.x-k8s.io/podset"), "{found}");
    let refused = patch(json!({"template": template("plan9")})).expect_err("it has begun").to_string();
    assert!(refused.contains("spec.template: cannot change"), "{refused}");
    job.delete();
}

#[test]
fn a_release_of_another_name_takes_over_existing_definitions() {
    let Some((cluster, _turn)) = any_cluster("a_release_of_another_name_takes_over_existing_definitions") else {
        return;
    };
    let chart = root().join("charts/lockstep").display().to_string();
    let words = ["install", "other", chart.as_str(), "--namespace", "default", "--dry-run=server"];
    let refused = cluster.client().helm(&words).expect_err("they belong to a release").to_string();
    assert!(
        refused.contains("trainingjobs.lockstep.dev") || refused.contains("traininggroups.lockstep.dev"),
        "{refused}"
    );
    let notes = cluster.client().helm(&[&words[..], &["--take-ownership"]].concat()).expect("taken over");
    assert!(notes.contains("--take-ownership"), "{notes}");
}

#[test]
fn a_crashing_sidecar_and_an_unresolvable_coordinator_are_reported_with_advice() {
    let test = "a_crashing_sidecar_and_an_unresolvable_coordinator_are_reported_with_advice";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "advice");
    let mut crashing = glyphs("crashing", 1);
    crashing["spec"]["template"]["spec"]["initContainers"] = json!([{
        "name": "proxy", "image": lockstep_tests::cluster::SHELL_IMAGE, "command": ["sh", "-c", "exit 3"], "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 5},
    }]);
    let mut deaf = glyphs("deaf", 1);
    // This pod cannot resolve names of the cluster.
    deaf["spec"]["template"]["spec"]["dnsPolicy"] = json!("None");
    deaf["spec"]["template"]["spec"]["dnsConfig"] = json!({"nameservers": ["192.0.2.1"]});
    let crashing = Job::apply(client, namespace.name(), "crashing", &crashing.to_string());
    let deaf = Job::apply(client, namespace.name(), "deaf", &deaf.to_string());
    let says = |status: &Value, words: &[&str]| {
        let text = status["conditions"].to_string();
        words.iter().all(|word| text.contains(word))
    };
    crashing.wait("the sidecar", |status| says(status, &["container proxy", "CrashLoopBackOff", "exit code 3"]));
    wait_for("a line in the log", PATIENCE, || {
        let log = client.kubectl(&["-n", namespace.name(), "logs", "deaf-worker-0"]).unwrap_or_default();
        log.contains("no coordinator answers")
            && log.contains(&format!("deaf-coordinator.{}.svc:7070", namespace.name()))
    })
    .expect("logged");
    let words = ["deaf-coordinator", "DNS", "dnsPolicy: ClusterFirstWithHostNet"];
    deaf.wait("the coordinator", |status| says(status, &words));
    deaf.wait_for_event(&["WorkerLost", "DNS"]);
    crashing.delete();
    deaf.delete();
}
