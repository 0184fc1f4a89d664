//! The metrics that the processes of a `lockstep run` serve.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

/// Returns the metrics of a worker in the Prometheus text format, if it serves them. `folder` is
/// the folder of its run.
#[must_use]
pub fn of_worker(folder: &Path, worker: usize) -> Option<String> {
    of_process(folder, &format!("worker-{worker}"))
}

/// Returns the metrics of the coordinator of a run, which are those of the job, if it serves them.
#[must_use]
pub fn of_job(folder: &Path) -> Option<String> {
    of_process(folder, "coordinator")
}

/// Returns the address at which a process of a run serves its metrics: `worker-0`, `coordinator`.
#[must_use]
pub fn address(folder: &Path, process: &str) -> Option<String> {
    let log = fs::read_to_string(folder.join(format!("logs/{process}.log"))).ok()?;
    // The last address is that of the newest process of this name.
    log.split_whitespace().filter_map(|word| word.strip_prefix("metrics=")).next_back().map(str::to_owned)
}

fn of_process(folder: &Path, process: &str) -> Option<String> {
    let address = address(folder, process)?;
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.0 200").then(|| body.to_owned())
}

/// Returns the value of the first series of this name.
#[must_use]
pub fn value(text: &str, name: &str) -> Option<f64> {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().find(of_name)?.rsplit(' ').next()?.parse().ok()
}
