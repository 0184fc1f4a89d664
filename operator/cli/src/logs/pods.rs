//! The logs of a job's pods.

use anyhow::{anyhow, bail};
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, LogParams},
};
use lockstep_api::{TRAINER_CONTAINER, label};
use lockstep_plan::{PodRole, PodSeen};

use super::{
    Wanted,
    line::{LogLine, Process},
};
use crate::cluster::Cluster;

/// Reads the wanted lines of each pod that is there.
///
/// # Errors
/// There is no such job, it has no pods that ran, or the user may not read logs.
pub(super) async fn read(cluster: &Cluster, name: &str, wanted: &Wanted) -> anyhow::Result<Vec<Vec<LogLine>>> {
    let namespace = &cluster.namespace;
    let job = cluster.job(name).await?;
    let pods = begun(cluster, &job.uid().unwrap_or_default(), wanted).await?;
    if pods.is_empty() {
        let phase = job.status.and_then(|status| status.phase).map(|phase| phase.to_string());
        bail!(
            "{name} is {} and has no pod with a log; `lockstep why {name} -n {namespace}` says more",
            phase.unwrap_or_else(|| "new".to_owned())
        );
    }
    let mut logs = Vec::new();
    for (process, pod) in pods {
        let how = LogParams { follow: false, ..parameters(wanted, None) };
        let mut lines = open(cluster, &pod.name, &how).await?.lines();
        let mut log = Vec::new();
        while let Some(Ok(line)) = lines.next().await {
            log.extend(Some(of_node(process, &line)).filter(|line| wanted.includes(line)));
        }
        logs.push(log);
    }
    Ok(logs)
}

/// Returns the chosen pods whose trainer has begun, which have a log.
pub(super) async fn begun(cluster: &Cluster, uid: &str, wanted: &Wanted) -> anyhow::Result<Vec<(Process, PodSeen)>> {
    let of_job = ListParams::default().labels(&format!("{}={uid}", label::JOB_UID));
    let pods = cluster.api::<Pod>().list(&of_job).await?;
    let seen = pods.iter().filter_map(PodSeen::of).filter(|pod| pod.started.is_some());
    let with_process = seen.map(|pod| match pod.role {
        PodRole::Coordinator => (Process::Coordinator, pod),
        PodRole::Worker(number) => (Process::Worker(number), pod),
    });
    Ok(with_process.filter(|(process, _)| wanted.selects(*process)).collect())
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

/// Opens the log of a pod.
///
/// # Errors
/// The user may not read it, or the pod is gone.
pub(super) async fn open(
    cluster: &Cluster,
    pod: &str,
    how: &LogParams,
) -> anyhow::Result<impl AsyncBufRead + Unpin + use<>> {
    let opened = cluster.api::<Pod>().log_stream(pod, how).await;
    opened.map(Box::pin).map_err(|error| match error {
        kube::Error::Api(refusal) if refusal.code == 403 => anyhow!(
            "you may not read the log of {pod}: your role needs `get` on `pods/log` in namespace {} ({})",
            cluster.namespace,
            refusal.message
        ),
        error => anyhow!(error),
    })
}

/// Reads a line with the node's time before it.
pub(super) fn of_node(process: Process, line: &str) -> LogLine {
    match line.split_once(' ').and_then(|(time, rest)| Some((time.parse::<Timestamp>().ok()?, rest))) {
        Some((time, rest)) => LogLine::read(process, Some(time), rest),
        None => LogLine::read(process, None, line),
    }
}
