//! The trainer and the port that it gets, found on this machine.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};

/// The trainer's file name.
const TRAINER: &str = "lockstep-trainer";

/// The trainer named, or the one beside this program.
pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        if !path.is_file() {
            bail!("--trainer {}: no such file", path.display());
        }
        return std::path::absolute(path).with_context(|| format!("--trainer {}", path.display()));
    }
    // A plugin is often a link to the program, and the trainer lies beside the program.
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).context("find this program's folder")?;
    let beside = program.with_file_name(TRAINER);
    if !beside.is_file() {
        bail!(
            "{} is missing: build it with `cargo build --release -p lockstep-worker`, or name it with --trainer PATH",
            beside.display()
        );
    }
    Ok(beside)
}

/// Refuses a port that somebody else listens on.
pub(crate) fn check_port(port: u16) -> anyhow::Result<()> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_free) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(anyhow!(
            "port {port} of 127.0.0.1 is in use; choose another with --port, or leave it out for a free one"
        )),
        Err(error) => Err(error).with_context(|| format!("listen on port {port} of 127.0.0.1 (--port)")),
    }
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port of 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}
