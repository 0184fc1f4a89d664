use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lockstep_collective::algorithm::{Algorithm, MAX_FRAME};
use lockstep_collective::{
    Abort, CollectiveError, FrameKind, Group, HEADER_BYTES, Header, JobId, Limits, Listener, Missing, RankId,
    Reduction, Tag, Waiting,
};

use crate::group::{GENERATION, IMPATIENT, PATIENT, ends, id, listener, ranks};
use crate::impostor::{greeting, read_header};

fn form(listener: &Listener, id: RankId, peers: &[SocketAddr]) -> Result<Group, CollectiveError> {
    Group::form(listener, id, peers, PATIENT, &Abort::new())
}

fn sum(group: &mut Group, values: &mut [f32]) -> Result<(), CollectiveError> {
    group.all_reduce(Algorithm::Ring, Tag::default(), values, Reduction::Sum).map(drop)
}

/// Returns a port without a listener. It has a loopback address of its own, so that no other test's
/// listener takes it.
fn deserted(host: u8) -> SocketAddr {
    Listener::bind(Ipv4Addr::new(127, 0, 0, host).into(), 0).unwrap().address()
}

/// Connects to `address` and sends `bytes`.
fn call(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn strangers_do_not_disturb_the_forming() {
    ends(|| {
        let listeners = [listener(), listener()];
        let peers = [listeners[0].address(), listeners[1].address()];
        // All of them are in the queue before rank 1 looks.
        let mut refused = [
            call(peers[1], &[0x5a; 64]),
            call(peers[1], &Header { job: JobId([9; 16]), ..greeting(FrameKind::Hello, 0) }.encode()),
            call(peers[1], &Header { generation: GENERATION - 1, ..greeting(FrameKind::Hello, 0) }.encode()),
            call(peers[1], &greeting(FrameKind::Hello, 4).encode()),
            call(peers[1], &greeting(FrameKind::Welcome, 0).encode()),
        ];
        let _silent: Vec<TcpStream> = (0..10).map(|_| call(peers[1], b"LSF")).collect();
        let other = std::thread::spawn({
            let [_, second] = listeners.each_ref().map(Listener::address);
            assert_eq!(second, peers[1]);
            let [first, second] = listeners;
            move || {
                let peer = std::thread::spawn(move || {
                    form(&second, id(1), &peers).and_then(|mut group| sum(&mut group, &mut [1.0]))
                });
                let mut values = [2.0];
                sum(&mut form(&first, id(0), &peers).unwrap(), &mut values).unwrap();
                peer.join().unwrap().unwrap();
                values
            }
        });
        assert_eq!(other.join().unwrap(), [3.0]);
        for stream in &mut refused {
            // The connection closes, in some cases after a refusal.
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            assert!(
                said.is_empty() || Header::decode(said[..].try_into().unwrap()).unwrap().kind == FrameKind::Refusal
            );
        }
    });
}

#[test]
fn an_older_generation_learns_which_one_is_forming() {
    ends(|| {
        let second = listener();
        let peers = [deserted(4), second.address()];
        let abort = Abort::new();
        let forming = std::thread::spawn({
            let abort = abort.clone();
            move || Group::form(&second, id(1), &peers, PATIENT, &abort).map(|_| ())
        });
        let mut stream =
            call(peers[1], &Header { generation: GENERATION - 1, ..greeting(FrameKind::Hello, 0) }.encode());
        let refusal = read_header(&mut stream);
        assert_eq!((refusal.kind, refusal.generation, refusal.sender), (FrameKind::Refusal, GENERATION, 1));
        abort.abort("seen enough");
        assert!(matches!(forming.join().unwrap(), Err(CollectiveError::Aborted { .. })));
    });
}

#[test]
fn a_rank_left_in_an_older_generation_learns_of_the_newer() {
    // The rank in the older generation dials in one case, and is dialled in the other.
    for left in [0, 1] {
        ends(move || {
            let listeners = [listener(), listener()];
            let peers = listeners.each_ref().map(Listener::address);
            let abort = Abort::new();
            std::thread::scope(|scope| {
                let newer = scope.spawn(|| {
                    let id = RankId { generation: GENERATION + 1, ..id(1 - left) };
                    Group::form(&listeners[1 - left], id, &peers, PATIENT, &abort).map(|_| ())
                });
                let error = form(&listeners[left], id(left), &peers).unwrap_err();
                assert!(
                    matches!(error, CollectiveError::Superseded { rank, generation: GENERATION, newer }
                        if (rank, newer) == (1 - left, GENERATION + 1)),
                    "{error}"
                );
                abort.abort("seen enough");
                assert!(newer.join().unwrap().is_err());
            });
        });
    }
}

#[test]
fn a_rank_that_connects_and_stays_silent_is_named_as_missing() {
    let error = ends(|| {
        let second = listener();
        let peers = [deserted(5), second.address()];
        let _silent = call(peers[1], &greeting(FrameKind::Hello, 0).encode());
        let limits = Limits { forming: Duration::from_millis(300), waiting: Waiting::Adaptive, ..PATIENT };
        Group::form(&second, id(1), &peers, limits, &Abort::new()).unwrap_err()
    });
    let CollectiveError::NotFormed { missing: Missing::Unreached { rank: 0, last_attempt, .. }, .. } = error else {
        panic!("{error}")
    };
    assert!(last_attempt.contains("connected, and silent"), "{last_attempt}");
}

/// Returns a port that stands in for `address` and passes nothing on after the greeting.
fn muted(address: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let muted = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut called = TcpStream::connect(address).unwrap();
        io::copy(&mut (&mut caller).take(HEADER_BYTES as u64), &mut called).unwrap();
        io::copy(&mut called, &mut caller)
    });
    muted
}

