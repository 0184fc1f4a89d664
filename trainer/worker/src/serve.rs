//! /metrics, /healthz and /readyz of a trainer process, on an own thread so that training never waits for a scrape.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, routing::get};

/// Turns true once the group is formed; readiness says so.
pub(crate) type Ready = Arc<AtomicBool>;

/// Binds the address and serves until the process ends. `text` gives the metrics.
///
/// # Errors
/// The address is in use or not this machine's.
pub(crate) fn serve(
    address: SocketAddr,
    ready: Ready,
    text: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("listening for /metrics on {address}: choose another port"))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = Router::new()
        .route("/metrics", get(move || async move { text() }))
        .route("/healthz", get(|| async { "ok" }))
        .route(
            "/readyz",
            get(move || async move {
                if ready.load(Ordering::Relaxed) {
                    (StatusCode::OK, "ready")
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, "waiting for the group to form")
                }
            }),
        );
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        let served =
            runtime.block_on(async move { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await });
        if let Err(error) = served {
            tracing::error!(%error, "metrics endpoint ended");
        }
    })?;
    Ok(bound)
}
