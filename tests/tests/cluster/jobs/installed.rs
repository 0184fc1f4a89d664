//! The cluster with Lockstep on it, installed from its chart by the first test that asks.

use std::sync::{OnceLock, RwLockReadGuard, RwLockWriteGuard};

use lockstep_tests::{
    chart,
    cluster::{AnyCluster, Cluster},
    images,
};

use crate::shared::{self, Turn};

/// As [`shared::cluster`].
pub(crate) fn cluster(test: &str) -> Option<Turn<RwLockReadGuard<'static, ()>>> {
    shared::cluster(test).inspect(|turn| install(turn))
}

/// As [`shared::cluster_alone`].
pub(crate) fn cluster_alone(test: &str) -> Option<Turn<RwLockWriteGuard<'static, ()>>> {
    shared::cluster_alone(test).inspect(|turn| install(turn))
}

/// As [`shared::any_cluster`]; the user's own must be able to pull the images that the chart names.
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
