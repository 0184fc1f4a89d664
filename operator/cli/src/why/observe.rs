//! Reads what is known about a job from a cluster, with the rights of the user.

use std::{fmt::Debug, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, LimitRange, Pod, ResourceQuota},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{GetParams, ListParams},
    client::Body,
    core::request::Request,
};
use lockstep_api::{Phase, TrainingGroup, TrainingJob};
use lockstep_plan::PodSeen;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::facts::{EventSeen, Facts, OperatorSeen, is_worker};
use crate::{
    cluster::{Cluster, ClusterError},
    scrape::{self, BETWEEN_SCRAPES},
    worker_metrics,
};

/// The operator's deployment, by the labels that the chart and the plain manifests give it.
const OPERATOR: &str = "app.kubernetes.io/part-of=lockstep,app.kubernetes.io/component=operator";
/// Events of a namespace that are read at once. They come in the order of their names.
const EVENTS_AT_ONCE: u32 = 500;
/// Answers of so many events that are read.
const MAX_ANSWERS: usize = 10;
/// Time that a running operator needs at most to see a change.
const OPERATOR_SEES: Duration = Duration::from_secs(3);
/// Workers whose metrics are read.
const MAX_SCRAPED: usize = 64;

/// Reads everything about a job.
///
/// # Errors
/// The job itself cannot be read. Whatever else the user may not read is left out.
pub(super) async fn observe(cluster: &Cluster, name: &str) -> anyhow::Result<Facts> {
    let job = current(cluster, name).await?;
    let uid = job.uid().unwrap_or_default();
    let mut unread = Vec::new();
    let pods = cluster.pods_of(&uid).await.map_err(|ClusterError(error)| error).or_note("pods", &mut unread);
    let (events, is_cut) = all_events(&cluster.api()).await.or_note("events", &mut unread);
    if is_cut {
        unread.push(format!("the namespace has more events than the {} that were read", events.len()));
    }
    let events = events_of(name, &pods, events);
    let everything = ListParams::default();
    let quotas = list::<ResourceQuota>(&cluster.api(), &everything).await.or_note("resourcequotas", &mut unread);
    let limits = list::<LimitRange>(&cluster.api(), &everything).await.or_note("limitranges", &mut unread);
    let deployments = Api::<Deployment>::all(cluster.client.clone());
    let operators = list(&deployments, &ListParams::default().labels(OPERATOR)).await.ok();
    let group = cluster.api::<TrainingGroup>().get_opt(name).await.ok().flatten();
    let workers = match job.status.as_ref().and_then(|status| status.phase) {
        Some(Phase::Running) => times(cluster, &pods).await,
        _ => Vec::new(),
    };
    let now = server_time(&cluster.client).await.unwrap_or_else(|| {
        unread.push("the API server told no time, so ages are by the clock of this machine".to_owned());
        Timestamp::now()
    });
    Ok(Facts {
        now,
        namespace: cluster.namespace.clone(),
        group: group.and_then(|group| group.status),
        pods,
        events,
        quotas,
        limit_ranges: limits.iter().map(ResourceExt::name_any).collect(),
        operators: operators.map(|operators| operators.iter().map(operator).collect()),
        workers,
        unread,
        job,
    })
}

/// Reads the job. A running operator gets a moment to see its newest change.
async fn current(cluster: &Cluster, name: &str) -> anyhow::Result<TrainingJob> {
    let job = cluster.job(name).await?;
    let seen = job.status.as_ref().and_then(|status| status.observed_generation);
    if seen >= job.metadata.generation || seen.is_none() {
        return job.readable();
    }
    sleep(OPERATOR_SEES).await;
    cluster.job(name).await?.readable()
}

async fn list<K>(api: &Api<K>, which: &ListParams) -> Result<Vec<K>, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    Ok(api.list(which).await?.items)
}

/// Reads the events of the namespace, and whether there are more of them.
async fn all_events(api: &Api<Event>) -> Result<(Vec<Event>, bool), kube::Error> {
    paged(async |from| {
        let mut which = ListParams::default().limit(EVENTS_AT_ONCE);
        which.continue_token = from;
        let answer = api.list(&which).await?;
        Ok((answer.items, answer.metadata.continue_))
    })
    .await
}

