//! One cluster for all tests of this binary; it ends with the process, however that ends.

use std::{
    ops::Deref,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
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
    Some(Turn { cluster: running(test)?, _turn: turn })
}

/// The tests' cluster for a test that breaks something, and mends it.
pub(crate) fn cluster_alone(test: &str) -> Option<Turn<RwLockWriteGuard<'static, ()>>> {
    let turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    Some(Turn { cluster: running(test)?, _turn: turn })
}

/// Whatever cluster there is, the user's own too, for a test that breaks nothing.
pub(crate) fn any_cluster(test: &str) -> Option<(AnyCluster, RwLockReadGuard<'static, ()>)> {
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    AnyCluster::for_tests().map_err(|why| skip(test, &why)).ok().map(|cluster| (cluster, turn))
}

/// The cluster for as long as a test has its turn.
pub(crate) struct Turn<Guard> {
    cluster: &'static Cluster,
    _turn: Guard,
}

impl<Guard> Deref for Turn<Guard> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

fn running(test: &str) -> Option<&'static Cluster> {
    Cluster::for_tests().map_err(|why| skip(test, &why)).ok()
}
