//! Moves the bytes of an all-reduce and nothing else: no sums, no checksums, no frames, no order.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use socket2::SockRef;

/// As in the library.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Bytes of one operation, and of the buffer that would hold the terms of a sum.
const FRAME_BYTES: usize = 256 << 10;
pub(super) const PAGE_BYTES: usize = 4096;

/// One rank of the ring.
pub(super) struct Ring {
    next: TcpStream,
    previous: TcpStream,
    aside: Vec<u8>,
    /// True if each rank has a core to itself.
    spins: bool,
}

impl Ring {
    pub(super) fn form(rank: usize, peers: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(peers[rank])?;
        let call = || loop {
            match TcpStream::connect(peers[(rank + 1) % peers.len()]) {
                // The peer does not listen yet.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::thread::yield_now(),
                connected => return connected,
            }
        };
        // Two ranks use one connection for both directions.
        let (next, previous) = match (peers.len(), rank) {
            (2, 0) => both_ways(call()?)?,
            (2, _) => both_ways(listener.accept()?.0)?,
            _ => (call()?, listener.accept()?.0),
        };
        for stream in [&next, &previous] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            SockRef::from(stream).set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
            SockRef::from(stream).set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        let spins = peers.len() <= std::thread::available_parallelism()?.get();
        Ok(Self { next, previous, aside: vec![0; FRAME_BYTES + PAGE_BYTES], spins })
    }

    /// Sends and receives as many bytes as each of `world` ranks does in an all-reduce of `data`.
    /// Returns the seconds that it takes.
    pub(super) fn go_round(&mut self, data: &mut [u8], world: usize) -> io::Result<f64> {
        let (length, summed) = (data.len(), data.len() - data.len() / world);
        let (mut sent, mut received) = (0, 0);
        let started = Instant::now();
        while sent < 2 * summed || received < 2 * summed {
            let from = sent % length;
            let frame = &data[from..length.min(from + (2 * summed - sent).min(FRAME_BYTES))];
            let may_send = !frame.is_empty();
            let out = if may_send { moved(self.next.write(frame))? } else { 0 };
            sent += out;
            let place = if received < summed { page_aligned(&mut self.aside) } else { &mut data[received % length..] };
            let wanted = place.len().min(FRAME_BYTES).min(2 * summed - received);
            let came = if wanted == 0 { 0 } else { moved(self.previous.read(&mut place[..wanted]))? };
            received += came;
            if out + came == 0 && !self.spins {
                let room = if may_send { PollFlags::OUT } else { PollFlags::empty() };
                let bytes = if wanted > 0 { PollFlags::IN } else { PollFlags::empty() };
                poll(&mut [PollFd::new(&self.next, room), PollFd::new(&self.previous, bytes)], None)?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Returns an address that does not slow the system's copies down. Addresses a few bytes apart
/// modulo a page do, as behind an allocation's header.
pub(super) fn page_aligned(memory: &mut [u8]) -> &mut [u8] {
    let offset = memory.as_ptr().align_offset(PAGE_BYTES);
    &mut memory[offset..]
}

fn both_ways(stream: TcpStream) -> io::Result<(TcpStream, TcpStream)> {
    Ok((stream.try_clone()?, stream))
}

/// Returns the bytes that a call moved which never blocks.
fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}
