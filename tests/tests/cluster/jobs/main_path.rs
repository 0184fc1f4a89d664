//! The main path: install, apply, look, delete, uninstall.

use lockstep_tests::{
    chart::{self, NAMESPACE, RELEASE},
    cluster::{Client, wait_for},
};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    answers::Lockstep,
    installed::{cluster, cluster_alone},
    job::{Job, example, glyphs},
};

#[test]
fn mnist_trains_on_two_nodes_and_leaves_nothing_behind() {
    let Some(cluster) = cluster("mnist_trains_on_two_nodes_and_leaves_nothing_behind") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "mnist");
    let before = objects_in(client, namespace.name());
    // Ten epochs may take three seconds, which are over before anybody has read the figures.
    let manifest = example("mnist.yaml");
    let longer = manifest.replace("epochs: 10\n", "epochs: 40\n");
    assert_ne!(longer, manifest, "the example has another number of epochs");
    let job = Job::apply(client, namespace.name(), "mnist", &longer);

    job.wait("figures while it runs", |status| {
        let display = &status["display"];
        status["phase"] == "Running"
            && ["progress", "samplesPerSecond", "efficiency"].iter().all(|column| display[column].is_string())
    });
    let columns = job.columns();
    let heads: Vec<&str> = columns.iter().map(|(head, _)| head.as_str()).collect();
    assert_eq!(
        heads,
        ["NAME", "PHASE", "WORKERS", "PROGRESS", "SAMPLES/S", "EFFICIENCY", "RESTARTS", "AGE"],
        "{columns:?}"
    );
    let mut nodes = job.nodes_of_workers();
    nodes.dedup();
    assert_eq!(nodes.len(), 2, "the workers run on {nodes:?}");

    let status = job.wait_for_phase("Complete");
    let accuracy = status["progress"]["accuracy"].as_f64().expect("an accuracy");
    assert!(accuracy >= 0.97, "accuracy {accuracy}");
    assert!(status["modelUri"].as_str().is_some_and(|uri| uri.ends_with("model.safetensors")), "{status:#}");
    assert_eq!(status["restarts"], 0, "{status:#}");
    let communication = &status["progress"]["communication"];
    let transport = [&communication["link"], &communication["wire"]].map(serde_json::Value::as_str);
    assert_eq!(transport, [Some("tcp"), Some("f32")], "{status:#}");
    for event in ["Created", "Started", "CheckpointSaved", "Complete"] {
        job.wait_for_event(&[&format!("Normal  {event} ")]);
    }
    let workers = job.columns().into_iter().find(|(head, _)| head == "WORKERS").map(|(_, shown)| shown);
    assert_eq!(workers.as_deref(), Some("2/2"), "the workers of a complete job");
    // No worker runs that could send its metrics log: the logs of the pods tell the curves.
    Lockstep::of(client, namespace.name(), "mnist").assert_that_plot_has_curves();

    job.kubectl(&["delete", "tj", "mnist", "--timeout=60s"]);
    wait_for("the job's objects to be gone", PATIENCE, || {
        objects_in(client, namespace.name()).iter().all(|object| before.contains(object) || outlives_the_job(object))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", objects_in(client, namespace.name())));
}

/// Installs Lockstep again when this is dropped.
struct Uninstalled<'a>(&'a Client);

impl<'a> Uninstalled<'a> {
    fn from(client: &'a Client) -> Self {
        let uninstalled = Self(client);
        client.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).expect("helm uninstalls");
        uninstalled
    }
}

impl Drop for Uninstalled<'_> {
    fn drop(&mut self) {
        if let Err(error) = chart::install(self.0) {
            eprintln!("the tests after this one lack Lockstep: {error:#}");
        }
    }
}

#[test]
fn uninstalling_keeps_definitions_and_running_jobs() {
    let Some(cluster) = cluster_alone("uninstalling_keeps_definitions_and_running_jobs") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "uninstall");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_phase("Running");

    let uninstalled = Uninstalled::from(client);
    let kept = client.kubectl(&["get", "crd", "-o", "name"]).expect("definitions");
    for kind in ["trainingjobs", "traininggroups"] {
        assert!(kept.contains(&format!("{kind}.lockstep.dev")), "{kept}");
    }
    assert_eq!(job.phase(), "Running");
    job.wait_for_step(job.reported_step() + 50);

    drop(uninstalled);
    let progress = job.status()["progress"]["step"].as_u64();
    let status = job.wait("the new operator's status", |status| status["progress"]["step"].as_u64() > progress);
    assert_eq!(status["restarts"], 0, "{status:#}");
}

/// Returns every object in a namespace that a job could have made, by kind and name.
fn objects_in(client: &Client, namespace: &str) -> Vec<String> {
    let kinds = "all,trainingjobs,traininggroups,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,\
                 persistentvolumeclaims,leases,endpointslices";
    let listed = client.kubectl(&["-n", namespace, "get", kinds, "-o", "name"]).expect("a list");
    listed.lines().map(str::to_owned).collect()
}

/// Returns true for the claim of the checkpoints, which outlives the job.
fn outlives_the_job(object: &str) -> bool {
    object == "persistentvolumeclaim/checkpoints"
}
