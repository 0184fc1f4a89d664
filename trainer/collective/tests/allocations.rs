//! A repeated operation allocates nothing and meets no page fault, on its caller's thread or a
//! communicator's. Inside TLS there are two allocations for each record, which rustls makes.

#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_collective::algorithm::{Algorithm, MAX_FRAME, all_reduce};
use lockstep_collective::{
    Abort, Communicator, Credentials, Group, HEADER_BYTES, Hosts, Identity, JobId, Limits, Listener, RankId, Reduction,
    Sockets, Tag, Wire,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Elements of an operation: several frames for each rank, and a multiple of nothing.
const LENGTH: usize = 4 * MAX_FRAME + 1;
const WARM_UP: u64 = 20;
const ROUNDS: u64 = 6;
/// The number of groups of rounds, of which the cheapest counts. The cost of an operation shows in
/// each group, a thread's first sleep in only one.
const GROUPS: usize = 5;

/// Returns the allocations and page faults of the whole process so far.
fn costs() -> [u64; 2] {
    let mut text = [0; 1024];
    let length = File::open("/proc/self/stat").unwrap().read(&mut text).unwrap();
    // The fields follow the name in brackets, and this is the tenth of all.
    let (_, fields) = str::from_utf8(&text[..length]).unwrap().rsplit_once(')').unwrap();
    let faults = fields.split_whitespace().nth(7).unwrap().parse().unwrap();
    [ALLOCATIONS.load(Ordering::Relaxed), faults]
}

fn counted<T>(form: impl Fn(Group) -> T + Sync, operation: impl Fn(&mut T, u64) + Sync) -> [u64; 2] {
    counted_within(Limits::default(), form, operation)
}

/// Runs `operation` on two ranks, first to warm up, then in [`GROUPS`] of [`ROUNDS`]. Returns the
/// cost of the latter.
fn counted_within<T>(
    limits: Limits,
    form: impl Fn(Group) -> T + Sync,
    operation: impl Fn(&mut T, u64) + Sync,
) -> [u64; 2] {
    counted_between(std::array::from_fn(|_| listener()), limits, form, operation)
}

fn listener() -> Listener {
    Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Counts as [`counted_within`] does, between these ports.
fn counted_between<T>(
    listeners: [Listener; 2],
    limits: Limits,
    form: impl Fn(Group) -> T + Sync,
    operation: impl Fn(&mut T, u64) + Sync,
) -> [u64; 2] {
    let peers = listeners.each_ref().map(Listener::address);
    let barrier = Barrier::new(2);
    let work = |rank: usize| {
        let id = RankId { job: JobId([5; 16]), generation: 1, rank };
        let group = Group::form(&listeners[rank], id, &peers, limits, &Abort::new()).unwrap();
        let mut place = form(group);
        (0..WARM_UP).for_each(|step| operation(&mut place, step));
        costs();
        barrier.wait();
        let mut least = [u64::MAX; 2];
        for first in (WARM_UP..).step_by(ROUNDS as usize).take(GROUPS) {
            let started = costs();
            barrier.wait();
            (first..first + ROUNDS).for_each(|step| operation(&mut place, step));
            barrier.wait();
            let ended = costs();
            barrier.wait();
            least = std::array::from_fn(|index| least[index].min(ended[index] - started[index]));
        }
        least
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        let counted = work(0);
        other.join().unwrap();
        counted
    })
}

/// Returns an identity whose certificate is the authority's own.
fn identity() -> Identity {
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["rank".to_owned()]).unwrap();
    let (certificate, key) = (cert.pem(), signing_key.serialize_pem());
    let (certificates, key) = (certificate.as_bytes(), key.as_bytes());
    Identity::new(Credentials { name: "rank", certificates, key, authority: certificates }).unwrap()
}

