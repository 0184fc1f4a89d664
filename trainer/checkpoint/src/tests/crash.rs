use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    checkpoint_path, newest, number, open, open_performed_by, save, save_in_parts, staging,
    state::{SampleState, load},
};
use crate::{
    CheckpointError, Folder,
    file_operation::{FileOperation, FileSystem, Perform},
};

/// Performs so many operations, then half of the next one if that is a deletion, and then nothing:
/// the machine loses power. Half of a written file without a sync is left.
#[derive(Debug)]
struct Crashing {
    after: usize,
    begun: AtomicUsize,
    unsynced: Mutex<BTreeSet<PathBuf>>,
}

impl Crashing {
    /// Records how an operation changes the set of files without a sync.
    fn note(&self, operation: &FileOperation<'_>) {
        let mut unsynced = self.unsynced.lock().expect("not poisoned");
        match operation {
            FileOperation::Write(path, _) => drop(unsynced.insert(path.clone())),
            FileOperation::Sync(path) => drop(unsynced.remove(path)),
            FileOperation::Rename(from, to) => {
                let moved = |path: PathBuf| match path.strip_prefix(from) {
                    Ok(rest) if rest.as_os_str().is_empty() => to.clone(),
                    Ok(rest) => to.join(rest),
                    Err(_) => path,
                };
                *unsynced = std::mem::take(&mut *unsynced).into_iter().map(moved).collect();
            }
            FileOperation::Create(_) | FileOperation::Link(..) | FileOperation::Remove(_) => {}
        }
    }
}

impl Perform for Crashing {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        if number < self.after {
            self.note(operation);
            return FileSystem.perform(operation);
        }
        if number == self.after {
            for torn in self.unsynced.lock().expect("not poisoned").iter().filter(|path| path.exists()) {
                let bytes = fs::read(torn).expect("readable");
                fs::write(torn, &bytes[..bytes.len() / 2]).expect("torn");
            }
        }
        match operation {
            FileOperation::Remove(path) if number == self.after && path.is_dir() => {
                let first = fs::read_dir(path).expect("a folder").next();
                let part = first.map(|entry| FileOperation::Remove(entry.expect("readable").path()));
                part.iter().try_for_each(|part| FileSystem.perform(part)).expect("removed");
            }
            _ => {}
        }
        Err(CheckpointError::of("ending before", "the next operation".into(), std::io::ErrorKind::Other.into()))
    }
}

/// Runs `act` in a process that ends after so many operations. Returns the number of operations
/// that it tried.
fn crash_after(after: usize, root: &Path, act: impl FnOnce(&Folder)) -> usize {
    let crashing = Arc::new(Crashing { after, begun: AtomicUsize::new(0), unsynced: Mutex::default() });
    act(&open_performed_by(crashing.clone(), root));
    crashing.begun.load(Ordering::Relaxed)
}

/// Crashes at each operation of `act`, which follows `before`. Returns the newest checkpoint after
/// each crash. Then saves the step after all.
fn reached(before: impl Fn(&Folder), act: impl Fn(&Folder)) -> Vec<u64> {
    let mut reached = Vec::new();
    for after in 0.. {
        let root = tempfile::tempdir().expect("a folder");
        let folder = open(root.path());
        before(&folder);
        let begun = crash_after(after, root.path(), &act);
        reached.push(newest(&folder).0.expect("one is whole"));
        save_in_parts(&folder, 2, 3).expect("saved again");
        assert_eq!(newest(&folder), (Some(2), vec![]), "saved again after a crash at operation {after}");
        folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
        let left: Vec<_> = fs::read_dir(folder.path().join("checkpoints")).expect("a folder").collect();
        assert_eq!(left.len(), 1, "after a crash at operation {after} leftovers: {left:?}");
        if begun <= after {
            break;
        }
    }
    println!("crashed at each of {} operations", reached.len() - 1);
    reached
}

