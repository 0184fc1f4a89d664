//! `lockstep-operator check`: it tells whether an installation works. `helm test` runs it in a pod
//! with the operator's service account.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::{Api, Client, api::ListParams};
use lockstep_api::TrainingJob;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Time for one answer of the operator.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: u64 = 16 << 20;
/// A metric that every operator serves, whether it leads or stands by.
const SERVED: &str = "lockstep_leader ";

/// Parts of the cluster that the check looks at.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of the operator's metrics, as HOST:PORT. Default: they are not asked for.
    #[arg(long, value_name = "HOST:PORT")]
    service: Option<String>,
    /// Namespace that the operator watches; repeat it for several. Default: all.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
}

/// Prints a line for each thing that works.
///
/// # Errors
/// Something does not work.
pub(crate) async fn check(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { service, namespaces } = arguments;
    let client = Client::try_default().await.context("find the cluster: no kubeconfig and not in a pod")?;
    if namespaces.is_empty() {
        list(&Api::all(client.clone()), "all namespaces").await?;
    }
    for namespace in &namespaces {
        list(&Api::namespaced(client.clone(), namespace), &format!("namespace {namespace}")).await?;
    }
    if let Some(address) = service {
        get(&address, "/readyz").await?;
        println!("the operator at {address} is ready");
        let metrics = get(&address, "/metrics").await?;
        if !metrics.lines().any(|line| line.starts_with(SERVED)) {
            bail!("http://{address}/metrics serves no {SERVED}: is this a Lockstep operator?");
        }
        println!("the operator at {address} serves its metrics");
    }
    Ok(())
}

async fn list(jobs: &Api<TrainingJob>, place: &str) -> anyhow::Result<()> {
    jobs.list_metadata(&ListParams::default().limit(1)).await.with_context(|| {
        format!("list training jobs of {place}: is the CRD installed, and may this service account read them?")
    })?;
    println!("training jobs of {place} can be listed");
    Ok(())
}

/// Gets a page of the operator.
async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(PATIENCE, asked).await.map_err(anyhow::Error::from).and_then(|answer| Ok(answer?));
    let answer = answer.with_context(|| format!("get http://{address}{path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) != Some("200") {
        bail!("http://{address}{path} answers {status}: {}", body.trim());
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Serves one answer and returns its address.
    async fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("sent");
        });
        address
    }

    #[tokio::test]
    async fn a_page_is_read() {
        let address = answering("HTTP/1.0 200 OK\r\n\r\nlockstep_leader 1\n").await;
        assert_eq!(get(&address, "/metrics").await.expect("an answer"), "lockstep_leader 1\n");
    }

    #[tokio::test]
    async fn an_operator_that_is_not_ready_is_an_error_with_its_words() {
        let address = answering("HTTP/1.0 503 Service Unavailable\r\n\r\nwatches are not complete yet").await;
        let error = get(&address, "/readyz").await.expect_err("not ready").to_string();
        assert!(error.contains("503 Service Unavailable: watches are not complete yet"), "{error}");
    }

    #[tokio::test]
    async fn an_operator_that_is_gone_is_an_error_that_names_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        drop(listener);
        let error = get(&address, "/readyz").await.expect_err("nobody there").to_string();
        assert_eq!(error, format!("get http://{address}/readyz"));
    }
}