#[test]
fn only_the_rank_that_does_not_hear_a_connected_peer_calls_it_silent() {
    let errors = ends(|| {
        ranks(4, |listener, rank, peers| {
            let mut peers = peers.to_vec();
            if rank == 0 {
                peers[1] = muted(peers[1]);
            }
            let formed = Group::form(listener, id(rank), &peers, IMPATIENT, &Abort::new());
            formed.and_then(|mut group| sum(&mut group, &mut [1.0])).unwrap_err()
        })
    });
    let unreached = errors.iter().map(|error| match error {
        CollectiveError::NotFormed { missing: Missing::Unreached { rank, .. }, .. } => Some(*rank),
        _ => None,
    });
    assert_eq!(unreached.collect::<Vec<_>>(), [None, Some(0), None, None], "{errors:?}");
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    let error = ends(|| {
        let first = listener();
        let peers = [first.address(), deserted(2), deserted(2)];
        let limits = Limits { forming: Duration::from_millis(200), ..PATIENT };
        Group::form(&first, id(0), &peers, limits, &Abort::new()).unwrap_err()
    });
    let CollectiveError::NotFormed {
        generation: GENERATION,
        missing: Missing::Unreached { rank: 1, last_attempt, others: 1, .. },
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(last_attempt.contains("refused"), "{last_attempt}");
}

#[test]
fn a_rank_that_opens_its_port_late_still_joins() {
    ends(|| {
        let first = listener();
        let late = deserted(3);
        let peers = [first.address(), late];
        let (looked, has_looked) = channel();
        let early = std::thread::spawn(move || {
            looked.send(()).unwrap();
            form(&first, id(0), &peers).and_then(|mut group| sum(&mut group, &mut [1.0]))
        });
        has_looked.recv().unwrap();
        let second = Listener::bind(late.ip(), late.port()).unwrap();
        form(&second, id(1), &peers).and_then(|mut group| sum(&mut group, &mut [1.0])).unwrap();
        early.join().unwrap().unwrap();
    });
}

#[test]
fn an_abort_ends_the_forming() {
    ends(|| {
        let first = listener();
        let peers = [first.address(), deserted(5)];
        let abort = Abort::new();
        let forming = std::thread::spawn({
            let abort = abort.clone();
            move || Group::form(&first, id(0), &peers, PATIENT, &abort).map(|_| ())
        });
        abort.abort("generation 8 is being prepared");
        let error = forming.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "aborted: generation 8 is being prepared");
    });
}

#[test]
fn one_listener_serves_generation_after_generation() {
    ends(|| {
        let listeners = [listener(), listener(), listener()];
        let peers = listeners.each_ref().map(Listener::address);
        std::thread::scope(|scope| {
            for (rank, listener) in listeners.iter().enumerate() {
                scope.spawn(move || {
                    for generation in 1..=10 {
                        let mut values = vec![1.0; 1000];
                        sum(&mut form(listener, RankId { generation, ..id(rank) }, &peers).unwrap(), &mut values)
                            .unwrap();
                        assert_eq!(values, [3.0; 1000]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_rank_outside_the_group_is_refused() {
    let error = form(&listener(), id(2), &[listener().address(), listener().address()]).unwrap_err();
    assert!(matches!(error, CollectiveError::NotInGroup { rank: 2, world: 2 }), "{error}");
}

#[test]
fn a_star_hands_parts_to_its_last_rank_while_the_others_form_a_group_at_the_same_ports() {
    const TAG: Tag = Tag { step: 1, bucket: 0 };
    ends(|| {
        let listeners = [listener(), listener(), listener(), listener()];
        let peers = listeners.each_ref().map(Listener::address);
        let star = |rank: usize| Group::form_star(&listeners[rank], id(rank), &peers, PATIENT, &Abort::new()).unwrap();
        std::thread::scope(|scope| {
            for (rank, listener) in listeners[..3].iter().enumerate() {
                let (star, peers) = (&star, &peers[..3]);
                scope.spawn(move || {
                    let sending =
                        scope.spawn(move || star(rank).send(3, TAG, &mut vec![rank as f32; MAX_FRAME + 7]).unwrap());
                    for generation in 8..20 {
                        let mut values = vec![1.0; 1000];
                        sum(&mut form(listener, RankId { generation, ..id(rank) }, peers).unwrap(), &mut values)
                            .unwrap();
                        assert_eq!(values, [3.0; 1000]);
                    }
                    sending.join().unwrap();
                });
            }
            let mut hub = star(3);
            for rank in 0..3 {
                let mut part = vec![9.0; MAX_FRAME + 7];
                hub.receive(rank, TAG, &mut part).unwrap();
                assert!(part.iter().all(|value| *value == rank as f32));
            }
            let closed = hub.receive(0, TAG, &mut [0.0]).unwrap_err();
            assert!(matches!(closed, CollectiveError::PeerClosed { rank: 0, .. }), "{closed}");
        });
    });
}
