//! The needs of the local cluster: Linux, root, namespaces, Debian packages, and Go.

use std::process::{Command, Stdio};

use crate::{
    go_programs,
    packages::{install, program},
};

/// Debian packages, each with a program that proves its presence.
const PACKAGES: [(&str, &str); 12] = [
    ("busybox-static", "busybox"),
    ("conntrack", "conntrack"),
    ("containerd", "containerd"),
    ("containernetworking-plugins", "host-local"),
    ("iproute2", "ip"),
    ("iptables", "iptables"),
    ("mount", "mount"),
    ("nftables", "nft"),
    ("prometheus", "promtool"),
    ("runc", "runc"),
    ("socat", "socat"),
    ("util-linux", "nsenter"),
];

/// Returns Ok if this machine can run the cluster.
///
/// # Errors
/// The reason why it cannot, for people.
pub(crate) fn available() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the local cluster needs Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("the local cluster needs root: it makes network namespaces, mounts and control groups".to_owned());
    }
    let namespaces = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"])
        .stderr(Stdio::null())
        .status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return Err("the local cluster needs namespaces, which `unshare` could not make here".to_owned());
    }
    let missing = missing_packages();
    if !missing.is_empty() && program("apt-get").is_none() {
        return Err(format!("the local cluster needs the Debian packages {}: install them", missing.join(", ")));
    }
    go_programs::can_build_cluster_programs().map_err(|error| format!("{error:#}"))
}

/// Installs the Debian packages that are missing.
///
/// # Errors
/// Packages are missing and could not be installed.
pub fn ensure_packages() -> anyhow::Result<()> {
    let missing = missing_packages();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

fn missing_packages() -> Vec<&'static str> {
    PACKAGES.iter().filter(|(_, needed)| program(needed).is_none()).map(|(package, _)| *package).collect()
}