/// Asks for one part after the other, each with the token that the part before gave. Returns the
/// items, and whether there are more of them.
async fn paged<T, E>(
    ask: impl AsyncFn(Option<String>) -> Result<(Vec<T>, Option<String>), E>,
) -> Result<(Vec<T>, bool), E> {
    let (mut items, mut from) = (Vec::new(), None);
    for _ in 0..MAX_ANSWERS {
        let (part, next) = ask(from).await?;
        items.extend(part);
        from = next.filter(|token| !token.is_empty());
        if from.is_none() {
            return Ok((items, false));
        }
    }
    Ok((items, true))
}

/// Reads the API server's clock, which dates what the operator writes. The user's clock may differ.
async fn server_time(client: &Client) -> Option<Timestamp> {
    let request = Request::new("").get("version", &GetParams::default()).ok()?;
    let answer = client.send(request.map(Body::from)).await.ok()?;
    date(answer.headers().get("date")?.to_str().ok()?)
}

/// Reads the date of an HTTP header.
fn date(header: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::parse(header).ok().map(|date| date.timestamp())
}

/// Goes on without what cannot be read, and notes it.
trait OrNote<T> {
    fn or_note(self, what: &str, unread: &mut Vec<String>) -> T;
}

impl<T: Default> OrNote<T> for Result<T, kube::Error> {
    fn or_note(self, what: &str, unread: &mut Vec<String>) -> T {
        self.unwrap_or_else(|error| {
            let why = match error {
                kube::Error::Api(refusal) if refusal.code == 403 => "your role does not allow it".to_owned(),
                error => error.to_string(),
            };
            unread.push(format!("{what} could not be read: {why}"));
            T::default()
        })
    }
}

fn events_of(name: &str, pods: &[Pod], mut events: Vec<Event>) -> Vec<EventSeen> {
    let is_ours = |event: &Event| {
        let of = &event.involved_object;
        let pod = || pods.iter().any(|pod| pod.uid() == of.uid);
        (of.kind.as_deref() == Some("TrainingJob") && of.name.as_deref() == Some(name)) || pod()
    };
    events.retain(is_ours);
    events.sort_by_key(time);
    let seen = |event: Event| EventSeen {
        object: event.involved_object.name.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
    };
    events.into_iter().map(seen).collect()
}

fn time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series.or(last).or_else(|| event.event_time.as_ref().map(|time| time.0))
}

fn operator(deployment: &Deployment) -> OperatorSeen {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    OperatorSeen {
        namespace: deployment.namespace().unwrap_or_default(),
        name: deployment.name_any(),
        wanted: wanted.unsigned_abs(),
        ready: ready.unsigned_abs(),
    }
}

/// Looks twice at the workers' metrics, if the user may.
async fn times(cluster: &Cluster, pods: &[Pod]) -> Vec<scrape::WorkerTime> {
    let ready = pods.iter().filter_map(PodSeen::of).filter(|pod| is_worker(pod) && pod.ready);
    let names: Vec<String> = ready.map(|pod| pod.name).take(MAX_SCRAPED).collect();
    let before = worker_metrics::of_pods(cluster, &names).await;
    if before.found.is_empty() {
        return Vec::new();
    }
    sleep(BETWEEN_SCRAPES).await;
    let after = worker_metrics::of_pods(cluster, &names).await;
    scrape::between(&before.found, &after.found)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn all_parts_of_a_long_list_are_read_up_to_a_limit() {
        let parts = async |all: usize| {
            let ask = async |from: Option<String>| {
                let part: usize = from.map_or(0, |token| token.parse().expect("a number"));
                Ok::<_, Infallible>((vec![part], (part + 1 < all).then(|| (part + 1).to_string())))
            };
            paged(ask).await.unwrap_or_else(|never| match never {})
        };
        assert_eq!(parts(3).await, (vec![0, 1, 2], false));
        assert_eq!(parts(MAX_ANSWERS).await.0.len(), MAX_ANSWERS);
        let (read, is_cut) = parts(MAX_ANSWERS + 1).await;
        assert_eq!((read.len(), is_cut), (MAX_ANSWERS, true));
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        let expected = "2026-11-28T12:00:00Z".parse().ok();
        assert_eq!(date("Sat, 28 Nov 2026 12:00:00 GMT"), expected);
        assert_eq!(date("yesterday"), None);
    }
}
