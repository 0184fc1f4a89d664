//! `lockstep-trainer worker`: joins the group, and trains in lockstep to the last step or measures
//! to the last row. The process stays when the group changes: it seals, enters the next generation,
//! and goes on.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use lockstep_elastic::{Admission, Digest, HeldState, Sampler};
use lockstep_launch::{Benchmark, Collectives, Communication, Ending, Launch, Replay, Task, Workload};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use crate::{
    benchmark,
    compute::{recipe::Recipe, training_state::TrainingState},
    failure::Failure,
    membership::{catchup::receive::until_member, session::Session},
    progress::metrics::Metrics,
    saving::protocol::Saver,
    serve::{self, LogFolder, Ready},
    signals::Stop,
    storage::{self, Storage, retry::warned_of},
    trainee::Trainee,
    training::{Run, device_seats},
};

/// The parts of a worker's process that exist before it joins the group.
struct Process<'a> {
    launch: &'a Launch,
    metrics: Arc<Metrics>,
    stop: Stop,
    ready: Ready,
    log: LogFolder,
}

/// Makes what a worker trains, by its orders.
pub(crate) type Make<'a> = dyn Fn(&Launch, &Workload) -> Result<Box<dyn Trainee>, Failure> + 'a;

/// Does the whole work of a worker, or replays a part of another worker's.
pub(crate) fn work(launch: &Launch, replay: Option<&Replay>, make: &Make<'_>) -> Result<Ending, Failure> {
    allow_connections();
    let stop = Stop::listen().map_err(|error| Failure::retry(format!("{error:#}")))?;
    let metrics = Metrics::new(&launch.job).map_err(Failure::fatal)?;
    let process = Process { launch, metrics, stop, ready: Ready::default(), log: LogFolder::default() };
    process.serve_metrics()?;
    match &launch.task {
        Task::Train(workload) => process.train(workload, replay, make),
        Task::Benchmark { benchmark: Benchmark::Collectives(collectives), communication } => {
            process.measure(collectives, communication)
        }
    }
}

/// Allows this process as many connections as the system permits: each rank is connected with all
/// others.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    // If that is too few, the connection that fails says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Process<'_> {
    fn serve_metrics(&self) -> Result<(), Failure> {
        let address = SocketAddr::new(self.launch.address, self.launch.ports.metrics);
        let metrics = Arc::clone(&self.metrics);
        let text = move || metrics.text().unwrap_or_default();
        let served = serve::serve(address, Arc::clone(&self.ready), text, Arc::clone(&self.log));
        let served = served.map_err(|error| Failure::fatal(format!("{error:#}")))?;
        info!("serving metrics={served}");
        Ok(())
    }

    fn train(&self, workload: &Workload, replay: Option<&Replay>, make: &Make<'_>) -> Result<Ending, Failure> {
        let Self { launch, metrics, stop, ready, log } = self;
        storage::check_variables(launch)?;
        let trainee = make(launch, workload)?;
        metrics.needs_memory(&trainee.memory());
        let samples = trainee.samples();
        let last_step = replay.and_then(|replay| replay.last_step);
        let recipe = Recipe::new(&workload.training, samples.training, last_step);
        let data = Digest::from_bytes(trainee.fingerprint());
        let storage = Storage::open(launch, workload, data)?;
        log.get_or_init(|| storage.output().to_owned());
        let shards = launch.task.shards(launch.elastic.max_replicas);
        for warning in workload.warnings(launch.elastic.max_replicas) {
            warn!("{warning}");
        }
        // A rank's speed by itself depends on its share of a step; it is measured for the first
        // group.
        let seats: Vec<_> = device_seats(workload, 0, launch.replicas, shards).collect();
        let mut state = TrainingState::new(trainee, recipe, &storage, &seats)?;
        let held = state.held();
        let (session, admission) = Session::join(launch, metrics, stop, ready, data, held)?;
        let run = Run::new(&session, workload, replay, &storage);
        let mut saver = None;
        let ended = session.carry_out(|| {
            let group = until_member(&session, &mut state, admission)?;
            let interval = Duration::from_secs(workload.checkpoint.interval_seconds.into());
            let saver = saver.insert(Saver::start(&storage, &session, &state, &group, interval)?);
            run.train(&mut state, saver, group)
        });
        // Only this process waits for its unfinished writes.
        warned_of(storage.uri(), || drop(saver));
        ended
    }

    fn measure(&self, collectives: &Collectives, communication: &Communication) -> Result<Ending, Failure> {
        let Self { launch, metrics, stop, ready, log: _ } = self;
        let no_data = Digest::of(b"");
        let nothing = HeldState { step: 0, digest: Digest::NONE, sampler: Sampler { seed: 0, epoch: 0, cursor: 0 } };
        let (session, mut admission) = Session::join(launch, metrics, stop, ready, no_data, nothing)?;
        session.carry_out(|| {
            loop {
                let Admission::Member(group) = admission else {
                    // A benchmark has no state for a newcomer to take over.
                    admission = session.regroup(nothing, None)?;
                    continue;
                };
                let broken = match benchmark::measure(&session, &group, collectives, communication) {
                    Ok(Some(ending)) => return Ok(ending),
                    Ok(None) => None,
                    Err(failure) => session.broken_by(failure)?,
                };
                // The next group begins its own table.
                admission = session.regroup(nothing, broken)?;
            }
        })
    }
}
