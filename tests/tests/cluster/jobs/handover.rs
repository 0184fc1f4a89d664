//! Operators that hand the lead over, a hundred times, while jobs change. The API server's audit
//! log says who wrote what.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use kube::api::{ApiResource, GroupVersionKind};
use lockstep_tests::{
    chart::NAMESPACE,
    cluster::{Client, Cluster, Request, wait_for},
    products,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{pods::restricted, reader::Reader, shared::PATIENCE};

use super::{installed::cluster_alone, job::glyphs};

const LEASE: &str = "handover";
const OPERATORS: usize = 4;
const HANDOVERS: usize = 100;
/// Every so often the leader is paused until another one leads, and goes on afterwards: it must
/// write nothing more. That takes as long as the lease.
const PAUSED_EVERY: usize = 50;
const JOBS: usize = 8;
/// Fewer changes of the leaders would show nothing.
const LEAST_WRITES: usize = 2 * JOBS;

/// An operator outside of any pod, with an account of its own.
struct Operator<'a> {
    cluster: &'a Cluster,
    name: String,
    kubeconfig: PathBuf,
    namespace: &'a str,
    port: u16,
    child: Child,
}

impl<'a> Operator<'a> {
    fn start(cluster: &'a Cluster, namespace: &'a str, number: usize, folder: &Path) -> Self {
        let name = format!("operator-{number}");
        let kubeconfig = folder.join(format!("{name}.kubeconfig"));
        fs::write(&kubeconfig, of_account(cluster.client(), namespace, &name)).expect("written");
        let port = 18_080 + number as u16;
        let child = spawn(cluster, namespace, &name, &kubeconfig, port);
        Self { cluster, name, kubeconfig, namespace, port, child }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    /// Waits for its end, and starts it again.
    fn again(&mut self) {
        self.child.wait().expect("a child");
        self.child = spawn(self.cluster, self.namespace, &self.name, &self.kubeconfig, self.port);
    }
}

impl Drop for Operator<'_> {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(cluster: &Cluster, namespace: &str, name: &str, kubeconfig: &Path, port: u16) -> Child {
    let program = products().join("lockstep-operator");
    let mut command = cluster.inside(program.to_str().expect("UTF-8"));
    command.env("KUBECONFIG", kubeconfig).args(["--trainer-image", "none", "--namespace", namespace]);
    command.args(["--lease-namespace", namespace, "--lease-name", LEASE]).env("POD_NAME", name);
    command.arg(format!("--listen=127.0.0.1:{port}")).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("an operator starts")
}

/// Makes an account with the operator's rights, and returns a kubeconfig for it.
fn of_account(client: &Client, namespace: &str, name: &str) -> String {
    let kubectl = |words: &[&str]| client.kubectl(&[&["-n", namespace], words].concat()).expect("kubectl");
    kubectl(&["create", "serviceaccount", name]);
    // Which rights the operator needs is the matter of another test.
    let account = format!("--serviceaccount={namespace}:{name}");
    kubectl(&["create", "rolebinding", name, "--clusterrole=cluster-admin", &account]);
    let token = kubectl(&["create", "token", name, "--duration=1h"]);
    let mut config: Value =
        serde_json::from_str(&kubectl(&["config", "view", "--raw", "--minify", "-o", "json"])).expect("JSON");
    config["clusters"][0]["cluster"]["server"] = json!("https://10.89.0.1:6443");
    config["users"][0]["user"] = json!({"token": token.trim()});
    config.to_string()
}

/// The installed operator sleeps until this is dropped.
struct Asleep<'a>(&'a Client);

impl<'a> Asleep<'a> {
    fn new(client: &'a Client) -> Self {
        let asleep = Self(client);
        asleep.scale("0").expect("no operator");
        let pods = ["-n", NAMESPACE, "wait", "--for=delete", "pod", "-l", lockstep_tests::chart::OPERATOR];
        client.kubectl(&[&pods[..], &["--timeout=60s"]].concat()).expect("it has ended");
        asleep
    }

