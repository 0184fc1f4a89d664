//! Counts the requests to the API server, by verb, resource and answer.

use std::task::{Context, Poll};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, Uri};
use prometheus::IntCounterVec;
use tower::Service;

/// The code of a request that got no answer.
const NO_ANSWER: &str = "none";

/// A client's transport that counts each request.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    service: S,
    requests: IntCounterVec,
}

impl<S> Counted<S> {
    pub(crate) const fn new(service: S, requests: IntCounterVec) -> Self {
        Self { service, requests }
    }
}

impl<S, Asked, Answered> Service<Request<Asked>> for Counted<S>
where
    S: Service<Request<Asked>, Response = Response<Answered>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        let (verb, resource) = described(request.method(), request.uri());
        let requests = self.requests.clone();
        let answer = self.service.call(request);
        async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(NO_ANSWER.to_owned(), |answer| answer.status().as_u16().to_string());
            requests.with_label_values(&[verb, resource.as_str(), code.as_str()]).inc();
            answer
        }
        .boxed()
    }
}

/// Returns the verb and the resource of a request, as RBAC rules name them. A subresource stands
/// behind its resource, as in `pods/log`.
fn described(method: &Method, uri: &Uri) -> (&'static str, String) {
    let mut parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let prefix = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return ("get", "other".to_owned()),
    };
    parts.drain(..prefix.min(parts.len()));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    let (resource, name, subresource) = (parts.first(), parts.get(1), parts.get(2));
    let resource = match (resource, subresource) {
        (Some(resource), Some(subresource)) => format!("{resource}/{subresource}"),
        (Some(resource), None) => (*resource).to_owned(),
        (None, _) => "other".to_owned(),
    };
    let watches = uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    let verb = match (method, name) {
        (&Method::GET, _) if watches => "watch",
        (&Method::GET, Some(_)) => "get",
        (&Method::GET, None) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        (&Method::DELETE, None) => "deletecollection",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_verbs_and_resources_of_rbac_rules() {
        for (method, uri, verb, resource) in [
            (Method::GET, "/api/v1/namespaces/a/pods/b", "get", "pods"),
            (Method::GET, "/api/v1/pods?limit=5", "list", "pods"),
            (Method::GET, "/api/v1/namespaces/a/pods?x=1&watch=true", "watch", "pods"),
            (Method::GET, "/api/v1/namespaces/a", "get", "namespaces"),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events", "create", "events"),
            (
                Method::PATCH,
                "/apis/lockstep.dev/v1alpha1/namespaces/a/trainingjobs/b/status?force=true",
                "patch",
                "trainingjobs/status",
            ),
            (Method::DELETE, "/api/v1/namespaces/a/pods/b", "delete", "pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection", "pods"),
            (Method::GET, "/version", "get", "other"),
            (Method::GET, "/apis", "list", "other"),
        ] {
            let uri: Uri = uri.parse().expect("a path");
            assert_eq!(described(&method, &uri), (verb, resource.to_owned()), "{method} {uri}");
        }
    }
}
