//! The fabric: a bridge in a network namespace without uplink; each node a namespace with one cable to it.

use std::process::Command;

use super::{Settings, ignore_failure, run};

/// A cluster's addresses. Every one lies in a namespace; two clusters differ in the second byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    second: u8,
}

impl Addresses {
    pub(crate) const fn of(second: u8) -> Self {
        Self { second }
    }

    /// Of the control plane.
    pub(crate) fn control_plane(self) -> String {
        format!("10.{}.0.1", self.second)
    }

    pub(crate) fn node(self, node: u32) -> String {
        format!("10.{}.0.{}", self.second, 10 + node)
    }

    /// Of a node's pods.
    pub(crate) fn node_pods(self, node: u32) -> String {
        format!("10.{}.{node}.0/24", self.second + 1)
    }

    pub(crate) fn pods(self) -> String {
        format!("10.{}.0.0/16", self.second + 1)
    }

    pub(crate) fn fake_pods(self) -> String {
        format!("10.{}.0.0/16", self.second + 2)
    }

    pub(crate) fn services(self) -> String {
        format!("10.{}.0.0/16", self.second + 3)
    }

    /// Of the `kubernetes` service.
    pub(crate) fn api_service(self) -> String {
        format!("10.{}.0.1", self.second + 3)
    }

    /// Of the cluster's DNS.
    pub(crate) fn dns_service(self) -> String {
        format!("10.{}.0.10", self.second + 3)
    }
}

/// Name of the control plane's namespace.
pub(crate) fn fabric(settings: &Settings) -> String {
    format!("lockstep-{}", settings.name)
}

/// Name of a node's namespace.
pub(crate) fn node_namespace(settings: &Settings, node: u32) -> String {
    format!("lockstep-{}-n{node}", settings.name)
}

/// The end of a node's cable at the bridge.
fn cable(settings: &Settings, node: u32) -> String {
    format!("ls{}{node}", settings.addresses.second)
}

/// A command inside a network namespace.
pub(crate) fn inside(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

/// Makes the fabric, unless it is there.
pub(crate) fn make_fabric(settings: &Settings) -> anyhow::Result<()> {
    let fabric = fabric(settings);
    if exists(&fabric) {
        return Ok(());
    }
    let address = format!("{}/24", settings.addresses.control_plane());
    run(Command::new("ip").args(["netns", "add", &fabric]))?;
    for words in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", "bridge", "type", "bridge"],
        &["addr", "add", &address, "dev", "bridge"],
        &["link", "set", "bridge", "up"],
    ] {
        run(inside(&fabric, "ip").args(words))?;
    }
    run(inside(&fabric, "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]))
}

/// Makes a node's namespace and its cable, unless they are there.
pub(crate) fn make_node(settings: &Settings, node: u32) -> anyhow::Result<()> {
    let (fabric, namespace, cable) = (fabric(settings), node_namespace(settings, node), cable(settings, node));
    if exists(&namespace) {
        return Ok(());
    }
    let addresses = settings.addresses;
    run(Command::new("ip").args(["netns", "add", &namespace]))?;
    run(inside(&fabric, "ip").args(["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &namespace]))?;
    run(inside(&fabric, "ip").args(["link", "set", &cable, "master", "bridge", "up"]))?;
    let address = format!("{}/24", addresses.node(node));
    for words in [
        &["link", "set", "lo", "up"][..],
        &["addr", "add", &address, "dev", "eth0"],
        &["link", "set", "eth0", "up"],
        &["route", "add", "default", "via", &addresses.control_plane()],
    ] {
        run(inside(&namespace, "ip").args(words))?;
    }
    run(inside(&namespace, "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]))?;
    for other in (1..=settings.nodes).filter(|other| *other != node) {
        let (pods, via) = (addresses.node_pods(other), addresses.node(other));
        run(inside(&namespace, "ip").args(["route", "replace", &pods, "via", &via]))?;
    }
    let (pods, via) = (addresses.node_pods(node), addresses.node(node));
    run(inside(&fabric, "ip").args(["route", "replace", &pods, "via", &via]))
}

/// Pulls a node's cable.
pub(crate) fn unplug(settings: &Settings, node: u32) -> anyhow::Result<()> {
    run(inside(&fabric(settings), "ip").args(["link", "set", &cable(settings, node), "down"]))
}

/// Plugs it in again.
pub(crate) fn plug(settings: &Settings, node: u32) -> anyhow::Result<()> {
    run(inside(&fabric(settings), "ip").args(["link", "set", &cable(settings, node), "up"]))?;
    let (pods, via) = (settings.addresses.node_pods(node), settings.addresses.node(node));
    run(inside(&fabric(settings), "ip").args(["route", "replace", &pods, "via", &via]))
}

/// Removes a namespace and all interfaces in it, if it is there.
pub(crate) fn remove(namespace: &str) {
    if exists(namespace) {
        ignore_failure(Command::new("ip").args(["netns", "del", namespace]));
    }
}

fn exists(namespace: &str) -> bool {
    std::path::Path::new("/run/netns").join(namespace).exists()
}
