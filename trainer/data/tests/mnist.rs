//! The real MNIST test images, where they are at hand.

use std::{
    env,
    io::{self, Write as _},
    path::PathBuf,
};

use lockstep_data::{Dataset, Shape, idx};

/// Names the folder with `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, either also with `.gz`.
const VARIABLE: &str = "LOCKSTEP_MNIST";

fn folder() -> Option<PathBuf> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = Some(workspace.join("../shared/data/mnist")).filter(|folder| folder.is_dir());
    named.or(beside)
}

#[test]
fn mnist_is_split_into_nine_thousand_and_one_thousand() {
    let Some(folder) = folder() else {
        // Not eprintln, which the runner holds back.
        return io::stderr()
            .write_all(
                b"SKIPPED: LOCKSTEP_MNIST names no folder and ../shared/data/mnist is absent: MNIST was NOT read\n",
            )
            .expect("a standard error");
    };
    let Dataset { train, evaluation } = idx::read(&folder, 0.1, 10).expect("MNIST is whole");
    assert_eq!((train.len(), evaluation.len()), (9000, 1000));
    assert_eq!(train.shape(), Shape { channels: 1, height: 28, width: 28 });
    assert_eq!(train.labels()[..10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]);
    let mut counts = [0; 10];
    train.labels().iter().chain(evaluation.labels()).for_each(|label| counts[usize::from(*label)] += 1);
    assert_eq!(counts, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]);
}
