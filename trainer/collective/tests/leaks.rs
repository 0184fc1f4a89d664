//! Counts files, threads and memory over many groups. The test is alone in its process, so that
//! nothing else opens or starts any.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_collective::{
    Abort, Collective, CollectiveError, Communicator, Credentials, Group, Identity, JobId, Limits, Listener, RankId,
    Reduction, SharedArena, Sockets,
};

/// Groups that map fresh shared memory.
const CYCLES_IN_MEMORY: u64 = 1_500;
/// Groups in which both ranks write to each other's mapping.
const CYCLES_IN_MID_SUM: u64 = 500;
const CYCLES_OVER_TCP: u64 = 2_000;
/// Groups that run the other collectives, in turn.
const CYCLES_OF_OTHERS: u64 = 2_000;
/// Groups with several connections for each pair.
const STRIPED_CYCLES: u64 = 1_000;
/// Groups whose bytes are on the way when the abort comes.
const CYCLES_IN_MID_TRANSFER: u64 = 1_000;
/// Groups inside TLS, in which both ends prove their identity in about a millisecond.
const ENCRYPTED_CYCLES: u64 = 2_000;
/// The longest time from an abort to the error, in nine of ten operations. A single one may take
/// longer if the machine has other work.
const ABORTED_WITHIN: Duration = Duration::from_millis(10);
/// Leaks grow in each of these parts of the cycles. The allocator itself takes more memory only now
/// and then.
const PARTS: u64 = 4;
/// Pages by which each part may grow.
const SLACK_PAGES: usize = 32;

#[test]
fn ten_thousand_aborted_groups_end_in_time_and_leave_no_thread_socket_or_memory() {
    let over_tcp = Limits { shares_memory: false, ..Limits::default() };
    let striped = Limits { sockets: Sockets::new(4).unwrap(), ..over_tcp };
    let identity = identity();
    let encrypted = std::array::from_fn(|_| listener().with_identity(identity.clone()));
    let plain = || std::array::from_fn(|_| listener());
    let kinds = [
        ("in memory", plain(), LACKING, Limits::default(), start_sum as Start, CYCLES_IN_MEMORY),
        ("in mid-sum", plain(), MOVING, Limits::default(), start_sum, CYCLES_IN_MID_SUM),
        ("over TCP", plain(), LACKING, over_tcp, start_sum, CYCLES_OVER_TCP),
        ("of other collectives", plain(), LACKING, over_tcp, start_another, CYCLES_OF_OTHERS),
        ("over stripes", plain(), LACKING, striped, start_sum, STRIPED_CYCLES),
        ("in mid-transfer", plain(), MOVING, striped, start_sum, CYCLES_IN_MID_TRANSFER),
        ("inside TLS", encrypted, LACKING, over_tcp, start_sum, ENCRYPTED_CYCLES),
    ];
    assert_eq!(kinds.iter().map(|(.., cycles)| cycles).sum::<u64>(), 10_000);
    for (kind, listeners, sum, limits, start, cycles) in kinds {
        let longest = count_cycles(kind, &listeners, sum, limits, start, cycles);
        assert!(longest < ABORTED_WITHIN, "{kind}: {longest:?} from an abort to the error, in nine of ten");
    }
}

/// The sum that is under way when the abort comes.
#[derive(Clone, Copy)]
struct Sum {
    elements: usize,
    /// True if rank 1 sums too, so that bytes are on the way.
    both: bool,
}

const LACKING: Sum = Sum { elements: 10_000, both: false };
/// Both ranks sum, so up to four of five sums may end before the abort comes.
const MOVING: Sum = Sum { elements: 4 << 20, both: true };

fn listener() -> Listener {
    Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Returns an identity whose certificate is the authority's own.
fn identity() -> Identity {
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["rank".to_owned()]).unwrap();
    let (certificate, key) = (cert.pem(), signing_key.serialize_pem());
    let (certificates, key) = (certificate.as_bytes(), key.as_bytes());
    Identity::new(Credentials { name: "rank", certificates, key, authority: certificates }).unwrap()
}

