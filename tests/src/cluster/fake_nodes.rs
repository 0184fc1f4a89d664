//! Nodes that exist only as objects (kwok), for tests of scale: their pods become Ready at once and run nothing.

use std::{process::Command, time::Duration};

use super::{Cluster, tools, wait_for};

/// A pod goes to such a node with this selector, and a toleration of the taint of the same key.
pub const FAKE_NODE_LABEL: &str = "kwok.x-k8s.io/node";
const READY_WITHIN: Duration = Duration::from_secs(60);

impl Cluster {
    /// Adds fake nodes `fake-1` to `fake-COUNT`, each with room for 256 pods.
    ///
    /// # Errors
    /// They do not become Ready.
    pub fn fake_nodes(&self, count: u32) -> anyhow::Result<()> {
        let stages = tools::kwok_stages()?;
        let mut kwok = Command::new(self.programs.join("kwok"));
        kwok.arg("--kubeconfig").arg(self.kubeconfig());
        kwok.args(["--manage-all-nodes=false", "--manage-nodes-with-label-selector", "kwok.x-k8s.io/node=fake"]);
        kwok.args(["--node-lease-duration-seconds=40", "--cidr", &self.settings.addresses.fake_pods()]);
        for stage in ["node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete"] {
            kwok.arg("--config").arg(stages.join(format!("{stage}.yaml")));
        }
        self.process("kwok").start(&mut kwok)?;
        let resources = r#"{cpu: "256", memory: 1Ti, pods: "256"}"#;
        let nodes: String = (1..=count)
            .map(|index| {
                format!(
                    "---\n{{apiVersion: v1, kind: Node, metadata: {{name: fake-{index}, labels: {{{FAKE_NODE_LABEL}: fake}}}}, \
                     spec: {{taints: [{{key: {FAKE_NODE_LABEL}, value: fake, effect: NoSchedule}}]}}, \
                     status: {{capacity: {resources}, allocatable: {resources}}}}}\n"
                )
            })
            .collect();
        self.apply(&nodes)?;
        wait_for("the fake nodes", READY_WITHIN, || {
            let selector = format!("{FAKE_NODE_LABEL}=fake");
            let listed = self.kubectl(&["get", "nodes", "--no-headers", "-l", &selector]).unwrap_or_default();
            listed.lines().filter(|line| line.contains(" Ready ")).count() == count as usize
        })
    }
}
