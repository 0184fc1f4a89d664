//! The HTTP server of a trainer process: /metrics, /metrics.jsonl, /healthz and /readyz. It has a
//! thread of its own, so training never waits for a scrape.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use axum::{Router, extract::RawQuery, http::StatusCode, routing::get};
use lockstep_launch::{metrics_log, readiness};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// The time between two looks at readiness while a request waits for it.
const POLL: Duration = Duration::from_millis(50);

/// True once the group is formed.
pub(crate) type Ready = Arc<AtomicBool>;

/// The folder of the run's metrics log, once it is known. A coordinator knows none.
pub(crate) type LogFolder = Arc<OnceLock<PathBuf>>;

/// Binds the address and serves until the process ends. `text` returns the metrics.
///
/// # Errors
/// The address is in use, or belongs to another machine.
pub(crate) fn serve(
    address: SocketAddr,
    ready: Ready,
    text: impl Fn() -> String + Clone + Send + Sync + 'static,
    log: LogFolder,
) -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("listening for /metrics on {address}: choose another port"))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = Router::new()
        .route("/metrics", get(move || async move { text() }))
        .route(metrics_log::PATH, get(move || log_of(log)))
        .route("/healthz", get(|| async { "ok" }))
        .route(readiness::PATH, get(move |RawQuery(query)| is_ready(ready, query)));
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        let served =
            runtime.block_on(async move { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await });
        if let Err(error) = served {
            tracing::error!(%error, "metrics endpoint ended");
        }
    })?;
    Ok(bound)
}

/// Returns the run's metrics log, thinned if it is long.
async fn log_of(folder: LogFolder) -> (StatusCode, String) {
    let Some(folder) = folder.get().cloned() else {
        return (StatusCode::NOT_FOUND, "this process knows no metrics log".to_owned());
    };
    match spawn_blocking(move || metrics_log::thinned(&folder, metrics_log::SERVED)).await {
        Ok(Ok(text)) => (StatusCode::OK, text),
        Ok(Err(error)) => (StatusCode::NOT_FOUND, format!("no metrics log: {error}")),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Answers if the process is ready. Kubernetes warns of every negative answer, so a request that
/// can wait is answered late.
async fn is_ready(ready: Ready, query: Option<String>) -> (StatusCode, &'static str) {
    let patience = match query.as_deref() {
        Some(readiness::AWAITED) => Duration::from_secs(readiness::MAX_AWAITED_SECONDS.into()),
        _ => Duration::ZERO,
    };
    let asked = Instant::now();
    loop {
        if ready.load(Ordering::Relaxed) {
            return (StatusCode::OK, "ready");
        }
        if asked.elapsed() >= patience {
            return (StatusCode::SERVICE_UNAVAILABLE, "waiting for the group to form");
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ready: &Ready, query: Option<&str>) -> impl Future<Output = (StatusCode, &'static str)> {
        is_ready(Arc::clone(ready), query.map(str::to_owned))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_awaits_readiness_is_answered_once_it_comes() {
        let ready = Ready::default();
        assert_eq!(answer(&ready, None).await.0, StatusCode::SERVICE_UNAVAILABLE);
        let mut awaited = Box::pin(answer(&ready, Some(readiness::AWAITED)));
        assert!(tokio::time::timeout(Duration::from_secs(500), &mut awaited).await.is_err(), "it answered");
        ready.store(true, Ordering::Relaxed);
        assert_eq!(awaited.await.0, StatusCode::OK);
        assert_eq!(answer(&ready, None).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn the_metrics_log_is_served_once_its_folder_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = LogFolder::default();
        assert_eq!(log_of(Arc::clone(&log)).await.0, StatusCode::NOT_FOUND);
        log.set(folder.path().to_owned()).expect("set once");
        assert_eq!(log_of(Arc::clone(&log)).await.0, StatusCode::NOT_FOUND, "nothing is written yet");
        let line = "{\"step\":1}\n";
        std::fs::write(folder.path().join(metrics_log::METRICS_FILE), line).expect("written");
        assert_eq!(log_of(log).await, (StatusCode::OK, line.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_awaits_readiness_in_vain_is_answered_in_the_end() {
        let asked = Instant::now();
        assert_eq!(answer(&Ready::default(), Some(readiness::AWAITED)).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(asked.elapsed().as_secs(), u64::from(readiness::MAX_AWAITED_SECONDS));
    }
}
