//! Nodes that exist only as objects (kwok), for tests of scale. Their pods become Ready at once and
//! run nothing.

use std::time::Duration;

use serde_json::json;

use super::{
    Cluster,
    network::{self, fabric, inside},
    wait_for,
};

/// The label and taint of fake nodes. A pod goes to such a node if its selector has the label with
/// value `fake` and it tolerates the taint of the same key.
pub const FAKE_NODE_LABEL: &str = "kwok.x-k8s.io/node";
const FAKE: &str = "fake";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The number of pods for which a fake node has room.
const PODS: u32 = 256;

impl Cluster {
    /// Adds fake nodes `fake-1` to `fake-COUNT`, each with room for 256 pods.
    ///
    /// # Errors
    /// They do not become Ready.
    pub fn fake_nodes(&self, count: u32) -> anyhow::Result<()> {
        let mut kwok = inside(&fabric(self.settings.name), self.programs.path("kwok"));
        kwok.args(["--kubeconfig", &self.pki_file("admin.kubeconfig"), "--cidr", network::FAKE_PODS]);
        kwok.args([
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector",
            &format!("{FAKE_NODE_LABEL}={FAKE}"),
        ]);
        kwok.args(["--node-lease-duration-seconds", "40"]);
        for stage in ["node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete"] {
            kwok.arg("--config").arg(self.programs.kwok_stages().join(format!("{stage}.yaml")));
        }
        self.process("kwok").start(&kwok)?;
        let nodes: Vec<String> = (1..=count).map(|index| fake_node(&format!("fake-{index}")).to_string()).collect();
        self.apply(&nodes.join("\n---\n"))?;
        wait_for("the fake nodes to be Ready", READY_WITHIN, || {
            let selector = format!("{FAKE_NODE_LABEL}={FAKE}");
            let listed = self.kubectl(&["get", "nodes", "--no-headers", "-l", &selector]).unwrap_or_default();
            listed.lines().filter(|line| line.split_whitespace().nth(1) == Some("Ready")).count() >= count as usize
        })
    }
}

fn fake_node(name: &str) -> serde_json::Value {
    let room = json!({"cpu": "256", "memory": "1Ti", "pods": PODS.to_string()});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {FAKE_NODE_LABEL: FAKE, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": FAKE_NODE_LABEL, "value": FAKE, "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    })
}
