//! The trainer's program and its control port on this machine.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};

/// The trainer's file name.
const TRAINER: &str = "lockstep-trainer";

/// Returns the trainer named, or the one beside this program.
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

/// The port of the coordinator. It is held for the whole run, so that no other process takes it
/// while one coordinator replaces another.
pub(crate) struct ControlPort(TcpListener);

impl ControlPort {
    /// Opens the port asked for, or a free one.
    pub(crate) fn open(wanted: Option<u16>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.unwrap_or(0))).map_err(|error| {
            match (wanted, error.kind()) {
                (Some(port), ErrorKind::AddrInUse) => anyhow!(
                    "port {port} of 127.0.0.1 is in use; choose another with --port, or leave it out for a free one"
                ),
                (Some(port), _) => anyhow!(error).context(format!("listen on port {port} of 127.0.0.1 (--port)")),
                (None, _) => anyhow!(error).context("listen on a free port of 127.0.0.1"),
            }
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Returns the port's number.
    pub(crate) fn number(&self) -> anyhow::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Returns the port for the next coordinator to inherit, without the connections that the last
    /// one did not accept. Their callers are gone.
    pub(crate) fn hand_over(&self) -> anyhow::Result<OwnedFd> {
        while self.0.accept().is_ok() {}
        Ok(self.0.try_clone().context("hand the control port over")?.into())
    }
}