/// Returns the allocations of a sum on two ranks inside TLS.
///
/// Rustls encrypts each record into memory of its own, and hands decrypted bytes out in memory of
/// its own. Neither can be lent to it. A frame with its header has no more records than it needs.
fn allocations_inside_tls(algorithm: Algorithm) -> u64 {
    let hosts = Hosts::apart(2);
    let schedules = [0, 1].map(|rank| all_reduce(algorithm, rank, &hosts, LENGTH, MAX_FRAME));
    let frames = schedules.iter().flat_map(|schedule| &schedule.sends);
    let bytes = frames.map(|send| HEADER_BYTES + send.elements.len() * size_of::<f32>());
    bytes.map(|bytes| 2 * bytes.div_ceil(16 << 10) as u64).sum()
}

#[test]
fn repeated_operations_allocate_nothing_and_meet_no_page_fault() {
    let tag = |step| Tag { step, bucket: 0 };
    for algorithm in Algorithm::PLAIN {
        for wire in [Wire::F32, Wire::Bf16] {
            let sum = |(group, data): &mut (Group, Vec<f32>), step| {
                group.sum(wire, algorithm, tag(step), data).unwrap();
            };
            assert_eq!(counted(|group| (group, vec![0.5; LENGTH]), sum), [0, 0], "{algorithm:?}, {wire:?}");
            let striped = Limits { sockets: Sockets::new(2).unwrap(), ..Limits::default() };
            let cost = counted_within(striped, |group| (group, vec![0.5; LENGTH]), sum);
            assert_eq!(cost, [0, 0], "{algorithm:?}, {wire:?}, over two connections");
        }
    }
    for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
        let sum = |(group, data): &mut (Group, Vec<f32>), step| {
            group.all_reduce(algorithm, tag(step), data, Reduction::Sum).unwrap();
        };
        let identity = identity();
        let encrypted = std::array::from_fn(|_| listener().with_identity(identity.clone()));
        let cost = counted_between(encrypted, Limits::default(), |group| (group, vec![0.5; LENGTH]), sum);
        assert_eq!(cost, [ROUNDS * allocations_inside_tls(algorithm), 0], "{algorithm:?}, inside TLS");
    }
    let others = |(group, data): &mut (Group, Vec<f32>), step| {
        let (tag, rank) = (tag(step), group.id().rank);
        group.reduce_scatter(tag, data, Reduction::Sum).unwrap();
        group.all_gather(tag, data).unwrap();
        group.broadcast(1, tag, data).unwrap();
        group.reduce(1, tag, data, Reduction::Mean).unwrap();
        group.gather(1, tag, data).unwrap();
        group.scatter(1, tag, data).unwrap();
        group.all_to_all(tag, &mut data[1..]).unwrap();
        let sent = if rank == 0 { group.send(1, tag, data) } else { group.receive(0, tag, data) };
        sent.unwrap();
        group.barrier(tag).unwrap();
    };
    assert_eq!(counted(|group| (group, vec![0.5; LENGTH]), others), [0, 0], "all other operations");
    let staged = |(group, data): &mut (Group, Vec<f32>), step| {
        group.all_reduce_in_memory(tag(step), data, Reduction::Sum).unwrap();
    };
    assert_eq!(counted(|group| (group, vec![0.5; LENGTH]), staged), [0, 0], "through staging areas");
    let arenas = |mut group: Group| {
        let arena = group.shared_arena(LENGTH).unwrap().expect("two ranks of one process share memory");
        (Communicator::over(group).unwrap(), Some(arena))
    };
    let submitted = |(communicator, arena): &mut (Communicator<_>, Option<_>), step| {
        communicator.submit(step, 0, arena.take().unwrap());
        if step % 2 == 0 {
            // Leaves time to the communication thread, which does nothing if the caller waits at
            // once.
            std::thread::sleep(Duration::from_millis(2));
        }
        *arena = Some(communicator.wait().unwrap().memory);
        communicator.all_reduce_now(step, &mut [1.0, 2.0]).unwrap();
    };
    assert_eq!(counted(arenas, submitted), [0, 0], "by a communicator");
}
