//! Reads the metrics of a job's workers: through the API server's proxy to a pod, or from the
//! address that a local worker logged.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use futures::{StreamExt, stream};
use kube::{api::GetParams, core::request::Request};
use lockstep_launch::Ports;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{cluster::Cluster, scrape::Scrape};

/// Workers that are asked at the same time.
const AT_ONCE: usize = 32;
/// The longest wait for a worker's metrics.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of a page that are read.
const MAX_PAGE: u64 = 1 << 20;

/// Scrapes of workers by name, and the reasons why others gave none.
#[derive(Debug, Default)]
pub(crate) struct Scrapes {
    pub(crate) found: BTreeMap<String, Scrape>,
    pub(crate) missing: BTreeMap<String, String>,
}

impl Scrapes {
    fn of(answers: Vec<(String, Result<String, String>)>) -> Self {
        let mut scrapes = Self::default();
        for (worker, answer) in answers {
            match answer.and_then(|page| Scrape::parse(&page).ok_or_else(|| "no worker's metrics".to_owned())) {
                Ok(scrape) => drop(scrapes.found.insert(worker, scrape)),
                Err(why) => drop(scrapes.missing.insert(worker, why)),
            }
        }
        scrapes
    }
}

/// Reads the metrics of pods, which takes the user's right to `get` `pods/proxy`.
pub(crate) async fn of_pods(cluster: &Cluster, pods: &[String]) -> Scrapes {
    let answers = stream::iter(pods.iter().cloned()).map(|pod| async move {
        let answer = timeout(PATIENCE, of_pod(cluster, &pod)).await;
        (pod, answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))))
    });
    Scrapes::of(answers.buffer_unordered(AT_ONCE).collect().await)
}

async fn of_pod(cluster: &Cluster, pod: &str) -> Result<String, String> {
    let (namespace, port) = (&cluster.namespace, Ports::POD.metrics);
    let proxy = Request::new(format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy"));
    let request = proxy.get("metrics", &GetParams::default()).map_err(|error| error.to_string())?;
    cluster.client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(refusal) if refusal.code == 403 => format!(
            "you may not read it: your role needs `get` on `pods/proxy` in namespace {namespace} ({})",
            refusal.message
        ),
        kube::Error::Api(refusal) => refusal.message.clone(),
        error => error.to_string(),
    })
}

/// Reads the metrics of a local run's workers, by the addresses in their logs.
pub(crate) async fn of_run(logs: &Path) -> Scrapes {
    let files = fs::read_dir(logs).into_iter().flatten().flatten();
    let workers = files.filter_map(|file| {
        let name = file.file_name().to_str()?.strip_suffix(".log")?.to_owned();
        let log = fs::read_to_string(file.path()).ok().filter(|_| name.starts_with("worker-"))?;
        // The last address is that of the newest process.
        let address = log.split_whitespace().filter_map(|word| word.strip_prefix("metrics=")).next_back()?.to_owned();
        Some((name, address))
    });
    let mut answers = Vec::new();
    for (worker, address) in workers {
        let answer = timeout(PATIENCE, page(&address)).await;
        answers.push((
            worker,
            answer.map_or_else(|_| Err("no answer".to_owned()), |page| page.map_err(|error| error.to_string())),
        ));
    }
    Scrapes::of(answers)
}

async fn page(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut response = String::new();
    stream.take(MAX_PAGE).read_to_string(&mut response).await?;
    Ok(response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}
