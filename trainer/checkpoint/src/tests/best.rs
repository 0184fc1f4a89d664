//! The best checkpoint, which is kept besides the newest ones.

use std::num::NonZeroU32;

use super::{number, open, state::SampleState, steps};
use crate::{About, Evaluation, Folder, Metric, Snapshot};

/// Saves states of steps from 1 on with these evaluations, as a job that keeps its best checkpoint
/// by `metric`, and prunes after each.
fn save_all(folder: &Folder, metric: Option<Metric>, keep_last: NonZeroU32, evaluations: &[Option<Evaluation>]) {
    for (step, evaluation) in (1..).zip(evaluations) {
        let about = About { description: None, evaluation: *evaluation, best_by: metric };
        let state = SampleState { about, ..SampleState::at(step) };
        state.with_snapshot(|snapshot: &Snapshot<'_>| folder.save(snapshot)).expect("saved");
        folder.prune(keep_last, &state.identity).expect("pruned");
    }
}

fn found(accuracy: f64) -> Option<Evaluation> {
    Some(Evaluation { loss: 1.0 + accuracy, accuracy, mean_iou: None })
}

#[test]
fn the_best_checkpoint_outlives_newer_ones_until_a_better_one_is_saved() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let evaluations = [found(0.7), found(0.9), None, found(0.8), None];
    save_all(&folder, Some(Metric::Accuracy), number(2), &evaluations);
    assert_eq!(steps(&folder), [5, 4, 2]);
    let about = About { evaluation: found(0.95), best_by: Some(Metric::Accuracy), ..About::default() };
    let better = SampleState { about, ..SampleState::at(6) };
    better.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    folder.prune(number(2), &better.identity).expect("pruned");
    assert_eq!(steps(&folder), [6, 5]);
}

#[test]
fn the_least_loss_may_be_that_of_another_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save_all(&folder, Some(Metric::Loss), number(1), &[found(0.9), found(0.1), found(0.5), None]);
    assert_eq!(steps(&folder), [4, 2]);
}

#[test]
fn a_job_that_names_no_metric_keeps_the_newest_ones_alone() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save_all(&folder, None, number(1), &[found(0.9), None, None]);
    assert_eq!(steps(&folder), [3]);
}
