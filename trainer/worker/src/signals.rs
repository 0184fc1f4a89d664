//! SIGTERM and SIGINT: a wish to stop at the next step boundary; before there are steps, an end at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context as _;
use lockstep_launch::{Exit, PARENT};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

/// What a signal asks of a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    wanted: Arc<AtomicBool>,
    training: Arc<AtomicBool>,
}

impl Stop {
    /// Listens for signals on an own thread.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let stop = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = stop.clone();
        let (terminate, interrupt) = {
            let _context = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let (mut terminate, mut interrupt) = (terminate, interrupt);
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                listener.wanted.store(true, Ordering::SeqCst);
                if !listener.training.load(Ordering::SeqCst) {
                    tracing::info!("asked to stop before the first step");
                    std::process::exit(i32::from(Exit::Drained.code()));
                }
                std::future::pending::<()>().await;
            });
        })?;
        Ok(stop)
    }

    /// Asks for it as a signal would.
    pub(crate) fn ask(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// From here on a signal waits for the next step boundary.
    pub(crate) fn steps_begin(&self) {
        self.training.store(true, Ordering::SeqCst);
    }

    /// Whether a signal has come.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

/// Dies with the process that [`PARENT`] names, if any: `lockstep run` leaves no orphan even when it is killed.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    let Ok(parent) = std::env::var(PARENT) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to die with the parent process")?;
    // The parent may have died before the wish was made.
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.to_string()) != Some(parent) {
        std::process::exit(i32::from(Exit::Drained.code()));
    }
    Ok(())
}
