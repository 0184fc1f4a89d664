//! One cluster for all tests of this binary; it ends with the process, however that ends.

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

/// A node is lost after 16 s and its pods are evicted 10 s later; whatever a test waits for takes less than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Tests that break something run alone, the others side by side.
static TURN: RwLock<()> = RwLock::new(());

/// The tests' cluster in good health, or `None` after one loud line where this machine cannot run it.
pub(crate) fn cluster(test: &str) -> Option<Turn<RwLockReadGuard<'static, ()>>> {
    // A test that failed in its turn has said so itself.
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    Some(Turn { cluster: running(test)?, _mender: None, _turn: turn })
}

/// The tests' cluster for a test that breaks something, and mends it. Where it fails before it has mended a node, that is done for it.
pub(crate) fn cluster_alone(test: &str) -> Option<Turn<RwLockWriteGuard<'static, ()>>> {
    let turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    let cluster = running(test)?;
    Some(Turn { cluster, _mender: Some(Mender(cluster)), _turn: turn })
}

/// Whatever cluster there is, the user's own too, for a test that breaks nothing.
pub(crate) fn any_cluster(test: &str) -> Option<(AnyCluster, RwLockReadGuard<'static, ()>)> {
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    AnyCluster::for_tests().map_err(|why| skip(test, &why)).ok().map(|cluster| (cluster, turn))
}

/// The cluster for as long as a test has its turn.
pub(crate) struct Turn<Guard> {
    cluster: &'static Cluster,
    // Dropped in this order.
    _mender: Option<Mender>,
    _turn: Guard,
}

impl<Guard> Deref for Turn<Guard> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

/// Mends the nodes for the tests after one that has failed.
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
