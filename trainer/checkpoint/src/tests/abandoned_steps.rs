//! Checkpoints of abandoned steps. No remaining member held such a step, and its checkpoint could
//! not be read, so that a new generation began with an older one.

use std::{fs, path::Path};

use super::{
    checkpoint_path, number, open,
    state::{SampleState, load},
    steps,
};
use crate::{Ended, Folder, Position, Pruned, Snapshotter, Taken};

/// Returns the state of a step in a generation.
fn state(step: u64, generation: u64) -> SampleState {
    let state = SampleState::at(step);
    SampleState {
        position: Position { generation, ..state.position },
        digest: format!("digest-{step} of generation {generation}"),
        ..state
    }
}

/// Saves as a group does. Only the newest checkpoint is kept.
fn save(folder: &Folder, step: u64, generation: u64) -> Pruned {
    let state = state(step, generation);
    let mut snapshotter = Snapshotter::start(folder.clone(), number(1), state.values().len()).expect("started");
    assert_eq!(state.take(&mut snapshotter, 0, number(1)), Taken::Begun);
    state.commit(&mut snapshotter, number(1));
    match snapshotter.finish().pop() {
        Some(Ended::Commit { result: Ok(committed), .. }) => committed.pruned.expect("pruned"),
        other => panic!("{other:?}"),
    }
}

/// Returns the step and the generation that a restart begins with.
fn newest(folder: &Folder) -> (u64, u64) {
    let newest = load(folder, &SampleState::at(0).identity).expect("ours").checkpoint.expect("whole").position;
    (newest.step, newest.generation)
}

/// Generation 4 saved step 20. That checkpoint is out of reach while generation 5 begins with step
/// 10, and then comes back.
fn returned_to_step_10(root: &Path) -> Folder {
    let folder = open(root);
    for (step, generation) in [(10, 3), (20, 4)] {
        state(step, generation).with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    }
    let away = root.join("away");
    fs::rename(checkpoint_path(&folder, 20), &away).expect("moved");
    assert_eq!(newest(&folder), (10, 3));
    fs::rename(away, checkpoint_path(&folder, 20)).expect("moved back");
    folder
}

#[test]
fn a_new_checkpoint_replaces_the_later_step_that_its_group_abandoned() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    assert_eq!(save(&folder, 15, 5).steps, [20, 10]);
    assert_eq!((steps(&folder), newest(&folder)), (vec![15], (15, 5)));
    save(&folder, 20, 5);
    assert_eq!((steps(&folder), newest(&folder)), (vec![20], (20, 5)));
}

#[test]
fn pruning_by_hand_keeps_the_new_checkpoint_beside_the_abandoned_step() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    state(15, 5).with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let pruned = folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, steps(&folder)), (vec![10], vec![20, 15]));
}

#[test]
fn an_abandoned_step_saved_again_survives_a_late_deletion_of_the_old_one() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    let behind = state(15, 5).with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    // Generation 4 had the same bits there.
    let abandoned = state(20, 4);
    let again = SampleState { position: Position { generation: 6, ..abandoned.position }, ..abandoned };
    again.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let pruned = folder.prune_saved(&behind, 5, number(1), &SampleState::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, newest(&folder)), (vec![20, 10], (20, 6)));
}

#[test]
fn a_late_save_of_an_abandoned_step_deletes_no_checkpoint_of_the_later_group() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    assert_eq!(save(&folder, 15, 5).steps, [20, 10]);
    let next = state(18, 5);
    let receipt = next.write(&folder, 0, number(1)).expect("written");
    let late = save(&folder, 25, 4);
    assert_eq!((late.steps, late.leftovers), (vec![], 0), "by a worker that has not heard of generation 5");
    assert_eq!(steps(&folder), [25, 15]);
    folder.commit(&next.facts(), &next.layout(), &[receipt]).expect("nobody cleared it");
    assert_eq!(save(&folder, 19, 5).steps, [25, 18, 15], "the later save goes on");
}

#[test]
fn an_abandoned_step_is_saved_again() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    assert_eq!(save(&folder, 20, 5).steps, [20, 10]);
    assert_eq!((steps(&folder), newest(&folder)), (vec![20], (20, 5)));
}

#[test]
fn only_a_whole_checkpoint_of_a_later_group_of_the_job_deletes_abandoned_steps() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = returned_to_step_10(root.path());
    let mut foreign = state(30, 1);
    foreign.identity.workload_digest = "cd34".into();
    foreign.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    state(40, 5).with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let later = state(15, 5);
    let saved = later.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let manifest = fs::read(saved.path.join("manifest.json")).expect("readable");
    fs::write(saved.path.join("manifest.json"), "damaged").expect("written");
    let prune = || folder.prune_saved(&saved, 5, number(1), &later.identity).expect("pruned").steps;
    assert_eq!(prune(), Vec::<u64>::new(), "it is damaged");
    fs::write(saved.path.join("manifest.json"), manifest).expect("restored");
    assert_eq!(prune(), [20, 10]);
    assert_eq!(steps(&folder), [40, 30, 15], "another job's, and one of the same group");
}

#[test]
fn a_committer_whose_checkpoint_was_deleted_by_a_later_group_deletes_nothing() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let late = state(20, 4);
    let saved = late.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    save(&folder, 15, 5);
    save(&folder, 18, 5);
    assert_eq!(folder.prune_saved(&saved, 4, number(1), &late.identity).expect("pruned"), Pruned::default());
    assert_eq!((steps(&folder), newest(&folder)), (vec![18], (18, 5)));
}
