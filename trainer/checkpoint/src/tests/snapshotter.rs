use std::{
    collections::BTreeSet,
    io::{Error, ErrorKind},
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use super::{checkpoint_path, leftovers, newest, number, open, open_performed_by, state::SampleState, steps};
use crate::{
    CheckpointError, CheckpointPart, Committed, Ended, Folder, Snapshotter, Taken,
    file_operation::{FileOperation, FileSystem, Perform},
};

/// A file system whose writes wait while the gate is shut.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().expect("not poisoned") = shut;
        self.changed.notify_all();
    }
}

impl Perform for Gate {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        if matches!(operation, FileOperation::Write(..)) {
            let shut = self.shut.lock().expect("not poisoned");
            drop(self.changed.wait_while(shut, |shut| *shut).expect("not poisoned"));
        }
        FileSystem.perform(operation)
    }
}

fn gated(root: &Path) -> (Folder, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    (open_performed_by(gate.clone(), root), gate)
}

fn start(folder: &Folder) -> Snapshotter {
    Snapshotter::start(folder.clone(), number(2), SampleState::at(0).values().len()).expect("started")
}

/// Takes and commits the whole state. The state is dropped on return.
fn save(snapshotter: &mut Snapshotter, step: u64) -> Taken {
    let state = SampleState::at(step);
    let taken = state.take(snapshotter, 0, number(1));
    if taken == Taken::Begun {
        state.commit(snapshotter, number(1));
    }
    taken
}

/// Returns the committed steps. Fails if anything failed.
fn saved_steps(ended: Vec<Ended>) -> Vec<u64> {
    let step = |ended| match ended {
        Ended::Commit { position, took: _, result } => {
            let Committed { saved, pruned } = result.expect("saved");
            pruned.expect("pruned");
            assert_eq!(saved.step, position.step);
            Some(saved.step)
        }
        Ended::Part { result, .. } | Ended::Abandonment { result, .. } => {
            result.expect("went well");
            None
        }
    };
    ended.into_iter().filter_map(step).collect()
}

#[test]
fn a_copied_state_is_saved_and_the_oldest_checkpoints_are_deleted() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut snapshotter = start(&folder);
    let mut saved = Vec::new();
    for step in 1..=5 {
        assert_eq!(save(&mut snapshotter, step), Taken::Begun);
        saved.extend(saved_steps(snapshotter.finish()));
    }
    assert_eq!(saved, [1, 2, 3, 4, 5]);
    assert_eq!((newest(&folder), steps(&folder)), ((Some(5), vec![]), vec![5, 4]));
}

#[test]
fn several_ranks_write_their_parts_and_one_commits() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut ranks: Vec<_> = (0..3).map(|_| start(&folder)).collect();
    for step in 1..=4 {
        let state = SampleState::at(step);
        for (writer, rank) in (0..).zip(&mut ranks) {
            assert_eq!(state.take(rank, writer, number(3)), Taken::Begun);
        }
        assert_eq!(saved_steps(ranks.iter_mut().flat_map(Snapshotter::finish).collect()), Vec::<u64>::new());
        state.commit(&mut ranks[1], number(3));
        assert_eq!(saved_steps(ranks[1].finish()), [step]);
        assert_eq!(newest(&folder), (Some(step), vec![]));
        let files = folder.list().expect("listed")[0].described.clone().expect("whole").files;
        assert_eq!(
            std::fs::read_dir(checkpoint_path(&folder, step)).expect("a folder").count(),
            files + 1,
            "the commit deletes notes"
        );
    }
    assert_eq!(steps(&folder), [4, 3]);
}

#[test]
fn an_abandoned_checkpoint_is_not_committed_and_its_parts_are_deleted() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    super::save(&folder, 1);
    let mut rank = start(&folder);
    let state = SampleState::at(2);
    assert_eq!(state.take(&mut rank, 0, number(2)), Taken::Begun);
    assert_eq!(saved_steps(rank.finish()), Vec::<u64>::new());
    rank.abandon(state.position);
    assert_eq!(saved_steps(rank.finish()), Vec::<u64>::new());
    assert_eq!((newest(&folder), leftovers(&folder).len()), ((Some(1), vec![]), 0));
}

#[test]
fn a_commit_without_its_facts_makes_no_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut rank = start(&folder);
    let state = SampleState::at(1);
    assert_eq!(state.take(&mut rank, 0, number(1)), Taken::Begun);
    let refuse = |_: &[String]| Err(CheckpointError::Full { path: "the journal".into() });
    rank.commit(state.position, &Arc::new(state.layout()), number(1), refuse);
    match &rank.finish()[..] {
        [Ended::Part { result: Ok(()), .. }, Ended::Commit { result: Err(CheckpointError::Full { .. }), .. }] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((newest(&folder), leftovers(&folder).len()), ((None, vec![]), 0));
}

