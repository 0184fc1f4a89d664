//! Groups in which each pair has several connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Duration;

use lockstep_collective::algorithm::{Algorithm, MAX_FRAME, part};
use lockstep_collective::{
    Abort, CollectiveError, Communicator, FrameKind, Group, Header, Limits, MAX_SOCKETS, Reduction, Tag, Transferred,
};

use crate::group::{PATIENT, bare_group, ends, group, id, listener, ranks, with_sockets};
use crate::impostor::{LENGTH, expected_frame, greeting, read_header, until_closed};

const TAG: Tag = Tag { step: 2, bucket: 1 };

/// Returns numbers whose sum depends on the order of addition.
fn fractions(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((rank * 7919 + i * 104_729) % 99_991) as f32 / 997.0 + 1e-7).collect()
}

/// Returns a rank's elements after every operation.
fn results(group: &mut Group, length: usize) -> Vec<Vec<f32>> {
    let (world, rank) = (group.world(), group.id().rank);
    let mut results = Vec::new();
    let mut held = |operation: &mut dyn FnMut(&mut [f32])| {
        let mut data = fractions(rank, length);
        operation(&mut data);
        results.push(data);
    };
    for algorithm in Algorithm::PLAIN {
        held(&mut |data| {
            group.all_reduce(algorithm, TAG, data, Reduction::Sum).unwrap();
        });
    }
    held(&mut |data| {
        group.broadcast(world - 1, TAG, data).unwrap();
    });
    held(&mut |data| {
        group.all_gather(TAG, data).unwrap();
    });
    held(&mut |data| {
        group.scatter(0, TAG, data).unwrap();
    });
    held(&mut |data| {
        group.gather(0, TAG, data).unwrap();
        group.broadcast(0, TAG, data).unwrap();
    });
    held(&mut |data| {
        group.reduce(1, TAG, data, Reduction::Mean).unwrap();
        group.broadcast(1, TAG, data).unwrap();
    });
    held(&mut |data| {
        group.reduce_scatter(TAG, data, Reduction::Sum).unwrap();
        let own = part(&(0..length), world, rank);
        data[..own.start].fill(0.0);
        data[own.end..].fill(0.0);
    });
    held(&mut |data| {
        group.all_to_all(TAG, data).unwrap();
    });
    results
}

#[test]
fn every_operation_leaves_the_same_bits_however_many_sockets_carry_it() {
    for world in 2..=5 {
        let results = |sockets| {
            ends(move || {
                bare_group(world, with_sockets(sockets), |mut group| {
                    [0, 1, 999, MAX_FRAME + 7].map(|length| results(&mut group, length))
                })
            })
        };
        let alone = results(1);
        for sockets in [2, 3, MAX_SOCKETS] {
            assert!(results(sockets) == alone, "{world} ranks, {sockets} sockets");
        }
    }
}

#[test]
fn partners_that_exchange_far_more_than_their_sockets_hold_do_not_wait_for_each_other() {
    for sockets in [2, 5] {
        ends(move || {
            bare_group(3, with_sockets(sockets), |mut group| {
                for algorithm in Algorithm::PLAIN {
                    let mut data: Vec<f32> = (0..(5 << 20) + 1).map(|index| (index % 1000) as f32).collect();
                    group.all_reduce(algorithm, TAG, &mut data, Reduction::Sum).unwrap();
                    let right = data.iter().enumerate().all(|(index, value)| *value == 3.0 * (index % 1000) as f32);
                    assert!(right, "{algorithm:?}, {sockets} sockets");
                }
            })
        });
    }
}

#[test]
fn a_rank_that_leaves_after_its_last_sum_disturbs_no_other() {
    for round in 0..30 {
        ends(move || {
            group(3, with_sockets(2 + round % 3), |mut communicator| {
                communicator.submit(1, 0, vec![1.0; 3 * MAX_FRAME + 1]);
                assert!(communicator.wait().unwrap().memory.iter().all(|value| *value == 3.0));
            })
        });
    }
}

/// A fault of the first connection through [`line`].
#[derive(Clone, Copy)]
enum First {
    /// It passes a byte on once the others have passed [`SLOWER`] on, or pass nothing any more.
    IsSlow,
    /// Both ends are closed after this many bytes.
    IsCut(usize),
}

