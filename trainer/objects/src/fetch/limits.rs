//! The limits of what is fetched. The free space of the disk limits the bytes.

use std::time::Duration;

/// The most files of a data set.
pub(super) const MAX_FILES: usize = 20_000_000;
/// The most bytes of a file's name, with its folders.
pub(super) const MAX_NAME_BYTES: usize = 1024;
/// The most bytes of a list of checksums.
pub(super) const MAX_LIST_BYTES: u64 = 256 << 20;
/// The files that are under way at once.
pub(super) const AT_ONCE: usize = 16;
/// The time between two reports of progress.
pub(super) const REPORT_EACH: Duration = Duration::from_secs(5);
/// The pause before the first repetition. Each pause doubles and gets a random part added.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, without its random part.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
