use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{
    Abort, CollectiveError, Communicator, Costs, FrameKind, HEADER_BYTES, Header, Hosts, Limits, Listener,
    OperationCode,
};

use crate::group::{GENERATION, JOB, ends, id, listener};

/// Elements that the honest rank sums, in one frame.
pub(crate) const LENGTH: usize = 1000;

/// Rank 0 of a group of two. It greets properly and then misbehaves.
pub(crate) struct Impostor {
    /// The connection with rank 1.
    pub(crate) stream: TcpStream,
}

impl Impostor {
    fn join(honest: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(honest).unwrap();
        stream.write_all(&greeting(FrameKind::Hello, 0).encode()).unwrap();
        assert_eq!(read_header(&mut stream).kind, FrameKind::Welcome);
        Self { stream }
    }

    pub(crate) fn send(&mut self, header: Header, payload: &[u8]) {
        self.stream.write_all(&header.encode()).unwrap();
        self.stream.write_all(payload).unwrap();
    }
}

/// Returns the error of rank 1, which sums `length` elements with rank 0. Rank 0 does `deed` and
/// then closes.
pub(crate) fn met(limits: Limits, length: usize, deed: impl FnOnce(&mut Impostor) + Send + 'static) -> CollectiveError {
    ends(move || {
        let honest = listener();
        let peers = [listener().address(), honest.address()];
        let other = std::thread::spawn(move || deed(&mut Impostor::join(peers[1])));
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
    Communicator::form(listener, id(1), peers, limits, &Abort::new()).unwrap()
}

/// Reads until rank 1 has closed.
pub(crate) fn until_closed(stream: &mut TcpStream) {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

/// Returns the frame that rank 1 expects first, with its payload of zeros.
pub(crate) fn expected_frame() -> (Header, Vec<u8>) {
    let payload = vec![0; LENGTH * 4];
    let algorithm = Costs::default().cheapest(&Hosts::apart(2), payload.len());
    assert_eq!(algorithm, Algorithm::RecursiveDoubling);
    let header = Header {
        kind: FrameKind::Data,
        operation: OperationCode([0x22, 0x11, 0]),
        step: 3,
        bucket: 5,
        length: payload.len() as u32,
        payload_crc32c: crc_fast::crc32_iscsi(&payload),
        ..greeting(FrameKind::Data, 0)
    };
    (header, payload)
}

pub(crate) fn greeting(kind: FrameKind, sender: u32) -> Header {
    Header {
        kind,
        operation: OperationCode::default(),
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
