use std::{fs, io::Write, path::Path};

use flate2::{Compression, GzBuilder};

use super::*;

const IMAGES: &str = "t10k-images-idx3-ubyte";
const LABELS: &str = "t10k-labels-idx1-ubyte";

fn images(count: u32, rows: u32, columns: u32) -> Vec<u8> {
    let mut bytes = header(3, &[count, rows, columns]);
    bytes.extend((0..u64::from(count) * u64::from(rows) * u64::from(columns)).map(|at| at as u8));
    bytes
}

fn labels(classes: &[u8]) -> Vec<u8> {
    [&header(1, &[classes.len() as u32]), classes].concat()
}

fn header(kind: u32, dimensions: &[u32]) -> Vec<u8> {
    [0x0800 | kind].iter().chain(dimensions).flat_map(|word| word.to_be_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    gzip.write_all(bytes).expect("in memory");
    gzip.finish().expect("in memory")
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).expect("written"));
    folder
}

fn error(files: &[(&str, &[u8])]) -> DataError {
    read(folder(files).path(), 0.1, Some(10)).expect_err("refused")
}

#[test]
fn one_pair_of_either_name_is_split() {
    for part in ["train", "t10k"] {
        let names = [IMAGES, LABELS].map(|name| name.replace("t10k", part));
        let files = folder(&[(&names[0], &images(10, 2, 3)), (&names[1], &labels(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))]);
        let Dataset { train, evaluation } = read(files.path(), 0.3, Some(10)).expect("whole");
        assert_eq!((train.labels(), evaluation.labels()), (&[0, 1, 2, 3, 4, 5, 6][..], &[7, 8, 9][..]));
        assert_eq!(train.shape(), Shape { channels: 1, height: 2, width: 3 });
        assert_eq!(evaluation.image(0), [42, 43, 44, 45, 46, 47]);
    }
}

#[test]
fn both_pairs_are_taken_as_they_are() {
    let files = folder(&[
        ("train-images-idx3-ubyte", &images(4, 1, 1)),
        ("train-labels-idx1-ubyte", &labels(&[1, 2, 3, 4])),
        (IMAGES, &images(2, 1, 1)),
        (LABELS, &labels(&[5, 6])),
    ]);
    let Dataset { train, evaluation } = read(files.path(), 0.5, Some(10)).expect("whole");
    assert_eq!((train.labels(), evaluation.labels()), (&[1, 2, 3, 4][..], &[5, 6][..]));
}

#[test]
fn compression_is_told_by_content_and_names_may_have_a_dot() {
    let (plain_images, plain_labels) = (images(2, 1, 1), labels(&[3, 4]));
    let (small_images, small_labels) = (gzip(&plain_images), gzip(&plain_labels));
    let cases: [(&str, &[u8], &str, &[u8]); 4] = [
        ("t10k-images-idx3-ubyte.gz", &small_images, "t10k-labels-idx1-ubyte.gz", &small_labels),
        ("t10k-images.idx3-ubyte", &plain_images, "t10k-labels.idx1-ubyte", &plain_labels),
        (IMAGES, &small_images, LABELS, &small_labels),
        ("t10k-images.idx3-ubyte.gz", &plain_images, "t10k-labels-idx1-ubyte", &small_labels),
    ];
    for (image_name, image_bytes, label_name, label_bytes) in cases {
        let files = folder(&[(image_name, image_bytes), (label_name, label_bytes)]);
        assert_eq!(read(files.path(), 0.0, Some(10)).expect("whole").train.labels(), [3, 4], "{image_name}");
    }
}

#[test]
fn each_kind_of_damage_is_named_with_what_was_found_and_what_is_accepted() {
    let (good_images, good_labels) = (images(3, 2, 2), labels(&[1, 2, 3]));
    let more = |bytes: &[u8]| [bytes, &[0]].concat();
    let cut = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
    let mut flipped = gzip(&good_images);
    *flipped.last_mut().expect("not empty") ^= 1;
    let image_cases: [(Vec<u8>, &[&str]); 15] = [
        (cut(&good_images), &[IMAGES, "expected 28 bytes", "found 27"]),
        (cut(&gzip(&good_images)), &[IMAGES, "corrupt gzip"]),
        (vec![], &["expected 16 bytes", "found 0"]),
        (header(4, &[1, 2000, 1, 1]), &["channels is 2000", "1 to 1024"]),
        (gzip(&cut(&good_images)), &["expected 28 bytes", "found 27"]),
        (more(&good_images), &["goes on after the 28 bytes"]),
        (gzip(&more(&good_images)), &["goes on after the 28 bytes"]),
        (more(&gzip(&good_images)), &["corrupt gzip"]),
        (flipped, &["corrupt gzip"]),
        (more(&labels(&[0; 9])), &["starts with 0x00000801", "expected 0x00000803", "3 dimensions"]),
        (images(0, 2, 2), &["number of images is 0", "1 to 100000000"]),
        (header(3, &[1, 5000, 1]), &["rows is 5000", "1 to 4096"]),
        (header(3, &[1, 1, u32::MAX]), &["columns is 4294967295", "1 to 4096"]),
        (header(3, &[100_000_000, 4096, 4096]), &["bytes of pixels is", "1 to 68719476736"]),
        (images(2, 2, 2), &["holds 2 images", "holds 3 labels", LABELS]),
    ];
    for (bytes, words) in image_cases {
        let text = error(&[(IMAGES, &bytes), (LABELS, &good_labels)]).to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
    }
    let text = error(&[(IMAGES, &good_images), (LABELS, &labels(&[1, 10, 2]))]).to_string();
    assert!(text.contains("label 1 is 10, accepted are 0 to 9") && text.contains(LABELS), "{text}");
}

