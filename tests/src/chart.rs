//! Lockstep on a cluster: its chart installed as a user does it, and what its operator then tells.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::Context as _;

use crate::{cluster::Client, root};

/// Where the operator runs.
pub const NAMESPACE: &str = "lockstep-system";
/// The release's name.
pub const RELEASE: &str = "lockstep";
/// Selects the operator's pods.
pub const OPERATOR: &str = "app.kubernetes.io/component=operator";

/// Installs the chart, or upgrades to what is built now, and waits until the operator is ready.
///
/// # Errors
/// What helm complained about.
pub fn install(client: &Client) -> anyhow::Result<()> {
    let chart = root().join("charts/lockstep").display().to_string();
    let place = ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"];
    client.helm(&[&["upgrade", "--install", RELEASE, chart.as_str()][..], &place].concat()).map(drop)
}

/// The operator's metrics, in Prometheus' text format.
///
/// # Errors
/// What kubectl complained about.
pub fn operator_metrics(client: &Client) -> anyhow::Result<String> {
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/lockstep-operator-metrics:metrics");
    client.kubectl(&["get", "--raw", &format!("{service}/proxy/metrics")])
}

/// What `promtool check metrics` has to say against metrics; empty when they please it.
///
/// # Errors
/// promtool, of Debian's package prometheus, cannot be started.
pub fn promtool_objections(metrics: &str) -> anyhow::Result<String> {
    let mut checker = Command::new("promtool")
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
    let said = format!("{}{}", String::from_utf8_lossy(&verdict.stderr), String::from_utf8_lossy(&verdict.stdout));
    let said = said.trim().to_owned();
    Ok(if verdict.status.success() || !said.is_empty() { said } else { format!("it ended with {}", verdict.status) })
}
