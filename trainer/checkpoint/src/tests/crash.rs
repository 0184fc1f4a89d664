use std::fs;

use super::{newest, save, state::State};
use crate::{Folder, operation::Operation, save::Files};

/// The operations of saving `step`.
fn operations_of(folder: &Folder, step: u64, replace_damaged: bool) -> Vec<Operation> {
    let files = State::at(step).with_snapshot(Files::of).expect("tensors fit");
    folder.operations(step, files, &folder.temporary("crash"), replace_damaged)
}

/// Performs the first `count` operations, and half of the next one where that is a write.
fn crash_after(operations: &[Operation], count: usize) {
    operations[..count].iter().try_for_each(Operation::perform).expect("performed");
    if let Some(Operation::Write(path, bytes)) = operations.get(count) {
        fs::write(path, &bytes[..bytes.len() / 2]).expect("written in part");
    }
}

#[test]
fn a_crash_between_any_two_operations_leaves_the_previous_checkpoint_or_the_new_one() {
    let operations = {
        let root = tempfile::tempdir().expect("a folder");
        operations_of(&Folder::open(root.path()).expect("opens"), 2, false).len()
    };
    let mut reached = Vec::new();
    for count in 0..=operations {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(root.path()).expect("opens");
        save(&folder, 1);
        crash_after(&operations_of(&folder, 2, false), count);
        let (step, skipped) = newest(&folder);
        assert_eq!(skipped, Vec::<u64>::new(), "after {count} of {operations}: a torn save was taken for a checkpoint");
        reached.push(step.expect("one is whole"));
        save(&folder, 2);
        assert_eq!(newest(&folder).0, Some(2), "saving again after {count}");
    }
    // The rename is the one moment of change; only the last sync comes after it.
    assert_eq!(reached, [vec![1; operations - 1], vec![2; 2]].concat());
}

#[test]
fn a_crash_while_a_damaged_checkpoint_is_replaced_leaves_the_one_before() {
    let operations = {
        let root = tempfile::tempdir().expect("a folder");
        operations_of(&Folder::open(root.path()).expect("opens"), 2, true).len()
    };
    for count in 0..=operations {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(root.path()).expect("opens");
        save(&folder, 1);
        save(&folder, 2);
        fs::write(folder.step(2).join("manifest.json"), "{}").expect("damaged");
        crash_after(&operations_of(&folder, 2, true), count);
        let step = newest(&folder).0.expect("one is whole");
        assert_eq!(step, if count + 1 >= operations { 2 } else { 1 }, "after {count} of {operations}");
        save(&folder, 2);
        assert_eq!(newest(&folder), (Some(2), vec![]), "saving again after {count}");
    }
}
