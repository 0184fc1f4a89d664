//! A real Kubernetes on this machine, without Docker or a VM. deploy/cluster/README.md explains how
//! it is made.

mod audit;
mod cgroups;
mod client;
mod containers;
mod control_plane;
mod fake_nodes;
mod for_tests;
mod guard;
mod images;
mod network;
mod node;
mod pki;
mod process;
mod process_id;
mod programs;
mod requirements;
mod state;
mod storage;
mod wait;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, bail};

pub use audit::Request;
pub use client::{Client, Namespace};
pub use fake_nodes::FAKE_NODE_LABEL;
pub use for_tests::{AnyCluster, KEPT_CLUSTER, TEST_KUBECONFIG};
pub use images::SHELL_IMAGE;
pub use requirements::ensure_packages;
pub use wait::wait_for;

use guard::Guard;
use process::Process;
use programs::Programs;
use requirements::available;
use state::State;

/// The name and size of a cluster, and how soon it gives a node up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tells the clusters of one machine apart: lower-case letters and digits.
    pub name: &'static str,
    /// The number of real nodes, 1 to [`MAX_NODES`]. They are called n1, n2, ….
    pub nodes: u32,
    /// The API server's port on the host's loopback address. Another port is used if it is taken.
    pub port: u16,
    /// A node that is silent for this long is NotReady.
    pub node_lost_after: Duration,
    /// The pods of a lost node are evicted after this time.
    pub evicted_after: Duration,
}

/// The number of nodes for which there are routes.
pub const MAX_NODES: u32 = 16;
/// The number of nodes of the tests' cluster.
pub const TEST_NODES: u32 = 3;

impl Settings {
    /// The cluster of `cargo xtask cluster`.
    #[must_use]
    pub const fn development(nodes: u32) -> Self {
        Self::named("local", nodes, 16443)
    }

    /// The cluster of the tests.
    #[must_use]
    pub const fn tests(nodes: u32) -> Self {
        Self::named("tests", nodes, 16444)
    }

    /// The cluster of the benchmarks.
    #[must_use]
    pub const fn benchmarks(nodes: u32) -> Self {
        Self::named("benchmarks", nodes, 16445)
    }

    /// A cluster of another name beside those.
    #[must_use]
    pub const fn named(name: &'static str, nodes: u32, port: u16) -> Self {
        Self { name, nodes, port, node_lost_after: Duration::from_secs(16), evicted_after: Duration::from_secs(10) }
    }
}

/// A cluster. Its state folder records its parts, so any process can take the cluster over or end
/// it.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    state: State,
    programs: Programs,
    client: Client,
    /// Ends the cluster when this process is gone, even if it was killed.
    guard: Option<Guard>,
}

impl Cluster {
    /// Returns Ok if this machine can run a cluster.
    ///
    /// # Errors
    /// The reason why it cannot, for people.
    pub fn available() -> Result<(), String> {
        available()
    }

