//! Leadership by a Lease. A standby takes the lease only after it has watched an unchanged record
//! for the lease's duration, by its own monotonic clock. No wall clock is trusted. Every write is
//! guarded by the record's version.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// A record that did not change for this time is abandoned.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this time has lost the lease.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two attempts.
pub(crate) const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Tells whether this process may change jobs: until [`RENEW_DEADLINE`] after its last renewal. No
/// other process takes the lease before [`LEASE_DURATION`] has passed.
#[derive(Clone, Debug)]
pub(crate) struct Lead {
    start: Instant,
    /// Milliseconds after `start`; 0 before the lease was first taken.
    until: Arc<AtomicU64>,
}

impl Lead {
    /// Nobody leads yet.
    pub(crate) fn none() -> Self {
        Self { start: Instant::now(), until: Arc::default() }
    }

    /// Leads as long as the process lives.
    pub(crate) fn without_lease(&self) {
        self.until.store(u64::MAX, Ordering::Relaxed);
    }

    pub(crate) fn holds(&self) -> bool {
        (self.start.elapsed().as_millis() as u64) < self.until.load(Ordering::Relaxed)
    }

    /// Notes a renewal whose request was sent at `sent`.
    fn renewed(&self, sent: Instant) {
        let until = sent.saturating_duration_since(self.start) + RENEW_DEADLINE;
        self.until.store(until.as_millis() as u64, Ordering::Relaxed);
    }

    fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }
}

/// One process's claim to a Lease.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    me: String,
    lead: Lead,
    /// The record as last seen, and the time since when it has not changed.
    seen: Option<(String, Instant)>,
}

impl Candidate {
    /// Makes the process `me` a candidate for the Lease `name`. `lead` tells others of its success.
    pub(crate) fn new(api: Api<Lease>, name: String, me: String, lead: Lead) -> Self {
        Self { api, name, me, lead, seen: None }
    }

    /// Waits until this process leads.
    pub(crate) async fn lead(&mut self) {
        loop {
            match timeout(RENEW_DEADLINE, self.take_or_renew()).await {
                Ok(Ok(true)) => return info!(lease = self.name, holder = self.me, "leading"),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => warn!(lease = self.name, %error, "lease not read or written"),
                Err(_) => warn!(lease = self.name, "the API server does not answer"),
            }
            sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews until the Lease is lost.
    pub(crate) async fn keep(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < RENEW_DEADLINE {
            sleep(RETRY_PERIOD).await;
            let left = RENEW_DEADLINE.saturating_sub(renewed.elapsed());
            match timeout(left, self.take_or_renew()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return warn!(lease = self.name, "another process leads"),
                Ok(Err(error)) => warn!(lease = self.name, %error, "lease not renewed"),
                Err(_) => {}
            }
        }
        warn!(lease = self.name, "lease not renewed in time");
    }

    /// Gives the Lease back, so that the next process need not wait until it is abandoned.
    pub(crate) async fn release(&self) {
        self.lead.end();
        let Ok(Some(mut lease)) = self.api.get_opt(&self.name).await else { return };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.me)) else {
            return;
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        match self.api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => info!(lease = self.name, "lease released"),
            Err(error) => warn!(lease = self.name, %error, "lease not released"),
        }
    }

    async fn take_or_renew(&mut self) -> Result<bool, kube::Error> {
        let sent = Instant::now();
        let written = match self.api.get_opt(&self.name).await? {
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(self.record(None)) };
                self.api.create(&PostParams::default(), &lease).await
            }
            Some(mut lease) => {
                let spec = lease.spec.take().unwrap_or_default();
                if !self.may_write(&spec) {
                    self.lead.end();
                    return Ok(false);
                }
                lease.spec = Some(self.record(Some(&spec)));
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(_) => {
                self.lead.renewed(sent);
                Ok(true)
            }
            Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if the record is this process's, is free, or has not changed for the lease's duration.
    fn may_write(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let record = format!("{holder} {:?}", spec.renew_time);
        let since = match &self.seen {
            Some((seen, since)) if *seen == record => *since,
            Some(_) | None => {
                let now = Instant::now();
                self.seen = Some((record, now));
                now
            }
        };
        holder == self.me || holder.is_empty() || since.elapsed() >= LEASE_DURATION
    }

    fn record(&self, earlier: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mine = earlier.filter(|spec| spec.holder_identity.as_deref() == Some(&self.me));
        let transitions = earlier.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: mine.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if mine.is_some() {
                transitions
            } else {
                transitions + i32::from(earlier.is_some())
            }),
            ..LeaseSpec::default()
        }
    }
}
