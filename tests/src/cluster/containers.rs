//! The container runtime of a node, for what Kubernetes itself offers no way to do.

use std::{fs, process::Command};

use anyhow::Context as _;

use super::Cluster;
use crate::namespaces::run;

impl Cluster {
    /// Kills the first container of a pod as the kernel would: SIGKILL, nothing cleaned up, Kubernetes not asked.
    ///
    /// # Errors
    /// The pod has no running container, or its node no power.
    pub fn kill_container(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.signal_container(namespace, pod, "SIGKILL")
    }

    /// Stops the first container of a pod, which Kubernetes still takes for running.
    ///
    /// # Errors
    /// As [`Self::kill_container`].
    pub fn freeze_container(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        self.signal_container(namespace, pod, "SIGSTOP")
    }

    fn signal_container(&self, namespace: &str, pod: &str, signal: &str) -> anyhow::Result<()> {
        let path = "jsonpath={.spec.nodeName} {.status.containerStatuses[0].containerID}";
        let place = self.kubectl(&["-n", namespace, "get", "pod", pod, "-o", path])?;
        let container = place.split_once(" containerd://").and_then(|(node, id)| {
            let node = node.strip_prefix('n')?.parse().ok()?;
            Some((self.init(node)?, id.to_owned()))
        });
        let (init, id) = container.with_context(|| format!("pod {pod} has no running container: {place}"))?;
        run(ctr(init).args(["tasks", "kill", "--signal", signal, &id]))
    }

    /// Process 1 of a node that has power, as the host numbers it.
    pub(super) fn init(&self, node: u32) -> Option<u32> {
        let outer = self.node_process(node).pid()?.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }
}

/// containerd's client on the node with this process 1.
pub(super) fn ctr(init: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &init.to_string(), "--mount", "--net", "ctr", "-n", "k8s.io"]);
    command
}
