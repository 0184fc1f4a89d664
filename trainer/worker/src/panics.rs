//! A panic leaves its message as the process's ending, so that nobody has to read the log.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{PanicHookInfo, set_hook},
    path::PathBuf,
    sync::Once,
};

use lockstep_launch::Ending;
use tracing::error;

use crate::failure::leave;

/// Logs every panic in one line from now on, and leaves the first one at `ending`.
pub(crate) fn leave_at(ending: PathBuf) {
    let first = Once::new();
    set_hook(Box::new(move |panic| {
        let message = told(panic);
        error!("{message}");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            error!(%trace, "panicked here");
        }
        first.call_once(|| leave(&ending, &Ending { message, ..Ending::default() }));
    }));
}

fn told(panic: &PanicHookInfo<'_>) -> String {
    let said = panic.payload_as_str().unwrap_or("no message");
    match panic.location() {
        Some(place) => format!("panicked: {said} (a fault of Lockstep's, {}:{})", within(place.file()), place.line()),
        None => format!("panicked: {said} (a fault of Lockstep's)"),
    }
}

/// Returns the path of a source file without the folders of the machine that built the program.
fn within(file: &str) -> &str {
    match file.split_once("/registry/src/").and_then(|(_, below)| below.split_once('/')) {
        Some((_, below)) => below,
        None => file.trim_start_matches('/'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_source_names_no_folder_of_the_build_machine() {
        for (file, told) in [
            ("/home/x/.cargo/registry/src/index-1/hyper-1.6.0/src/lib.rs", "hyper-1.6.0/src/lib.rs"),
            ("/rustc/abc/library/core/src/option.rs", "rustc/abc/library/core/src/option.rs"),
            ("trainer/worker/src/main.rs", "trainer/worker/src/main.rs"),
        ] {
            assert_eq!(within(file), told);
        }
    }
}
