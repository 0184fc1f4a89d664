//! A real Kubernetes on this machine, without Docker or a VM; see deploy/cluster/README.md.

mod control_plane;
mod fake_nodes;
mod network;
mod node;
mod pki;
mod process;
mod tools;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

pub use tools::available;

use crate::{cache, image};
pub use fake_nodes::FAKE_NODE_LABEL;
use network::{Addresses, fabric, node_namespace};
use pki::Pki;
use process::Process;

/// Kernel settings that a kubelet changes, put back when the cluster ends.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Which cluster, how large.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tells clusters on one machine apart.
    pub(crate) name: &'static str,
    /// Real nodes.
    pub nodes: u32,
    /// The API server's port on the host's loopback address.
    pub(crate) port: u16,
    pub(crate) addresses: Addresses,
}

impl Settings {
    /// The cluster of `cargo xtask cluster`.
    #[must_use]
    pub const fn development(nodes: u32) -> Self {
        Self { name: "dev", nodes, port: 16443, addresses: Addresses::of(80) }
    }

    /// The cluster of the tests.
    #[must_use]
    pub const fn tests(nodes: u32) -> Self {
        Self { name: "test", nodes, port: 16444, addresses: Addresses::of(90) }
    }

    /// The cluster of the benchmarks.
    #[must_use]
    pub const fn benchmarks(nodes: u32) -> Self {
        Self { name: "bench", nodes, port: 16445, addresses: Addresses::of(100) }
    }
}

/// A cluster, running or not. Its state lies in a folder, so that any process can take it up again.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    state: PathBuf,
    programs: PathBuf,
    pki: Pki,
    /// Ends the cluster when this process is gone, however it went.
    guard: Option<Child>,
}

