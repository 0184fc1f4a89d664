use std::{io::Write, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::{
    Evaluation, PictureProblem,
    cifar::{Cifar, draw},
    imagefolder,
};

const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

fn options() -> PictureOptions {
    let report = Arc::new(|problem: PictureProblem| panic!("{problem:?}"));
    PictureOptions { channels: 3, size: Some((24, 20)), max_corrupt: 0, threads: 2, report }
}

/// The pictures of one part of an image folder, in the order of classes and names.
fn pictures(folder: &Path, part: &str) -> Vec<(PathBuf, u32)> {
    let of_class = |(label, name): (usize, &&str)| {
        let mut files: Vec<_> = fs::read_dir(folder.join(part).join(name))
            .expect("there")
            .map(|entry| (entry.expect("one").path(), label as u32))
            .collect();
        files.sort();
        files
    };
    NAMES.iter().enumerate().flat_map(of_class).collect()
}

/// A folder of pictures, and the same as archives of 7 samples.
fn both() -> [tempfile::TempDir; 2] {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    imagefolder::write(folders[0].path(), &draw(Cifar::Ten, 60, 5, 0.2), &NAMES, 5).expect("written");
    for part in ["train", "evaluation"] {
        write(&folders[1].path().join(part), part, &pictures(folders[0].path(), part), 7).expect("written");
    }
    folders
}

fn values(samples: &Samples) -> Vec<u32> {
    let mut loader = Evaluation::new(samples, 0..samples.len() as u64, 9);
    let mut all = Vec::new();
    while let Some(batch) = loader.next_batch() {
        all.extend(batch.images.iter().map(|value| value.to_bits()));
    }
    all
}

#[test]
fn archives_give_the_samples_of_the_folder_they_were_made_of() {
    let [folder, archives] = both();
    let expected = imagefolder::read(folder.path(), 0.1, &options()).expect("whole");
    let found = read(archives.path(), 0.1, None, &options()).expect("whole");
    for (found, expected) in [(&found.train, &expected.train), (&found.evaluation, &expected.evaluation)] {
        assert_eq!((found.labels(), found.classes(), found.shape()), (expected.labels(), 10, expected.shape()));
        assert_eq!(values(found), values(expected));
    }
}

#[test]
fn names_tell_what_is_for_evaluation_and_without_them_each_class_gives_its_share() {
    let [folder, _] = both();
    let flat = tempfile::tempdir().expect("a folder");
    write(flat.path(), "train", &pictures(folder.path(), "train"), 50).expect("written");
    let split = read(flat.path(), 0.25, Some(12), &options()).expect("whole");
    assert_eq!((split.train.len() + split.evaluation.len(), split.train.classes()), (48, 12));
    for class in 0..10 {
        let of_class = |samples: &Samples| samples.labels().iter().filter(|label| **label == class).count();
        let all = of_class(&split.train) + of_class(&split.evaluation);
        assert_eq!(of_class(&split.evaluation), all / 4, "class {class}");
    }
    write(flat.path(), "val", &pictures(folder.path(), "evaluation"), 50).expect("written");
    let named = read(flat.path(), 0.25, None, &options()).expect("whole");
    assert_eq!((named.train.len(), named.evaluation.len()), (48, 12));
}

/// Names and contents.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// An archive with these files.
fn archive(folder: &Path, files: Files<'_>) -> PathBuf {
    let path = folder.join("train.tar");
    let mut archive = tar::Builder::new(fs::File::create(&path).expect("made"));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, *content).expect("written");
    }
    archive.finish().expect("written");
    path
}

#[test]
fn what_is_wrong_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |classes| read(folder.path(), 0.1, classes, &options()).expect_err("refused").to_string();
    assert!(error(None).contains("no tar files") && error(None).contains("KEY.cls"), "{}", error(None));
    let cases: [(Files<'_>, &str); 5] = [
        (&[("1.jpg", b"x"), ("2.cls", b"3")], "train.tar: 1 has no .cls"),
        (&[("1.cls", b"3")], "train.tar: 1 has no .jpg"),
        (&[("a/1.jpg", b"x"), ("a/1.cls", b"cat")], "a/1 has the label cat, accepted are 0 to 65535"),
        (&[("1.jpg", b"x"), ("1.cls", b"10\n")], "1 has the label 10, accepted are 0 to 9"),
        (&[("1.seg.png", b"x"), ("1.cls", b"-1")], "1 has the label -1"),
    ];
    for (files, expected) in cases {
        archive(folder.path(), files);
        assert!(error(Some(10)).contains(expected), "{}", error(Some(10)));
    }
    let path = archive(folder.path(), &[("1.jpg", &[7; 2000]), ("1.cls", b"1")]);
    let whole = fs::read(&path).expect("there");
    fs::write(&path, &whole[..1500]).expect("written");
    assert!(error(None).contains("train.tar is a damaged archive"), "{}", error(None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_listed_or_refused(
        changes in proptest::collection::vec((0_usize..3072, any::<u8>()), 0..8),
        cut in proptest::option::of(0_usize..4000),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = archive(folder.path(), &[("1.jpg", b"picture"), ("1.cls", b"4"), ("2.png", b"other"), ("2.cls", b"0")]);
        let mut bytes = fs::read(&path).expect("there");
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        bytes.truncate(cut.unwrap_or(bytes.len()));
        fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("written");
        if let Ok(found) = read(folder.path(), 0.5, None, &options()) {
            prop_assert!(found.train.len() + found.evaluation.len() <= 4);
        }
    }
}
