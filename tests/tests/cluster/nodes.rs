//! Nodes fail as real ones do, and come back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_tests::cluster::wait_for;

use crate::shared::{PATIENCE, cluster_alone};

#[test]
fn nodes_without_power_cable_or_kubelet_are_lost_and_mended_after_a_failed_test() {
    let test = "nodes_without_power_cable_or_kubelet_are_lost_and_mended_after_a_failed_test";
    let Some(cluster) = cluster_alone(test) else { return };
    drop(cluster);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let cluster = cluster_alone(test).expect("it ran before");
        cluster.power_off(3).expect("power off");
        cluster.isolate(2).expect("unplugged");
        cluster.stop_kubelet(1).expect("stopped");
        for node in cluster.nodes() {
            wait_for(&format!("n{node} to be lost"), PATIENCE, || !cluster.is_ready(node)).expect("lost");
        }
        panic!("all are lost");
    }));
    let why = failed.expect_err("the test failed");
    assert_eq!(why.downcast_ref::<&str>(), Some(&"all are lost"));
    let cluster = cluster_alone(test).expect("it ran before");
    assert!(cluster.nodes().all(|node| cluster.is_ready(node)), "every node is back");
}
