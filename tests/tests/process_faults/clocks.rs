//! The time of day jumps, as if somebody set the clock. A shim between the trainer and its C
//! library adds to it, because a test cannot set the clock of this machine.
//!
//! The monotonic clock stays as it is, as on a real host.

use std::{fs, process::Command};

use lockstep_tests::skip;

use crate::job::{Job, Setting, may_run, succeeds};

/// The shim adds the seconds in a file. The file exists once the clock was set.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, now);
    FILE *set = clock == CLOCK_REALTIME ? fopen(getenv("CLOCK_SET"), "r") : NULL;
    long seconds = 0;
    if (set) {
        if (fscanf(set, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(set);
    }
    return answer;
}
"#;
/// Seconds of an hour.
const HOUR: i64 = 3600;

#[test]
fn a_clock_that_is_set_in_mid_run_changes_nothing() {
    if !may_run("clock") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, shim, set) =
        (folder.path().join("shim.c"), folder.path().join("shim.so"), folder.path().join("seconds"));
    fs::write(&source, SHIM).expect("written");
    if !succeeds(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source).arg("-ldl")) {
        return skip("a clock that is set", "the shim before the C library needs cc");
    }
    let environment = vec![("LD_PRELOAD", shim.display().to_string()), ("CLOCK_SET", set.display().to_string())];
    let mut job = Job::with("clock", |_| Setting { environment, ..Setting::default() });
    for hours in [1, -1] {
        job.wait_for_steps(30);
        fs::write(&set, (hours * HOUR).to_string()).expect("set");
        job.wait_for("a step by the new clock", |job| job.clock_is_off_by(hours * HOUR));
    }
    let ended = job.finished();
    assert_eq!(ended.changes.len(), 1, "{:?}", ended.changes);
}
