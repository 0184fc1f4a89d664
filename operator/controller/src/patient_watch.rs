//! Patient watches. An interrupted watch begins again after a pause that grows. The log tells once
//! of an interruption and once of its end.

use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::runtime::{watcher, watcher::Event};
use tokio::{sync::watch, time::sleep};
use tracing::{debug, info, warn};

/// First and longest pause before a watch begins again. Each pause is twice the one before.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Longest pause if the API server refuses the watch. Only people change that.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Longest reason in the log, in characters.
const MAX_REASON: usize = 300;

/// The state of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchState {
    /// Nothing yet.
    Nothing,
    /// All objects once, and later changes while the watch lasts.
    Listed,
    /// The API server refuses the list.
    Refused,
}

/// The state of a watch, for callers that wait for its first list.
pub(crate) type WatchStates = watch::Receiver<WatchState>;

/// True if an operator that watches these scopes is ready. It sees all of one scope, and knows
/// which of the others it may not see.
pub(crate) fn is_ready(scopes: &[Vec<WatchState>]) -> bool {
    let whole = |scope: &Vec<WatchState>| scope.iter().all(|state| *state == WatchState::Listed);
    let refused = |scope: &Vec<WatchState>| scope.contains(&WatchState::Refused);
    scopes.iter().any(whole) && scopes.iter().all(|scope| whole(scope) || refused(scope))
}

/// The history of one watch.
pub(crate) struct WatchHistory {
    kind: String,
    namespace: Option<String>,
    /// Errors in a row.
    errors: u32,
    /// The last reason in the log, until the watch goes on.
    logged: Option<String>,
    state: Option<watch::Sender<WatchState>>,
}

impl WatchHistory {
    pub(crate) fn new(kind: &str, namespace: Option<&str>, state: Option<watch::Sender<WatchState>>) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.map(str::to_owned), errors: 0, logged: None, state }
    }

    /// Notes that the watch went on. An `Init` says only that it will be tried.
    fn goes_on<K>(&mut self, event: &Event<K>) {
        if matches!(event, Event::Init | Event::InitApply(_)) {
            return;
        }
        self.errors = 0;
        if self.logged.take().is_some() {
            info!(kind = self.kind, namespace = self.namespace, "seen again");
        }
    }

    /// Notes an interruption. Returns the pause before the watch begins again.
    fn interrupted(&mut self, error: &watcher::Error) -> Duration {
        let (reason, refused) = reason(error);
        let Self { kind, namespace, errors, logged, .. } = self;
        if logged.as_ref() == Some(&reason) {
            debug!(kind, namespace, reason, "still not seen");
        } else if refused {
            warn!(kind, namespace, reason, "cannot be seen; tried again at growing intervals");
        } else {
            warn!(kind, namespace, reason, "watch interrupted; it starts again");
        }
        let (first, longest) = PAUSE;
        let pause = first.saturating_mul(1 << (*errors).min(16)).min(if refused { REFUSED_PAUSE } else { longest });
        *errors = errors.saturating_add(1);
        *logged = Some(reason);
        if let Some(state) = self.state.as_ref().filter(|_| refused) {
            // If the objects were listed once, decisions still use them.
            state.send_if_modified(|known| {
                *known == WatchState::Nothing && {
                    *known = WatchState::Refused;
                    true
                }
            });
        }
        pause
    }
}

/// Returns the events of a watch. `interrupted` is called after each error.
pub(crate) fn patient<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    history: WatchHistory,
    interrupted: impl Fn(),
) -> impl Stream<Item = Event<K>> {
    stream::unfold((Box::pin(events), history, interrupted), |(mut events, mut history, interrupted)| async move {
        loop {
            match events.next().await? {
                Ok(event) => {
                    history.goes_on(&event);
                    return Some((event, (events, history, interrupted)));
                }
                Err(error) => {
                    interrupted();
                    sleep(history.interrupted(&error)).await;
                }
            }
        }
    })
}

/// Returns why a watch was interrupted, in one line, and whether the API server refuses it.
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

    fn history() -> (WatchHistory, WatchStates) {
        let (state, seen) = watch::channel(WatchState::Nothing);
        (WatchHistory::new("Pod", Some("gone"), Some(state)), seen)
    }

    #[test]
    fn a_refused_namespace_is_tried_again_at_growing_intervals() {
        let (mut history, seen) = history();
        let pauses: Vec<u64> = (0..10)
            .map(|_| {
                // Each attempt begins with this event, even if it fails.
                history.goes_on::<()>(&Event::Init);
                history.interrupted(&refusal("pods is forbidden")).as_millis() as u64
            })
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(*seen.borrow(), WatchState::Refused);
        history.goes_on::<()>(&Event::InitDone);
        assert_eq!(history.interrupted(&refusal("pods is forbidden")).as_millis(), 500);
    }

    #[test]
    fn a_namespace_that_cannot_be_seen_is_logged_once() {
        let (mut history, _seen) = history();
        history.interrupted(&refusal("pods is forbidden"));
        assert_eq!(history.logged.as_deref(), Some("pods is forbidden"));
        history.goes_on::<()>(&Event::Init);
        assert_eq!(history.logged.as_deref(), Some("pods is forbidden"), "it would be logged again");
    }

    #[test]
    fn a_reason_is_one_short_line_in_the_servers_words() {
        let (reason, refused) = reason(&refusal(&format!("pods is forbidden\n{}", "x".repeat(1000))));
        assert_eq!((reason.as_str(), refused), ("pods is forbidden", true));
    }

    #[test]
    fn an_operator_is_ready_if_one_namespace_is_refused_but_not_if_all_are() {
        use WatchState::{Listed, Nothing, Refused};
        for (scopes, ready) in [
            (vec![vec![Listed, Listed]], true),
            (vec![vec![Listed, Nothing]], false),
            (vec![vec![Listed, Listed], vec![Refused, Nothing]], true),
            (vec![vec![Listed, Listed], vec![Nothing, Nothing]], false),
            (vec![vec![Refused, Refused]], false),
        ] {
            assert_eq!(is_ready(&scopes), ready, "{scopes:?}");
        }
    }
}
