//! `lockstep bench` with a trainer that speaks the launch contract and measures nothing: the files
//! that it leaves behind.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use tempfile::TempDir;

/// Runs `lockstep bench collectives` with these fates and its own folder for temporary files.
fn bench(fates: &str, arguments: &[&str]) -> (TempDir, Output) {
    let place = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["bench", "collectives", "--trainer", env!("CARGO_BIN_EXE_fake-trainer")])
        .args(arguments)
        .env("FAKE_TRAINER", fates)
        .env("TMPDIR", place.path())
        .current_dir(place.path())
        .output()
        .expect("lockstep starts");
    (place, output)
}

fn left_behind(place: &TempDir) -> Vec<PathBuf> {
    place.path().read_dir().expect("a list").flatten().map(|entry| entry.path()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_successful_benchmark_leaves_nothing_behind() {
    let (place, output) = bench("", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(left_behind(&place), Vec::<PathBuf>::new());
}

#[test]
fn a_failed_benchmark_keeps_its_logs_and_names_them() {
    let (place, output) = bench("worker-1@0=fatal", &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let left = left_behind(&place);
    assert_eq!(left.len(), 1, "{left:?}");
    let log = fs::canonicalize(&left[0]).expect("a folder").join("logs/worker-1.log");
    assert!(log.is_file() && stderr(&output).contains(&log.display().to_string()), "{}", stderr(&output));
}

#[test]
fn an_unusable_option_is_named_and_leaves_nothing_behind() {
    for (option, value, message) in [
        ("--workers", "1", "spec.replicas: 1: 2 or more for a benchmark"),
        ("--min-bytes", "1KB", "--min-bytes 1KB: spec.benchmark.collectives.minBytes: \"1KB\": `1KB` is not a size"),
        ("--max-bytes", "512", "spec.benchmark.collectives.minBytes: 1Ki: no more than maxBytes, 512"),
        ("--repetitions", "0", "--repetitions 0: spec.benchmark.collectives.repetitions: 0: a whole number, 1 to 1000"),
        ("--algorithm", "rung", "--algorithm rung: spec.communication.algorithm: \"rung\": one of auto, ring"),
        ("--backend", "udp", "--backend udp: spec.communication.backend: \"udp\": one of auto, tcp"),
    ] {
        let (place, output) = bench("", &[option, value]);
        assert_eq!(output.status.code(), Some(2), "{option}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{option}: {}", stderr(&output));
        assert_eq!(left_behind(&place), Vec::<PathBuf>::new(), "{option}");
    }
}
