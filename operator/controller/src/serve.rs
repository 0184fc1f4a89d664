//! The HTTP endpoints /metrics, /healthz and /readyz.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};

use crate::metrics::Metrics;

/// Serves until the process ends. `ready` is true while this process stands by, or leads and has
/// listed everything.
pub(crate) async fn serve(
    listen: SocketAddr,
    metrics: Arc<Metrics>,
    ready: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("listen on {listen}; is the port in use?"))?;
    let figures = move || {
        let metrics = Arc::clone(&metrics);
        async move {
            match metrics.text() {
                Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }
        }
    };
    let is_ready = move || {
        let ready = *ready.borrow();
        async move {
            if ready {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "watches are not complete yet")
            }
        }
    };
    let routes = Router::new()
        .route("/metrics", get(figures))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(is_ready));
    axum::serve(listener, routes).await.context("serve HTTP")
}
