//! A training job on a cluster, as kubectl shows it.

use std::{cell::RefCell, time::Duration};

use jiff::Timestamp;
use kube::api::ApiResource;
use lockstep_api::{TrainingGroup, TrainingJob, ValidJob};
use lockstep_launch::{Task, Workload};
use lockstep_tests::{
    cluster::{Client, wait_for},
    root,
};
use serde_json::{Value, json};

use crate::reader::Reader;

/// The longest time that a job of these tests takes, even on busy cores.
const PATIENCE: Duration = Duration::from_secs(180);

/// LeNet-5 on glyphs: two workers that save a checkpoint every second.
pub(crate) fn glyphs(name: &str, epochs: u32) -> Value {
    json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "model": {"name": "lenet5"},
            "dataset": {"format": "glyphs", "samples": 2000},
            "training": {"epochs": epochs, "globalBatchSize": 64, "seed": 7},
            "checkpoint": {"uri": "file:///checkpoints", "intervalSeconds": 1},
            "template": {"spec": {
                "containers": [{
                    "name": "trainer",
                    "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
                }],
                "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
            }},
        },
    })
}

/// A job with steps of 8 samples. Its states are the same bits whatever happens to it and however
/// many workers train.
pub(crate) fn exact(name: &str, epochs: u32) -> Value {
    let mut manifest = glyphs(name, epochs);
    manifest["spec"]["communication"] = json!({"algorithm": "canonicalTree"});
    manifest["spec"]["training"]["globalBatchSize"] = json!(8);
    manifest
}

/// Steps for the 1,800 samples of [`exact`] that are not held out.
pub(crate) const EXACT_STEPS_PER_EPOCH: u64 = 225;

/// Returns a manifest of deploy/examples.
pub(crate) fn example(name: &str) -> String {
    let path = root().join("deploy/examples").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A job that was applied.
pub(crate) struct Job<'a> {
    client: &'a Client,
    reader: Reader,
    namespace: &'a str,
    name: &'a str,
    /// Each reported step that was further than all before, and the time at which it was first
    /// seen.
    reported: RefCell<Vec<(Timestamp, u64)>>,
}

impl<'a> Job<'a> {
    /// Applies the claim for checkpoints and a manifest whose job is called `name`.
    pub(crate) fn apply(client: &'a Client, namespace: &'a str, name: &'a str, manifest: &str) -> Self {
        let job = Self {
            client,
            reader: Reader::of(client).expect("a cluster"),
            namespace,
            name,
            reported: RefCell::default(),
        };
        for text in [example("checkpoints.yaml").as_str(), manifest] {
            client.apply_to(namespace, text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
        job
    }

    /// Runs kubectl in the job's namespace.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        let words = [&["-n", self.namespace][..], words].concat();
        self.client.kubectl(&words).unwrap_or_else(|error| panic!("{error:#}"))
    }

    pub(crate) fn status(&self) -> Value {
        self.object()["status"].take()
    }

    /// Returns the workload of the job.
    pub(crate) fn workload(&self) -> Workload {
        let object = serde_json::from_value(self.object()).expect("a training job");
        match ValidJob::from_object(&object).expect("a valid job").task {
            Task::Train(workload) => *workload,
            Task::Benchmark { .. } => panic!("a benchmark trains nothing"),
        }
    }

    /// Deletes the job. Its volume stays.
    pub(crate) fn delete(&self) {
        self.kubectl(&["delete", "trainingjob", self.name, "--wait=false"]);
    }

    fn object(&self) -> Value {
        self.read::<TrainingJob>().expect("it was applied")
    }

    /// Returns the job's record.
    pub(crate) fn group(&self) -> Value {
        self.read::<TrainingGroup>().expect("a record")
    }

    /// Returns the object of a kind that has the job's name.
    fn read<Kind: kube::Resource<DynamicType = ()>>(&self) -> Option<Value> {
        let kind = ApiResource::erase::<Kind>(&());
        self.reader.object(&kind, self.namespace, self.name).unwrap_or_else(|error| panic!("{}: {error:#}", self.name))
    }

    pub(crate) fn phase(&self) -> String {
        self.status()["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the step that the coordinator last reported, 0 before there is a record. The
    /// operator has no part in it.
    pub(crate) fn reported_step(&self) -> u64 {
        let step = self.read::<TrainingGroup>().and_then(|group| group["status"]["progress"]["step"].as_u64());
        let last = self.reported.borrow().last().map(|(_, last)| *last);
        if let Some(step) = step.filter(|step| last < Some(*step)) {
            self.reported.borrow_mut().push((Timestamp::now(), step));
        }
        step.unwrap_or_default()
    }

    /// Returns the steps that [`Self::reported_step`] saw, each further than those before.
    pub(crate) fn reported_steps(&self) -> Vec<(Timestamp, u64)> {
        self.reported.borrow().clone()
    }

    /// Waits until the status satisfies a condition. Panics with the whole job if it ends before.
    pub(crate) fn wait(&self, what: &str, mut holds: impl FnMut(&Value) -> bool) -> Value {
        let mut status = Value::Null;
        let mut over = false;
        let waited = wait_for(what, PATIENCE, || {
            self.reported_step();
            status = self.status();
            over = matches!(status["phase"].as_str(), Some("Complete" | "Failed"));
            holds(&status) || over
        });
        if waited.is_err() || !holds(&status) {
            panic!("no {what} of {}: {status:#}\n{}", self.name, self.describe());
        }
        status
    }

    pub(crate) fn wait_for_phase(&self, phase: &str) -> Value {
        self.wait(phase, |status| status["phase"] == phase)
    }

    /// Waits until the coordinator reports a step.
    pub(crate) fn wait_for_step(&self, step: u64) {
        wait_for("a step", PATIENCE, || self.reported_step() >= step)
            .unwrap_or_else(|error| panic!("{error} {step}\n{}", self.describe()));
    }

    /// Returns the columns of `kubectl get tj` by their headings.
    pub(crate) fn columns(&self) -> Vec<(String, String)> {
        let table = self.kubectl(&["get", "tj", self.name]);
        let mut lines = table.lines().map(|line| line.split_whitespace().map(str::to_owned));
        let (heads, cells) = (lines.next().expect("headings"), lines.next().expect("a row"));
        heads.zip(cells).collect()
    }

    pub(crate) fn describe(&self) -> String {
        self.kubectl(&["describe", "tj", self.name]) + &self.kubectl(&["get", "pods", "-o", "wide"])
    }

    /// Waits for an event with all of these words. Events follow the status that they report.
    pub(crate) fn wait_for_event(&self, words: &[&str]) {
        wait_for(&format!("{words:?}"), PATIENCE, || {
            self.describe().lines().any(|line| words.iter().all(|word| line.contains(word)))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.describe()));
    }

    pub(crate) fn uid_of(&self, pod: &str) -> String {
        self.kubectl(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])
    }

    /// Returns the node of each worker.
    pub(crate) fn nodes_of_workers(&self) -> Vec<String> {
        let words = ["get", "pods", "-l", &self.workers(), "-o", "jsonpath={.items[*].spec.nodeName}"];
        self.kubectl(&words).split_whitespace().map(str::to_owned).collect()
    }

    fn workers(&self) -> String {
        format!("lockstep.dev/job-name={},lockstep.dev/role=worker", self.name)
    }
}
