//! Alone in its process, so that nothing else opens files or starts threads while it counts.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lockstep_collective::{
    Abort, CollectiveError, Communicator, Credentials, Group, Identity, JobId, Limits, Listener, Seat, SharedArena,
    Sockets,
};

const CYCLES: u64 = 10_000;
/// Inside TLS both ends prove who they are each time, which takes a millisecond.
const ENCRYPTED_CYCLES: u64 = 1_000;
/// Each pair has several connections.
const STRIPED_CYCLES: u64 = 500;
/// Pages that the allocator may keep for itself.
const SLACK_PAGES: usize = 1024;

#[test]
fn aborted_groups_leave_no_thread_no_socket_and_no_memory_behind() {
    count_cycles(std::array::from_fn(|_| listener()), Limits::default(), CYCLES);
    let striped = Limits { shares_memory: false, sockets: Sockets::new(4).unwrap(), ..Limits::default() };
    count_cycles(std::array::from_fn(|_| listener()), striped, STRIPED_CYCLES);
    let identity = identity();
    let encrypted = std::array::from_fn(|_| listener().with_identity(identity.clone()));
    count_cycles(encrypted, Limits { shares_memory: false, ..Limits::default() }, ENCRYPTED_CYCLES);
}

fn listener() -> Listener {
    Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Of ranks that hold the authority's own certificate.
fn identity() -> Identity {
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["rank".to_owned()]).unwrap();
    let (certificate, key) = (cert.pem(), signing_key.serialize_pem());
    let (certificates, key) = (certificate.as_bytes(), key.as_bytes());
    Identity::new(Credentials { name: "rank", certificates, key, authority: certificates }).unwrap()
}

fn count_cycles(listeners: [Listener; 2], limits: Limits, cycles: u64) {
    let peers = listeners.each_ref().map(Listener::address);
    let mut delays = Vec::new();
    // The first ones warm the process up.
    for generation in 0..100 {
        abort_once(&listeners, &peers, limits, generation);
    }
    let (before, pages_before) = ([count("fd"), count("task")], resident_pages());
    for generation in 100..100 + cycles {
        delays.push(abort_once(&listeners, &peers, limits, generation));
    }
    let pages = resident_pages();
    assert!(pages <= pages_before + SLACK_PAGES, "{pages} resident pages, {pages_before} before");
    delays.sort();
    println!(
        "abort to error, {limits:?}: median {:?}, longest {:?}",
        delays[delays.len() / 2],
        delays[delays.len() - 1]
    );
    // A joined thread may stay listed for a moment: now, and when they were counted before.
    let deadline = Instant::now() + Duration::from_secs(10);
    while count("fd") > before[0] || count("task") > before[1] {
        assert!(
            Instant::now() < deadline,
            "{:?} file descriptors and threads, {before:?} before",
            [count("fd"), count("task")]
        );
        std::thread::yield_now();
    }
}

/// Shared where the ranks share memory.
#[derive(Debug)]
struct Arena(Option<SharedArena>, Vec<f32>);

impl AsMut<[f32]> for Arena {
    fn as_mut(&mut self) -> &mut [f32] {
        self.0.as_mut().map_or(&mut self.1, SharedArena::as_mut)
    }
}

/// Forms a group, has rank 0 aborted in mid-operation, and says how long it then took to fail.
fn abort_once(
    listeners: &[Listener; 2],
    peers: &[std::net::SocketAddr; 2],
    limits: Limits,
    generation: u64,
) -> Duration {
    let join = |rank: usize| {
        let seat = Seat { job: JobId([1; 16]), generation, rank };
        let mut group = Group::form(&listeners[rank], seat, peers, limits, &Abort::new()).unwrap();
        let arena = group.shared_arena(10_000).unwrap();
        assert_eq!(arena.is_some(), limits.shares_memory, "two ranks of one process share memory");
        (Communicator::over(group).unwrap(), Arena(arena, vec![0.0; 10_000]))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        let (mut communicator, arena) = join(0);
        let other = other.join().unwrap();
        communicator.submit(1, 0, arena);
        let abort = communicator.abort_handle();
        let aborted = scope.spawn(move || {
            let now = Instant::now();
            abort.abort("a test");
            now
        });
        let failed = communicator.wait().unwrap_err();
        let now = Instant::now();
        assert!(matches!(failed.error, CollectiveError::Aborted { .. }), "{}", failed.error);
        drop(other);
        now.duration_since(aborted.join().unwrap())
    })
}

/// The entries of a folder of this process in /proc.
fn count(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}")).unwrap().count()
}

fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}
