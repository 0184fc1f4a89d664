//! The cluster that tests share: one per test binary, or the user's own.

use std::{env, path::PathBuf, sync::OnceLock, time::Duration};

use super::{Client, Cluster, Settings, TEST_NODES, available, state::State, tools, wait_for};
use crate::say;

/// How long another test binary may hold the tests' cluster.
const OTHERS_TEST_FOR: Duration = Duration::from_secs(20 * 60);

/// The variable that names the kubeconfig of a cluster that the user already has: set it to your KUBECONFIG, and tests that need
/// no node faults run there.
pub const TEST_KUBECONFIG: &str = "LOCKSTEP_TEST_KUBECONFIG";

/// The variable by which `cargo xtask faults` says that it keeps the tests' cluster, with Lockstep on it, for one test binary after another.
pub const KEPT_CLUSTER: &str = "LOCKSTEP_KEPT_CLUSTER";

impl Cluster {
    /// Whether the tests' cluster is another process's, which has installed Lockstep on it; see [`KEPT_CLUSTER`].
    #[must_use]
    pub fn is_kept() -> bool {
        env::var_os(KEPT_CLUSTER).is_some()
    }

    /// The cluster of this test binary: started by the first test that asks, ended with the process.
    ///
    /// # Errors
    /// Why this machine cannot run one: a reason to skip the test.
    ///
    /// # Panics
    /// When it could, but the cluster does not start.
    pub fn for_tests() -> Result<&'static Self, String> {
        static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
        available()?;
        let started = CLUSTER.get_or_init(|| start_in_turn().map_err(|error| format!("{error:#}")));
        match started {
            Ok(cluster) => Ok(cluster),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes the tests' cluster that is kept, or starts it, after that of another test binary that runs at the same time.
fn start_in_turn() -> anyhow::Result<Cluster> {
    let settings = Settings::tests(TEST_NODES);
    if Cluster::is_kept() {
        return Cluster::running(settings);
    }
    let state = State::of(settings.name);
    if let Some(owner) = state.living_owner() {
        say(&format!("waiting for process {}, which tests with cluster `{}`", owner.as_raw_nonzero(), settings.name));
        wait_for("another test binary's cluster to end", OTHERS_TEST_FOR, || state.living_owner().is_none())?;
    }
    Cluster::start_guarded(settings)
}

/// Whatever cluster there is for tests that need no node faults.
#[derive(Debug)]
pub enum AnyCluster {
    /// This test binary's.
    Own(&'static Cluster),
    /// The user's, by [`TEST_KUBECONFIG`].
    Yours(Client),
}

impl AnyCluster {
    /// The user's cluster where [`TEST_KUBECONFIG`] names it, else this test binary's.
    ///
    /// # Errors
    /// Why there is none: a reason to skip the test.
    ///
    /// # Panics
    /// When there could be one, but it does not start.
    pub fn for_tests() -> Result<Self, String> {
        match env::var_os(TEST_KUBECONFIG).map(PathBuf::from) {
            None => Cluster::for_tests().map(Self::Own),
            Some(kubeconfig) if !kubeconfig.is_file() => {
                Err(format!("{TEST_KUBECONFIG}: {} is no file", kubeconfig.display()))
            }
            Some(kubeconfig) => {
                let programs = tools::ensure_programs().map_err(|error| format!("{error:#}"))?;
                Ok(Self::Yours(Client::new(kubeconfig, programs.folder().to_owned())))
            }
        }
    }

    /// kubectl and helm for it.
    #[must_use]
    pub fn client(&self) -> &Client {
        match self {
            Self::Own(cluster) => cluster.client(),
            Self::Yours(client) => client,
        }
    }
}
