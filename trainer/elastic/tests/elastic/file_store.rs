use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use lockstep_elastic::{FileStore, GenerationStore, Record, RecordError, StoreError, Swap};

/// Tells a child process of this test the path of the record and its own name.
const CONTENDER: &str = "LOCKSTEP_TEST_CONTENDER";

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Allocates `times` generations against all rivals. Returns the number of swaps that it won.
fn contend(path: &Path, name: &str, times: u64) -> u64 {
    let store = FileStore::new(path.to_owned());
    let mut won = 0;
    run(async {
        while won < times {
            let (record, version) = store.load().await.expect("readable").expect("there from the start");
            match store.compare_and_swap(Some(&version), &record.allocate(name)).await.expect("writable") {
                Swap::Swapped(_) => won += 1,
                Swap::Conflict => {}
            }
        }
    });
    won
}

fn stored(path: &Path) -> Record {
    run(FileStore::new(path.to_owned()).load()).expect("readable").expect("a record").0
}

fn begun(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("record.json");
    let first = run(FileStore::new(path.clone()).compare_and_swap(None, &Record::empty())).expect("writable");
    assert!(matches!(first, Swap::Swapped(_)));
    path
}

#[test]
fn exactly_one_of_several_racing_threads_allocates_each_generation() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = begun(folder.path());
    thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let path = &path;
            scope.spawn(move || contend(path, name, 25));
        }
    });
    assert_eq!(stored(&path).alloc_generation, 100, "no win was overwritten");
}

#[test]
fn exactly_one_of_several_racing_processes_allocates_each_generation() {
    if let Ok(path) = std::env::var(CONTENDER) {
        contend(Path::new(&path), "process", 25);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = begun(folder.path());
    let this = std::env::current_exe().expect("this test's program");
    let start = || {
        Command::new(&this)
            .args(["--exact", "file_store::exactly_one_of_several_racing_processes_allocates_each_generation"])
            .env(CONTENDER, &path)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process")
    };
    for mut process in [start(), start(), start()] {
        assert!(process.wait().expect("waited").success());
    }
    assert_eq!(stored(&path).alloc_generation, 75, "no win was overwritten");
}

#[test]
fn a_swap_from_another_version_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = begun(folder.path());
    let store = FileStore::new(path.clone());
    let (record, old) = run(store.load()).expect("readable").expect("a record");
    let next = record.allocate("a");
    assert!(matches!(run(store.compare_and_swap(Some(&old), &next)), Ok(Swap::Swapped(_))));
    for expected in [None, Some(&old)] {
        assert_eq!(run(store.compare_and_swap(expected, &next.allocate("b"))).expect("readable"), Swap::Conflict);
    }
    assert_eq!(stored(&path), next);
}

#[test]
fn nothing_is_stored_before_the_first_swap() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(run(FileStore::new(folder.path().join("record.json")).load()).expect("readable"), None);
}

#[test]
fn a_temporary_file_left_by_a_crash_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = begun(folder.path());
    fs::write(folder.path().join("record.json.tmp"), "{\"vers").expect("written");
    assert_eq!(stored(&path), Record::empty());
    assert_eq!(contend(&path, "a", 1), 1);
}

#[test]
fn a_newer_or_torn_record_is_refused_and_never_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("record.json");
    let own = Record::empty().to_json();
    let mut newer: serde_json::Value = serde_json::from_str(&own).expect("JSON");
    newer["version"] = (newer["version"].as_u64().expect("a number") + 1).into();
    let problem = |result| match result {
        Err(StoreError::Record { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    for (text, is_newer) in [(newer.to_string(), true), (own[..own.len() / 2].to_owned(), false)] {
        fs::write(&path, &text).expect("written");
        let store = FileStore::new(path.clone());
        let refused = |source| assert_eq!(matches!(source, RecordError::Newer { .. }), is_newer, "{source}");
        refused(problem(run(store.load()).map(drop)));
        refused(problem(run(store.compare_and_swap(None, &Record::empty())).map(drop)));
        assert_eq!(fs::read_to_string(&path).expect("still there"), text);
    }
}

#[test]
fn the_error_for_a_missing_folder_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = run(FileStore::new(folder.path().join("absent/record.json")).load()).expect_err("no folder");
    assert!(error.to_string().contains("absent/record.json"), "{error}");
}
