//! Follows the logs of a job's pods, also of those that replace others.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use lockstep_api::Phase;
use lockstep_plan::{PodSeen, PodState};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};

use super::{
    Wanted,
    line::{LogLine, Process, merged},
    paint::Paint,
    pods::{NotOpened, begun, next_line, of_node, open, parameters},
    show,
};
use crate::{
    cluster::{Cluster, ClusterError, MAX_FAILURES},
    display::{eprint_line, write},
};

/// Time in which lines of several pods are collected, so that they are shown in order.
const COLLECT: Duration = Duration::from_millis(300);
/// Time between two looks for new pods.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time between two looks, while the API server does not answer.
const MAX_PAUSE: Duration = Duration::from_secs(30);
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
/// There is no such job, the user may not read its pods or their logs, or the API server does not
/// answer for minutes.
pub(super) async fn follow(cluster: &Cluster, name: &str, wanted: &Wanted, paint: &Paint) -> anyhow::Result<()> {
    let uid = cluster.job(name).await?.uid().unwrap_or_default();
    // Another pod that takes a place is shown from its first line.
    let later = Wanted { tail: None, ..wanted.clone() };
    let (tell, mut told) = mpsc::channel::<Told>(QUEUE);
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut lives: BTreeMap<Process, u32> = BTreeMap::new();
    let (mut open_logs, mut is_over, mut has_looked) = (0_usize, false, false);
    let (mut look, mut failures) = (Instant::now(), 0);
    loop {
        if look <= Instant::now() {
            match looked(cluster, name, &uid).await {
                Ok((pods, over)) => {
                    (is_over, failures) = (over, 0);
                    if !has_looked && let Some(none) = wanted.unmatched(pods.iter().map(|(process, _)| *process)) {
                        eprint_line(&format!("note: {none}"));
                    }
                    let wanted = if has_looked { &later } else { wanted };
                    has_looked = true;
                    let chosen = pods.into_iter().filter(|(process, _)| wanted.selects(*process));
                    for (process, pod) in chosen.filter(|(_, pod)| known.insert(pod.uid.clone())) {
                        let lives = lives.entry(process).or_default();
                        *lives += 1;
                        if *lives > 1 {
                            let node = pod.node.as_deref().unwrap_or("a node");
                            remark(paint, process, &format!("another pod takes its place, on {node}"))?;
                        }
                        open_logs += 1;
                        tokio::spawn(read(cluster.clone(), process, pod, wanted.clone(), tell.clone()));
                    }
                }
                Err(error) if !has_looked || failures == MAX_FAILURES || is_refused(&error) => return Err(error),
                Err(error) => {
                    failures += 1;
                    eprint_line(&format!("note: the cluster does not answer, trying again: {error:#}"));
                }
            }
            look = Instant::now() + pause(failures);
        }
        let (lines, ended) = collect(&mut told).await?;
        open_logs -= ended.len();
        show(paint, &lines)?;
        for process in ended {
            remark(paint, process, "its log ends")?;
        }
        if is_over && open_logs == 0 {
            return Ok(());
        }
    }
}

fn is_refused(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ClusterError>().is_some_and(ClusterError::is_refusal)
}

/// Returns the time to the next look, after so many failures in a row.
fn pause(failures: u32) -> Duration {
    LOOK.saturating_mul(1 << failures.min(MAX_FAILURES)).min(MAX_PAUSE)
}

