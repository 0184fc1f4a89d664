//! A node: namespaces of its own with containerd, kubelet and kube-proxy. It can lose power, its cable or its kubelet.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    Cluster,
    network::{self, inside, node_namespace},
    run, wait_for,
};
use crate::root;

/// How long a node may take to become Ready.
const READY_WITHIN: Duration = Duration::from_secs(120);
const CGROUPS: &str = "/sys/fs/cgroup";

impl Cluster {
    /// Starts a node, or gives it its power back.
    ///
    /// # Errors
    /// Its namespaces or process cannot be made.
    pub fn power_on(&self, node: u32) -> anyhow::Result<()> {
        network::make_node(&self.settings, node)?;
        self.make_cgroups(node)?;
        let folder = self.node_folder(node);
        for part in ["etc", "log", "kubelet", "containerd", "pods", "containers", "cni"] {
            fs::create_dir_all(folder.join(part))?;
        }
        self.configure(node, &folder.join("etc"))?;
        fs::write(folder.join("cni/10-lockstep.conflist"), self.cni(node))?;
        let mut command = inside(&node_namespace(&self.settings, node), "unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--uts", "--ipc", "bash"])
            .arg(root().join("deploy/cluster/node-init.sh"))
            .env("NODE", format!("n{node}"))
            .env("ADDRESS", self.settings.addresses.node(node))
            .env("FOLDER", &folder)
            .env("BIN", &self.programs)
            .env("IMAGES", self.images_folder());
        self.process(&format!("n{node}")).start(&mut command)
    }

    /// Cuts a node's power: every process of it dies at once, its mounts and network vanish.
    pub fn power_off(&self, node: u32) {
        self.process(&format!("n{node}")).kill();
        network::remove(&node_namespace(&self.settings, node));
        remove_cgroups(&self.cgroup(node));
    }

    /// Pulls a node's cable.
    ///
    /// # Errors
    /// There is no such node.
    pub fn isolate(&self, node: u32) -> anyhow::Result<()> {
        network::unplug(&self.settings, node)
    }

    /// Plugs it in again.
    ///
    /// # Errors
    /// There is no such node.
    pub fn heal(&self, node: u32) -> anyhow::Result<()> {
        network::plug(&self.settings, node)
    }

    /// Ends a node's kubelet; its pods run on.
    ///
    /// # Errors
    /// There is no such node.
    pub fn stop_kubelet(&self, node: u32) -> anyhow::Result<()> {
        fs::write(self.node_folder(node).join("no-kubelet"), "")?;
        let inner = fs::read_to_string(self.node_folder(node).join("kubelet.pid"))?;
        let words = ["--target", &self.init(node)?.to_string(), "--pid", "--mount", "kill", inner.trim()];
        run(Command::new("nsenter").args(words))
    }

    /// Starts it again.
    ///
    /// # Errors
    /// There is no such node.
    pub fn start_kubelet(&self, node: u32) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.node_folder(node).join("no-kubelet"))?)
    }

    /// Waits until a node is Ready.
    ///
    /// # Errors
    /// It is not, in time.
    pub fn wait_for_node(&self, node: u32) -> anyhow::Result<()> {
        wait_for(&format!("node n{node} to be Ready"), READY_WITHIN, || self.is_ready(node))
    }

    /// Whether the cluster takes a node for Ready.
    pub fn is_ready(&self, node: u32) -> bool {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        self.kubectl(&["get", "node", &format!("n{node}"), "-o", path]).is_ok_and(|status| status == "True")
    }

    /// Imports an OCI archive into every node that runs; nodes that start later import it too.
    ///
    /// # Errors
    /// A node does not take it.
    pub fn load_image(&self, archive: &Path) -> anyhow::Result<()> {
        let kept = self.images_folder().join(archive.file_name().context("an archive has a name")?).with_extension("tar");
        fs::copy(archive, &kept).with_context(|| format!("copying {}", archive.display()))?;
        for node in 1..=self.settings.nodes {
            if let Ok(init) = self.init(node) {
                let words = ["--target", &init.to_string(), "--mount", "--net", "ctr", "-n", "k8s.io", "images", "import"];
                run(Command::new("nsenter").args(words).arg(&kept))?;
            }
        }
        Ok(())
    }

    pub(super) fn images_folder(&self) -> PathBuf {
        self.state.join("images")
    }

    fn node_folder(&self, node: u32) -> PathBuf {
        self.state.join(format!("n{node}"))
    }

    fn cgroup(&self, node: u32) -> String {
        format!("lockstep-{}/n{node}", self.settings.name)
    }

    /// Process 1 of a node, as the host numbers it.
    fn init(&self, node: u32) -> anyhow::Result<i32> {
        let outer = self.process(&format!("n{node}")).pid().with_context(|| format!("node n{node} has no power"))?;
        let outer = outer.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        children.split_whitespace().next().and_then(|child| child.parse().ok()).with_context(|| format!("node n{node} has no process 1"))
    }

    /// The kubelet wants its root in every hierarchy.
    fn make_cgroups(&self, node: u32) -> anyhow::Result<()> {
        let group = self.cgroup(node);
        if Path::new(CGROUPS).join("cgroup.controllers").exists() {
            fs::create_dir_all(Path::new(CGROUPS).join(&group))?;
            return Ok(());
        }
        for hierarchy in fs::read_dir(CGROUPS)?.flatten().filter(|entry| entry.path().is_dir() && entry.file_name() != "unified") {
            fs::create_dir_all(hierarchy.path().join(&group))?;
        }
        let cpusets = Path::new(CGROUPS).join("cpuset");
        let parent = group.split('/').next().unwrap_or_default();
        for group in [parent, &group] {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::copy(cpusets.join(file), cpusets.join(group).join(file)).or_else(|_| {
                    fs::read(cpusets.join(file)).and_then(|value| fs::write(cpusets.join(group).join(file), value)).map(|()| 0)
                })?;
            }
        }
        Ok(())
    }

    fn configure(&self, node: u32, folder: &Path) -> anyhow::Result<()> {
        let addresses = self.settings.addresses;
        let write = |name: &str, text: String| fs::write(folder.join(name), text);
        fs::copy(self.pki.path(&format!("n{node}.kubeconfig")), folder.join("kubelet.kubeconfig"))?;
        write("resolv.conf", format!("nameserver {}\n", addresses.dns_service()))?;
        write("containerd.toml", CONTAINERD.to_owned())?;
        write(
            "kube-proxy.yaml",
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nhostnameOverride: n{node}\n\
                 clientConnection: {{kubeconfig: {}}}\nnodePortAddresses: [primary]\nclusterCIDR: {}\n\
                 conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n\
                 healthzBindAddress: {}:10256\nmetricsBindAddress: 127.0.0.1:10249\n",
                self.pki.path("proxy.kubeconfig"),
                addresses.pods(),
                addresses.node(node),
            ),
        )?;
        write(
            "kubelet.yaml",
            format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\ncgroupDriver: cgroupfs\n\
                 cgroupRoot: /{cgroup}\nfailSwapOn: false\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n\
                 authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {ca}}}}}\n\
                 authorization: {{mode: Webhook}}\nclusterDomain: cluster.local\nclusterDNS: [{dns}]\nresolvConf: {folder}/resolv.conf\n\
                 address: {address}\nhealthzBindAddress: 127.0.0.1\nnodeStatusUpdateFrequency: 4s\nnodeLeaseDurationSeconds: 12\n\
                 syncFrequency: 10s\nimageGCHighThresholdPercent: 100\nserializeImagePulls: false\nmaxPods: 110\n\
                 evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}}\n\
                 enforceNodeAllocatable: [pods]\n",
                cgroup = self.cgroup(node),
                ca = self.pki.path("ca.crt"),
                dns = addresses.dns_service(),
                folder = folder.display(),
                address = addresses.node(node),
            ),
        )?;
        Ok(())
    }

    fn cni(&self, node: u32) -> String {
        format!(
            r#"{{"cniVersion":"0.4.0","name":"lockstep","plugins":[{{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,
"hairpinMode":true,"ipam":{{"type":"host-local","ranges":[[{{"subnet":"{}"}}]],"routes":[{{"dst":"0.0.0.0/0"}}],"dataDir":"/run/cni-ipam"}}}}]}}"#,
            self.settings.addresses.node_pods(node)
        )
    }
}

/// Removes a control group with all below it, once its processes are gone.
pub(super) fn remove_cgroups(group: &str) {
    let Ok(hierarchies) = fs::read_dir(CGROUPS) else { return };
    let roots = hierarchies.flatten().map(|entry| entry.path()).chain([PathBuf::from(CGROUPS)]);
    for root in roots.map(|path| path.join(group)).filter(|path| path.is_dir()) {
        let removed = || {
            for pid in processes_in(&root) {
                // What a power cut left behind dies with the node.
                let _ = kill_process(pid, Signal::KILL);
            }
            remove_tree(&root)
        };
        // A group that stays is found, and removed, by the next start.
        let _ = wait_for("the control groups to go", Duration::from_secs(10), removed);
    }
}

/// Whether the group and all below it are gone.
fn remove_tree(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else { return true };
    let below = entries.flatten().filter(|entry| entry.path().is_dir()).all(|entry| remove_tree(&entry.path()));
    below && fs::remove_dir(group).is_ok()
}

fn processes_in(group: &Path) -> Vec<Pid> {
    let mut found: Vec<Pid> = fs::read_to_string(group.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        .collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(processes_in(&entry.path()));
    }
    found
}

const CONTAINERD: &str = r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = -999
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lockstep.dev/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#;
