//! Lockstep on a cluster: its chart, rendered and installed as a user does it, and its operator's
//! metrics.

pub mod variants;

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::{
    cluster::Client,
    go_programs,
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

/// Returns the objects that helm would install, with the Prometheus operator in the cluster.
/// `words` set the values.
///
/// # Errors
/// helm cannot be built, or it refuses the values.
pub fn rendered(release: &str, words: &[&str]) -> anyhow::Result<String> {
    let chart = root().join("charts/lockstep").display().to_string();
    let kinds = variants::MONITORING.map(|kind| format!("--api-versions=monitoring.coreos.com/v1/{kind}"));
    let mut all = vec!["template", release, chart.as_str(), "--namespace", NAMESPACE];
    all.extend(kinds.iter().map(String::as_str));
    program_of_the_cluster("helm", &[&all[..], words].concat())
}

/// Runs one of the cluster's programs without a cluster, and returns its output.
///
/// # Errors
/// It cannot be built, or it fails; the error holds its message.
pub fn program_of_the_cluster(program: &str, words: &[&str]) -> anyhow::Result<String> {
    let path = go_programs::cluster_programs()?.join(program);
    let ended = Command::new(path).args(words).current_dir(root()).output();
    let ended = ended.with_context(|| format!("starting {program}"))?;
    if !ended.status.success() {
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Returns the CRDs of [`variants::MONITORING`], as the Prometheus operator's release has them.
///
/// # Errors
/// The Go module cannot be downloaded.
pub fn monitoring_crds() -> anyhow::Result<[PathBuf; 3]> {
    let folder = go_programs::prometheus_operator()?.join("example/prometheus-operator-crd");
    Ok(variants::MONITORING.map(|kind| folder.join(format!("monitoring.coreos.com_{}s.yaml", kind.to_lowercase()))))
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
