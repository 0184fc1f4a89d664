//! The logs of a job's pods.

use std::io;

use anyhow::{Context, anyhow, bail};
use futures::{AsyncBufRead, AsyncBufReadExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::LogParams};
use lockstep_api::TRAINER_CONTAINER;
use lockstep_plan::{PodRole, PodSeen};

use super::{
    Wanted,
    line::{LogLine, Process},
};
use crate::{
    cluster::{Cluster, ClusterError},
    display::eprint_line,
};

/// Reads the wanted lines of each pod that is there. A log that cannot be read to its end gets a
/// note.
///
/// # Errors
/// There is no such job, none of its chosen pods has a log that can be read, or the user may not
/// read logs.
pub(super) async fn read(cluster: &Cluster, name: &str, wanted: &Wanted) -> anyhow::Result<Vec<Vec<LogLine>>> {
    let namespace = &cluster.namespace;
    let job = cluster.job(name).await?;
    let pods = begun(cluster, &job.uid().unwrap_or_default()).await?;
    if pods.is_empty() {
        bail!(
            "{name} is {} and has no pod with a log; `lockstep why {name} -n {namespace}` says more",
            job.phase_word()
        );
    }
    if let Some(none) = wanted.unmatched(pods.iter().map(|(process, _)| *process)) {
        bail!(none);
    }
    let (mut logs, mut unopened) = (Vec::new(), None);
    for (process, pod) in pods.into_iter().filter(|(process, _)| wanted.selects(*process)) {
        let how = LogParams { follow: false, ..parameters(wanted, None) };
        match open(cluster, &pod.name, &how).await {
            Ok(log) => {
                let (lines, broken) = whole(process, log).await;
                if let Some(error) = broken {
                    eprint_line(&format!("note: the log of {} ends early: {error}", pod.name));
                }
                logs.push(lines.into_iter().filter(|line| wanted.includes(line)).collect());
            }
            Err(NotOpened::Refused(error)) => return Err(error),
            Err(NotOpened::Away(error)) => {
                eprint_line(&format!("note: the log of {} cannot be read: {error}", pod.name));
                unopened = Some(error);
            }
        }
    }
    match unopened {
        Some(error) if logs.is_empty() => Err(anyhow!(error).context("no log could be read")),
        _ => Ok(logs),
    }
}

/// Reads a log to its end, or to the error that ends it early.
async fn whole(process: Process, mut log: impl AsyncBufRead + Unpin) -> (Vec<LogLine>, Option<io::Error>) {
    let mut lines = Vec::new();
    loop {
        match next_line(&mut log).await {
            Ok(Some(line)) => lines.push(of_node(process, &line)),
            Ok(None) => return (lines, None),
            Err(error) => return (lines, Some(error)),
        }
    }
}

/// Reads a line without its end. Bytes that are not UTF-8 are replaced.
///
/// # Errors
/// The connection broke.
pub(super) async fn next_line(log: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    log.read_until(b'\n', &mut line).await?;
    Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned()))
}

/// Returns the pods whose trainer has begun, which have a log.
pub(super) async fn begun(cluster: &Cluster, uid: &str) -> anyhow::Result<Vec<(Process, PodSeen)>> {
    let pods = cluster.pods_of(uid).await;
    let pods = pods.with_context(|| format!("list the pods in namespace {}", cluster.namespace))?;
    let seen = pods.iter().filter_map(PodSeen::of).filter(|pod| pod.started.is_some());
    let with_process = seen.map(|pod| match pod.role {
        PodRole::Coordinator => (Process::Coordinator, pod),
        PodRole::Worker(number) => (Process::Worker(number), pod),
    });
    Ok(with_process.collect())
}

/// Returns how a log is read: from a moment on, or as the user wants it.
pub(super) fn parameters(wanted: &Wanted, after: Option<Timestamp>) -> LogParams {
    LogParams {
        container: Some(TRAINER_CONTAINER.to_owned()),
        follow: true,
        timestamps: true,
        since_time: after.or(wanted.since),
        tail_lines: wanted.tail.filter(|_| after.is_none()).map(i64::from),
        ..LogParams::default()
    }
}

/// The reason why a log was not opened.
pub(super) enum NotOpened {
    /// The user may not read it.
    Refused(anyhow::Error),
    /// The API server is away, or the pod is gone and its log with it.
    Away(ClusterError),
}

/// Opens the log of a pod.
pub(super) async fn open(
    cluster: &Cluster,
    pod: &str,
    how: &LogParams,
) -> Result<impl AsyncBufRead + Unpin + use<>, NotOpened> {
    let opened = cluster.api::<Pod>().log_stream(pod, how).await;
    opened.map(Box::pin).map_err(|error| match error {
        kube::Error::Api(refusal) if refusal.code == 403 => NotOpened::Refused(anyhow!(
            "you may not read the log of {pod}: your role needs `get` on `pods/log` in namespace {} ({})",
            cluster.namespace,
            refusal.message
        )),
        error => match ClusterError(error) {
            error if error.is_refusal() => NotOpened::Refused(anyhow!(error).context(format!("read the log of {pod}"))),
            error => NotOpened::Away(error),
        },
    })
}

/// Reads a line with the node's time before it.
pub(super) fn of_node(process: Process, line: &str) -> LogLine {
    match line.split_once(' ').and_then(|(time, rest)| Some((time.parse::<Timestamp>().ok()?, rest))) {
        Some((time, rest)) => LogLine::read(process, Some(time), rest),
        None => LogLine::read(process, None, line),
    }
}

#[cfg(test)]
mod tests {
    use futures::{
        FutureExt as _,
        stream::{TryStreamExt as _, iter},
    };

    use super::*;

    #[test]
    fn a_log_that_breaks_off_keeps_its_lines_and_says_why() {
        let bytes = [Ok("2026-11-28T16:00:01Z INFO a\n2026-11-28T16:00:02Z b"), Err(io::Error::other("no node"))];
        let log = iter(bytes).into_async_read();
        let (lines, broken) = whole(Process::Worker(0), log).now_or_never().expect("nothing to wait for");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(broken.map(|error| error.to_string()).as_deref(), Some("no node"));
    }

    #[test]
    fn a_byte_that_is_not_utf8_does_not_end_a_log() {
        let log = &b"2026-11-28T16:00:01Z caf\xe9\r\n2026-11-28T16:00:02Z b"[..];
        let (lines, broken) = whole(Process::Worker(0), log).now_or_never().expect("nothing to wait for");
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!((texts, broken.is_none()), (vec!["caf\u{fffd}", "b"], true));
    }
}
