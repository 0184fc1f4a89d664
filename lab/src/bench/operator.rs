//! The operator at scale: its memory, and how soon the pods of a large job exist.
//!
//! Pods are placed on nodes that exist only as objects, so the figures show the API server and the
//! controllers.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader},
    process::{Child, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use lockstep_tests::{
    chart,
    cluster::{Client, Cluster, FAKE_NODE_LABEL, Settings, ensure_packages, wait_for},
};
use serde_json::{Value, json};

use super::{
    Effort,
    load::Watch,
    median,
    record::{Book, Figure},
};
use crate::image;

const FAKE_NODES: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(180);

const JOBS: u32 = 100;
const GOAL_MIB: f64 = 30.0;

const WORKERS: u32 = 100;
/// The cluster's own controllers work too, but rest while nothing changes.
const QUIET: Duration = Duration::from_secs(2);
/// How often the machine may be busy before a figure is marked "disturbed".
const MOST_DISTURBED: usize = 30;

/// Measures resident memory with 100 jobs of two workers each, which are 300 pods.
pub(crate) fn memory(book: &mut Book, _: Effort) -> anyhow::Result<()> {
    let cluster = start()?;
    let client = cluster.client();
    let namespace = client.namespace("memory")?;
    for index in 0..JOBS {
        client.apply_to(namespace.name(), &training_job(&format!("job-{index}"), 2).to_string())?;
    }
    wait_for("all jobs to run", PATIENCE, || {
        let path = "jsonpath={.items[*].status.phase}";
        let phases = client.kubectl(&["-n", namespace.name(), "get", "tj", "-o", path]).unwrap_or_default();
        phases.split_whitespace().filter(|phase| *phase == "Running").count() >= JOBS as usize
    })?;
    let mut most: f64 = 0.0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        most = most.max(resident_mib(&cluster)?);
    }
    book.write(&Figure {
        case: "100 jobs of 2 workers, resident memory",
        unit: "MiB",
        ours: most,
        peer: None,
        goal: GOAL_MIB,
        disturbed: false,
    })
}

/// Measures the seconds from `kubectl apply` until all pods exist, against an Indexed Job.
pub(crate) fn pods(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let rounds = match effort {
        Effort::Quick => 3,
        Effort::Full => 11,
    };
    let cluster = start()?;
    let (mut ours, mut theirs, mut disturbed) = (Vec::new(), Vec::new(), false);
    for _ in 0..rounds {
        // Our job has one more pod than the peer's: the coordinator's.
        for (figures, job, pods) in [
            (&mut ours, training_job("large", WORKERS), WORKERS + 1),
            (&mut theirs, indexed_job("large", WORKERS), WORKERS),
        ] {
            disturbed |= !becomes_quiet();
            figures.push(seconds_until_pods(&cluster, &job, pods)?);
        }
    }
    book.write(&Figure {
        case: "100 workers, apply until all pods exist, median",
        unit: "s",
        ours: median(&mut ours),
        peer: Some(("Indexed Job", median(&mut theirs))),
        goal: 1.0,
        disturbed,
    })
}

/// Starts a cluster with one real node, for the operator, and fake ones for its pods.
fn start() -> anyhow::Result<Cluster> {
    Cluster::available().map_err(anyhow::Error::msg)?;
    ensure_packages()?;
    let images = image::make()?;
    let cluster = Cluster::start_guarded(Settings::benchmarks(1))?;
    for image in &images {
        cluster.load_image(&image.path)?;
    }
    cluster.fake_nodes(FAKE_NODES)?;
    chart::install(cluster.client())?;
    Ok(cluster)
}

fn resident_mib(cluster: &Cluster) -> anyhow::Result<f64> {
    let text = chart::operator_metrics(cluster.client())?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")?.parse::<f64>().ok());
    Ok(bytes.context("the operator's metrics lack its resident memory")? / f64::from(1 << 20))
}

/// Waits until the machine is idle. Returns false if it never was.
fn becomes_quiet() -> bool {
    (0..MOST_DISTURBED).any(|_| {
        let watch = Watch::start();
        thread::park_timeout(QUIET);
        !watch.disturbed(Duration::ZERO)
    })
}

fn seconds_until_pods(cluster: &Cluster, job: &Value, pods: u32) -> anyhow::Result<f64> {
    let client = cluster.client();
    let namespace = client.namespace("pods")?;
    let mut watching = watch_pods(client, namespace.name())?;
    let begun = Instant::now();
    client.apply_to(namespace.name(), &job.to_string())?;
    let mut seen = BTreeSet::new();
    while seen.len() < pods as usize {
        match watching.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
            Ok(line) => drop(seen.insert(line?)),
            // The API server ends the watch of a client that falls behind. The next watch begins
            // with the pods that exist.
            Err(RecvTimeoutError::Disconnected) if begun.elapsed() < PATIENCE => {
                watching = watch_pods(client, namespace.name())?;
            }
            Err(_) => bail!("{} of {pods} pods exist after {PATIENCE:?}", seen.len()),
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Watches for the names of pods that appear or change.
fn watch_pods(client: &Client, namespace: &str) -> anyhow::Result<Watching> {
    let mut command = client.command("kubectl");
    command.args(["-n", namespace, "get", "pods", "--watch", "--output=name"]);
    let mut kubectl = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = BufReader::new(kubectl.stdout.take().context("kubectl's output")?);
    let (sender, lines) = mpsc::channel();
    // The thread ends with kubectl's output, or once nobody listens.
    thread::spawn(move || output.lines().try_for_each(|line| sender.send(line)));
    Ok(Watching { kubectl, lines })
}

/// A kubectl that watches. Dropping it ends it.
struct Watching {
    kubectl: Child,
    lines: Receiver<io::Result<String>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

fn training_job(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "model": {"name": "lenet5"},
            "dataset": {"format": "glyphs"},
            "training": {"globalBatchSize": 1000},
            "checkpoint": {"uri": "file:///checkpoints"},
            "template": pod_template("trainer"),
        },
    })
}

fn indexed_job(name: &str, pods: u32) -> Value {
    let mut template = pod_template("peer");
    template["spec"]["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template},
    })
}

/// Returns the template of a pod for a fake node.
fn pod_template(container: &str) -> Value {
    json!({"spec": {
        "nodeSelector": {FAKE_NODE_LABEL: "fake"},
        "tolerations": [{"key": FAKE_NODE_LABEL, "operator": "Exists"}],
        "containers": [{"name": container, "image": "nowhere.invalid/nothing:1"}],
    }})
}