/// Returns the longest time from an abort to the error, without the longest tenth.
fn count_cycles(
    kind: &str,
    listeners: &[Listener; 2],
    sum: Sum,
    limits: Limits,
    start: Start,
    cycles: u64,
) -> Duration {
    let began = Instant::now();
    let peers = listeners.each_ref().map(Listener::address);
    let mut delays = Vec::new();
    // The first cycles warm the process up.
    for generation in 0..100 {
        abort_once(listeners, &peers, sum, limits, start, generation);
    }
    let before = [count("fd"), count("task")];
    let mut pages = vec![resident_pages()];
    for part in 0..PARTS {
        for cycle in part * cycles / PARTS..(part + 1) * cycles / PARTS {
            delays.extend(abort_once(listeners, &peers, sum, limits, start, 100 + cycle));
        }
        pages.push(resident_pages());
    }
    let grows = |pair: &[usize]| pair[1] > pair[0] + SLACK_PAGES;
    assert!(!pages.windows(2).all(grows), "resident pages {kind}, after each part of the cycles: {pages:?}");
    let done = cycles as usize - delays.len();
    assert!(
        done <= if sum.both { cycles as usize * 4 / 5 } else { 0 },
        "{done} of {cycles} sums {kind} were done before the abort"
    );
    delays.sort();
    let [median, most, longest] = [5, 9, 10].map(|tenths| delays[(delays.len() * tenths / 10).min(delays.len() - 1)]);
    println!(
        "abort to error {kind}: median {median:?}, nine of ten {most:?}, longest {longest:?}; {done} done before; {:?} in all; pages {pages:?}",
        began.elapsed()
    );
    // A joined thread may stay listed for a moment, now and in the count before.
    let deadline = Instant::now() + Duration::from_secs(10);
    while count("fd") > before[0] || count("task") > before[1] {
        assert!(
            Instant::now() < deadline,
            "{:?} file descriptors and threads, {before:?} before",
            [count("fd"), count("task")]
        );
        thread::yield_now();
    }
    most
}

/// Shared memory if the ranks share any, or else a vector.
#[derive(Debug)]
struct Arena(Option<SharedArena>, Vec<f32>);

impl AsMut<[f32]> for Arena {
    fn as_mut(&mut self) -> &mut [f32] {
        self.0.as_mut().map_or(&mut self.1, SharedArena::as_mut)
    }
}

/// Starts an operation of one cycle.
type Start = fn(&mut Communicator<Arena>, Arena, u64);

fn start_sum(communicator: &mut Communicator<Arena>, arena: Arena, _: u64) {
    communicator.submit(1, 0, arena);
}

/// Starts another collective in each cycle.
fn start_another(communicator: &mut Communicator<Arena>, arena: Arena, cycle: u64) {
    let reduction = Reduction::Sum;
    let collective = match cycle % 9 {
        0 => Collective::AllReduce(reduction),
        1 => Collective::ReduceScatter(reduction),
        2 => Collective::AllGather,
        3 => Collective::Broadcast { root: 1 },
        4 => Collective::Reduce { root: 0, reduction },
        5 => Collective::Gather { root: 0 },
        6 => Collective::Scatter { root: 1 },
        7 => Collective::AllToAll,
        _ => Collective::Receive { from: 1 },
    };
    communicator.start(collective, 1, 0, arena);
}

/// Forms a group and aborts rank 0 in the middle of an operation. Returns the time until it failed,
/// or `None` if the operation was done before.
fn abort_once(
    listeners: &[Listener; 2],
    peers: &[std::net::SocketAddr; 2],
    sum: Sum,
    limits: Limits,
    start: Start,
    generation: u64,
) -> Option<Duration> {
    let join = |rank: usize| {
        let id = RankId { job: JobId([1; 16]), generation, rank };
        let mut group = Group::form(&listeners[rank], id, peers, limits, &Abort::new()).unwrap();
        let arena = group.shared_arena(sum.elements).unwrap();
        assert_eq!(arena.is_some(), limits.shares_memory, "two ranks of one process share memory");
        let own = if arena.is_some() { Vec::new() } else { vec![0.0; sum.elements] };
        (Communicator::over(group).unwrap(), Arena(arena, own))
    };
    let begun = &AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        let (mut communicator, arena) = join(0);
        let (mut other, theirs) = other.join().unwrap();
        if sum.both {
            start(&mut other, theirs, generation);
        }
        let abort = communicator.abort_handle();
        let aborted = scope.spawn(move || {
            while !begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let now = Instant::now();
            abort.abort("a test");
            now
        });
        start(&mut communicator, arena, generation);
        begun.store(true, Ordering::Release);
        let failed = communicator.wait().err().map(|failed| failed.error);
        let now = Instant::now();
        drop(other);
        let aborted = aborted.join().unwrap();
        let error = failed?;
        assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
        Some(now.duration_since(aborted))
    })
}

/// Returns the number of entries of a folder of this process in /proc.
fn count(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}")).unwrap().count()
}

fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}
