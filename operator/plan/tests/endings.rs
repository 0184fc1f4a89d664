//! The operator follows the same table of endings as `lockstep run`.

#[path = "../../lifecycle/tests/endings/mod.rs"]
mod endings;
mod situations;

use endings::{How, Moment, Outcome, SECONDS_BETWEEN, Scenario, WORKERS, Who};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{Phase, TrainingJobStatus, ValidJob};
use lockstep_launch::Progress;
use lockstep_plan::{GroupSeen, Observed, PodRole, PodSeen, PodState, Termination, plan};
use situations::{default_image, job, now, pod};

/// Time after which the operator looks at pods that ended. Those that may not be alone are judged
/// by then.
const LOOK: SignedDuration = SignedDuration::from_secs(6);

#[test]
fn the_operator_follows_the_table_of_endings() {
    endings::check(outcome);
}

/// A job of a made-up cluster that carries every plan out at once.
struct Cluster {
    job: ValidJob,
    seen: Observed,
    now: Timestamp,
    step: u64,
    trains: bool,
}

fn outcome(scenario: &Scenario) -> Outcome {
    let mut cluster = Cluster::of(scenario);
    for moment in &scenario.moments {
        cluster.now += SignedDuration::from_secs(SECONDS_BETWEEN);
        cluster.report();
        match moment {
            Moment::Trains(minutes) | Moment::Repeats(minutes) => {
                cluster.now += SignedDuration::from_mins(*minutes);
                cluster.step += if matches!(moment, Moment::Trains(_)) { 100 } else { 0 };
                cluster.report();
            }
            Moment::Ends(ends) => ends.iter().for_each(|(who, how)| cluster.end(*who, *how)),
        }
        cluster.now += LOOK;
        cluster.look();
        if cluster.seen.status.phase == Some(Phase::Failed) {
            break;
        }
        cluster.start_again();
        cluster.look();
    }
    let status = &cluster.seen.status;
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed");
    let failed = failed.map(|failed| (failed.reason.clone(), failed.message.clone()));
    Outcome { failures: status.failures, failed }
}

impl Cluster {
    fn of(scenario: &Scenario) -> Self {
        let mut job = job();
        job.replicas = std::num::NonZeroU32::new(WORKERS).expect("workers");
        (job.elastic.min_replicas, job.elastic.max_replicas) = (1, WORKERS);
        job.failure_policy.backoff_limit = scenario.backoff_limit;
        let phase = if scenario.trains { Phase::Running } else { Phase::Starting };
        let long_ago = Some(Time(now() - SignedDuration::from_secs(100)));
        let status = TrainingJobStatus {
            phase: Some(phase),
            target_replicas: WORKERS,
            start_time: long_ago.clone(),
            attempt_time: long_ago,
            ..TrainingJobStatus::default()
        };
        let seen = Observed { generation: Some(1), status, ..Observed::default() };
        let mut cluster = Self { job, seen, now: now(), step: 10, trains: scenario.trains };
        cluster.start_again();
        cluster
    }

    /// Puts a fresh pod in the place of each that has ended.
    fn start_again(&mut self) {
        let state = if self.trains { "ready" } else { "running" };
        let attempt = self.seen.status.attempt;
        self.seen.pods.retain(|pod| !matches!(pod.state, PodState::Ended(_)) && pod.attempt == attempt);
        for role in std::iter::once(PodRole::Coordinator).chain((0..WORKERS).map(PodRole::Worker)) {
            if self.seen.pods.iter().all(|pod| pod.role != role) {
                let made = pod(role, attempt, state).expect("a pod");
                let uid = format!("{} {}", made.uid, self.now);
                let started = Some(self.now - SignedDuration::from_secs(40));
                self.seen.pods.push(PodSeen { uid, created: started, started, ..made });
            }
        }
        self.report();
    }

    /// Lets the coordinator report, if anybody trains.
    fn report(&mut self) {
        if self.trains {
            let progress = Progress { step: self.step, total_steps: 1000, world_size: WORKERS, ..Progress::default() };
            self.seen.group = Some(GroupSeen { progress: Some(progress), ..GroupSeen::default() });
            self.look();
        }
    }

    fn end(&mut self, who: Who, how: How) {
        let role = match who {
            Who::Coordinator => PodRole::Coordinator,
            Who::Worker(worker) => PodRole::Worker(worker),
        };
        let (code, reason) = match how {
            How::Exits(0) => (Some(0), "Completed"),
            How::Exits(code) => (Some(code), "Error"),
            How::Killed(signal) => (Some(128 + signal), "Error"),
            How::OutOfMemory => (Some(137), "OOMKilled"),
            How::TakenAway => (None, "Evicted"),
        };
        let (at, reason) = (Some(self.now), Some(reason.to_owned()));
        let ran = Some(SignedDuration::from_secs(100));
        let pod = self.seen.pods.iter_mut().find(|pod| pod.role == role).expect("its pod");
        (pod.was_ready, pod.ready) = (self.trains, false);
        pod.state = PodState::Ended(Termination { code, reason, message: String::new(), at, ran });
    }

    /// Plans, and takes the status over.
    fn look(&mut self) {
        if let Some(status) = plan(&self.job, &self.seen, &default_image(), self.now).status {
            self.seen.status = status;
        }
    }
}
