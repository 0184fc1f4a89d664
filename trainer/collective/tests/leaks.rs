//! Alone in its process, so that nothing else opens files or starts threads while it counts.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lockstep_collective::{Abort, CollectiveError, Communicator, Group, JobId, Limits, Listener, Seat};

const CYCLES: u64 = 10_000;
/// Pages that the allocator may keep for itself.
const SLACK_PAGES: usize = 1024;

#[test]
fn aborted_groups_leave_no_thread_no_socket_and_no_memory_behind() {
    let listeners: [Listener; 2] = std::array::from_fn(|_| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap());
    let peers = listeners.each_ref().map(Listener::address);
    let mut delays = Vec::new();
    // The first ones warm the process up.
    for generation in 0..100 {
        abort_once(&listeners, &peers, generation);
    }
    let (before, pages_before) = ([count("fd"), count("task")], resident_pages());
    for generation in 100..100 + CYCLES {
        delays.push(abort_once(&listeners, &peers, generation));
    }
    let pages = resident_pages();
    assert!(pages <= pages_before + SLACK_PAGES, "{pages} resident pages, {pages_before} before");
    delays.sort();
    println!("abort to error: median {:?}, longest {:?}", delays[delays.len() / 2], delays[delays.len() - 1]);
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

/// Forms a group, has rank 0 aborted in mid-operation, and says how long it then took to fail.
fn abort_once(listeners: &[Listener; 2], peers: &[std::net::SocketAddr; 2], generation: u64) -> Duration {
    let join = |rank: usize| {
        let seat = Seat { job: JobId([1; 16]), generation, rank };
        let mut group = Group::form(&listeners[rank], seat, peers, Limits::default(), &Abort::new()).unwrap();
        let arena = group.shared_arena(10_000).unwrap().expect("two ranks of one process share memory");
        (Communicator::over(group).unwrap(), arena)
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
