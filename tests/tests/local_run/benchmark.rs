//! Benchmarks of the collectives by local processes: the table, and disturbed benchmarks.

use std::{collections::BTreeSet, fs, process::Command};

use rustix::process::{Signal, kill_process};

use crate::run::{Manifest, Run, alone, lockstep};

/// Returns the rows of a printed table: size, algorithm, and true if it is chosen.
fn rows(printed: &str) -> Vec<(String, String, bool)> {
    let lines = printed.lines().skip_while(|line| !line.contains("busbw")).skip(1);
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| words.len() >= 6)
        .map(|words| (words[0].to_owned(), words[1].to_owned(), words.last() == Some(&"chosen")))
        .collect()
}

/// Returns a job that takes some seconds: two rows of up to five.
fn slow() -> Manifest {
    Manifest::collectives("minBytes: 4Mi, maxBytes: 16Mi, repetitions: 1000", "backend: tcp, algorithm: ring")
}

#[test]
fn the_table_has_a_row_for_each_size_and_algorithm_and_one_choice_for_each_size() {
    let _alone = alone();
    for (workers, expected) in [("2", &["ring", "memory"][..]), ("4", &["ring", "torus", "memory"])] {
        let options = ["--workers", workers, "--min-bytes", "1Ki", "--max-bytes", "17Ki", "--repetitions", "2"];
        let output = Command::new(lockstep()).args(["bench", "collectives"]).args(options).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        let rows = rows(&printed);
        let algorithms = |size: &str| -> BTreeSet<String> {
            rows.iter().filter(|(of, ..)| of == size).map(|(_, algorithm, _)| algorithm.clone()).collect()
        };
        let all = algorithms("1Ki");
        assert!(expected.iter().all(|name| all.contains(*name)), "{workers} workers:\n{printed}");
        for size in ["1Ki", "4Ki", "16Ki"] {
            assert_eq!(algorithms(size), all, "{workers} workers, {size}:\n{printed}");
            let chosen: Vec<&str> =
                rows.iter().filter(|(of, _, chosen)| of == size && *chosen).map(|(_, name, _)| name.as_str()).collect();
            assert_eq!(chosen, ["memory"], "{workers} workers, {size}:\n{printed}");
        }
        assert_eq!(rows.len(), 3 * all.len(), "{workers} workers:\n{printed}");
    }
}

#[test]
fn the_first_workers_log_ends_with_the_reported_table() {
    let _alone = alone();
    let manifest = Manifest::collectives("maxBytes: 4Ki, repetitions: 2", "backend: tcp");
    let run = Run::of("collectives", &manifest, &[]).finished();
    let said = run.said();
    assert_eq!(run.code, Some(0), "{said}");
    let table = &said[said.find("all-reduce of f32 over 2 workers").unwrap_or_else(|| panic!("no table:\n{said}"))..];
    let log = fs::read_to_string(run.folder().join("logs/worker-0.log")).expect("a log");
    assert!(log.contains(table), "{table}\n{log}");
}

#[test]
fn only_the_named_algorithm_is_measured() {
    let _alone = alone();
    let manifest = Manifest::collectives("maxBytes: 4Ki, repetitions: 2", "algorithm: doubleTree");
    let run = Run::of("named", &manifest, &[]).finished();
    let expected = [("1Ki", "doubleTree", true), ("4Ki", "doubleTree", true)];
    assert_eq!(rows(&run.said()), expected.map(|(size, name, chosen)| (size.to_owned(), name.to_owned(), chosen)));
}

#[test]
fn a_worker_that_dies_during_a_measurement_restarts_the_benchmark() {
    let _alone = alone();
    let run = Run::of("dying", &slow(), &[]);
    run.wait_until("the first row", || run.said().contains("step 1/2"));
    kill_process(run.trainers("worker", "worker-1")[0], Signal::KILL).expect("it is alive");
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(0), "{said}");
    assert!(said.contains("worker 1 was killed by signal 9; a new one takes its place"), "{said}");
    assert_eq!(rows(&said).len(), 2, "{said}");
}

#[test]
fn ctrl_c_drains_the_workers_of_a_benchmark() {
    let _alone = alone();
    let run = Run::of("stopped", &slow(), &[]);
    run.wait_until("the first row", || run.said().contains("step 1/2"));
    run.signal(Signal::INT);
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(130), "{said}");
    for worker in 0..2 {
        let path = run.folder().join(format!("endings/collectives-worker-{worker}.json"));
        let ending = fs::read_to_string(path).expect("an ending");
        assert!(ending.contains("stopped on request after step 1"), "{ending}");
    }
}