    fn scale(&self, replicas: &str) -> anyhow::Result<String> {
        self.0.kubectl(&["-n", NAMESPACE, "scale", "deployment", "--all", &format!("--replicas={replicas}")])
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let woken = self
            .scale("1")
            .and_then(|_| self.0.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment", "--timeout=60s"]));
        if let Err(error) = woken {
            eprintln!("the tests after this one have no operator: {error:#}");
        }
    }
}

#[test]
fn a_hundred_hand_overs_under_load_never_have_two_writers() {
    let Some(cluster) = cluster_alone("a_hundred_hand_overs_under_load_never_have_two_writers") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "handover");
    let space = namespace.name();
    let _asleep = Asleep::new(client);
    for number in 0..JOBS {
        let mut manifest = glyphs(&format!("job-{number}"), 1);
        manifest["spec"]["suspend"] = json!(true);
        manifest["spec"]["elastic"] = json!({"minReplicas": 1, "maxReplicas": 3});
        client.apply_to(space, &manifest.to_string()).expect("a job");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let begun = Instant::now();
    let mut operators: Vec<_> =
        (0..OPERATORS).map(|number| Operator::start(&cluster, space, number, folder.path())).collect();
    let reader = Reader::of(client).expect("a cluster");
    let leases = ApiResource::from_gvk(&GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease"));
    let holder = || {
        let lease = reader.object(&leases, space, LEASE).ok().flatten()?;
        lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
    };
    let over = AtomicBool::new(false);
    let changes = thread::scope(|scope| {
        let load = scope.spawn(|| change_jobs(client, space, &over));
        for number in 1..=HANDOVERS {
            let mut leader = None;
            wait_for("a leader", PATIENCE, || {
                leader = holder();
                leader.is_some()
            })
            .expect("a leader");
            let leader = leader.expect("just found");
            let operator = operators.iter_mut().find(|operator| operator.name == leader).expect("one of them");
            let is_paused = number % PAUSED_EVERY == 0;
            operator.signal(if is_paused { Signal::SIGSTOP } else { Signal::SIGTERM });
            wait_for("another leader", PATIENCE, || holder().is_some_and(|next| next != leader)).expect("the next");
            if is_paused {
                operator.signal(Signal::SIGCONT);
            }
            operator.again();
        }
        over.store(true, Ordering::Relaxed);
        load.join().expect("no panic")
    });
    let settled = || {
        let jobs = client.kubectl(&["-n", space, "get", "tj", "-o", "json"]).expect("jobs");
        let jobs: Value = serde_json::from_str(&jobs).expect("JSON");
        let jobs = jobs["items"].as_array().expect("a list").clone();
        let is_current = |job: &Value| job["status"]["observedGeneration"] == job["metadata"]["generation"];
        jobs.len() == JOBS && jobs.iter().all(is_current)
    };
    wait_for("each job's last change to be seen", PATIENCE, settled).expect("nothing is lost");
    let took = begun.elapsed().as_secs();
    drop(operators);

    let writes = writes(&cluster.requests().expect("the audit log"), space);
    let verdict = judged(&writes);
    println!("{HANDOVERS} hand-overs in {took} s, {changes} changes of {JOBS} jobs: {verdict:?}");
    assert!(verdict.leads > HANDOVERS && verdict.others >= LEAST_WRITES, "{verdict:?}");
    assert_eq!(verdict.second_writers, Vec::<String>::new());
}

/// Changes all jobs again and again. Returns how often.
fn change_jobs(client: &Client, namespace: &str, over: &AtomicBool) -> usize {
    let mut times = 0;
    while !over.load(Ordering::Relaxed) {
        let replicas = format!("--replicas={}", 2 + times % 2);
        client.kubectl(&["-n", namespace, "scale", "tj", "--all", &replicas]).expect("scaled");
        times += 1;
        thread::sleep(Duration::from_millis(100));
    }
    times
}

/// Returns the successful changes of the accounts of a namespace.
fn writes(requests: &[Request], namespace: &str) -> Vec<Request> {
    let prefix = format!("system:serviceaccount:{namespace}:");
    let is_write = |request: &&Request| {
        request.account.starts_with(&prefix)
            && !["get", "list", "watch"].contains(&request.verb.as_str())
            && request.code < 300
    };
    requests.iter().filter(is_write).cloned().collect()
}

/// The audit log in numbers, and each write that should not have been.
#[derive(Debug, Default)]
struct Verdict {
    /// Changes of the leader.
    leads: usize,
    /// Writes other than those of the lease.
    others: usize,
    /// Writes that began after another operator had taken the lease.
    second_writers: Vec<String>,
}

/// Judges changes in the order of their answers.
fn judged(writes: &[Request]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut leader: Option<(&str, &str)> = None;
    for Request { account, verb, resource, name, received, answered, .. } in writes {
        if resource == "leases" {
            if leader.is_none_or(|(leader, _)| leader != account) {
                verdict.leads += 1;
                leader = Some((account, answered));
            }
            continue;
        }
        verdict.others += 1;
        if let Some((leader, since)) = leader.filter(|(leader, since)| leader != account && received.as_str() > *since)
        {
            let what = format!("{verb} {resource} {name}");
            verdict.second_writers.push(format!("{account}: {what} at {received}, while {leader} led since {since}"));
        }
    }
    verdict
}

#[test]
fn a_write_after_another_operator_took_the_lease_is_found() {
    let write = |account: &str, resource: &str, second: u32| Request {
        account: account.to_owned(),
        resource: resource.to_owned(),
        received: format!("2026-01-01T00:00:{second:02}.000000Z"),
        answered: format!("2026-01-01T00:00:{second:02}.500000Z"),
        ..Request::default()
    };
    let mut writes = vec![
        write("a", "leases", 1),
        write("a", "trainingjobs", 2),
        write("b", "leases", 3),
        write("b", "trainingjobs", 4),
    ];
    assert_eq!(judged(&writes).second_writers, Vec::<String>::new());
    writes.push(write("a", "trainingjobs", 5));
    assert_eq!(judged(&writes).second_writers.len(), 1);
}
