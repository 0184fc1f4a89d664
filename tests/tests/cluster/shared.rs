//! One cluster for all tests of this binary. It ends with the process, even if that is killed.

use std::{
    ops::Deref,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
    time::Duration,
};

use lockstep_tests::{
    cluster::{AnyCluster, Cluster},
    skip,
};

/// The longest wait of a test. A node is lost after 16 s, and its pods are evicted 10 s later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Tests that break something run alone, the others side by side.
static TURN: RwLock<()> = RwLock::new(());

/// Returns the tests' cluster in good health. If this machine cannot run it, prints one loud line
/// and returns `None`.
pub(crate) fn cluster(test: &str) -> Option<Turn<RwLockReadGuard<'static, ()>>> {
    // A test that failed in its turn has reported that itself.
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    Some(Turn { cluster: running(test)?, _mender: None, _turn: turn })
}

/// Returns the tests' cluster for a test that breaks something and mends it. If the test fails
/// before, the cluster is mended for it.
pub(crate) fn cluster_alone(test: &str) -> Option<Turn<RwLockWriteGuard<'static, ()>>> {
    let turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    let cluster = running(test)?;
    Some(Turn { cluster, _mender: Some(Mender(cluster)), _turn: turn })
}

/// Returns the tests' cluster or the user's own, for a test that breaks nothing.
pub(crate) fn any_cluster(test: &str) -> Option<(AnyCluster, RwLockReadGuard<'static, ()>)> {
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    AnyCluster::for_tests().map_err(|why| skip(test, &why)).ok().map(|cluster| (cluster, turn))
}

/// The cluster during the turn of a test.
pub(crate) struct Turn<Guard> {
    cluster: &'static Cluster,
    // Fields are dropped in this order.
    _mender: Option<Mender>,
    _turn: Guard,
}

impl<Guard> Deref for Turn<Guard> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

/// Mends the nodes after a failed test.
struct Mender(&'static Cluster);

impl Drop for Mender {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for node in self.0.nodes() {
            if let Err(error) = self.0.mend(node) {
                eprintln!("the tests after this one lack n{node}: {error:#}");
            }
        }
    }
}

fn running(test: &str) -> Option<&'static Cluster> {
    Cluster::for_tests().map_err(|why| skip(test, &why)).ok()
}
