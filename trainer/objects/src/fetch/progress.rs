//! The lines of the log about a download.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use tracing::info;

use super::limits::REPORT_EACH;

const MEBI: f64 = (1 << 20) as f64;

/// The progress of a download.
pub(super) struct Progress {
    begun: Instant,
    reported: Cell<Duration>,
    of_files: usize,
    files: Cell<usize>,
    bytes: Cell<u64>,
}

impl Progress {
    pub(super) fn new(of_files: usize) -> Self {
        Self {
            begun: Instant::now(),
            reported: Cell::default(),
            of_files,
            files: Cell::default(),
            bytes: Cell::default(),
        }
    }

    /// So many bytes came.
    pub(super) fn came(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        let took = self.begun.elapsed();
        if took >= self.reported.get() + REPORT_EACH {
            self.reported.set(took);
            self.report("the data set is under way");
        }
    }

    /// A file is whole.
    pub(super) fn is_whole(&self) {
        self.files.set(self.files.get() + 1);
    }

    /// Everything is here.
    pub(super) fn end(&self) {
        self.report("the data set is fetched");
    }

    fn report(&self, phrase: &'static str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mebibytes = self.bytes.get() as f64 / MEBI;
        info!(
            files = self.files.get(),
            of_files = self.of_files,
            mebibytes = format!("{mebibytes:.1}"),
            seconds = format!("{seconds:.1}"),
            "{phrase}"
        );
    }
}
