//! Reads what a job's workers serve, their metrics and the metrics log: through the API server's
//! proxy to a pod, or from the address that a local worker logged.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, ErrorKind, Seek as _, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{api::GetParams, core::request::Request};
use lockstep_launch::{Ports, metrics_log};
use lockstep_plan::{PodRole, PodSeen, PodState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    cluster::{Cluster, ClusterError},
    scrape::Scrape,
};

/// Workers that are asked at the same time.
const AT_ONCE: usize = 32;
/// The longest wait for a worker's metrics.
const PATIENCE: Duration = Duration::from_secs(5);
/// Workers that are asked for the metrics log, and the longest wait for one of them, which reads
/// the whole log.
const MOST_ASKED: usize = 3;
const LOG_PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of a page that are read.
const MAX_PAGE: u64 = 1 << 20;
/// The words before the address in a worker's log.
const SERVES: &str = "serving metrics=";

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
        let answer = timeout(PATIENCE, from_pod(cluster, &pod, "/metrics")).await;
        (pod, answer.unwrap_or_else(|_| Err(no_answer())))
    });
    Scrapes::of(answers.buffer_unordered(AT_ONCE).collect().await)
}

/// Asks the workers of a job for its metrics log, one after another until one has it. A long log
/// comes thinned.
///
/// # Errors
/// Why there is none, as a part of a sentence.
pub(crate) async fn log_of(cluster: &Cluster, uid: &str) -> Result<String, String> {
    let pods = cluster.pods_of(uid).await.map_err(|error| error.to_string())?;
    let mut why = "no worker runs that could send the metrics log".to_owned();
    for worker in running_workers(&pods).iter().take(MOST_ASKED) {
        match timeout(LOG_PATIENCE, from_pod(cluster, worker, metrics_log::PATH)).await {
            Ok(Ok(text)) => return Ok(text),
            Ok(Err(error)) => why = format!("{worker} does not send the metrics log: {error}"),
            Err(_) => why = format!("{worker} does not send the metrics log within {LOG_PATIENCE:?}"),
        }
    }
    Err(why)
}

/// Returns the names of the pods whose worker runs.
pub(crate) fn running_workers(pods: &[Pod]) -> Vec<String> {
    let runs = |pod: &PodSeen| pod.role != PodRole::Coordinator && pod.state == PodState::Running;
    pods.iter().filter_map(PodSeen::of).filter(runs).map(|pod| pod.name).collect()
}

fn no_answer() -> String {
    format!("no answer within {PATIENCE:?}")
}

/// Reads a page of a pod through the API server.
async fn from_pod(cluster: &Cluster, pod: &str, path: &str) -> Result<String, String> {
    let (namespace, port) = (&cluster.namespace, Ports::POD.metrics);
    let proxy = Request::new(format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy"));
    let page = path.trim_start_matches('/');
    let request = proxy.get(page, &GetParams::default()).map_err(|error| error.to_string())?;
    cluster.client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(refusal) if refusal.code == 403 => format!(
            "you may not read it: your role needs `get` on `pods/proxy` in namespace {namespace} ({})",
            refusal.message
        ),
        error => ClusterError(error).to_string(),
    })
}

/// The workers of a local run, by the addresses in their logs.
#[derive(Debug)]
pub(crate) struct LocalWorkers {
    logs: PathBuf,
    read: BTreeMap<PathBuf, ReadLog>,
}

impl LocalWorkers {
    /// `logs` is the folder of a run's logs.
    pub(crate) fn of(logs: &Path) -> Self {
        Self { logs: logs.to_owned(), read: BTreeMap::new() }
    }

    /// Reads the metrics of the workers that have said where they serve them. A log is read from
    /// the place where the last look ended.
    pub(crate) async fn look(&mut self) -> Scrapes {
        let answers = stream::iter(self.addresses()).map(|(worker, address)| async move {
            let answer = timeout(PATIENCE, page(address)).await;
            (worker, answer.unwrap_or_else(|_| Err(io::Error::new(ErrorKind::TimedOut, no_answer()))))
        });
        Scrapes::of(without_those_that_left(answers.buffer_unordered(AT_ONCE).collect().await))
    }

    fn addresses(&mut self) -> Vec<(String, SocketAddr)> {
        let files = fs::read_dir(&self.logs).into_iter().flatten().flatten();
        let addresses = files.filter_map(|file| {
            let name = file.file_name().to_str()?.strip_suffix(".log")?.to_owned();
            let path = Some(file.path()).filter(|_| name.starts_with("worker-"))?;
            let log = self.read.entry(path.clone()).or_default();
            // A log that cannot be read now is read at the next look.
            let _ = log.read_on(&path);
            Some((name, log.address?))
        });
        addresses.collect()
    }
}

