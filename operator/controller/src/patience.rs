//! Watches that are interrupted begin anew, after pauses that grow. What keeps one is told once,
//! and so is that it is over.

use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::runtime::{watcher, watcher::Event};
use tokio::{sync::watch, time::sleep};
use tracing::{debug, info, warn};

/// First and longest pause before a watch begins anew, doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Longest pause where the API server refuses it: only people change that.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Longest reason that is told, in characters.
const MAX_REASON: usize = 300;

/// What a watch has shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Nothing yet.
    None,
    /// Everything once; what came later too, while it lasts.
    Listed,
    /// The API server refuses to list it.
    Refused,
}

/// What is known of a watch, for those who wait for its first list.
pub(crate) type Seen = watch::Receiver<Sight>;

/// Whether an operator that watches these scopes is ready: it sees one of them whole, and knows
/// which of the others it may not see.
pub(crate) fn is_ready(scopes: &[Vec<Sight>]) -> bool {
    let whole = |scope: &Vec<Sight>| scope.iter().all(|sight| *sight == Sight::Listed);
    let refused = |scope: &Vec<Sight>| scope.contains(&Sight::Refused);
    scopes.iter().any(whole) && scopes.iter().all(|scope| whole(scope) || refused(scope))
}

/// One watch: what it is of, and how it goes.
pub(crate) struct Patience {
    kind: String,
    namespace: Option<String>,
    /// Errors in a row.
    errors: u32,
    /// The reason that was told last, while it lasts.
    told: Option<String>,
    sight: Option<watch::Sender<Sight>>,
}

impl Patience {
    pub(crate) fn new(kind: &str, namespace: Option<&str>, sight: Option<watch::Sender<Sight>>) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.map(str::to_owned), errors: 0, told: None, sight }
    }

    /// The watch went on. An `Init` says only that it will be tried.
    fn goes_on<K>(&mut self, event: &Event<K>) {
        if matches!(event, Event::Init | Event::InitApply(_)) {
            return;
        }
        self.errors = 0;
        if self.told.take().is_some() {
            info!(kind = self.kind, namespace = self.namespace, "seen again");
        }
    }

    /// The watch was interrupted; the pause before it begins anew.
    fn interrupted(&mut self, error: &watcher::Error) -> Duration {
        let (reason, refused) = reason(error);
        let Self { kind, namespace, errors, told, .. } = self;
        if told.as_ref() == Some(&reason) {
            debug!(kind, namespace, reason, "still not seen");
        } else if refused {
            warn!(kind, namespace, reason, "cannot be seen; looked at again at growing intervals");
        } else {
            warn!(kind, namespace, reason, "watch interrupted; it starts again");
        }
        let (first, longest) = PAUSE;
        let pause = first.saturating_mul(1 << (*errors).min(16)).min(if refused { REFUSED_PAUSE } else { longest });
        *errors = errors.saturating_add(1);
        *told = Some(reason);
        if let Some(sight) = self.sight.as_ref().filter(|_| refused) {
            // What was listed once is still decided by.
            sight.send_if_modified(|known| {
                *known == Sight::None && {
                    *known = Sight::Refused;
                    true
                }
            });
        }
        pause
    }
}

/// The events of a watch. `interrupted` is called with each error.
pub(crate) fn patient<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    patience: Patience,
    interrupted: impl Fn(),
) -> impl Stream<Item = Event<K>> {
    stream::unfold((Box::pin(events), patience, interrupted), |(mut events, mut patience, interrupted)| async move {
        loop {
            match events.next().await? {
                Ok(event) => {
                    patience.goes_on(&event);
                    return Some((event, (events, patience, interrupted)));
                }
                Err(error) => {
                    interrupted();
                    sleep(patience.interrupted(&error)).await;
                }
            }
        }
    })
}

/// Why a watch was interrupted, in one line, and whether the API server refuses it.
fn reason(error: &watcher::Error) -> (String, bool) {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    };
    let text = status.map_or_else(|| error.to_string(), |status| status.message.clone());
    let refused = status.is_some_and(|status| matches!(status.code, 401 | 403 | 404));
    (text.lines().next().unwrap_or_default().chars().take(MAX_REASON).collect(), refused)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refusal(message: &str) -> watcher::Error {
        let status = Status { code: 403, message: message.to_owned(), ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    fn patience() -> (Patience, Seen) {
        let (sight, seen) = watch::channel(Sight::None);
        (Patience::new("Pod", Some("gone"), Some(sight)), seen)
    }

    #[test]
    fn a_namespace_that_is_refused_is_looked_at_again_at_growing_intervals() {
        let (mut patience, seen) = patience();
        let pauses: Vec<u64> = (0..10)
            .map(|_| {
                // Each attempt begins with this, whether it succeeds or not.
                patience.goes_on::<()>(&Event::Init);
                patience.interrupted(&refusal("pods is forbidden")).as_millis() as u64
            })
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(*seen.borrow(), Sight::Refused);
        patience.goes_on::<()>(&Event::InitDone);
        assert_eq!(patience.interrupted(&refusal("pods is forbidden")).as_millis(), 500);
    }

    #[test]
    fn what_cannot_be_seen_is_told_once() {
        let (mut patience, _seen) = patience();
        patience.interrupted(&refusal("pods is forbidden"));
        assert_eq!(patience.told.as_deref(), Some("pods is forbidden"));
        patience.goes_on::<()>(&Event::Init);
        assert_eq!(patience.told.as_deref(), Some("pods is forbidden"), "it would be told again");
    }

    #[test]
    fn a_reason_is_one_short_line_in_the_servers_words() {
        let (reason, refused) = reason(&refusal(&format!("pods is forbidden\n{}", "x".repeat(1000))));
        assert_eq!((reason.as_str(), refused), ("pods is forbidden", true));
    }

    #[test]
    fn an_operator_is_ready_while_one_of_its_namespaces_cannot_be_seen_but_not_while_none_can() {
        use Sight::{Listed, None, Refused};
        for (scopes, ready) in [
            (vec![vec![Listed, Listed]], true),
            (vec![vec![Listed, None]], false),
            (vec![vec![Listed, Listed], vec![Refused, None]], true),
            (vec![vec![Listed, Listed], vec![None, None]], false),
            (vec![vec![Refused, Refused]], false),
        ] {
            assert_eq!(is_ready(&scopes), ready, "{scopes:?}");
        }
    }
}
