use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::mpsc::channel;
use std::time::Duration;

use lockstep_collective::{Abort, Communicator, Group, JobId, Limits, Listener, RankId, Sockets, Waiting};

pub(crate) const JOB: JobId = JobId([0x42; 16]);
pub(crate) const GENERATION: u64 = 7;
/// Longer than any accidental stall of a busy machine.
pub(crate) const PATIENT: Limits = Limits {
    forming: Duration::from_secs(30),
    silence: Duration::from_secs(30),
    waiting: Waiting::Block,
    threads: NonZeroUsize::MIN,
    shares_memory: false,
    sockets: Sockets::ONE,
};
/// For tests that wait until the limit is over.
pub(crate) const IMPATIENT: Limits = Limits { silence: Duration::from_secs(1), ..PATIENT };

/// Returns [`PATIENT`] with this many connections for each pair.
pub(crate) fn with_sockets(sockets: usize) -> Limits {
    Limits { sockets: Sockets::new(sockets).unwrap(), ..PATIENT }
}

pub(crate) fn id(rank: usize) -> RankId {
    RankId { job: JOB, generation: GENERATION, rank }
}

pub(crate) fn listener() -> Listener {
    Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Runs `work` of each rank of a fresh group on a thread of its own. Returns the results in rank
/// order.
pub(crate) fn group<T: Send>(
    world: usize,
    limits: Limits,
    work: impl Fn(Communicator<Vec<f32>>) -> T + Send + Sync,
) -> Vec<T> {
    ranks(world, |listener, rank, peers| {
        work(Communicator::form(listener, id(rank), peers, limits, &Abort::new()).unwrap())
    })
}

/// Runs `work` as [`group`] does, on the group itself.
pub(crate) fn bare_group<T: Send>(world: usize, limits: Limits, work: impl Fn(Group) -> T + Send + Sync) -> Vec<T> {
    ranks(world, |listener, rank, peers| work(Group::form(listener, id(rank), peers, limits, &Abort::new()).unwrap()))
}

/// Runs `work` as [`group`] does, with the means to form a group.
pub(crate) fn ranks<T: Send>(
    world: usize,
    work: impl Fn(&Listener, usize, &[SocketAddr]) -> T + Send + Sync,
) -> Vec<T> {
    ranks_at((0..world).map(|_| listener()).collect(), work)
}

/// Runs `work` as [`ranks`] does, at these ports.
pub(crate) fn ranks_at<T: Send>(
    listeners: Vec<Listener>,
    work: impl Fn(&Listener, usize, &[SocketAddr]) -> T + Send + Sync,
) -> Vec<T> {
    let peers: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    std::thread::scope(|scope| {
        let (work, peers) = (&work, &peers);
        let ranks: Vec<_> = listeners
            .iter()
            .enumerate()
            .map(|(rank, listener)| scope.spawn(move || work(listener, rank, peers)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the result of `work`, which must not take forever.
pub(crate) fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = channel();
    let worker = std::thread::spawn(move || done.send(work()));
    match outcome.recv_timeout(Duration::from_secs(40)) {
        Ok(outcome) => outcome,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(worker.join().unwrap_err()),
    }
}
