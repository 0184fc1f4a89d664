//! The real MNIST images, if they are at hand.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use lockstep_data::{Dataset, Shape, idx};
use tempfile::TempDir;

/// Names a folder with `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, and perhaps with
/// their `train-…` counterparts. Each may end in `.gz`.
const VARIABLE: &str = "LOCKSTEP_MNIST";
const SHAPE: Shape = Shape { channels: 1, height: 28, width: 28 };
/// The held-out share of a folder that has only one pair of files.
const EVALUATION_FRACTION: f64 = 0.1;
const CLASSES: usize = 10;

const TRAIN_LABELS: [u32; 10] = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4];
const TRAIN_COUNTS: [usize; CLASSES] = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949];
const TEST_LABELS: [u32; 10] = [7, 2, 1, 0, 4, 1, 4, 9, 5, 9];
const TEST_COUNTS: [usize; CLASSES] = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009];

fn folder() -> Option<PathBuf> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = Some(workspace.join("../shared/data/mnist")).filter(|folder| folder.is_dir());
    named.or(beside)
}

/// The files of `folder` whose names begin with `prefix`.
fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    entries.map(|entry| entry.expect("an entry").path()).filter(named).collect()
}

fn counts<'a>(labels: impl IntoIterator<Item = &'a u32>) -> [usize; CLASSES] {
    let mut counts = [0; CLASSES];
    labels.into_iter().for_each(|label| counts[*label as usize] += 1);
    counts
}

fn skip(missing: &str) {
    // Not eprintln, which the runner holds back.
    io::stderr().write_all(format!("SKIPPED: {missing}: MNIST was NOT read\n").as_bytes()).expect("a standard error");
}

#[test]
fn the_whole_of_mnist_has_sixty_thousand_training_and_ten_thousand_test_images() {
    let Some(folder) = folder() else {
        return skip("LOCKSTEP_MNIST names no folder and ../shared/data/mnist is absent");
    };
    if files(&folder, "train-").is_empty() {
        return skip("the folder of MNIST has no train- files");
    }
    let Dataset { train, evaluation } = idx::read(&folder, EVALUATION_FRACTION, None).expect("MNIST is whole");
    assert_eq!((train.len(), evaluation.len()), (60_000, 10_000));
    assert_eq!((train.shape(), evaluation.shape()), (SHAPE, SHAPE));
    assert_eq!(train.labels()[..10], TRAIN_LABELS);
    assert_eq!(evaluation.labels()[..10], TEST_LABELS);
    assert_eq!(counts(train.labels()), TRAIN_COUNTS);
    assert_eq!(counts(evaluation.labels()), TEST_COUNTS);
}

#[test]
fn a_lone_test_pair_of_mnist_is_split_into_nine_thousand_and_one_thousand() {
    let Some(folder) = folder() else {
        return skip("LOCKSTEP_MNIST names no folder and ../shared/data/mnist is absent");
    };
    let pair = TempDir::new().expect("a folder");
    for file in files(&folder, "t10k-") {
        fs::copy(&file, pair.path().join(file.file_name().expect("a name"))).expect("a copy");
    }
    let Dataset { train, evaluation } = idx::read(pair.path(), EVALUATION_FRACTION, None).expect("the pair is whole");
    assert_eq!((train.len(), evaluation.len()), (9000, 1000));
    assert_eq!(train.shape(), SHAPE);
    assert_eq!(train.labels()[..10], TEST_LABELS);
    assert_eq!(counts(train.labels().iter().chain(evaluation.labels())), TEST_COUNTS);
}
