use std::{fs, future::pending};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to stop; a hangup not where it was started to ignore one, as by `nohup`.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes the signals over from their default, which is to end at once.
    pub(crate) fn take() -> std::io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = if ignores(&status, SignalKind::hangup()) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            () = hangs_up(&mut self.hangup) => SignalKind::hangup(),
        };
        // The numbers of these three are 2, 15 and 1.
        u8::try_from(kind.as_raw_value()).unwrap_or(u8::MAX)
    }
}

async fn hangs_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// Whether a process ignores a signal, by what the system tells of its status (proc(5)): the first signal is the lowest bit.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_read_as_the_system_spells_them() {
        let status = |mask: &str| format!("Name:\tlockstep\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000000001"), SignalKind::hangup()));
        assert!(!ignores(&status("0000000000000001"), SignalKind::interrupt()));
        assert!(ignores(&status("0000000000001006"), SignalKind::interrupt()));
        assert!(!ignores("Name:\tlockstep\n", SignalKind::hangup()));
    }
}
