use proptest::prelude::*;

use super::*;

const BOTH: [Cifar; 2] = [Cifar::Ten, Cifar::Hundred];

fn written(cifar: Cifar) -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = draw(cifar, 47, 3, 0.2);
    write(folder.path(), cifar, &drawn).expect("written");
    (folder, drawn)
}

#[test]
fn what_is_written_is_read_back() {
    for cifar in BOTH {
        let (folder, drawn) = written(cifar);
        assert_eq!(read(folder.path(), cifar, 0.1).expect("whole"), drawn, "{cifar:?}");
        let first = cifar.training_files()[0];
        let bytes = fs::read(folder.path().join(first)).expect("there");
        assert_eq!(bytes.len() % cifar.record_bytes(), 0);
        assert_eq!(u32::from(bytes[cifar.label_bytes() - 1]), drawn.train.label(0));
        assert_eq!(bytes[cifar.label_bytes()..cifar.record_bytes()], *drawn.train.image(0));
    }
}

#[test]
fn the_folder_of_the_archive_may_lie_inside_the_given_one_and_its_names_are_taken() {
    let outer = tempfile::tempdir().expect("a folder");
    let inner = outer.path().join("cifar-10-batches-bin");
    write(&inner, Cifar::Ten, &draw(Cifar::Ten, 20, 0, 0.5)).expect("written");
    let names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
    fs::write(inner.join("batches.meta.txt"), names.join("\n") + "\n\n").expect("written");
    let read = read(outer.path(), Cifar::Ten, 0.1).expect("whole");
    assert_eq!(read.train.class_names(), names);
}

#[test]
fn without_a_test_file_the_last_samples_are_held_out() {
    let (folder, drawn) = written(Cifar::Ten);
    fs::remove_file(folder.path().join("test_batch.bin")).expect("removed");
    let Dataset { train, evaluation } = read(folder.path(), Cifar::Ten, 0.25).expect("whole");
    assert_eq!((train.len(), evaluation.len()), (29, 9));
    assert_eq!(evaluation.image(8), drawn.train.image(37));
}

#[test]
fn what_is_wrong_is_named() {
    let (folder, _) = written(Cifar::Ten);
    let error = |folder: &Path, cifar| read(folder, cifar, 0.1).expect_err("refused").to_string();
    let text = error(folder.path(), Cifar::Hundred);
    assert!(text.contains("no cifar100 files") && text.contains("train.bin"), "{text}");
    let path = folder.path().join("data_batch_2.bin");
    let mut bytes = fs::read(&path).expect("there");
    bytes[3073] = 10;
    fs::write(&path, &bytes).expect("written");
    let text = error(folder.path(), Cifar::Ten);
    assert!(text.contains("data_batch_2.bin: label 1 is 10, accepted are 0 to 9"), "{text}");
    fs::write(&path, &bytes[1..]).expect("written");
    let text = error(folder.path(), Cifar::Ten);
    assert!(text.contains("data_batch_2.bin has 24583 bytes") && text.contains("records of 3073 bytes"), "{text}");
}

#[test]
fn every_class_is_drawn_and_colours_differ() {
    let ten = draw(Cifar::Ten, 500, 1, 0.0).train;
    assert!((0..10).all(|class| ten.labels().iter().filter(|label| **label == class).count() == 50));
    let hundred = draw(Cifar::Hundred, 3000, 1, 0.0).train;
    assert!((0..100).all(|class| hundred.labels().contains(&class)));
    assert_eq!(draw(Cifar::Ten, 30, 1, 0.1), draw(Cifar::Ten, 30, 1, 0.1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..7000), cut in 0_usize..3) {
        let folder = tempfile::tempdir().expect("a folder");
        for (cifar, name) in [(Cifar::Ten, "data_batch_1.bin"), (Cifar::Hundred, "train.bin")] {
            let whole = bytes.len() / cifar.record_bytes() * cifar.record_bytes();
            let bytes = if cut == 0 { &bytes[..] } else { &bytes[..whole] };
            fs::write(folder.path().join(name), bytes).expect("written");
            if let Ok(Dataset { train, evaluation }) = read(folder.path(), cifar, 0.5) {
                prop_assert_eq!((train.len() + evaluation.len()) * cifar.record_bytes(), bytes.len());
            }
        }
    }
}
