//! One cluster of three nodes for all tests of this binary; it ends with the process, however that ends.

use std::{path::Path, sync::OnceLock};

use lockstep_tests::cluster::{Cluster, Settings, available};

/// Real nodes of the tests' cluster.
pub(crate) const NODES: u32 = 3;
/// What starts a node's disk of; pods of the tests run it.
pub(crate) const SHELL_IMAGE: &str = "lockstep.dev/data-shell:0.1.0";

/// The tests' cluster, or `None` after one loud line where this machine cannot run it.
pub(crate) fn cluster(test: &str) -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    if let Err(why) = available() {
        lockstep_tests::skip(test, &why);
        return None;
    }
    Some(CLUSTER.get_or_init(|| {
        let guard = Path::new(env!("CARGO_BIN_EXE_lockstep-cluster-guard"));
        let cluster = Cluster::start_guarded(Settings::tests(NODES), guard).expect("the cluster starts");
        let archive = lockstep_tests::target().join("images/data-shell.oci.tar");
        lockstep_tests::image::data("shell", &[], &archive).expect("an image with a shell");
        cluster.load_image(&archive).expect("the nodes take the image");
        cluster
    }))
}

/// Runs kubectl, which must succeed.
pub(crate) fn kubectl(cluster: &Cluster, words: &[&str]) -> String {
    cluster.kubectl(words).unwrap_or_else(|error| panic!("{error:#}"))
}
