use std::{fs, future::pending};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to stop: not those that it was started to ignore, as by `nohup`.
pub(crate) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes the signals over from their default, which is to end at once.
    pub(crate) fn take() -> std::io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let take = |kind: SignalKind| match ignored >> (kind.as_raw_value() - 1) & 1 {
            0 => signal(kind).map(Some),
            _ => Ok(None),
        };
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            () = came(&mut self.interrupt) => SignalKind::interrupt(),
            () = came(&mut self.terminate) => SignalKind::terminate(),
            () = came(&mut self.hangup) => SignalKind::hangup(),
        };
        // The numbers of these three are 2, 15 and 1.
        u8::try_from(kind.as_raw_value()).unwrap_or(u8::MAX)
    }
}

async fn came(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// The signals that a process ignores, the first in the lowest bit, as the system tells its status (proc(5)); none where it does not.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_read_as_the_system_spells_them() {
        assert_eq!(ignored("Name:\tlockstep\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n"), 1);
        assert_eq!(ignored("SigIgn:\t0000000000001002\n"), 0x1002);
        assert_eq!(ignored("Name:\tlockstep\n"), 0);
    }
}
