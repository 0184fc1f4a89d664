//! SIGTERM and SIGINT: a wish to stop at the next step boundary; before there are steps, an end at once.

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

/// What a signal asks of a worker.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// Whom to tell, once there are steps.
    group: Arc<Mutex<Option<Tell>>>,
    asked: Arc<OnceLock<Instant>>,
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
                listener.tell();
                std::future::pending::<()>().await;
            });
        })?;
        Ok(stop)
    }

    /// How long ago the first one came; `None` before that.
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

    /// From here on a signal is told to the group, by `tell`, which lets the worker go after a step.
    pub(crate) fn steps_begin(&self, tell: impl Fn() + Send + 'static) {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tell));
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
