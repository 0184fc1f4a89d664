//! The limits of a job and what stays of it: another controller, the deadline, the time to live,
//! the pods that are kept, the status that somebody edits, and the scale that an autoscaler sets.

use lockstep_tests::cluster::wait_for;
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    installed::any_cluster,
    job::{Job, glyphs},
};

fn with(name: &str, epochs: u32, field: &str, value: Value) -> Value {
    let mut manifest = glyphs(name, epochs);
    manifest["spec"][field] = value;
    manifest
}

#[test]
fn each_job_keeps_its_own_limits_and_leaves_the_pods_that_its_policy_names() {
    let test = "each_job_keeps_its_own_limits_and_leaves_the_pods_that_its_policy_names";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "limits");
    let apply = |name: &'static str, manifest: Value| Job::apply(client, namespace.name(), name, &manifest.to_string());
    let foreign = apply("foreign", with("foreign", 1, "managedBy", json!("example.com/another")));
    let late = apply("late", with("late", 5000, "activeDeadlineSeconds", json!(20)));
    let all = apply("all", with("all", 1, "cleanPodPolicy", json!("All")));
    let none = apply("none", with("none", 1, "cleanPodPolicy", json!("None")));
    let short = apply("short", with("short", 1, "ttlSecondsAfterFinished", json!(1)));

    let pods = |name: &str| {
        let of_job = format!("lockstep.dev/job-name={name}");
        let words = ["-n", namespace.name(), "get", "pods", "-l", &of_job, "-o", "name"];
        client.kubectl(&words).expect("pods").lines().count()
    };
    none.wait_for_phase("Complete");
    assert_eq!(pods("none"), 3, "cleanPodPolicy None");
    all.wait_for_phase("Complete");
    wait_for("cleanPodPolicy All", PATIENCE, || pods("all") == 0).unwrap_or_else(|error| panic!("{error}"));

    let words = ["-n", namespace.name(), "get", "tj", "-o", "name"];
    let is_gone = || !client.kubectl(&words).expect("jobs").contains("/short");
    wait_for("the end of the time to live", PATIENCE, is_gone).unwrap_or_else(|_| panic!("{}", short.describe()));
    wait_for("its pods to go with it", PATIENCE, || pods("short") == 0).unwrap_or_else(|error| panic!("{error}"));

    let status = late.wait_for_phase("Failed");
    assert_eq!(status["reason"], "DeadlineExceeded", "{status:#}");
    let is_left = |pod: &str| late.kubectl(&["get", "pods", "--field-selector=status.phase=Running"]).contains(pod);
    wait_for("its pods to end", PATIENCE, || !is_left("late-")).unwrap_or_else(|error| panic!("{error}"));

    assert_eq!((foreign.status(), pods("foreign")), (Value::Null, 0), "another controller's job");
}

#[test]
fn an_autoscaler_scales_a_job_and_an_edited_status_is_mended() {
    let test = "an_autoscaler_scales_a_job_and_an_edited_status_is_mended";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "scale");
    let elastic = with("lenet", 5000, "elastic", json!({"minReplicas": 1, "maxReplicas": 4}));
    let job = Job::apply(client, namespace.name(), "lenet", &elastic.to_string());
    job.wait("both workers", |status| status["readyReplicas"] == 2);

    let path = format!("/apis/lockstep.dev/v1alpha1/namespaces/{}/trainingjobs/lenet/scale", namespace.name());
    let scale: Value = serde_json::from_str(&job.kubectl(&["get", "--raw", &path])).expect("a scale");
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(2), &json!(2)), "{scale:#}");
    let selector = scale["status"]["selector"].as_str().expect("a selector is a text");
    let selected = job.kubectl(&["get", "pods", "-l", selector, "-o", "name"]);
    assert_eq!(selected.lines().count(), 2, "{selector}: {selected}");
    assert!(selected.lines().all(|pod| pod.contains("lenet-worker-")), "{selected}");

    let edited = json!({"status": {"replicas": 77, "readyReplicas": 77, "selector": "a=b", "phase": "Pending"}});
    job.kubectl(&["patch", "tj", "lenet", "--subresource=status", "--type=merge", "-p", &edited.to_string()]);
    job.wait("a mended status", |status| {
        (&status["replicas"], &status["readyReplicas"], &status["phase"]) == (&json!(2), &json!(2), &json!("Running"))
            && status["selector"].as_str() == Some(selector)
    });

    // Without metrics, Kubernetes' own autoscaler only keeps a job between its bounds.
    let between = |least: u32, most: u32| {
        let autoscaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "lenet"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob", "name": "lenet"},
                "minReplicas": least, "maxReplicas": most,
            },
        });
        client.apply_to(namespace.name(), &autoscaler.to_string()).expect("an autoscaler");
    };
    let workers = |count: u64| {
        job.wait("the autoscaler's number of workers", |status| {
            status["membership"]["worldSize"] == count && status["replicas"] == count
        });
    };
    between(3, 4);
    workers(3);
    between(1, 1);
    workers(1);
}
