use std::{fs, future::pending};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to stop. A hangup is not among them if the process was started
/// to ignore it, as by `nohup`.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes the signals over from their default, which ends the process at once.
    pub(crate) fn take() -> std::io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = if ignores(&status, SignalKind::hangup()) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next signal and returns its number.
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

/// Returns true if a process ignores a signal, by its status in proc(5). The lowest bit of the mask
/// is signal 1.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask_of_the_system() {
        let status = |mask: &str| format!("Name:\tlockstep\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000000001"), SignalKind::hangup()));
        assert!(!ignores(&status("0000000000000001"), SignalKind::interrupt()));
        assert!(ignores(&status("0000000000001006"), SignalKind::interrupt()));
        assert!(!ignores("Name:\tlockstep\n", SignalKind::hangup()));
    }
}