/// The part of a log that was read.
#[derive(Debug, Default)]
struct ReadLog {
    end: u64,
    /// The last address in it is that of the newest process.
    address: Option<SocketAddr>,
}

impl ReadLog {
    /// Reads the whole lines after the end.
    fn read_on(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        // Another run in the same folder begins a log anew.
        if file.metadata()?.len() < self.end {
            *self = Self::default();
        }
        file.seek(SeekFrom::Start(self.end))?;
        let (mut lines, mut line) = (BufReader::new(file), Vec::new());
        while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.address = address(&String::from_utf8_lossy(&line)).or(self.address);
            self.end += line.len() as u64;
            line.clear();
        }
        Ok(())
    }
}

/// Returns the address in a line in which a worker tells it.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(SERVES)?;
    rest.split(|end: char| end.is_whitespace() || end == '"').next()?.parse().ok()
}

/// Leaves out workers whose address nobody listens at while others answer: they left the group.
fn without_those_that_left(mut answers: Vec<(String, io::Result<String>)>) -> Vec<(String, Result<String, String>)> {
    if answers.iter().any(|(_, answer)| answer.is_ok()) {
        let left = |answer: &io::Result<String>| {
            answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        answers.retain(|(_, answer)| !left(answer));
    }
    answers.into_iter().map(|(worker, answer)| (worker, answer.map_err(|error| error.to_string()))).collect()
}

async fn page(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut response = String::new();
    stream.take(MAX_PAGE).read_to_string(&mut response).await?;
    Ok(response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::OpenOptions,
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Answers `requests` requests with a worker's page, and returns the address.
    fn worker(requests: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for _ in 0..requests {
                let (mut stream, _) = listener.accept().expect("a request");
                let _ = stream.read(&mut [0; 1 << 10]).expect("a request");
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nlockstep_steps_total 7\n").expect("read");
            }
        });
        address
    }

    /// Returns an address at which nobody listens.
    fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address")
    }

    fn look(workers: &mut LocalWorkers) -> Scrapes {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(workers.look())
    }

    fn append(path: &Path, text: &[u8]) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a log");
        file.write_all(text).expect("written");
    }

    #[test]
    fn the_newest_address_counts_however_much_was_logged_after_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("worker-0.log");
        let mut workers = LocalWorkers::of(folder.path());
        append(&log, format!("x INFO serving metrics={}\n", nobody()).as_bytes());
        assert_eq!(look(&mut workers).missing.keys().collect::<Vec<_>>(), ["worker-0"]);
        append(&log, b"caf\xe9 metrics=1.0 serving metrics=no address\n");
        append(&log, format!("x INFO serving metrics={}\n", worker(2)).as_bytes());
        append(&log, "a line of the user's model, metrics=0.5\n".repeat(10_000).as_bytes());
        append(&log, b"x INFO serving metrics=127.0.0.1:1");
        assert_eq!(look(&mut workers).found.keys().collect::<Vec<_>>(), ["worker-0"]);
        assert_eq!(look(&mut workers).found.keys().collect::<Vec<_>>(), ["worker-0"], "nothing new was logged");
    }

    #[test]
    fn a_log_that_begins_anew_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker-0.log");
        let mut log = ReadLog::default();
        append(&path, b"a long first line\nx INFO serving metrics=127.0.0.1:1\n");
        log.read_on(&path).expect("read");
        fs::write(&path, "x INFO serving metrics=127.0.0.1:2\n").expect("written");
        log.read_on(&path).expect("read");
        assert_eq!(log.address, "127.0.0.1:2".parse().ok());
    }

    #[test]
    fn a_worker_that_left_is_no_missing_one_while_others_answer() {
        let refused = || Err(io::Error::from(ErrorKind::ConnectionRefused));
        let late = || Err(io::Error::from(ErrorKind::TimedOut));
        let kept = |answers: Vec<io::Result<String>>| {
            let answers = answers.into_iter().enumerate().map(|(number, answer)| (number.to_string(), answer));
            let kept = without_those_that_left(answers.collect());
            kept.into_iter().map(|(worker, _)| worker).collect::<Vec<_>>()
        };
        assert_eq!(kept(vec![Ok("page".to_owned()), refused(), late()]), ["0", "2"]);
        assert_eq!(kept(vec![refused(), late()]), ["0", "1"], "nobody answers");
    }
}