#[test]
fn a_gzip_bomb_is_read_no_further_than_its_header_promises() {
    let bomb = gzip(&[&images(1, 1, 1)[..], &vec![0; 64 << 20]].concat());
    assert!(matches!(
        error(&[(IMAGES, &bomb), (LABELS, &labels(&[1]))]),
        DataError::TrailingBytes { expected: 17, .. }
    ));
}

#[test]
fn missing_files_are_listed_by_name() {
    let missing = tempfile::tempdir().expect("a folder").path().join("nowhere");
    let text = read(&missing, 0.1, Some(10)).expect_err("missing").to_string();
    assert!(text.contains("nowhere does not exist") && text.contains("spec.dataset.uri"), "{text}");
    let text = error(&[("readme", b"")]).to_string();
    for name in ["train-images-idx3-ubyte", "train-labels.idx1-ubyte", IMAGES, LABELS, ".gz"] {
        assert!(text.contains(name), "{text}");
    }
    let text = error(&[(IMAGES, &images(1, 1, 1))]).to_string();
    assert!(text.contains("has no partner") && text.contains(LABELS), "{text}");
    let text = error(&[(LABELS, &labels(&[1]))]).to_string();
    assert!(text.contains("has no partner") && text.contains(IMAGES), "{text}");
}

#[test]
fn training_and_test_images_of_different_sizes_are_refused() {
    let text = error(&[
        ("train-images-idx3-ubyte", &images(1, 2, 3)),
        ("train-labels-idx1-ubyte", &labels(&[1])),
        (IMAGES, &images(1, 3, 2)),
        (LABELS, &labels(&[5])),
    ])
    .to_string();
    assert!(text.contains("images of 1×2×3") && text.contains("of 1×3×2"), "{text}");
}

#[test]
fn a_share_outside_its_range_is_refused() {
    for fraction in [-0.1, 0.91, f64::NAN] {
        let text = read(Path::new("."), fraction, Some(10)).expect_err("refused").to_string();
        assert!(text.contains("evaluationFraction") && text.contains("0 to 0.9"), "{text}");
    }
}

#[test]
fn what_is_written_is_read_back_and_written_the_same_again() {
    let drawn = crate::glyphs::draw(50, 1, 0.2);
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    for folder in &folders {
        write(folder.path(), Part::Train, &drawn.train).expect("written");
        write(folder.path(), Part::Evaluation, &drawn.evaluation).expect("written");
        assert_eq!(read(folder.path(), 0.5, Some(10)).expect("whole"), drawn);
    }
    for name in [IMAGES, LABELS] {
        let bytes = folders.each_ref().map(|folder| fs::read(folder.path().join(format!("{name}.gz"))).expect("there"));
        assert_eq!(bytes[0], bytes[1]);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let folder = folder(&[("file", b"")]);
    let text = write(&folder.path().join("file"), Part::Train, &crate::glyphs::draw(1, 0, 0.0).train)
        .expect_err("a file is no folder")
        .to_string();
    assert!(text.contains("file") && text.contains("choose a folder"), "{text}");
}

#[test]
fn storage_that_does_not_answer_is_no_reason_to_take_files_for_missing() {
    let whole =
        || folder(&[("train-images-idx3-ubyte", &images(2, 1, 1)), ("train-labels-idx1-ubyte", &labels(&[3, 4]))]);
    // A link that leads to itself is neither there nor missing; nothing of this process's memory
    // lies at its beginning.
    for (name, target) in [(IMAGES, IMAGES), ("train-images-idx3-ubyte.gz", "/proc/self/mem")] {
        let files = whole();
        std::os::unix::fs::symlink(target, files.path().join(name)).expect("a link");
        let error = read(files.path(), 0.0, Some(10)).expect_err("refused");
        assert!(matches!(&error, DataError::Read { path, .. } if path.ends_with(name)) && error.passes(), "{error}");
    }
}

#[test]
fn what_is_wrong_with_the_files_themselves_stays_wrong() {
    let missing = read(Path::new("/nowhere"), 0.0, Some(10)).expect_err("refused");
    let damaged = error(&[(IMAGES, b"no IDX"), (LABELS, &labels(&[1]))]);
    assert!([missing, damaged].iter().all(|error| !error.passes()));
}

#[test]
fn images_may_have_channels_and_labels_more_than_eight_bits() {
    let shape = Shape { channels: 3, height: 2, width: 2 };
    let samples = Samples::new(shape, 1000, (0..36).collect(), vec![999, 0, 256]);
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), Part::Train, &samples).expect("written");
    let Dataset { train, evaluation } = read(folder.path(), 0.0, None).expect("whole");
    assert!(evaluation.is_empty());
    assert_eq!(train, samples);
    let text = read(folder.path(), 0.0, Some(10)).expect_err("refused").to_string();
    assert!(text.contains("label 0 is 999, accepted are 0 to 9") && text.contains("idx1-int"), "{text}");
}

#[test]
fn a_label_of_sixteen_bits_is_signed() {
    let mut short = header(1, &[2]);
    short[2] = 0x0B;
    short.extend([0x01, 0x2C, 0xFF, 0xFE]);
    let files = [("train-images-idx3-ubyte", &images(2, 1, 1)[..]), ("train-labels-idx1-short", &short)];
    let text = read(folder(&files).path(), 0.0, None).expect_err("refused").to_string();
    assert!(text.contains("label 1 is -2, accepted are 0 to 65535"), "{text}");
    let good = [&short[..8], &[0x01, 0x2C, 0, 7]].concat();
    let files = [files[0], ("train-labels-idx1-short", &good)];
    let train = read(folder(&files).path(), 0.0, None).expect("whole").train;
    assert_eq!((train.labels(), train.classes()), (&[300, 7][..], 301));
}