/// Returns the pods of a job that have a log, and whether the job is over or gone.
async fn looked(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<(Vec<(Process, PodSeen)>, bool)> {
    let job = cluster.find_job(name).await?.filter(|job| job.uid().as_deref() == Some(uid));
    let is_over = job.is_none_or(|job| job.phase().is_some_and(Phase::is_finished));
    Ok((begun(cluster, uid).await?, is_over))
}

fn remark(paint: &Paint, process: Process, text: &str) -> io::Result<()> {
    write(&(paint.remark(Timestamp::now(), process, text) + "\n"))
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
async fn read(cluster: Cluster, process: Process, pod: PodSeen, wanted: Wanted, tell: mpsc::Sender<Told>) {
    let mut last: Option<Timestamp> = None;
    loop {
        let stop = match open(&cluster, &pod.name, &parameters(&wanted, last)).await {
            Ok(mut log) => {
                let mut repeated = Repeated(last);
                let mut stop = Stop::Nothing;
                loop {
                    let text = match next_line(&mut log).await {
                        Ok(Some(text)) => text,
                        Ok(None) => break Stop::End,
                        Err(_) => break stop,
                    };
                    let at = text.split(' ').next().and_then(|time| time.parse::<Timestamp>().ok());
                    if repeated.holds(at) {
                        continue;
                    }
                    (last, stop) = (at.or(last), Stop::Break);
                    let line = of_node(process, &text);
                    if wanted.includes(&line) && tell.send(Told::Line(line)).await.is_err() {
                        return;
                    }
                }
            }
            Err(NotOpened::Refused(error)) => return drop(tell.send(Told::Failed(error)).await),
            Err(NotOpened::Away(_)) => Stop::Nothing,
        };
        match present(&cluster, &pod.name).await {
            Ok(now) if !has_more(stop, now.as_ref(), &pod.uid) => return drop(tell.send(Told::End(process)).await),
            Err(error) if is_refused(&error) => return drop(tell.send(Told::Failed(error)).await),
            // While the API server is away, nobody knows what became of the pod.
            Ok(_) | Err(_) => sleep(LOOK).await,
        }
    }
}

/// Lines at the beginning of a stream that an earlier stream ended with. The API server knows whole
/// seconds only, so it repeats the lines of the last second, up to this moment.
struct Repeated(Option<Timestamp>);

impl Repeated {
    /// Returns true if a line of this time is repeated. After the first new line none is, even if
    /// the node's clock was set back.
    fn holds(&mut self, time: Option<Timestamp>) -> bool {
        let is_repeated = time.is_some() && time <= self.0;
        if time.is_some() && !is_repeated {
            self.0 = None;
        }
        is_repeated
    }
}

/// The way in which the reading of a log stopped.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// The node says that the log ends here.
    End,
    /// The connection broke after new lines.
    Break,
    /// Nothing new could be read.
    Nothing,
}

/// Returns true if the pod `uid` has more to tell. `pod` is the one that has its name now: a
/// replacement has the same.
fn has_more(stop: Stop, pod: Option<&PodSeen>, uid: &str) -> bool {
    let Some(pod) = pod.filter(|pod| pod.uid == uid) else { return false };
    match stop {
        // The rest of its last words.
        Stop::Break => true,
        Stop::End | Stop::Nothing => pod.state == PodState::Running,
    }
}

/// Returns the pod of this name, by the user's right to list pods.
async fn present(cluster: &Cluster, pod: &str) -> anyhow::Result<Option<PodSeen>> {
    let of_name = ListParams::default().fields(&format!("metadata.name={pod}"));
    let found = cluster.api::<Pod>().list(&of_name).await;
    let found = found.map_err(ClusterError).with_context(|| format!("look for the pod {pod}"))?;
    Ok(found.items.first().and_then(PodSeen::of))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, state: &serde_json::Value) -> PodSeen {
        let pod = json!({
            "metadata": {"name": "lenet-worker-1", "uid": uid, "labels": {
                lockstep_api::label::ROLE: lockstep_api::label::WORKER,
                lockstep_api::label::INDEX: "1",
                lockstep_api::label::ATTEMPT: "0",
            }},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": lockstep_api::TRAINER_CONTAINER, "state": state,
                "image": "", "imageID": "", "ready": true, "restartCount": 0,
            }]},
        });
        PodSeen::of(&serde_json::from_value(pod).expect("a pod")).expect("a pod of a job")
    }

    #[test]
    fn a_replacement_of_the_same_name_ends_the_log() {
        let runs = json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}});
        let ended = json!({"terminated": {"exitCode": 0}});
        let more = |pod: Option<&PodSeen>| [Stop::End, Stop::Break, Stop::Nothing].map(|stop| has_more(stop, pod, "a"));
        assert_eq!(more(Some(&pod("a", &runs))), [true; 3], "it runs");
        assert_eq!(more(Some(&pod("a", &ended))), [false, true, false], "it ended");
        assert_eq!(more(Some(&pod("b", &runs))), [false; 3], "another pod has its name");
        assert_eq!(more(None), [false; 3], "it is gone");
    }

    #[test]
    fn only_the_beginning_of_a_stream_repeats_lines() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        let shown = |last: Option<i64>, lines: &[Option<i64>]| {
            let mut repeated = Repeated(last.and_then(at));
            let new = lines.iter().filter(|line| !repeated.holds(line.and_then(at)));
            new.map(|line| line.unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(shown(None, &[Some(10), Some(10), Some(3), Some(4)]), [10, 10, 3, 4], "a clock that was set back");
        assert_eq!(shown(Some(10), &[Some(9), Some(10), Some(11), Some(11), Some(3)]), [11, 11, 3]);
        assert_eq!(shown(Some(10), &[None, Some(10), Some(12)]), [0, 12], "a line without a time");
    }

    #[test]
    fn looks_become_rarer_while_the_api_server_does_not_answer() {
        let seconds = [0, 1, 2, 4, 5, MAX_FAILURES].map(|failures| pause(failures).as_secs());
        assert_eq!(seconds, [1, 2, 4, 16, 30, 30]);
    }

    #[test]
    fn a_refusal_is_found_below_what_was_attempted() {
        let error = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            anyhow::Error::new(ClusterError(kube::Error::Api(status.boxed()))).context("list the pods")
        };
        assert_eq!([401, 403, 503].map(|code| is_refused(&error(code))), [true, true, false]);
    }
}
