//! The log of a process: its standard error, which may be full or gone. The process goes on without
//! a log, so it drops a line that it cannot write, and counts it.

use std::{
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::json;

static STANDARD_ERROR: Mutex<Log> = Mutex::new(Log::new());
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Writes one log line at a time to the standard error, and never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardError;

impl StandardError {
    /// Returns the number of lines that this process has dropped.
    #[must_use]
    pub fn dropped_lines() -> u64 {
        DROPPED.load(Ordering::Relaxed)
    }
}

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut log = STANDARD_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
        if !log.put(line, &mut io::stderr().lock()) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state of the log between two lines.
#[derive(Debug)]
struct Log {
    /// Lines dropped since the last written one, and the reason for the newest drop.
    dropped: u64,
    reason: String,
    /// True if only the beginning of the last line was written.
    is_torn: bool,
}

impl Log {
    const fn new() -> Self {
        Self { dropped: 0, reason: String::new(), is_torn: false }
    }

    /// Writes `line`, after a line that counts the missing ones before it. Returns `false` if it
    /// drops `line`.
    fn put(&mut self, line: &[u8], to: &mut impl Write) -> bool {
        let mut bytes = Vec::new();
        if self.is_torn {
            bytes.push(b'\n');
        }
        if self.dropped > 0 {
            // Both people and readers of JSON understand this line.
            let missing = json!({ "droppedLogLines": self.dropped, "reason": self.reason });
            bytes.extend(format!("{missing}\n").into_bytes());
        }
        bytes.extend(line);
        match write_some(&bytes, to) {
            Ok(()) => *self = Self::new(),
            Err((written, error)) => {
                self.dropped += 1;
                self.reason = error.to_string();
                self.is_torn = if written > 0 { bytes[written - 1] != b'\n' } else { self.is_torn };
                return false;
            }
        }
        true
    }
}

/// Writes all bytes, or returns the number written and the error.
fn write_some(bytes: &[u8], to: &mut impl Write) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with limited room.
    struct Disk {
        text: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.text.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_do_not_fit_are_dropped_and_the_next_one_counts_them() {
        let mut disk = Disk { text: Vec::new(), room: 8 };
        let mut log = Log::new();
        let mut put = |line: &str, disk: &mut Disk| log.put(line.as_bytes(), disk);
        assert!(put("first\n", &mut disk));
        assert!(!put("second\n", &mut disk), "two bytes fit");
        assert!(!put("third\n", &mut disk));
        disk.room = 1000;
        assert!(put("fourth\n", &mut disk) && put("fifth\n", &mut disk));
        let text = String::from_utf8(disk.text).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0..2], ["first", "se"]);
        assert_eq!(lines[2], r#"{"droppedLogLines":2,"reason":"no storage space"}"#);
        assert_eq!(lines[3..], ["fourth", "fifth"]);
    }
}
