//! A real Kubernetes on this machine, without Docker or a VM; deploy/cluster/README.md says how it is made.

mod any;
mod cgroups;
mod client;
mod containers;
mod control_plane;
mod fake_nodes;
mod guard;
mod images;
mod network;
mod node;
mod pki;
mod process;
mod state;
mod storage;
mod tools;
mod wait;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, bail};

pub use any::{AnyCluster, KEPT_CLUSTER, TEST_KUBECONFIG};
pub use client::{Client, Namespace};
pub use fake_nodes::FAKE_NODE_LABEL;
pub use images::SHELL_IMAGE;
pub(crate) use tools::ensure_object_store;
pub use tools::{available, ensure_packages, install_packages};
pub use wait::wait_for;

use guard::Guard;
use process::Process;
use state::State;
use tools::Programs;

/// Which cluster, how large, and how soon it gives a node up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tells the clusters of one machine apart: lower-case letters and digits.
    pub name: &'static str,
    /// Real nodes, 1 to [`MAX_NODES`]; they are called n1, n2, ….
    pub nodes: u32,
    /// The API server's port on the host's loopback address; another one is taken while somebody else holds it.
    pub port: u16,
    /// A node that is silent for this long is NotReady.
    pub node_lost_after: Duration,
    /// A lost node's pods are evicted after this time.
    pub evicted_after: Duration,
}

/// As many nodes as the routes between them are made for.
pub const MAX_NODES: u32 = 16;
/// How many nodes the tests' cluster has.
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

    /// A cluster of another name, beside those.
    #[must_use]
    pub const fn named(name: &'static str, nodes: u32, port: u16) -> Self {
        Self { name, nodes, port, node_lost_after: Duration::from_secs(16), evicted_after: Duration::from_secs(10) }
    }
}

/// A cluster. What it is made of is recorded in its state folder, so that any process can take it up again or end it.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    state: State,
    programs: Programs,
    client: Client,
    /// Ends the cluster when this process is gone, however it went.
    guard: Option<Guard>,
}

impl Cluster {
    /// Whether this machine can run a cluster, and why it cannot.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn available() -> Result<(), String> {
        available()
    }

    /// Starts a cluster that stays, also after this process, until [`Cluster::stop`].
    ///
    /// # Errors
    /// A cluster of this name runs, or something could not be installed, built or started; then nothing is left behind.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let mut cluster = Self::start_guarded(settings)?;
        if let Some(guard) = cluster.guard.take() {
            guard.dismiss()?;
        }
        Ok(cluster)
    }

    /// Starts a cluster that ends with this process, also when that panics or is killed. What a former run left is removed first.
    ///
    /// # Errors
    /// A cluster of this name runs, or something could not be installed, built or started; then nothing is left behind.
    pub fn start_guarded(settings: Settings) -> anyhow::Result<Self> {
        settings.check()?;
        available().map_err(anyhow::Error::msg)?;
        ensure_packages()?;
        let programs = tools::ensure_programs()?;
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

    /// A cluster that [`Cluster::start`] left running.
    ///
    /// # Errors
    /// No such cluster runs, or its programs are gone from the cache.
    pub fn running(settings: Settings) -> anyhow::Result<Self> {
        let state = State::of(settings.name);
        if !state.is_alive() {
            bail!("no cluster `{}` runs", settings.name);
        }
        let programs = Programs::in_folder(state.programs()?);
        let settings = Settings { nodes: state.nodes()?, ..settings };
        let client = Client::new(state.kubeconfig(), programs.folder().to_owned());
        Ok(Self { settings, state, programs, client, guard: None })
    }

    /// Ends the cluster of this name and removes whatever it made: processes, namespaces, control groups, files; kernel settings
    /// are put back. Nothing happens where there is none.
    ///
    /// # Errors
    /// A process that owns it still runs, or something could not be removed.
    pub fn stop(settings: &Settings) -> anyhow::Result<()> {
        Guard::end(&State::of(settings.name))
    }

    /// The nodes' numbers, from 1.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.settings.nodes
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.kubeconfig()
    }

    /// The folder with kubectl, helm and the others.
    #[must_use]
    pub fn programs(&self) -> &std::path::Path {
        self.programs.folder()
    }

    /// What every program of the cluster logs, a file each; kept as `NAME.log` beside the state folder when the cluster has ended.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.state.logs()
    }

    /// kubectl, helm and what is made of them.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs kubectl; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.client.kubectl(words)
    }

    /// Runs helm; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        self.client.helm(words)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.client.apply(yaml)
    }

    /// A command inside the cluster's network, where pods have their addresses.
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
        // Nodes come up beside the API server; their kubelets wait for it.
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
    fn a_name_that_could_be_another_clusters_prefix_is_refused() {
        for (name, fits) in [("tests", true), ("v2", true), ("", false), ("a-b", false), ("../x", false), ("A", false)]
        {
            assert_eq!(Settings::named(name, 1, 1).check().is_ok(), fits, "{name:?}");
        }
    }

    #[test]
    fn a_cluster_has_as_many_nodes_as_there_are_routes_for() {
        for (nodes, fits) in [(0, false), (1, true), (MAX_NODES, true), (MAX_NODES + 1, false)] {
            assert_eq!(Settings::tests(nodes).check().is_ok(), fits, "{nodes} nodes");
        }
    }
}
