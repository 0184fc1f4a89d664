//! The fabric: a bridge in a network namespace without uplink. Each node is a namespace with one
//! cable to the bridge.

use super::MAX_NODES;
use crate::namespaces::{self, exists, ip, run};

pub(crate) use crate::namespaces::inside;

// All addresses belong to the cluster's own namespaces, which lead nowhere. All clusters can
// therefore have the same addresses.
/// The address of the control plane and of DNS.
pub(crate) const CONTROL_PLANE: &str = "10.89.0.1";
pub(crate) const PODS: &str = "10.90.0.0/16";
pub(crate) const FAKE_PODS: &str = "10.91.0.0/16";
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The address of the service `kubernetes`.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
/// The address of the service `kube-dns`.
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";

pub(crate) fn node_address(node: u32) -> String {
    format!("10.89.0.{}", 10 + node)
}

/// Returns the addresses of a node's pods.
pub(crate) fn node_pods(node: u32) -> String {
    format!("10.90.{node}.0/24")
}

/// Returns the name of the control plane's namespace.
pub(crate) fn fabric(cluster: &str) -> String {
    format!("lockstep-{cluster}-fabric")
}

/// Returns the name of a node's namespace.
pub(crate) fn node_namespace(cluster: &str, node: u32) -> String {
    format!("lockstep-{cluster}-n{node}")
}

pub(crate) fn make_fabric(cluster: &str) -> anyhow::Result<()> {
    let fabric = fabric(cluster);
    make_namespace(&fabric)?;
    ip(
        &fabric,
        &format!(
            "link set lo up\n\
             link add bridge type bridge\n\
             addr add {CONTROL_PLANE}/24 dev bridge\n\
             link set bridge up\n"
        ),
    )
}

/// Makes a node's namespace and its cable, and replaces existing ones.
pub(crate) fn make_node(cluster: &str, node: u32) -> anyhow::Result<()> {
    remove_node(cluster, node)?;
    let (fabric, namespace) = (fabric(cluster), node_namespace(cluster, node));
    let (address, pods) = (node_address(node), node_pods(node));
    make_namespace(&namespace)?;
    ip(
        &fabric,
        &format!(
            "link add n{node} type veth peer name eth0 netns {namespace}\n\
             link set n{node} master bridge\n\
             link set n{node} up\n\
             route replace {pods} via {address}\n"
        ),
    )?;
    let mut lines = format!(
        "link set lo up\n\
         addr add {address}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {CONTROL_PLANE}\n"
    );
    for other in (1..=MAX_NODES).filter(|other| *other != node) {
        lines += &format!("route add {} via {}\n", node_pods(other), node_address(other));
    }
    ip(&namespace, &lines)
}

pub(crate) fn remove_node(cluster: &str, node: u32) -> anyhow::Result<()> {
    let (fabric, namespace) = (fabric(cluster), node_namespace(cluster, node));
    if exists(&namespace) {
        // The kernel removes the namespace and its cable some time after the name is gone.
        ip(&fabric, &format!("link del n{node}\n"))?;
        namespaces::remove(&namespace)?;
    }
    Ok(())
}

/// Unplugs a node's cable.
pub(crate) fn unplug(cluster: &str, node: u32) -> anyhow::Result<()> {
    ip(&fabric(cluster), &format!("link set n{node} down\n"))
}

/// Plugs a node's cable in again.
pub(crate) fn plug(cluster: &str, node: u32) -> anyhow::Result<()> {
    ip(&fabric(cluster), &format!("link set n{node} up\n"))
}

fn make_namespace(name: &str) -> anyhow::Result<()> {
    namespaces::make(name)?;
    run(inside(name, "sh").args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]))
}