    /// Starts a cluster that outlives this process, until [`Cluster::stop`].
    ///
    /// # Errors
    /// A cluster of this name runs, or a part could not be installed, built or started. Nothing is
    /// left behind then.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let mut cluster = Self::start_guarded(settings)?;
        if let Some(guard) = cluster.guard.take() {
            guard.dismiss()?;
        }
        Ok(cluster)
    }

    /// Starts a cluster that ends with this process, even if it panics or is killed. The remains of
    /// an earlier run are removed first.
    ///
    /// # Errors
    /// A cluster of this name runs, or a part could not be installed, built or started. Nothing is
    /// left behind then.
    pub fn start_guarded(settings: Settings) -> anyhow::Result<Self> {
        settings.check()?;
        available().map_err(anyhow::Error::msg)?;
        ensure_packages()?;
        let programs = Programs::ensure()?;
        let state = State::of(settings.name);
        let guard = Guard::take(&state)?;
        let client = Client::new(state.kubeconfig(), programs.folder().to_owned());
        let cluster = Self { settings, state, programs, client, guard: Some(guard) };
        cluster.build().with_context(|| {
            format!(
                "starting cluster `{}`; its logs lie in {}",
                cluster.settings.name,
                cluster.state.kept_logs().display()
            )
        })?;
        Ok(cluster)
    }

    /// Returns a cluster that [`Cluster::start`] left running.
    ///
    /// # Errors
    /// No such cluster runs, or its programs are gone from the cache.
    pub fn running(settings: Settings) -> anyhow::Result<Self> {
        let state = State::of(settings.name);
        if !Process::any_runs(&state) {
            bail!("no cluster `{}` runs", settings.name);
        }
        let programs = Programs::in_folder(state.programs()?);
        let settings = Settings { nodes: state.nodes()?, ..settings };
        let client = Client::new(state.kubeconfig(), programs.folder().to_owned());
        Ok(Self { settings, state, programs, client, guard: None })
    }

    /// Ends the cluster of this name and removes everything that it made: processes, namespaces,
    /// control groups and files. Kernel settings are restored. Nothing happens if there is no such
    /// cluster.
    ///
    /// # Errors
    /// The process that owns it still runs, or a part could not be removed.
    pub fn stop(settings: &Settings) -> anyhow::Result<()> {
        Guard::end(&State::of(settings.name))
    }

    /// Returns the nodes' numbers, from 1.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.settings.nodes
    }

    /// Returns the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.kubeconfig()
    }

    /// Returns the folder with kubectl, helm and the other programs.
    #[must_use]
    pub fn programs(&self) -> &std::path::Path {
        self.programs.folder()
    }

    /// Returns the folder of the programs' logs, a file for each. When the cluster ends, the folder
    /// stays as `NAME.log` beside the state folder.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.state.logs()
    }

    /// Returns the client that runs kubectl and helm.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.client.kubectl(words)
    }

    /// Runs helm and returns its output.
    ///
    /// # Errors
    /// helm fails; the error holds its message.
    pub fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        self.client.helm(words)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.client.apply(yaml)
    }

    /// Returns a command inside the cluster's network, where pods have their addresses.
    #[must_use]
    pub fn inside(&self, program: &str) -> Command {
        network::inside(&network::fabric(self.settings.name), program)
    }

    fn build(&self) -> anyhow::Result<()> {
        self.state.record(&self.settings, self.programs.folder())?;
        self.make_node_images()?;
        self.make_pki()?;
        network::make_fabric(self.settings.name)?;
        self.start_etcd()?;
        self.start_api_server()?;
        // Nodes start beside the API server. Their kubelets wait for it.
        for node in self.nodes() {
            self.power_on(node)?;
        }
        self.start_forwarding()?;
        self.wait_for_api_server()?;
        fs::write(self.state.api_server_is_up(), "")?;
        self.start_controllers()?;
        self.start_dns()?;
        self.make_storage()?;
        for node in self.nodes() {
            self.wait_for_node(node)?;
        }
        Ok(())
    }

    fn process(&self, name: &str) -> Process {
        Process::named(&self.state, name)
    }
}

impl Settings {
    fn check(&self) -> anyhow::Result<()> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if self.name.is_empty() || !self.name.bytes().all(plain) {
            bail!("a cluster cannot be called `{}`: lower-case letters and digits only", self.name);
        }
        if !(1..=MAX_NODES).contains(&self.nodes) {
            bail!("a cluster has 1 to {MAX_NODES} nodes, not {}", self.nodes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_name_has_only_lower_case_letters_and_digits() {
        for (name, fits) in [("tests", true), ("v2", true), ("", false), ("a-b", false), ("../x", false), ("A", false)]
        {
            assert_eq!(Settings::named(name, 1, 1).check().is_ok(), fits, "{name:?}");
        }
    }

    #[test]
    fn a_cluster_has_between_one_and_the_greatest_number_of_nodes() {
        for (nodes, fits) in [(0, false), (1, true), (MAX_NODES, true), (MAX_NODES + 1, false)] {
            assert_eq!(Settings::tests(nodes).check().is_ok(), fits, "{nodes} nodes");
        }
    }
}
