//! A node: namespaces of its own with containerd, kubelet and kube-proxy. It can lose its power,
//! its cable or its kubelet.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{
    Cluster, cgroups,
    network::{self, inside, node_namespace},
    process::Process,
    wait_for,
};
use crate::packages::program;

/// How long a node may take to become Ready.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long a node's processes may take to end after a power cut, or a kubelet to end or start.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// A file that tells a node's process 1 to run no kubelet.
const NO_KUBELET: &str = "no-kubelet";
/// A file that exists while a kubelet runs.
const KUBELET_RUNS: &str = "kubelet-runs";
const INIT: &str = include_str!("../../../deploy/cluster/node-init.sh");
const CONTAINERD: &str = include_str!("../../../deploy/cluster/containerd.toml");

impl Cluster {
    /// Powers a node on. Its disk is unchanged.
    ///
    /// # Errors
    /// Its namespaces or its process cannot be made.
    pub fn power_on(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        if self.node_process(node).pid().is_some() {
            return Ok(());
        }
        let cluster = self.settings.name;
        network::make_node(cluster, node)?;
        cgroups::make(cluster, node)?;
        let folder = self.state.node(node);
        for part in ["lib", "pod-log", "network", "imported"] {
            fs::create_dir_all(folder.join(part))?;
        }
        self.configure(node, &folder)?;
        let plugins = program("host-local").context("the network plugin `host-local` is missing")?;
        let mut command = inside(&node_namespace(cluster, node), "unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--uts", "--ipc"])
            .args(["sh", "-c", INIT, "node-init"])
            .env("NODE", format!("n{node}"))
            .env("ADDRESS", network::node_address(node))
            .env("FOLDER", &folder)
            .env("COMMON", self.state.common())
            .env("LOGS", self.state.logs())
            .env("PROGRAMS", self.programs.folder())
            .env("NETWORK_PLUGINS", plugins.parent().context("a plugin lies in a folder")?);
        self.node_process(node).start(&command)
    }

    /// Powers a node off: all its processes die at once, and its mounts and network vanish.
    ///
    /// # Errors
    /// A part of it stays.
    pub fn power_off(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        self.node_process(node).kill();
        network::remove_node(self.settings.name, node)?;
        wait_for(&format!("the end of node n{node}"), ENDS_WITHIN, || cgroups::remove(self.settings.name, node))
    }

    /// Unplugs a node's cable.
    ///
    /// # Errors
    /// There is no such node, or it is powered off.
    pub fn isolate(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        network::unplug(self.settings.name, node)
    }

    /// Plugs a node's cable in again.
    ///
    /// # Errors
    /// There is no such node, or it is powered off.
    pub fn heal(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        network::plug(self.settings.name, node)
    }

    /// Ends a node's kubelet. Its pods keep running.
    ///
    /// # Errors
    /// There is no such node, or the kubelet does not end.
    pub fn stop_kubelet(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        fs::write(self.state.node(node).join(NO_KUBELET), "")?;
        let runs = self.state.node(node).join(KUBELET_RUNS);
        wait_for(&format!("the end of n{node}'s kubelet"), ENDS_WITHIN, || !runs.exists())
    }

    /// Starts a node's kubelet again.
    ///
    /// # Errors
    /// There is no such node, or the kubelet does not start.
    pub fn start_kubelet(&self, node: u32) -> anyhow::Result<()> {
        self.check_node(node)?;
        let folder = self.state.node(node);
        if folder.join(NO_KUBELET).exists() {
            fs::remove_file(folder.join(NO_KUBELET))?;
        }
        wait_for(&format!("the start of n{node}'s kubelet"), ENDS_WITHIN, || folder.join(KUBELET_RUNS).exists())
    }

    /// Restores a node's power, cable and kubelet, and waits until it is Ready.
    ///
    /// # Errors
    /// It is not Ready in time.
    pub fn mend(&self, node: u32) -> anyhow::Result<()> {
        self.power_on(node)?;
        self.heal(node)?;
        self.start_kubelet(node)?;
        self.wait_for_node(node)
    }

    /// Waits until a node is Ready.
    ///
    /// # Errors
    /// It is not Ready in time.
    pub fn wait_for_node(&self, node: u32) -> anyhow::Result<()> {
        wait_for(&format!("node n{node} to be Ready"), READY_WITHIN, || self.is_ready(node))
    }

    /// Returns true if the cluster reports a node as Ready.
    #[must_use]
    pub fn is_ready(&self, node: u32) -> bool {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        self.kubectl(&["get", "node", &format!("n{node}"), "-o", path]).is_ok_and(|status| status == "True")
    }

    /// Returns the recorded process of a node. Process 1 of the node is its child.
    pub(super) fn node_process(&self, node: u32) -> Process {
        self.process(&format!("n{node}"))
    }

    fn check_node(&self, node: u32) -> anyhow::Result<()> {
        if !(1..=self.settings.nodes).contains(&node) {
            bail!("cluster `{}` has the nodes 1 to {}, not {node}", self.settings.name, self.settings.nodes);
        }
        Ok(())
    }

    fn configure(&self, node: u32, folder: &Path) -> anyhow::Result<()> {
        let write = |name: &str, text: &str| {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
        };
        write("resolv.conf", &format!("nameserver {}\n", network::DNS_SERVICE))?;
        write("containerd.toml", CONTAINERD)?;
        write("network/10-lockstep.conflist", &bridge(node).to_string())?;
        write("kubelet.json", &kubelet(&cgroups::node_group(self.settings.name, node), node).to_string())?;
        write("kube-proxy.json", &kube_proxy(node).to_string())?;
        for (name, file) in [
            ("kubeconfig", format!("n{node}.kubeconfig")),
            ("proxy.kubeconfig", "proxy.kubeconfig".into()),
            ("ca.crt", "ca.crt".into()),
        ] {
            fs::copy(self.state.pki().join(file), folder.join(name))?;
        }
        Ok(())
    }
}

fn kubelet(group: &str, node: u32) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{group}"),
        "failSwapOn": false,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/run/node/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [network::DNS_SERVICE],
        "resolvConf": "/run/node/resolv.conf",
        "address": network::node_address(node),
        "healthzBindAddress": "127.0.0.1",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        // A disconnected node is noticed in seconds: the lease is renewed every quarter of its
        // duration.
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        "syncFrequency": "10s",
        "serializeImagePulls": false,
        "maxPods": 110,
        // Images have no other source, and the host's disk is not under the node's control.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
        },
        "enforceNodeAllocatable": ["pods"],
    })
}

fn kube_proxy(node: u32) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": "/run/node/proxy.kubeconfig"},
        "hostnameOverride": format!("n{node}"),
        "nodePortAddresses": ["primary"],
        "clusterCIDR": network::PODS,
        // Connection tracking belongs to the host. Its limits stay unchanged.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": format!("{}:10256", network::node_address(node)),
        "metricsBindAddress": "127.0.0.1:10249",
    })
}

fn bridge(node: u32) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "lockstep",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipMasq": false,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": network::node_pods(node)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/run/addresses",
            },
        }],
    })
}
