//! SIGTERM and SIGINT ask a worker to stop after the present step. Before the first step it ends at
//! once.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockstep_launch::{Exit, PARENT};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

type Tell = Box<dyn Fn() + Send>;

/// A request to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// The group's function to call. `None` before there are steps.
    group: Arc<Mutex<Option<Tell>>>,
    asked: Arc<OnceLock<Instant>>,
}

impl Stop {
    /// Listens for signals on a thread of its own.
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
                listener.tell();
                std::future::pending::<()>().await;
            });
        })?;
        Ok(stop)
    }

    /// Returns how long ago the first signal came. `None` before that.
    pub(crate) fn asked(&self) -> Option<Duration> {
        self.asked.get().map(Instant::elapsed)
    }

    fn tell(&self) {
        self.asked.get_or_init(Instant::now);
        match self.group.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(tell) => tell(),
            None => {
                tracing::info!("asked to stop before the first step");
                std::process::exit(i32::from(Exit::Drained.code()));
            }
        }
    }

    /// Calls `tell` for a signal from here on. The group then lets the worker leave after a step.
    pub(crate) fn steps_begin(&self, tell: impl Fn() + Send + 'static) {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tell));
    }
}

/// Dies with the process that [`PARENT`] names, if any: `lockstep run` leaves no orphan even if it
/// is killed.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    let Ok(parent) = std::env::var(PARENT) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to die with the parent process")?;
    // The parent may have died before this call.
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.to_string()) != Some(parent) {
        std::process::exit(i32::from(Exit::Drained.code()));
    }
    Ok(())
}
