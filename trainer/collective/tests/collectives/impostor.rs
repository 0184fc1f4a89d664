use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use lockstep_collective::{
    Abort, CollectiveError, Communicator, HEADER_BYTES, Header, Kind, Limits, Listener, RingSchedule,
};

use crate::group::{GENERATION, JOB, ends, listener, seat};

/// Elements that the honest rank wants summed; its frames then hold 2000 bytes.
pub(crate) const LENGTH: usize = 1000;

/// Rank 1 of a group of two: it greets properly, and then does what it likes.
pub(crate) struct Impostor {
    /// Where rank 0 hears it.
    pub(crate) to_honest: TcpStream,
    /// Where rank 0 sends.
    pub(crate) from_honest: TcpStream,
}

impl Impostor {
    fn join(listener: &TcpListener, honest: SocketAddr) -> Self {
        let mut to_honest = TcpStream::connect(honest).unwrap();
        to_honest.write_all(&greeting(Kind::Hello, 1).encode()).unwrap();
        assert_eq!(read_header(&mut to_honest).kind, Kind::Welcome);
        let (mut from_honest, _) = listener.accept().unwrap();
        assert_eq!(read_header(&mut from_honest).kind, Kind::Hello);
        from_honest.write_all(&greeting(Kind::Welcome, 1).encode()).unwrap();
        Self { to_honest, from_honest }
    }

    pub(crate) fn send(&mut self, header: Header, payload: &[u8]) {
        self.to_honest.write_all(&header.encode()).unwrap();
        self.to_honest.write_all(payload).unwrap();
    }
}

/// What rank 0 meets when it sums `length` elements with rank 1, who does `deed` and then closes.
pub(crate) fn met(limits: Limits, length: usize, deed: impl FnOnce(&mut Impostor) + Send + 'static) -> CollectiveError {
    ends(move || {
        let (honest, impostor) = (listener(), TcpListener::bind("127.0.0.1:0").unwrap());
        let peers = [honest.address(), impostor.local_addr().unwrap()];
        let other = std::thread::spawn(move || deed(&mut Impostor::join(&impostor, peers[0])));
        let mut communicator = form(&honest, &peers, limits);
        communicator.submit(3, 5, vec![1.0; length]);
        let failed = communicator.wait().unwrap_err();
        assert_eq!((failed.step, failed.bucket, failed.memory.len()), (3, 5, length));
        // Dropping it releases an impostor that waits for the connection's end.
        drop(communicator);
        other.join().unwrap();
        failed.error
    })
}

fn form(listener: &Listener, peers: &[SocketAddr], limits: Limits) -> Communicator<Vec<f32>> {
    Communicator::form(listener, seat(0), peers, limits, &Abort::new()).unwrap()
}

/// Reads until rank 0 has closed.
pub(crate) fn until_closed(stream: &mut TcpStream) {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

/// The frame that rank 0 expects first, with its payload of zeros.
pub(crate) fn expected_frame() -> (Header, Vec<u8>) {
    let schedule = RingSchedule::new(1, 2, LENGTH);
    let first = schedule.slots().next().unwrap();
    let payload = vec![0; schedule.hop(first).send.len() * 4];
    let header = Header {
        kind: Kind::Segment,
        step: 3,
        bucket: 5,
        chunk: schedule.chunk(first),
        length: payload.len() as u32,
        payload_crc32c: crc_fast::crc32_iscsi(&payload),
        ..greeting(Kind::Segment, 1)
    };
    (header, payload)
}

pub(crate) fn greeting(kind: Kind, sender: u32) -> Header {
    Header {
        kind,
        job: JOB,
        generation: GENERATION,
        step: 0,
        bucket: 0,
        chunk: 0,
        sender,
        length: 0,
        payload_crc32c: 0,
    }
}

pub(crate) fn read_header(stream: &mut TcpStream) -> Header {
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    Header::decode(&bytes).unwrap()
}
