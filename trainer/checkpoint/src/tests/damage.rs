use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::{newest, save, state::State};
use crate::{Folder, manifest::Manifest};

const FILES: [&str; 3] = ["weights.safetensors", "optimizer.safetensors", "manifest.json"];

struct Stored {
    _root: tempfile::TempDir,
    folder: Folder,
}

impl Stored {
    /// Two checkpoints, of steps 1 and 2.
    fn two() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(root.path()).expect("opens");
        save(&folder, 1);
        save(&folder, 2);
        Self { _root: root, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.step(2).join(name)
    }
}

#[test]
fn a_flip_of_any_bit_of_any_file_is_detected() {
    let stored = Stored::two();
    let whole = FILES.map(|name| fs::read(stored.file(name)).expect("readable"));
    let total: usize = whole.iter().map(Vec::len).sum();
    proptest!(ProptestConfig::with_cases(600), |(at in 0..total, bit in 0_u32..8)| {
        let mut at = at;
        let mut which = 0;
        while at >= whole[which].len() {
            at -= whole[which].len();
            which += 1;
        }
        let mut bytes = whole[which].clone();
        bytes[at] ^= 1_u8 << bit;
        fs::write(stored.file(FILES[which]), &bytes).expect("written");
        let found = newest(&stored.folder);
        fs::write(stored.file(FILES[which]), &whole[which]).expect("restored");
        prop_assert_eq!(found, (Some(1), vec![2]), "{} byte {} bit {}", FILES[which], at, bit);
    });
    assert_eq!(newest(&stored.folder), (Some(2), vec![]), "the undamaged one is whole");
}

#[test]
fn a_file_that_the_storage_does_not_give_is_no_damage_and_no_older_checkpoint_takes_its_place() {
    let stored = Stored::two();
    for name in FILES {
        let aside = stored.file("aside");
        fs::rename(stored.file(name), &aside).expect("moved");
        // A link to itself: reading fails, whoever reads.
        std::os::unix::fs::symlink(stored.file(name), stored.file(name)).expect("linked");
        let error = stored.folder.newest(&State::at(0).identity).expect_err("not given").to_string();
        assert!(error.contains("reading") && error.contains("check the storage"), "{error}");
        fs::remove_file(stored.file(name)).expect("removed");
        fs::rename(&aside, stored.file(name)).expect("moved back");
    }
}

#[test]
fn a_file_that_is_cut_or_goes_on_is_detected() {
    let stored = Stored::two();
    for name in FILES {
        let whole = fs::read(stored.file(name)).expect("readable");
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(stored.file(name), &whole[..length]).expect("written");
            assert_eq!(newest(&stored.folder), (Some(1), vec![2]), "{name} cut to {length}");
        }
        fs::write(stored.file(name), [&whole[..], b"\n"].concat()).expect("written");
        assert_eq!(newest(&stored.folder), (Some(1), vec![2]), "{name} with a byte more");
        fs::write(stored.file(name), &whole).expect("restored");
    }
}

#[test]
fn a_missing_file_is_reported_by_name() {
    for name in FILES {
        let stored = Stored::two();
        fs::remove_file(stored.file(name)).expect("removed");
        let skipped = stored.folder.newest(&super::State::at(0).identity).expect("ours").skipped;
        assert!(skipped[0].reason.contains(name), "{skipped:?}");
    }
}

/// Replaces the manifest of step 2 by a changed one with a digest that fits.
fn forge(stored: &Stored, change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = Manifest::from_bytes(&fs::read(stored.file("manifest.json")).expect("there")).expect("whole");
    change(&mut manifest);
    fs::write(stored.file("manifest.json"), manifest.to_bytes().expect("serialises")).expect("written");
    let skipped = stored.folder.newest(&super::State::at(0).identity).expect("ours").skipped;
    skipped.into_iter().next().expect("step 2 is skipped").reason
}

#[test]
fn a_forged_manifest_reaches_no_file_outside_and_no_absurd_size() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 8] = [
        ("no plain file name", |manifest| manifest.objects[0].file = "../step-00000001/weights.safetensors".into()),
        ("no plain file name", |manifest| manifest.objects[0].file = "/etc/passwd".into()),
        ("no plain file name", |manifest| manifest.objects[0].file = "manifest.json".into()),
        ("at most", |manifest| manifest.objects[0].bytes = u64::MAX),
        ("says", |manifest| manifest.tensors[0].shape = vec![usize::MAX, usize::MAX]),
        ("elements", |manifest| manifest.objects[0].parts[0].end = usize::MAX),
        ("missing", |manifest| manifest.tensors[0].name = "fc.weight".into()),
        ("of step 9", |manifest| manifest.position.step = 9),
    ];
    for (expected, change) in cases {
        let reason = forge(&Stored::two(), change);
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn a_field_of_a_later_minor_version_is_passed_over() {
    let stored = Stored::two();
    let manifest = Manifest::from_bytes(&fs::read(stored.file("manifest.json")).expect("there")).expect("whole");
    let text = String::from_utf8(manifest.to_bytes().expect("serialises")).expect("JSON");
    let body = text.split(",\n  \"digest\"").next().expect("a body").replacen('{', "{\n  \"later\": [1],", 1);
    let digest = blake3::hash(body.as_bytes()).to_hex();
    fs::write(stored.file("manifest.json"), format!("{body},\n  \"digest\": \"{digest}\"\n}}\n")).expect("written");
    assert_eq!(newest(&stored.folder), (Some(2), vec![]));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_manifest(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::from_bytes(&bytes).is_err());
    }
}