impl Cluster {
    /// Starts a cluster that stays until [`Cluster::stop`].
    ///
    /// # Errors
    /// What could not be installed, built or started.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let mut cluster = Self::of(settings)?;
        cluster.programs = {
            tools::ensure_packages()?;
            tools::ensure_programs()?
        };
        fs::create_dir_all(cluster.images_folder())?;
        fs::write(cluster.state.join("nodes"), cluster.settings.nodes.to_string())?;
        cluster.save_sysctls()?;
        image::pause(&cluster.images_folder().join("pause.tar"))?;
        cluster.pki.make(&cluster.settings)?;
        network::make_fabric(&cluster.settings)?;
        cluster.start_control_plane()?;
        for node in 1..=cluster.settings.nodes {
            cluster.power_on(node)?;
        }
        for node in 1..=cluster.settings.nodes {
            cluster.wait_for_node(node)?;
        }
        Ok(cluster)
    }

    /// Starts a cluster that ends with this process, also when it panics or is killed: `guard` is a program that waits for the
    /// end of its input and then ends the cluster. What a former run left is removed first.
    ///
    /// # Errors
    /// What could not be installed, built or started.
    pub fn start_guarded(settings: Settings, guard: &Path) -> anyhow::Result<Self> {
        Self::of(settings.clone())?.stop();
        let mut command = Command::new(guard);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let watching = command
            .args(["guard", settings.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", guard.display()))?;
        let mut cluster = Self::start(settings)?;
        cluster.guard = Some(watching);
        Ok(cluster)
    }

    /// The cluster of these settings, as it is.
    ///
    /// # Errors
    /// The user has no cache folder.
    pub fn of(settings: Settings) -> anyhow::Result<Self> {
        let state = cache()?.join(format!("cluster-{}", settings.name));
        let nodes = fs::read_to_string(state.join("nodes")).ok().and_then(|text| text.parse().ok());
        let settings = Settings { nodes: settings.nodes.max(nodes.unwrap_or(0)), ..settings };
        let programs = cache()?.join("cluster-programs");
        Ok(Self { pki: Pki::in_state(&state), state, programs, settings, guard: None })
    }

    /// Ends everything and removes it: processes, namespaces, control groups, files; kernel settings are put back.
    pub fn stop(&self) {
        for node in 1..=self.settings.nodes {
            self.power_off(node);
        }
        for process in Process::all(&self.state) {
            process.stop();
        }
        for node in 1..=self.settings.nodes {
            network::remove(&node_namespace(&self.settings, node));
        }
        network::remove(&fabric(&self.settings));
        node::remove_cgroups(&format!("lockstep-{}", self.settings.name));
        self.restore_sysctls();
        if self.state.exists()
            && let Err(error) = fs::remove_dir_all(&self.state)
        {
            eprintln!("{} was not removed: {error}", self.state.display());
        }
    }

    /// Whether the API server runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process("apiserver").pid().is_some()
    }

    /// How many real nodes it has.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.settings.nodes
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki.path("host.kubeconfig").into()
    }

    /// The folder with kubectl, helm and the others.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Runs kubectl; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run_client("kubectl", words, None)
    }

    /// Runs helm; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run_client("helm", words, None)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.run_client("kubectl", &["apply", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// A claim of this name in the namespace on a folder that every node sees (ReadWriteMany); the folder.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn shared_volume(&self, namespace: &str, claim: &str) -> anyhow::Result<PathBuf> {
        let volume = format!("{namespace}-{claim}");
        let folder = self.state.join("volumes").join(&volume);
        fs::create_dir_all(&folder)?;
        // Pods run as a user that the host does not know.
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        self.apply(&format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {volume}}}, spec: {{capacity: {{storage: 10Gi}}, \
             accessModes: [ReadWriteMany], storageClassName: \"\", persistentVolumeReclaimPolicy: Retain, \
             hostPath: {{path: \"{}\", type: Directory}}}}}}\n---\n\
             {{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {claim}, namespace: {namespace}}}, spec: {{\
             accessModes: [ReadWriteMany], storageClassName: \"\", volumeName: {volume}, resources: {{requests: {{storage: 1Gi}}}}}}}}\n",
            folder.display()
        ))?;
        Ok(folder)
    }

    fn run_client(&self, program: &str, words: &[&str], input: Option<&str>) -> anyhow::Result<String> {
        let mut command = Command::new(self.programs.join(program));
        command.args(words).env("KUBECONFIG", self.kubeconfig()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            pipe.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn process(&self, name: &str) -> Process {
        Process::named(&self.state, name)
    }

    fn save_sysctls(&self) -> anyhow::Result<()> {
        let file = self.state.join("sysctls");
        if !file.exists() {
            let read = |name: &&str| Some(format!("{name} {}", fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?));
            fs::write(file, SYSCTLS.iter().filter_map(read).collect::<String>())?;
        }
        Ok(())
    }

    fn restore_sysctls(&self) {
        for line in fs::read_to_string(self.state.join("sysctls")).unwrap_or_default().lines() {
            if let Some((name, value)) = line.split_once(' ')
                && let Err(error) = fs::write(Path::new("/proc/sys").join(name), value)
            {
                eprintln!("{name} was not put back: {error}");
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            // It ends the cluster; whether it does is its own to say.
            let _ = guard.wait();
        }
    }
}

/// Ends the cluster of this name as soon as the input ends: the whole work of a guard.
///
/// # Errors
/// There is no cluster of this name.
pub fn guard(name: &str) -> anyhow::Result<()> {
    let settings = [Settings::development(0), Settings::tests(0), Settings::benchmarks(0)];
    let settings = settings.into_iter().find(|settings| settings.name == name).context("no cluster has this name")?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Cluster::of(settings)?.stop();
    Ok(())
}

/// Looks at a condition until it holds.
///
/// # Errors
/// It did not within `patience`.
pub fn wait_for(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > patience {
            bail!("waited {patience:?} for {what}");
        }
        thread::park_timeout(LOOK_EVERY);
    }
    Ok(())
}

/// Runs a command to its end; a failure carries what it said.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// For what may be gone already.
fn ignore_failure(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