#[test]
fn a_third_part_is_refused_while_two_are_being_written() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, gate) = gated(root.path());
    let mut snapshotter = start(&folder);
    gate.set(true);
    let taken: Vec<_> = (1..=4).map(|step| save(&mut snapshotter, step)).collect();
    assert_eq!(taken, [Taken::Begun, Taken::Begun, Taken::Busy, Taken::Busy]);
    gate.set(false);
    assert_eq!(saved_steps(snapshotter.finish()), [1, 2]);
    assert_eq!(save(&mut snapshotter, 5), Taken::Begun);
    assert_eq!(saved_steps(snapshotter.finish()), [5]);
}

/// Fails to make the folders of these steps.
#[derive(Debug)]
struct Failing(BTreeSet<u64>);

impl Perform for Failing {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        match operation {
            FileOperation::Create(path)
                if self.0.iter().any(|step| path.ends_with(format!(".tmp-step-{step:08}.g1"))) =>
            {
                Err(CheckpointError::of("creating", path.clone(), Error::from(ErrorKind::StorageFull)))
            }
            other => FileSystem.perform(other),
        }
    }
}

#[test]
fn a_failure_names_its_part_and_the_next_checkpoint_is_saved() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open_performed_by(Arc::new(Failing([1, 2, 4].into())), root.path());
    let mut snapshotter = start(&folder);
    let mut failures = Vec::new();
    for step in 1..=5 {
        let state = SampleState::at(step);
        assert_eq!(state.take(&mut snapshotter, 0, number(1)), Taken::Begun);
        match &snapshotter.finish()[..] {
            [Ended::Part { result: Ok(()), .. }] => {
                state.commit(&mut snapshotter, number(1));
                assert_eq!(saved_steps(snapshotter.finish()), [step]);
            }
            [Ended::Part { position, took: _, result: Err(CheckpointError::Full { path }) }] => {
                assert!(path.ends_with(format!(".tmp-step-{step:08}.g1")), "{path:?}");
                failures.push(position.step);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((failures, newest(&folder).0), (vec![1, 2, 4], Some(5)));
}

#[test]
fn a_cancelled_part_is_not_stored_and_the_next_one_is() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, gate) = gated(root.path());
    let mut snapshotter = start(&folder);
    gate.set(true);
    for step in [1, 2] {
        assert_eq!(SampleState::at(step).take(&mut snapshotter, 0, number(1)), Taken::Begun);
    }
    snapshotter.cancel();
    gate.set(false);
    let ended = snapshotter.finish();
    let given_up = |ended: &Ended| matches!(ended, Ended::Part { result: Err(CheckpointError::Cancelled { .. }), .. });
    assert!(ended.len() == 2 && ended.iter().all(given_up), "{ended:?}");
    assert_eq!(save(&mut snapshotter, 3), Taken::Begun);
    assert_eq!((saved_steps(snapshotter.finish()), leftovers(&folder).len()), (vec![3], 0));
}

#[test]
fn dropping_cancels_unwritten_parts_and_leaves_no_half_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, gate) = gated(root.path());
    super::save(&folder, 1);
    let mut snapshotter = start(&folder);
    gate.set(true);
    for step in [2, 3] {
        assert_eq!(save(&mut snapshotter, step), Taken::Begun);
    }
    let cancelled = Arc::clone(&snapshotter.cancelled);
    let dropping = std::thread::spawn(move || drop(snapshotter));
    while !cancelled.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::yield_now();
    }
    gate.set(false);
    dropping.join().expect("dropped");
    assert_eq!(newest(&folder), (Some(1), vec![]));
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn a_panic_in_the_background_reaches_the_caller() {
    let root = tempfile::tempdir().expect("a folder");
    let mut snapshotter = start(&open(root.path()));
    let state = SampleState::at(1);
    let part =
        CheckpointPart { position: state.position, layout: Arc::new(state.layout()), writer: 0, writers: number(1) };
    assert_eq!(snapshotter.take(&part, |_| panic!("a digest that cannot be"), |_, _| {}), Taken::Begun);
    let passed_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| snapshotter.finish()));
    assert_eq!(passed_on.expect_err("passed on").downcast_ref(), Some(&"a digest that cannot be"));
}
