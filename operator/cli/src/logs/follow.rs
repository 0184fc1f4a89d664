//! Follows the logs of a job's pods, also of those that replace others.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{AsyncBufReadExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::{Phase, TrainingJob};
use lockstep_plan::{PodSeen, PodState};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};

use super::{
    Wanted,
    line::{LogLine, Process, merged},
    paint::Paint,
    pods::{begun, of_node, open, parameters},
    show,
};
use crate::{cluster::Cluster, display::print};

/// Time in which lines of several pods are collected, so that they are shown in order.
const COLLECT: Duration = Duration::from_millis(300);
/// Time between two looks for new pods.
const LOOK: Duration = Duration::from_secs(1);
/// Lines that wait to be shown.
const QUEUE: usize = 4096;

/// A message from the reader of one log.
enum Told {
    Line(LogLine),
    /// The log of this process's pod ended.
    End(Process),
    /// The log could not be read.
    Failed(anyhow::Error),
}

/// Prints lines until the job is over or deleted.
///
/// # Errors
/// There is no such job, or the user may not read its pods or their logs.
pub(super) async fn follow(cluster: &Cluster, name: &str, wanted: &Wanted, paint: &Paint) -> anyhow::Result<()> {
    let uid = cluster.job(name).await?.uid().unwrap_or_default();
    let (tell, mut told) = mpsc::channel::<Told>(QUEUE);
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut lives: BTreeMap<Process, u32> = BTreeMap::new();
    let (mut open_logs, mut is_over) = (0_usize, false);
    let mut look = Instant::now();
    loop {
        if look <= Instant::now() {
            look = Instant::now() + LOOK;
            match looked(cluster, name, &uid, wanted).await {
                Ok((pods, over)) => {
                    is_over = over;
                    for (process, pod) in pods.into_iter().filter(|(_, pod)| known.insert(pod.uid.clone())) {
                        let lives = lives.entry(process).or_default();
                        *lives += 1;
                        if *lives > 1 {
                            let node = pod.node.as_deref().unwrap_or("a node");
                            remark(paint, process, &format!("another pod takes its place, on {node}"));
                        }
                        open_logs += 1;
                        tokio::spawn(read(cluster.clone(), process, pod.name, wanted.clone(), tell.clone()));
                    }
                }
                Err(error) if known.is_empty() => return Err(error),
                // The API server is away for a moment.
                Err(_) => {}
            }
        }
        let (lines, ended) = collect(&mut told).await?;
        open_logs -= ended.len();
        show(paint, &lines);
        ended.iter().for_each(|process| remark(paint, *process, "its log ends"));
        if is_over && open_logs == 0 {
            return Ok(());
        }
    }
}

/// Returns the pods of a job that have a log, and whether the job is over or gone.
async fn looked(
    cluster: &Cluster,
    name: &str,
    uid: &str,
    wanted: &Wanted,
) -> anyhow::Result<(Vec<(Process, PodSeen)>, bool)> {
    let job = cluster.api::<TrainingJob>().get_opt(name).await?.filter(|job| job.uid().as_deref() == Some(uid));
    let phase = job.as_ref().map(|job| job.status.as_ref().and_then(|status| status.phase));
    let is_over = phase.is_none_or(|phase| phase.is_some_and(Phase::is_finished));
    Ok((begun(cluster, uid, wanted).await?, is_over))
}

fn remark(paint: &Paint, process: Process, text: &str) {
    print(&(paint.remark(Timestamp::now(), process, text) + "\n"));
}

/// Collects lines for a moment, and returns them in order, with the processes whose logs ended.
async fn collect(told: &mut mpsc::Receiver<Told>) -> anyhow::Result<(Vec<LogLine>, Vec<Process>)> {
    let until = Instant::now() + COLLECT;
    let (mut logs, mut ended): (BTreeMap<Process, Vec<LogLine>>, Vec<Process>) = Default::default();
    while let Ok(Some(next)) = timeout_at(until, told.recv()).await {
        match next {
            Told::Line(line) => logs.entry(line.process).or_default().push(line),
            Told::End(process) => ended.push(process),
            Told::Failed(error) => return Err(error),
        }
    }
    Ok((merged(logs.into_values().collect()), ended))
}

/// Reads the log of one pod to its end. A connection that breaks is opened again behind the last
/// line.
async fn read(cluster: Cluster, process: Process, pod: String, wanted: Wanted, tell: mpsc::Sender<Told>) {
    let mut last: Option<Timestamp> = None;
    loop {
        let mut lines = match open(&cluster, &pod, &parameters(&wanted, last)).await {
            Ok(log) => log.lines(),
            // The API server is away, or the pod is gone and its log with it.
            Err(error) if error.is::<kube::Error>() => {
                if !runs(&cluster, &pod).await {
                    return drop(tell.send(Told::End(process)).await);
                }
                sleep(LOOK).await;
                continue;
            }
            Err(forbidden) => return drop(tell.send(Told::Failed(forbidden)).await),
        };
        let mut is_whole = true;
        while let Some(next) = lines.next().await {
            let Ok(text) = next else {
                is_whole = false;
                break;
            };
            let at = text.split(' ').next().and_then(|time| time.parse::<Timestamp>().ok());
            // The API server knows whole seconds only, so it repeats some lines.
            if at.is_some() && at <= last {
                continue;
            }
            last = at.or(last);
            let line = of_node(process, &text);
            if wanted.includes(&line) && tell.send(Told::Line(line)).await.is_err() {
                return;
            }
        }
        if is_whole && !runs(&cluster, &pod).await {
            return drop(tell.send(Told::End(process)).await);
        }
        sleep(LOOK).await;
    }
}

/// Returns true while the pod's trainer runs.
async fn runs(cluster: &Cluster, pod: &str) -> bool {
    match cluster.api::<Pod>().get_opt(pod).await {
        Ok(pod) => pod.as_ref().and_then(PodSeen::of).is_some_and(|pod| pod.state == PodState::Running),
        // Nobody knows while the API server is away.
        Err(_) => true,
    }
}