const SLOWER: usize = 40;
/// Turns without a byte after which a slow connection passes some on anyway, because the others may
/// wait for it.
const IDLE_TURNS: usize = 100;
const PIECE: usize = 16 << 10;

/// One direction of a connection through [`line`].
struct Flow {
    from: TcpStream,
    to: TcpStream,
    held: Vec<u8>,
    passed: usize,
}

impl Flow {
    /// Passes a piece on if there is one. Returns true if more may come.
    fn pass(&mut self) -> bool {
        if self.held.is_empty() {
            self.held.resize(PIECE, 0);
            let came = self.from.read(&mut self.held);
            self.held.truncate(came.as_ref().map_or(0, |count| *count));
            match came {
                Ok(0) => {
                    let _ = self.to.shutdown(Shutdown::Write);
                    return false;
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return false,
                _ => {}
            }
        }
        match self.to.write(&self.held) {
            Ok(count) => {
                self.held.drain(..count);
                self.passed += count;
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    fn cut(&mut self) -> bool {
        let _ = (self.from.shutdown(Shutdown::Both), self.to.shutdown(Shutdown::Both));
        false
    }
}

/// Passes `sockets` connections on to `behind`, each in its turn, so that one is relatively slow on
/// any machine. Returns the bytes that each has carried there.
fn line(between: &TcpListener, behind: SocketAddr, sockets: usize, first: First) -> Vec<usize> {
    let mut flows = Vec::new();
    for _ in 0..sockets {
        let (called, calling) = (between.accept().unwrap().0, TcpStream::connect(behind).unwrap());
        for stream in [&called, &calling] {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        for (from, to) in [(&called, &calling), (&calling, &called)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            flows.push(Flow { from, to, held: Vec::new(), passed: 0 });
        }
    }
    let (mut open, mut idle_turns, mut passed_before) = (vec![true; flows.len()], 0, 0);
    while open.contains(&true) {
        let passed: usize = flows[2..].iter().map(|flow| flow.passed).sum();
        idle_turns = if passed == passed_before { idle_turns + 1 } else { 0 };
        passed_before = passed;
        for (index, (flow, open)) in flows.iter_mut().zip(&mut open).enumerate().filter(|(_, (_, open))| **open) {
            *open = match first {
                First::IsSlow if index < 2 => {
                    let is_due = SLOWER * flow.passed <= passed || idle_turns > IDLE_TURNS;
                    !is_due || flow.pass()
                }
                First::IsCut(after) if index < 2 && flow.passed >= after => flow.cut(),
                First::IsSlow | First::IsCut(_) => flow.pass(),
            };
        }
        std::thread::yield_now();
    }
    flows.iter().step_by(2).map(|flow| flow.passed).collect()
}

/// Returns the results of two ranks after an `operation` through [`line`], and the bytes of it that
/// each connection has carried to rank 1.
fn over_a_line(
    first: First,
    operation: impl Fn(&mut Group, &mut [f32]) -> Result<Transferred, CollectiveError> + Send + Sync + 'static,
) -> ([Result<Vec<f32>, CollectiveError>; 2], Vec<usize>) {
    const SOCKETS: usize = 3;
    ends(move || {
        let listeners = [listener(), listener()];
        let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // This line holds little.
        socket2::SockRef::from(&between).set_recv_buffer_size(32 << 10).unwrap();
        // Rank 0 dials rank 1 through it.
        let peers = [listeners[0].address(), between.local_addr().unwrap()];
        let behind = listeners[1].address();
        std::thread::scope(|scope| {
            let carried = scope.spawn(|| line(&between, behind, SOCKETS, first));
            let outcome = |rank: usize| {
                let (limits, abort) = (with_sockets(SOCKETS), Abort::new());
                let mut group = Group::form(&listeners[rank], id(rank), &peers, limits, &abort).unwrap();
                let mut data = vec![(rank + 1) as f32; 6 << 20];
                operation(&mut group, &mut data).map(|_| data)
            };
            let other = scope.spawn(move || outcome(1));
            let outcomes = [outcome(0), other.join().unwrap()];
            (outcomes, carried.join().unwrap())
        })
    })
}

#[test]
fn a_slow_stripe_leaves_the_bytes_to_the_others() {
    let (outcomes, carried) = over_a_line(First::IsSlow, |group, data| match group.id().rank {
        0 => group.send(1, TAG, data),
        _ => group.receive(0, TAG, data),
    });
    assert!(outcomes.into_iter().all(|data| data.unwrap().iter().all(|value| *value == 1.0)));
    assert!(carried[1..].iter().all(|other| *other > 2 * carried[0]), "{carried:?}");
}

#[test]
fn sent_bytes_keep_moving_while_the_sender_does_something_else() {
    let received = Barrier::new(2);
    let (outcomes, _) = over_a_line(First::IsSlow, move |group, data| {
        let outcome = if group.id().rank == 0 { group.send(1, TAG, data) } else { group.receive(0, TAG, data) };
        // The sender does nothing in this group until the other rank has everything.
        received.wait();
        outcome
    });
    assert!(outcomes.into_iter().all(|data| data.unwrap().iter().all(|value| *value == 1.0)));
}

#[test]
fn ranks_that_sum_over_a_slow_stripe_get_the_sum() {
    let (outcomes, _) =
        over_a_line(First::IsSlow, |group, data| group.all_reduce(Algorithm::Ring, TAG, data, Reduction::Sum));
    assert!(outcomes.into_iter().all(|data| data.unwrap().iter().all(|value| *value == 3.0)));
}

#[test]
fn a_stripe_that_is_cut_is_an_error_that_names_the_peer_on_both_ends() {
    let (outcomes, _) =
        over_a_line(First::IsCut(100_000), |group, data| group.all_reduce(Algorithm::Ring, TAG, data, Reduction::Sum));
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome.unwrap_err();
        // The second rank to notice may learn that the first has noticed.
        let (CollectiveError::PeerClosed { rank: peer, .. } | CollectiveError::PeerGaveUp { rank: peer, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!(peer, 1 - rank, "{error}");
    }
}

#[test]
fn ranks_with_different_numbers_of_sockets_get_an_error() {
    for sockets in [[1, 2], [4, 3]] {
        let errors = ends(move || {
            ranks(2, |listener, rank, peers| {
                let limits = Limits { forming: Duration::from_secs(2), ..with_sockets(sockets[rank]) };
                Group::form(listener, id(rank), peers, limits, &Abort::new()).map(drop).unwrap_err()
            })
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let (own, other) = (sockets[rank], sockets[1 - rank]);
            let expected = format!("rank {} has {other} sockets for each peer, expected {own}", 1 - rank);
            assert!(error.peer() == Some(1 - rank) && error.to_string().contains(&expected), "{error}");
        }
    }
}

fn call(honest: SocketAddr, stripe: u32) -> TcpStream {
    let mut stream = TcpStream::connect(honest).unwrap();
    let hello = Header { bucket: 1, chunk: stripe, ..greeting(FrameKind::Hello, 0) };
    stream.write_all(&hello.encode()).unwrap();
    let welcome = read_header(&mut stream);
    assert_eq!((welcome.kind, welcome.bucket, welcome.chunk), (FrameKind::Welcome, 1, stripe));
    stream
}

/// Returns the error of rank 1, which sums with an impostor over two sockets. The impostor does
/// `deed` with its ends of them.
fn met(deed: impl FnOnce([TcpStream; 2]) + Send + 'static) -> Result<Vec<f32>, CollectiveError> {
    ends(move || {
        let honest = listener();
        let peers = [listener().address(), honest.address()];
        let impostor = std::thread::spawn(move || deed([call(peers[1], 0), call(peers[1], 1)]));
        let mut communicator = Communicator::form(&honest, id(1), &peers, with_sockets(2), &Abort::new()).unwrap();
        communicator.submit(3, 5, vec![1.0; LENGTH]);
        let outcome = communicator.wait().map(|completed| completed.memory).map_err(|failed| failed.error);
        drop(communicator);
        impostor.join().unwrap();
        outcome
    })
}

fn segment(sequence: u64, payload: &[u8]) -> Vec<u8> {
    headed(sequence, payload.len() as u32, payload)
}

fn headed(sequence: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let fields = [&sequence.to_le_bytes()[..], &length.to_le_bytes()].concat();
    let checksum = crc_fast::crc32_iscsi(&fields).to_le_bytes();
    [&fields[..], &checksum, payload].concat()
}

fn frame() -> Vec<u8> {
    let (header, payload) = expected_frame();
    [&header.encode()[..], &payload].concat()
}

#[test]
fn segments_are_read_in_sequence_from_any_stripe_and_in_any_pieces() {
    let sum = met(|mut stripes| {
        let frame = frame();
        let cuts = [0, 1, 70, 71, 1000, frame.len()];
        let part = |sequence: usize| segment(sequence as u64, &frame[cuts[sequence]..cuts[sequence + 1]]);
        // The later segments are there first.
        stripes[1].write_all(&[part(1), part(2), part(4)].concat()).unwrap();
        stripes[0].write_all(&[part(0), part(3)].concat()).unwrap();
        stripes.iter_mut().for_each(until_closed);
    });
    assert_eq!(sum.unwrap(), [1.0; LENGTH]);
}

#[test]
fn wrong_segments_are_refused_and_their_sender_is_named() {
    let first = || segment(0, &frame()[..100]);
    let cases: [(&str, [Vec<u8>; 2]); 7] = [
        ("segment checksum", [vec![0xa5; 4096], Vec::new()]),
        ("segment checksum", [first(), vec![0xa5; 16]]),
        ("segment", [first(), segment(0, &[1])]),
        ("segment", [[first(), segment(0, &[1])].concat(), Vec::new()]),
        ("segment", [segment(1, &[1]), segment(5, &[1])]),
        ("segment length", [headed(0, 0, &[]), Vec::new()]),
        ("segment length", [headed(0, u32::MAX, &[0; 100]), Vec::new()]),
    ];
    for (expected, sent) in cases {
        let error = met(move |mut stripes| {
            for (stripe, bytes) in stripes.iter_mut().zip(&sent) {
                stripe.write_all(bytes).unwrap();
            }
            stripes.iter_mut().for_each(until_closed);
        });
        let error = error.unwrap_err();
        assert!(matches!(&error, CollectiveError::WrongFrame { rank: 0, field, .. } if *field == expected), "{error}");
    }
}

#[test]
fn the_last_bytes_are_read_although_another_stripe_is_closed() {
    let sum = met(|[mut first, mut second]| {
        second.shutdown(Shutdown::Write).unwrap();
        first.write_all(&segment(0, &frame())).unwrap();
        until_closed(&mut first);
        until_closed(&mut second);
    });
    assert_eq!(sum.unwrap(), [1.0; LENGTH]);
}

#[test]
fn a_peer_that_closes_one_stripe_and_sends_nothing_on_the_others_is_named() {
    let error = met(|[mut first, second]| {
        second.shutdown(Shutdown::Write).unwrap();
        until_closed(&mut first);
    });
    assert!(matches!(error, Err(CollectiveError::PeerClosed { rank: 0, .. })), "{error:?}");
}

#[test]
fn a_second_greeting_replaces_the_stripe_and_no_other() {
    ends(|| {
        let honest = listener();
        let peers = [listener().address(), honest.address()];
        let impostor = std::thread::spawn(move || {
            let mut given_up = call(peers[1], 0);
            let mut stripes = [call(peers[1], 0), call(peers[1], 1)];
            until_closed(&mut given_up);
            stripes[0].write_all(&segment(0, &frame())).unwrap();
            stripes.iter_mut().for_each(until_closed);
        });
        let mut communicator = Communicator::form(&honest, id(1), &peers, with_sockets(2), &Abort::new()).unwrap();
        communicator.submit(3, 5, vec![1.0; LENGTH]);
        assert_eq!(communicator.wait().unwrap().memory, [1.0; LENGTH]);
        drop(communicator);
        impostor.join().unwrap();
    });
}

#[test]
fn a_star_has_one_socket_for_each_rank_despite_the_limits() {
    ends(|| {
        ranks(2, |listener, rank, peers| {
            let limits = if rank == 0 { with_sockets(4) } else { PATIENT };
            let mut star = Group::form_star(listener, id(rank), peers, limits, &Abort::new()).unwrap();
            let mut data = vec![rank as f32; 1000];
            if rank == 0 { star.send(1, TAG, &mut data) } else { star.receive(0, TAG, &mut data) }.unwrap();
            assert!(data.iter().all(|value| *value == 0.0));
        })
    });
}
