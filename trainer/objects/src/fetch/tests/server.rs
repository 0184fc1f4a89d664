//! A web server on this machine that answers ranges, and fails when a test wants it.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// What the next answer for a path does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The connection is cut after so many bytes of the file.
    CutAfter(usize),
    /// The answer is this status, and has no file.
    Status(u16),
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, Fault>,
    seen: Vec<(String, Option<String>)>,
}

pub(super) struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            // The loop runs until the process ends.
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that has gone away does not matter to the test.
                thread::spawn(move || drop(answer(&client, &state)));
            }
        });
        Self { address, state }
    }

    pub(super) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn put(&self, path: &str, content: &[u8]) {
        self.state().files.insert(path.replace(' ', "%20"), content.to_vec());
    }

    pub(super) fn fault(&self, path: &str, fault: Fault) {
        self.state().faults.insert(path.to_owned(), fault);
    }

    /// Returns the requests since the last call, with their ranges.
    pub(super) fn take_seen(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.state().seen)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(mut client: &TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    let line = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let line = line.rsplit_once(' ').map_or("", |(line, _version)| line).to_owned();
    let headers: Vec<String> =
        lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).flatten().collect();
    let header = |name: &str| {
        let found =
            headers.iter().filter_map(|line| line.split_once(": ")).find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let (method, path) = line.split_once(' ').unwrap_or_default();
    let (file, fault) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen.push((line.clone(), header("range")));
        let fault = if method == "HEAD" { None } else { state.faults.remove(path) };
        (state.files.get(path).cloned(), fault)
    };
    let status = match (&file, fault) {
        (_, Some(Fault::Status(status))) => Some(status),
        (None, _) => Some(404),
        (Some(_), _) => None,
    };
    if let Some(status) = status {
        write!(client, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return client.shutdown(Shutdown::Both);
    }
    let file = file.unwrap_or_default();
    let tag = format!("\"{}\"", &blake3::hash(&file).to_hex()[..8]);
    let start = header("range").filter(|_| header("if-range").is_none_or(|found| found == tag));
    let start: usize =
        start.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()).unwrap_or(0);
    let part = &file[start.min(file.len())..];
    let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
    let length = part.len();
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: {tag}\r\nConnection: close\r\n")?;
    if start > 0 {
        write!(client, "Content-Range: bytes {start}-{}/{}\r\n", file.len() - 1, file.len())?;
    }
    client.write_all(b"\r\n")?;
    match fault {
        _ if method == "HEAD" => {}
        Some(Fault::CutAfter(bytes)) => client.write_all(&part[..bytes])?,
        _ => client.write_all(part)?,
    }
    client.shutdown(Shutdown::Write)
}
