use std::fs;

use proptest::prelude::*;

use super::*;
use crate::Evaluation;

/// An array file as NumPy writes it.
fn array(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), values].concat()
}

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    files.iter().for_each(|(name, content)| fs::write(folder.path().join(name), content).expect("written"));
    folder
}

fn values(samples: &Samples) -> Vec<f32> {
    let mut loader = Evaluation::new(samples, 0..samples.len() as u64, 3);
    let mut all = Vec::new();
    while let Some(batch) = loader.next_batch() {
        all.extend_from_slice(&batch.images);
    }
    all
}

#[test]
fn floats_of_each_width_and_order_come_as_they_are() {
    let numbers = [0.5_f32, -2.0, 1024.0, 0.0, 3.0, -0.25];
    let bytes = |one: fn(f32) -> Vec<u8>| numbers.into_iter().flat_map(one).collect::<Vec<u8>>();
    for (descr, content) in [
        ("<f4", bytes(|value| value.to_le_bytes().to_vec())),
        (">f4", bytes(|value| value.to_be_bytes().to_vec())),
        ("<f8", bytes(|value| f64::from(value).to_le_bytes().to_vec())),
        ("<f2", bytes(|value| half::f16::from_f32(value).to_le_bytes().to_vec())),
        (">f2", bytes(|value| half::f16::from_f32(value).to_be_bytes().to_vec())),
    ] {
        let place = folder(&[
            ("x_train.npy", array(descr, "(2, 3)", &content)),
            ("y_train.npy", array("<i8", "(2,)", &[[4, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat())),
        ]);
        let train = read(place.path(), 0.0, None, None).expect("whole").train;
        assert_eq!((train.labels(), train.classes()), (&[4, 1][..], 5));
        assert_eq!(train.shape(), Shape { channels: 1, height: 1, width: 3 });
        assert_eq!(values(&train), numbers, "{descr}");
    }
}

#[test]
fn the_last_dimension_of_four_is_the_channels_unless_the_manifest_says_otherwise() {
    let pixels: Vec<u8> = (0..12).collect();
    let files = |shape: &str| {
        folder(&[
            ("x_train.npy", array("|u1", shape, &pixels)),
            ("y_train.npy", array("|u1", "(1, 1)", &[0])),
            ("x_test.npy", array("|u1", shape, &pixels)),
            ("y_test.npy", array(">u2", "(1,)", &[0, 7])),
        ])
    };
    let shape = Shape { channels: 3, height: 2, width: 2 };
    for (stored, image, expected) in [
        ("(1, 2, 2, 3)", None, vec![0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]),
        ("(1, 3, 2, 2)", Some(shape), (0..12).collect()),
        ("(1, 12)", Some(shape), (0..12).collect()),
    ] {
        let found = read(files(stored).path(), 0.5, None, image).expect("whole");
        assert_eq!((found.train.shape(), found.train.image(0)), (shape, &expected[..]), "{stored}");
        assert_eq!((found.evaluation.labels(), found.train.classes()), (&[7][..], 8));
    }
    let error = read(files("(1, 4, 3)").path(), 0.5, None, Some(shape)).expect_err("refused").to_string();
    assert!(error.contains("[4, 3]") && error.contains("spec.dataset.image says 3×2×2"), "{error}");
}

#[test]
fn what_is_wrong_is_named() {
    let labels = || ("y_train.npy", array("|u1", "(2,)", &[0, 1]));
    let good = array("<f4", "(2, 1)", &[0; 8]);
    let fortran = String::from_utf8_lossy(&good).replace("False", "True ");
    let other = |text: Vec<u8>| folder(&[("x_train.npy", text), labels()]);
    for (place, words) in [
        (folder(&[]), "no npy files in"),
        (folder(&[("x_train.npy", good.clone())]), "y_train.npy"),
        (other(b"PK\x03\x04 a zip".to_vec()), "write it with numpy.save"),
        (other(array("<c8", "(2, 1)", &[0; 16])), "kind c8, accepted are u1"),
        (other(array("|O", "(2, 1)", &[])), "kind O"),
        (other(array("<f4", "(2, 1)", &[0; 7])), "truncated"),
        (other(array("<f4", "(2, 1)", &[0; 9])), "goes on after"),
        (other(array("<f4", "(3, 1)", &[0; 12])), "counts must be equal"),
        (other(array("<f4", "(0, 1)", &[])), "number of samples is 0"),
        (other(array("<f4", "(2, 9000000)", &[])), "a side is 9000000"),
        (other(array("<f4", "(2, 1, 1, 1, 1)", &[0; 8])), "4 dimensions"),
        (other(array("<f4", "()", &[0; 4])), "one value"),
        (other(array("<f4", "(2, 1)", &[0, 0, 0xC0, 0x7F, 0, 0, 0, 0])), "sample 0 has a value that is infinite"),
        (other(fortran.replace('\u{FFFD}', "").into_bytes()), "numpy.save"),
        (folder(&[("x_train.npy", good.clone()), ("y_train.npy", array("<f4", "(2,)", &[0; 8]))]), "integers"),
        (folder(&[("x_train.npy", good.clone()), ("y_train.npy", array("|i1", "(2,)", &[0, 255]))]), "label 1 is -1"),
        (folder(&[("x_train.npy", good.clone()), ("y_train.npy", array("|u1", "(2, 3)", &[0; 6]))]), "one label"),
    ] {
        let error = read(place.path(), 0.1, None, None).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut fortran = good;
    let at = fortran.windows(5).position(|word| word == b"False").expect("there");
    fortran[at..at + 5].copy_from_slice(b"True ");
    let error = read(other(fortran).path(), 0.1, None, None).expect_err("refused").to_string();
    assert!(error.contains("Fortran's order; save numpy.ascontiguousarray"), "{error}");
}

#[test]
fn versions_two_and_three_are_read_as_the_first() {
    let first = array("<f4", "(1, 2)", &1.5_f32.to_le_bytes().repeat(2));
    let text = &first[10..first.len() - 8];
    for version in [2, 3] {
        let start = [&b"\x93NUMPY"[..], &[version, 0], &(text.len() as u32).to_le_bytes()].concat();
        let place = folder(&[
            ("x_train.npy", [&start[..], &first[10..]].concat()),
            ("y_train.npy", array("|u1", "(1,)", &[0])),
        ]);
        assert_eq!(values(&read(place.path(), 0.0, None, None).expect("whole").train), [1.5, 1.5]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_are_read_or_refused(
        changes in proptest::collection::vec((0_usize..136, any::<u8>()), 0..6),
        cut in proptest::option::of(0_usize..140),
        which in 0_usize..2,
    ) {
        let mut files = [array("<f4", "(2, 1)", &[0; 8]), array("|u1", "(2,)", &[0, 1])];
        let file = &mut files[which];
        changes.iter().for_each(|(at, value)| if let Some(byte) = file.get_mut(*at) { *byte = *value });
        file.truncate(cut.unwrap_or(file.len()));
        let [samples, labels] = files;
        let place = folder(&[("x_train.npy", samples), ("y_train.npy", labels)]);
        if let Ok(found) = read(place.path(), 0.5, None, None) {
            prop_assert_eq!(found.train.len() + found.evaluation.len(), 2);
        }
    }

    #[test]
    fn any_header_is_read_or_refused(text in "[{}()',: a-z0-9<>|_FalseTru]{0,80}") {
        let start = [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
        let _ = crate::npy::header::read(&mut &start[..]);
    }
}
