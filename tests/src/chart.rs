//! Lockstep on a cluster: its chart, installed as a user does it, and its operator's metrics.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Context as _;

use crate::{
    cluster::Client,
    packages::{install as install_packages, program},
    root,
};

/// The operator's namespace.
pub const NAMESPACE: &str = "lockstep-system";
/// The release's name.
pub const RELEASE: &str = "lockstep";
/// Selects the operator's pods.
pub const OPERATOR: &str = "app.kubernetes.io/component=operator";

/// Installs the chart, or upgrades it to the current build, and waits until the operator is ready.
///
/// # Errors
/// helm fails.
pub fn install(client: &Client) -> anyhow::Result<()> {
    let chart = root().join("charts/lockstep").display().to_string();
    // Without --reset-values, helm keeps those of the release before.
    let options = ["--reset-values", "--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"];
    client.helm(&[&["upgrade", "--install", RELEASE, chart.as_str()][..], &options].concat()).map(drop)
}

/// Returns the operator's metrics in Prometheus' text format.
///
/// # Errors
/// kubectl fails.
pub fn operator_metrics(client: &Client) -> anyhow::Result<String> {
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/lockstep-operator-metrics:metrics");
    client.kubectl(&["get", "--raw", &format!("{service}/proxy/metrics")])
}

/// Returns the path of promtool, and installs its Debian package if it is missing.
///
/// # Errors
/// The package cannot be installed.
pub fn promtool() -> anyhow::Result<PathBuf> {
    if program("promtool").is_none() {
        install_packages(&["prometheus"])?;
    }
    program("promtool").context("the package prometheus brought no promtool")
}

/// Returns the objections of `promtool check metrics`; empty if there are none.
///
/// # Errors
/// promtool, of Debian's package prometheus, cannot be installed or started.
pub fn promtool_objections(metrics: &str) -> anyhow::Result<String> {
    let mut checker = Command::new(promtool()?)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting promtool, of the package prometheus")?;
    if let Some(mut pipe) = checker.stdin.take() {
        pipe.write_all(metrics.as_bytes()).context("writing to promtool")?;
    }
    let verdict = checker.wait_with_output()?;
    let objections =
        format!("{}{}", String::from_utf8_lossy(&verdict.stderr), String::from_utf8_lossy(&verdict.stdout));
    let objections = objections.trim().to_owned();
    Ok(if verdict.status.success() || !objections.is_empty() {
        objections
    } else {
        format!("promtool ended with {}", verdict.status)
    })
}
