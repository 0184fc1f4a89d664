//! Tests the content of the simulated disk after a power failure: all outcomes that are possible,
//! and no others.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use super::{
    dice::Dice,
    disk::{Disk, ROOT},
};
use crate::file_operation::{Contents, FileOperation};

const POWER_FAILURES: u64 = 300;

/// A surviving name, and true if its bytes are whole.
type Name<'a> = (&'a str, bool);

fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join("checkpoints").join(name)
}

fn write(name: &str) -> FileOperation<'static> {
    FileOperation::Write(path(name), Contents::Bytes(&[7; 40]))
}

fn sync(name: &str) -> FileOperation<'static> {
    FileOperation::Sync(path(name))
}

fn rename(from: &str, to: &str) -> FileOperation<'static> {
    FileOperation::Rename(path(from), path(to))
}

/// Returns the surviving names after many power failures, each with true if its bytes are whole.
fn left(operations: &[FileOperation<'_>]) -> BTreeSet<Vec<(String, bool)>> {
    let after = |seed| {
        let mut disk = Disk::new();
        operations.iter().for_each(|operation| disk.perform(operation).expect("performed"));
        disk.lose_power(&mut Dice(seed));
        let is_whole = |name: &str| disk.read(&path(name), u64::MAX).expect("there") == [7; 40];
        let names = disk.names(&path("")).expect("there").into_iter();
        names.map(|name| (name.clone(), is_whole(&name))).collect()
    };
    (0..POWER_FAILURES).map(after).collect()
}

fn sets(expected: &[&[Name<'_>]]) -> BTreeSet<Vec<(String, bool)>> {
    let owned = |names: &&[Name<'_>]| names.iter().map(|(name, whole)| ((*name).to_owned(), *whole)).collect();
    expected.iter().map(owned).collect()
}

#[test]
fn bytes_survive_after_a_sync_of_the_file_and_names_after_one_of_the_folder() {
    let cases: [(&[FileOperation<'_>], &[&[Name<'_>]]); 4] = [
        (&[write("a")], &[&[], &[("a", false)], &[("a", true)]]),
        (&[write("a"), sync("a")], &[&[], &[("a", true)]]),
        (&[write("a"), sync("")], &[&[("a", false)], &[("a", true)]]),
        (&[write("a"), sync("a"), sync("")], &[&[("a", true)]]),
    ];
    for (operations, expected) in cases {
        assert_eq!(left(operations), sets(expected), "{operations:?}");
    }
}

#[test]
fn a_rename_is_atomic_and_a_lost_one_takes_later_ones_with_it() {
    let stored = [write("a"), sync("a"), write("b"), sync("b"), sync("")];
    let renamed = [&stored[..], &[rename("a", "c"), rename("b", "a")]].concat();
    let expected: [&[Name<'_>]; 3] =
        [&[("a", true), ("b", true)], &[("b", true), ("c", true)], &[("a", true), ("c", true)]];
    assert_eq!(left(&renamed), sets(&expected));
    let apart = [&stored[..], &[rename("a", "c"), rename("b", "d")]].concat();
    assert_eq!(left(&apart).len(), 4, "two renames without a common name are independent");
}

#[test]
fn a_sync_after_a_failed_one_stores_nothing() {
    let mut disk = Disk::new();
    let mut dice = Dice(1);
    for operation in [write("a"), sync("")] {
        disk.perform(&operation).expect("performed");
    }
    disk.fail_to_sync(&path("a"), &mut dice).expect("there");
    disk.perform(&sync("a")).expect("says nothing");
    let read = |disk: &Disk| disk.read(&path("a"), u64::MAX).expect("there");
    assert_eq!(read(&disk), [7; 40]);
    disk.lose_power(&mut dice);
    assert_ne!(read(&disk), [7; 40]);
}
