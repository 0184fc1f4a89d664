//! The cluster with Lockstep on it. The first test that asks for it installs the chart.

use std::sync::{OnceLock, RwLockReadGuard, RwLockWriteGuard};

use lockstep_tests::{
    chart,
    cluster::{AnyCluster, Cluster},
    images,
};

use crate::shared::{self, Turn};

/// Returns [`shared::cluster`] with Lockstep installed.
pub(crate) fn cluster(test: &str) -> Option<Turn<RwLockReadGuard<'static, ()>>> {
    shared::cluster(test).inspect(|turn| install(turn))
}

/// Returns [`shared::cluster_alone`] with Lockstep installed.
pub(crate) fn cluster_alone(test: &str) -> Option<Turn<RwLockWriteGuard<'static, ()>>> {
    shared::cluster_alone(test).inspect(|turn| install(turn))
}

/// Returns [`shared::any_cluster`] with Lockstep installed. The user's own cluster must be able to
/// pull the images that the chart names.
pub(crate) fn any_cluster(test: &str) -> Option<(AnyCluster, RwLockReadGuard<'static, ()>)> {
    static DONE: OnceLock<()> = OnceLock::new();
    shared::any_cluster(test).inspect(|(cluster, _)| match cluster {
        AnyCluster::Own(cluster) => install(cluster),
        AnyCluster::Yours(client) => {
            DONE.get_or_init(|| chart::install(client).expect("helm installs the chart"));
        }
    })
}

fn install(cluster: &Cluster) {
    static DONE: OnceLock<()> = OnceLock::new();
    if Cluster::is_kept() {
        return;
    }
    DONE.get_or_init(|| {
        for archive in images() {
            cluster.load_image(archive).expect("the nodes take the image");
        }
        chart::install(cluster.client()).expect("helm installs the chart");
    });
}
