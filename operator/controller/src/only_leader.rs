//! Refuses changes of the cluster once another process may lead.
//!
//! A process that was paused, or starved of its processor, may go on in the middle of its work long
//! after its lease has ended. So each request that would change something is checked at the moment
//! when it is sent. Renewals of the lease itself always pass.

use std::task::{Context, Poll};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request};
use tower::{BoxError, Service};

use crate::lease::Lead;

/// A client's transport for the leader.
#[derive(Clone)]
pub(crate) struct OnlyLeader<S> {
    service: S,
    lead: Lead,
}

/// Why a request was not sent.
#[derive(Debug, thiserror::Error)]
#[error("not sent: this process may no longer lead")]
struct NoLongerLeads;

impl<S> OnlyLeader<S> {
    pub(crate) const fn new(service: S, lead: Lead) -> Self {
        Self { service, lead }
    }
}

impl<S, Asked> Service<Request<Asked>> for OnlyLeader<S>
where
    S: Service<Request<Asked>>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        if !self.lead.holds() && changes_jobs(request.method(), request.uri().path()) {
            return async { Err(NoLongerLeads.into()) }.boxed();
        }
        self.service.call(request).map(|answer| answer.map_err(Into::into)).boxed()
    }
}

fn changes_jobs(method: &Method, path: &str) -> bool {
    method != Method::GET && !path.starts_with("/apis/coordination.k8s.io/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_renewals_pass() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/system/leases/lockstep-operator";
        let job = "/apis/lockstep.dev/v1alpha1/namespaces/team/trainingjobs/a/status";
        assert!(!changes_jobs(&Method::PUT, lease) && !changes_jobs(&Method::GET, job));
        assert!(changes_jobs(&Method::PATCH, job) && changes_jobs(&Method::DELETE, "/api/v1/namespaces/team/pods/a"));
    }
}
