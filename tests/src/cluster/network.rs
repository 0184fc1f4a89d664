//! The fabric: a bridge in a network namespace without uplink; each node a namespace with one cable to it.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::MAX_NODES;

// Every address lives in namespaces that are the cluster's own and lead nowhere, so all clusters have the same.
/// Of the control plane and of DNS.
pub(crate) const CONTROL_PLANE: &str = "10.89.0.1";
pub(crate) const PODS: &str = "10.90.0.0/16";
pub(crate) const FAKE_PODS: &str = "10.91.0.0/16";
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// Of the service `kubernetes`.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
/// Of the service `kube-dns`.
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";

pub(crate) fn node_address(node: u32) -> String {
    format!("10.89.0.{}", 10 + node)
}

/// The addresses of a node's pods.
pub(crate) fn node_pods(node: u32) -> String {
    format!("10.90.{node}.0/24")
}

/// Name of the control plane's namespace.
pub(crate) fn fabric(cluster: &str) -> String {
    format!("lockstep-{cluster}-fabric")
}

/// Name of a node's namespace.
pub(crate) fn node_namespace(cluster: &str, node: u32) -> String {
    format!("lockstep-{cluster}-n{node}")
}

/// A command inside a network namespace. (`ip netns exec` would mount /sys anew and hide the control groups.)
pub(crate) fn inside(namespace: &str, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program.as_ref());
    command
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

/// Makes a node's namespace and its cable, or makes them anew.
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
        // The kernel takes the namespace, and the cable with it, apart some time after its name is gone.
        ip(&fabric, &format!("link del n{node}\n"))?;
        run(Command::new("ip").args(["netns", "del", &namespace]))?;
    }
    Ok(())
}

/// Pulls a node's cable.
pub(crate) fn unplug(cluster: &str, node: u32) -> anyhow::Result<()> {
    ip(&fabric(cluster), &format!("link set n{node} down\n"))
}

/// Plugs it in again.
pub(crate) fn plug(cluster: &str, node: u32) -> anyhow::Result<()> {
    ip(&fabric(cluster), &format!("link set n{node} up\n"))
}

fn make_namespace(name: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["netns", "add", name]))?;
    run(inside(name, "sh").args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]))
}

fn exists(namespace: &str) -> bool {
    fs::symlink_metadata(Path::new("/run/netns").join(namespace)).is_ok()
}

/// Runs lines of `ip` in a namespace.
fn ip(namespace: &str, lines: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting ip")?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(lines.as_bytes()).context("writing to ip")?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip in {namespace}: {}\n{lines}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs a command to its end; a failure carries what it said.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