#[test]
fn a_crash_at_any_operation_leaves_the_previous_checkpoint_or_the_new_one() {
    // The older checkpoint also holds chunks of the next one.
    let with_shared_chunks = |folder: &Folder| {
        save(folder, 1);
        let elsewhere = tempfile::tempdir().expect("a folder");
        let next = save_in_parts(&open(elsewhere.path()), 2, 3).expect("saved").path;
        for file in fs::read_dir(next).expect("a folder").skip(1).step_by(2) {
            let file = file.expect("readable");
            if file.file_name() != "manifest.json" {
                fs::copy(file.path(), checkpoint_path(folder, 1).join(file.file_name())).expect("copied");
            }
        }
    };
    let cases = [
        reached(
            |folder| save(folder, 1),
            |folder| drop(SampleState::at(2).with_snapshot(|snapshot| folder.save(snapshot))),
        ),
        reached(|folder| save(folder, 1), |folder| drop(save_in_parts(folder, 2, 3))),
        reached(with_shared_chunks, |folder| drop(save_in_parts(folder, 2, 3))),
    ];
    for found in cases {
        // The rename is the one moment of change. Only the last sync comes after it.
        let operations = found.len() - 1;
        assert_eq!(found, [vec![1; operations - 1], vec![2; 2]].concat());
    }
}

#[test]
fn a_crash_while_a_damaged_checkpoint_is_replaced_leaves_the_one_before() {
    let before = |folder: &Folder| {
        save(folder, 1);
        save(folder, 2);
        fs::write(checkpoint_path(folder, 2).join("manifest.json"), "{}").expect("damaged");
    };
    let found = reached(before, |folder| drop(save_in_parts(folder, 2, 2)));
    assert_eq!(found, [vec![1; found.len() - 2], vec![2; 2]].concat());
}

#[test]
fn a_crash_while_old_checkpoints_are_deleted_leaves_the_newest() {
    let before = |folder: &Folder| {
        (0..=2).for_each(|step| save(folder, step));
        fs::create_dir_all(staging(folder, 1, 1).join("inner")).expect("an unfinished save");
    };
    let found = reached(before, |folder| drop(folder.prune(number(1), &SampleState::at(0).identity)));
    assert_eq!(found, vec![2; found.len()]);
}

#[test]
fn a_crash_while_saving_beside_an_older_groups_state_leaves_one_of_the_two() {
    let mut newer = SampleState::at(2);
    (newer.position.generation, newer.digest) = (2, "another".into());
    newer.tensors[3].values = vec![0.25];
    let mut found = Vec::new();
    for after in 0.. {
        let root = tempfile::tempdir().expect("a folder");
        let folder = open(root.path());
        save(&folder, 2);
        let begun =
            crash_after(after, root.path(), |folder| drop(newer.with_snapshot(|snapshot| folder.save(snapshot))));
        let newest = || load(&folder, &newer.identity).expect("ours").checkpoint.expect("one is whole");
        let left = newest();
        assert!(SampleState::at(2).is(&left) || newer.is(&left), "after a crash at operation {after}: {left:?}");
        found.push(left.position.generation);
        let saved = newer.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved again");
        folder.prune(number(1), &newer.identity).expect("pruned");
        assert!(newer.is(&newest()) && saved == newest().saved(), "{:?}", newest());
        assert_eq!(fs::read_dir(folder.path().join("checkpoints")).expect("a folder").count(), 1);
        if begun <= after {
            break;
        }
    }
    assert_eq!(found, [vec![1; found.len() - 2], vec![2; 2]].concat());
}

/// Records each sync and each deletion, in order.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<String>>);

impl Perform for Noting {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        match operation {
            FileOperation::Sync(path) => self.0.lock().expect("not poisoned").push(format!("sync {}", path.display())),
            FileOperation::Remove(_) => self.0.lock().expect("not poisoned").push("remove".to_owned()),
            FileOperation::Create(_)
            | FileOperation::Write(..)
            | FileOperation::Link(..)
            | FileOperation::Rename(..) => {}
        }
        FileSystem.perform(operation)
    }
}

#[test]
fn a_checkpoint_named_by_another_process_is_synced_before_anything_relies_on_it() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=2).for_each(|step| save(&folder, step));
    let synced = format!("sync {}", root.path().join("checkpoints").display());
    let noting = Arc::new(Noting::default());
    save(&open_performed_by(noting.clone(), root.path()), 2);
    assert_eq!(*noting.0.lock().expect("not poisoned"), [&*synced]);

    let noting = Arc::new(Noting::default());
    let pruning = open_performed_by(noting.clone(), root.path());
    fs::create_dir(root.path().join("checkpoints/.tmp-deleted-0")).expect("a leftover");
    pruning.prune(number(1), &SampleState::at(0).identity).expect("pruned");
    assert_eq!(*noting.0.lock().expect("not poisoned"), [&synced, "remove", &synced, "remove"]);
}
