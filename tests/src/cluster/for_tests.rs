//! The cluster that tests share: one for each test binary, or the user's own.

use std::{env, path::PathBuf, sync::OnceLock, time::Duration};

use super::{Client, Cluster, Settings, TEST_NODES, available, programs::Programs, state::State, wait_for};
use crate::say;

/// How long another test binary may use the tests' cluster.
const OTHERS_TEST_FOR: Duration = Duration::from_secs(20 * 60);

/// The variable that names the kubeconfig of a cluster that the user already has. Tests that need
/// no node faults then run there.
pub const TEST_KUBECONFIG: &str = "LOCKSTEP_TEST_KUBECONFIG";

/// The variable that tells a test binary that `cargo xtask faults` keeps the tests' cluster, with
/// Lockstep on it, for several test binaries.
pub const KEPT_CLUSTER: &str = "LOCKSTEP_KEPT_CLUSTER";

impl Cluster {
    /// Returns true if another process keeps the tests' cluster, with Lockstep on it; see
    /// [`KEPT_CLUSTER`].
    #[must_use]
    pub fn is_kept() -> bool {
        env::var_os(KEPT_CLUSTER).is_some()
    }

    /// Returns the cluster of this test binary. The first call starts it; it ends with the process.
    ///
    /// # Errors
    /// This machine cannot run a cluster. The message is a reason to skip the test.
    ///
    /// # Panics
    /// The machine could run a cluster, but it does not start.
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

/// Takes the kept cluster, or starts one once no other test binary uses it.
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

/// A cluster for tests that need no node faults.
#[derive(Debug)]
pub enum AnyCluster {
    /// This test binary's own cluster.
    Own(&'static Cluster),
    /// The user's cluster, named by [`TEST_KUBECONFIG`].
    Yours(Client),
}

impl AnyCluster {
    /// Returns the user's cluster if [`TEST_KUBECONFIG`] names it, else this test binary's.
    ///
    /// # Errors
    /// There is no cluster. The message is a reason to skip the test.
    ///
    /// # Panics
    /// This machine could run a cluster, but it does not start.
    pub fn for_tests() -> Result<Self, String> {
        match env::var_os(TEST_KUBECONFIG).map(PathBuf::from) {
            None => Cluster::for_tests().map(Self::Own),
            Some(kubeconfig) if !kubeconfig.is_file() => {
                Err(format!("{TEST_KUBECONFIG}: {} is no file", kubeconfig.display()))
            }
            Some(kubeconfig) => {
                let programs = Programs::ensure().map_err(|error| format!("{error:#}"))?;
                Ok(Self::Yours(Client::new(kubeconfig, programs.folder().to_owned())))
            }
        }
    }

    /// Returns kubectl and helm for the cluster.
    #[must_use]
    pub fn client(&self) -> &Client {
        match self {
            Self::Own(cluster) => cluster.client(),
            Self::Yours(client) => client,
        }
    }
}
