use std::{
    collections::BTreeSet,
    io::{Error, ErrorKind},
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use super::{newest, number, open, state::State};
use crate::{
    CheckpointError, Done, Folder, Part, Snapshotter, Taken,
    operation::{FileSystem, Operation, Perform},
};

/// A folder whose writes wait while the gate is shut.
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
    fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError> {
        if matches!(operation, Operation::Write(..)) {
            let shut = self.shut.lock().expect("not poisoned");
            drop(self.changed.wait_while(shut, |shut| *shut).expect("not poisoned"));
        }
        FileSystem.perform(operation)
    }
}

fn gated(root: &Path) -> (Folder, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let mut folder = open(root);
    folder.performer = gate.clone();
    (folder, gate)
}

fn start(folder: &Folder) -> Snapshotter {
    Snapshotter::start(folder.clone(), number(2), State::at(0).values().len()).expect("started")
}

/// Saves alone; the values are gone from where they were copied when this returns.
fn save(snapshotter: &mut Snapshotter, step: u64) -> Result<Taken, CheckpointError> {
    let state = State::at(step);
    let (facts, layout) = (state.facts(), Arc::new(state.layout()));
    let (digest, expected) = (facts.state_digest.clone(), state.values());
    let facts = move |values: &[f32]| {
        assert!(values.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits()));
        crate::Facts { state_digest: digest, ..facts }
    };
    snapshotter.save(state.position, &layout, facts, |piece, place| {
        place.copy_from_slice(&state.tensors[piece.tensor].values[piece.values]);
    })
}

fn saved_steps(done: Vec<Done>) -> Vec<u64> {
    let step = |done| match done {
        Done::Saved { saved, pruned } => {
            pruned.expect("pruned");
            saved.step
        }
        Done::Written(receipt) => panic!("{receipt:?}"),
    };
    done.into_iter().map(step).collect()
}

#[test]
fn what_was_copied_is_saved_and_the_oldest_are_deleted() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut snapshotter = start(&folder);
    let mut saved = Vec::new();
    for step in 1..=5 {
        assert_eq!(save(&mut snapshotter, step).expect("no failure"), Taken::Begun);
        snapshotter.wait_for_buffer().expect("no failure");
        saved.extend(saved_steps(snapshotter.done().expect("no failure")));
    }
    saved.extend(saved_steps(snapshotter.finish().expect("no failure")));
    assert_eq!(saved, [1, 2, 3, 4, 5]);
    assert_eq!((newest(&folder), folder.steps().expect("listed")), ((Some(5), vec![]), vec![5, 4]));
}

#[test]
fn several_ranks_write_their_parts_and_one_commits() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut ranks: Vec<_> = (0..3).map(|_| start(&folder)).collect();
    for step in 1..=4 {
        let state = State::at(step);
        let layout = Arc::new(state.layout());
        for (writer, rank) in ranks.iter_mut().enumerate() {
            let part =
                Part { position: state.position, layout: layout.clone(), writer: writer as u32, writers: number(3) };
            let taken = rank.take(&part, |piece, place| {
                place.copy_from_slice(&state.tensors[piece.tensor].values[piece.values]);
            });
            assert_eq!(taken.expect("no failure"), Taken::Begun);
        }
        let receipts = ranks.iter_mut().flat_map(|rank| rank.finish().expect("no failure"));
        let receipts = receipts.map(|done| match done {
            Done::Written(receipt) => receipt,
            Done::Saved { saved, .. } => panic!("{saved:?}"),
        });
        let receipts = receipts.collect();
        ranks[0].commit(state.facts(), &layout, receipts).expect("no failure");
        assert_eq!(saved_steps(ranks[0].finish().expect("no failure")), [step]);
        assert_eq!(newest(&folder), (Some(step), vec![]));
    }
    assert_eq!(folder.steps().expect("listed"), [4, 3]);
}

#[test]
fn a_third_part_is_refused_while_two_are_being_written() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, gate) = gated(root.path());
    let mut snapshotter = start(&folder);
    gate.set(true);
    let taken: Vec<_> = (1..=4).map(|step| save(&mut snapshotter, step).expect("no failure")).collect();
    assert_eq!(taken, [Taken::Begun, Taken::Begun, Taken::Busy, Taken::Busy]);
    gate.set(false);
    snapshotter.wait_for_buffer().expect("no failure");
    assert_eq!(save(&mut snapshotter, 5).expect("no failure"), Taken::Begun);
    assert_eq!(saved_steps(snapshotter.finish().expect("no failure")), [1, 2, 5]);
}

/// Fails to make the folders of these steps.
#[derive(Debug)]
struct Failing(BTreeSet<u64>);

impl Perform for Failing {
    fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError> {
        match operation {
            Operation::Create(path) if self.0.iter().any(|step| path.ends_with(format!(".tmp-step-{step:08}.g1"))) => {
                Err(CheckpointError::of("creating", path.clone(), Error::from(ErrorKind::StorageFull)))
            }
            other => FileSystem.perform(other),
        }
    }
}

#[test]
fn each_failure_is_returned_by_one_later_call_and_what_follows_is_saved() {
    let root = tempfile::tempdir().expect("a folder");
    let mut folder = open(root.path());
    folder.performer = Arc::new(Failing([1, 2, 4].into()));
    let mut snapshotter = start(&folder);
    let (mut failures, mut saved) = (Vec::new(), Vec::new());
    for step in 1..=5 {
        // What waits says so too; then the same again.
        for _ in 0..2 {
            failures.extend(snapshotter.wait_for_buffer().err());
        }
        loop {
            match save(&mut snapshotter, step) {
                Ok(Taken::Begun) => break,
                Ok(Taken::Busy) => failures.extend(snapshotter.wait_for_buffer().err()),
                Err(error) => failures.push(error),
            }
        }
    }
    for _ in 0..5 {
        match snapshotter.finish() {
            Ok(done) => saved.extend(saved_steps(done)),
            Err(error) => failures.push(error),
        }
    }
    let failures: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 3, "{failures:?}");
    for (failure, step) in failures.iter().zip([1, 2, 4]) {
        assert!(failure.contains(&format!("step-0000000{step}")) && failure.contains("no space left"), "{failure}");
    }
    assert_eq!((saved, newest(&folder).0), (vec![3, 5], Some(5)));
}

#[test]
fn dropping_gives_up_what_is_not_written_and_leaves_nothing_that_is_taken_for_a_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, gate) = gated(root.path());
    super::save(&folder, 1);
    let mut snapshotter = start(&folder);
    gate.set(true);
    for step in [2, 3] {
        assert_eq!(save(&mut snapshotter, step).expect("no failure"), Taken::Begun);
    }
    let cancelled = Arc::clone(&snapshotter.cancelled);
    let dropping = std::thread::spawn(move || drop(snapshotter));
    while !cancelled.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::yield_now();
    }
    gate.set(false);
    dropping.join().expect("dropped");
    assert_eq!(newest(&folder), (Some(1), vec![]));
    assert_eq!(folder.leftovers().expect("listed").len(), 0);
}

#[test]
fn a_panic_in_the_background_is_passed_on() {
    let root = tempfile::tempdir().expect("a folder");
    let mut snapshotter = start(&open(root.path()));
    let state = State::at(1);
    let layout = Arc::new(state.layout());
    let taken = snapshotter.save(state.position, &layout, |_| panic!("a digest that cannot be"), |_, _| {});
    assert_eq!(taken.expect("no failure"), Taken::Begun);
    let passed_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| snapshotter.finish()));
    assert_eq!(passed_on.expect_err("passed on").downcast_ref(), Some(&"a digest that cannot be"));
}
