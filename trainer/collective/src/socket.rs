//! Data sockets: connecting, and options.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Send and receive buffer of a data socket, where the system grants it.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// When a peer that says nothing is asked after, and how often from then on.
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// The system counts milliseconds in 31 bits.
const MAX_MILLISECONDS: u128 = i32::MAX as u128;
/// BBR is 3.3 times slower on a virtual link between two containers.
const CONGESTION_CONTROL: &str = "cubic";

/// Starts to connect to `address`; the socket is writable once it is connected or has failed.
pub(crate) fn dial(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Sets a data socket up for bulk transfer.
///
/// # Errors
/// When the socket is no longer usable. What a system may lack or forbid (a congestion control, a buffer size) is left
/// as it is.
pub(crate) fn tune(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    keep_alive(stream)?;
    set_unacknowledged(stream, silence)?;
    let _ = sockopt::set_tcp_congestion(stream, CONGESTION_CONTROL);
    if buffers_are_granted() {
        let socket = SockRef::from(stream);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    }
    Ok(())
}

/// Has the system ask after a peer that says nothing: its own system answers, however long it computes. Who does not is given up after the
/// time that [`set_unacknowledged`] sets.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    Ok(sockopt::set_tcp_keepintvl(stream, ASKED_EVERY)?)
}

/// Lets the system give up on bytes that stay unacknowledged for so long, or unwanted by a full receiver, or on a peer that says nothing
/// and answers nothing.
pub(crate) fn set_unacknowledged(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let milliseconds = limit.as_millis().clamp(1, MAX_MILLISECONDS) as u32;
    Ok(sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}

/// A fixed size switches the system's own tuning off, which is a loss where it is cut down to a small maximum.
fn buffers_are_granted() -> bool {
    let granted = || -> io::Result<bool> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        Ok(socket.send_buffer_size()?.min(socket.recv_buffer_size()?) >= SOCKET_BUFFER_BYTES)
    };
    granted().unwrap_or(false)
}
