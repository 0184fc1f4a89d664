//! Lockstep on the cluster, installed from its chart by the first test that asks.

use std::sync::OnceLock;

use lockstep_tests::{
    cluster::{AnyCluster, Client, Cluster},
    images, root,
};

/// Where the operator runs.
pub(crate) const NAMESPACE: &str = "lockstep-system";
pub(crate) const RELEASE: &str = "lockstep";
/// Selects its pods.
pub(crate) const OPERATOR: &str = "app.kubernetes.io/component=operator";

/// Sees that Lockstep runs on the tests' cluster.
pub(crate) fn on(cluster: &Cluster) {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        for archive in images() {
            cluster.load_image(archive).expect("the nodes take the image");
        }
        install(cluster.client());
    });
}

/// The same on any cluster; the user's own must be able to pull the images that the chart names.
pub(crate) fn on_any(cluster: &AnyCluster) -> &Client {
    static DONE: OnceLock<()> = OnceLock::new();
    match cluster {
        AnyCluster::Own(cluster) => on(cluster),
        AnyCluster::Yours(client) => *DONE.get_or_init(|| install(client)),
    }
    cluster.client()
}

pub(crate) fn install(client: &Client) {
    let chart = root().join("charts/lockstep").display().to_string();
    let place = ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"];
    let words = [&["upgrade", "--install", RELEASE, chart.as_str()][..], &place].concat();
    client.helm(&words).expect("helm installs the chart");
}
