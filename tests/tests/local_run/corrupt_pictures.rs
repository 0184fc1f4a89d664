//! Pictures that turn out to be damaged while the training runs.

use std::fs;

use lockstep_data::{
    cifar::{Cifar, draw},
    imagefolder,
};

use crate::run::{Manifest, Run, alone};

const CLASSES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

#[test]
fn more_corrupt_pictures_than_accepted_fail_the_job_at_once_on_all_workers() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [train, _] = imagefolder::write(folder.path(), &draw(Cifar::Ten, 600, 3, 0.2), &CLASSES, 3).expect("written");
    for (file, _) in &train[train.len() - 2..] {
        fs::write(file, "no picture").expect("written");
    }
    let dataset = format!(
        "{{format: imagefolder, uri: \"file://{}\", image: {{height: 28, width: 28}}, maxCorrupt: 1}}",
        folder.path().display()
    );
    let run = Run::of("corrupt", &Manifest::with(&dataset, 2), &["--workers", "2"]).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    assert!(said.contains("corrupt picture 2, and spec.dataset.maxCorrupt accepts 1"), "{said}");
    assert!(said.contains("error: the coordinator cannot go on"), "all workers learn of it: {said}");
    assert_eq!(run.history().len(), 1, "such a run is not tried again");
}
