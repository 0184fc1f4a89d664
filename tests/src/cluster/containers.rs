//! The container runtime of a node, for faults that Kubernetes itself cannot cause.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use super::{Cluster, cgroups, wait_for};
use crate::namespaces::run;

/// How long it may take until a node reports a container that has started.
const STARTED: Duration = Duration::from_secs(30);
/// How long it may take to fill a container's memory.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
/// More bytes than a container of the tests may have.
const FILLING: &str = "4000000000";

impl Cluster {
    /// Kills the first container of a pod as the kernel would: with SIGKILL, without cleanup, and
    /// without Kubernetes.
    ///
    /// # Errors
    /// The pod has no running container, or its node is powered off.
    pub fn kill_container(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.signal_container(namespace, pod, "SIGKILL")
    }

    /// Stops the first container of a pod. Kubernetes still believes that it runs.
    ///
    /// # Errors
    /// As [`Self::kill_container`].
    pub fn freeze_container(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.signal_container(namespace, pod, "SIGSTOP")
    }

    /// Resumes a container that was [frozen](Self::freeze_container).
    ///
    /// # Errors
    /// As [`Self::kill_container`].
    pub fn thaw_container(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.signal_container(namespace, pod, "SIGCONT")
    }

    /// Disconnects a pod from the network. Its node stays connected.
    ///
    /// # Errors
    /// As [`Self::kill_container`].
    pub fn cut_off(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        let processes = fs::read_to_string(self.memory_group(namespace, pod)?.join("cgroup.procs"))?;
        let process = processes.lines().next().context("nothing runs in the container")?;
        run(Command::new("nsenter").args(["--target", process, "--net", "ip", "link", "set", "eth0", "down"]))
    }

    /// Fills the memory of the first container of a pod until the kernel kills its process.
    ///
    /// # Errors
    /// As [`Self::kill_container`], or the container has no memory limit.
    pub fn exhaust_memory(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        let group = self.memory_group(namespace, pod)?;
        let known = cgroups::killed_for_memory(&group);
        // The kernel then spares the filling process until all others of the group are killed.
        for process in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
            fs::write(format!("/proc/{process}/oom_score_adj"), "1000")?;
        }
        let fill = "echo 0 > \"$0\"/cgroup.procs && head -c \"$1\" /dev/zero | tail";
        let mut filler = Command::new("sh")
            .args(["-c", fill])
            .arg(&group)
            .arg(FILLING)
            .stdout(Stdio::null())
            .spawn()
            .context("starting the process that fills the memory")?;
        let killed = wait_for(&format!("the kernel to kill {pod}"), FILLED_WITHIN, || {
            cgroups::killed_for_memory(&group) > known || !group.exists()
        });
        // The group cannot be removed while the filling process runs. It is killed, or it has
        // ended.
        filler.wait()?;
        killed
    }

    fn signal_container(&self, namespace: &str, pod: &str, signal: &str) -> anyhow::Result<()> {
        let (node, id) = self.container(namespace, pod)?;
        let init = self.init(node).with_context(|| format!("n{node} is powered off"))?;
        run(ctr(init).args(["tasks", "kill", "--signal", signal, &id]))
    }

    fn memory_group(&self, namespace: &str, pod: &str) -> anyhow::Result<PathBuf> {
        let (node, id) = self.container(namespace, pod)?;
        cgroups::memory_of(self.settings.name, node, &id).context("the container has no control group")
    }

    /// Returns the node and the id of the first container of a pod. The node reports it some
    /// seconds after its start.
    fn container(&self, namespace: &str, pod: &str) -> anyhow::Result<(u32, String)> {
        let path = "jsonpath={.spec.nodeName} {.status.containerStatuses[0].containerID}";
        let mut found = None;
        wait_for("the node to report the pod's container", STARTED, || {
            let answer = self.kubectl(&["-n", namespace, "get", "pod", pod, "-o", path]).unwrap_or_default();
            found = answer
                .split_once(" containerd://")
                .and_then(|(node, id)| Some((node.strip_prefix('n')?.parse().ok()?, id.to_owned())));
            found.is_some()
        })?;
        found.with_context(|| format!("pod {pod} has no container"))
    }

    /// Returns process 1 of a powered node, as the host numbers it.
    pub(super) fn init(&self, node: u32) -> Option<u32> {
        let outer = self.node_process(node).pid()?.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }
}

/// Returns containerd's client on the node with this process 1.
pub(super) fn ctr(init: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &init.to_string(), "--mount", "--net", "ctr", "-n", "k8s.io"]);
    command
}
