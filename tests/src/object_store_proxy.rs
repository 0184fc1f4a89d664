//! A proxy between a client and an object store. Each request that passes it has a fate.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Nothing happens to it.
    Passes,
    /// The answer is 503, and the server does nothing.
    Busy,
    /// The connection is cut, and the server does nothing.
    Cut,
    /// The server acts, and the connection is cut before the answer.
    AnswerLost,
    /// The server acts, and the connection is cut in the middle of the answer.
    AnswerCut,
    /// The server acts, and the answer comes in small pieces.
    Slow,
    /// There is no answer, and the server does nothing.
    Stuck,
}

impl Fate {
    /// All fates.
    pub const ALL: [Self; 7] =
        [Self::Passes, Self::Busy, Self::Cut, Self::AnswerLost, Self::AnswerCut, Self::Slow, Self::Stuck];
}

/// Longer than the clients of these tests wait for anything.
const STUCK: Duration = Duration::from_secs(3);
const DROPS: usize = 20;
const BETWEEN_DROPS: Duration = Duration::from_millis(5);

/// Decides by method and path of a request, such as `PUT /bucket/key`.
type Decide = Box<dyn FnMut(&str) -> Fate + Send>;

/// A proxy in front of a server.
#[derive(Debug)]
pub struct Proxy {
    /// The address at which it listens.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<(String, Fate)>>>,
}

impl Proxy {
    /// Forwards requests to `server` as `decide` demands.
    ///
    /// # Panics
    /// The system has no port.
    pub fn start(server: SocketAddr, decide: impl FnMut(&str) -> Fate + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let decide: Arc<Mutex<Decide>> = Arc::new(Mutex::new(Box::new(decide)));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            // The loop runs until the process ends.
            for client in listener.incoming().flatten() {
                let (decide, log) = (Arc::clone(&decide), Arc::clone(&log));
                // A client that has gone away does not matter to the test.
                thread::spawn(move || drop(pass(client, server, &decide, &log)));
            }
        });
        Self { address, seen }
    }

    /// Returns the requests so far, with their fates.
    ///
    /// # Panics
    /// A thread of the proxy panicked.
    #[must_use]
    pub fn seen(&self) -> Vec<(String, Fate)> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

/// Forwards one request. The connection carries no other.
fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    decide: &Mutex<Decide>,
    seen: &Mutex<Vec<(String, Fate)>>,
) -> io::Result<()> {
    let Some((head, body)) = read_request(&mut client)? else { return Ok(()) };
    let line = head.lines().next().unwrap_or_default();
    let line = line.rsplit_once(' ').map_or(line, |(line, _version)| line).to_owned();
    let fate = decide.lock().expect("not poisoned")(&line);
    seen.lock().expect("not poisoned").push((line, fate));
    match fate {
        Fate::Busy => {
            return client.write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        Fate::Cut => return client.shutdown(Shutdown::Both),
        Fate::Stuck => {
            thread::sleep(STUCK);
            return client.shutdown(Shutdown::Both);
        }
        Fate::Passes | Fate::AnswerLost | Fate::AnswerCut | Fate::Slow => {}
    }
    let mut upstream = TcpStream::connect(server)?;
    let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    upstream.write_all(head.as_bytes())?;
    upstream.write_all(&body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    match fate {
        Fate::AnswerCut => client.write_all(&answer[..answer.len() / 2])?,
        Fate::Slow => {
            for piece in answer.chunks(answer.len().div_ceil(DROPS).max(1)) {
                client.write_all(piece)?;
                thread::sleep(BETWEEN_DROPS);
            }
        }
        Fate::Passes => client.write_all(&answer)?,
        Fate::AnswerLost | Fate::Busy | Fate::Cut | Fate::Stuck => {}
    }
    client.shutdown(Shutdown::Both)
}

/// Returns a request's head, with the empty line, and its body; `None` if the client closed without
/// a request.
fn read_request(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    const END: &[u8] = b"\r\n\r\n";
    let (mut read, mut block) = (Vec::new(), vec![0; 64 << 10]);
    let end = loop {
        if let Some(end) = read.windows(END.len()).position(|window| window == END) {
            break end + END.len();
        }
        match client.read(&mut block)? {
            0 => return Ok(None),
            count => read.extend_from_slice(&block[..count]),
        }
    };
    let mut body = read.split_off(end);
    let head = String::from_utf8_lossy(&read).into_owned();
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let length = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.filter_map(|(_, value)| value.trim().parse().ok()).next().unwrap_or(0);
    let missing = length.saturating_sub(body.len());
    let start = body.len();
    body.resize(start + missing, 0);
    client.read_exact(&mut body[start..])?;
    Ok(Some((head, body)))
}
