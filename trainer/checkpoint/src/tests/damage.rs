use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use proptest::prelude::*;

use super::{
    CHUNK_BYTES, checkpoint_path, newest, number, open, save, staging,
    state::{SampleState, load},
};
use crate::{
    CheckpointPart, Destination, Folder, Layout, LoadRefusal, Tensors, format::MANIFEST, manifest::Manifest, note::Note,
};

/// The number of bits that are flipped, one after another.
const FLIPS: usize = 10_000;

struct Pair {
    _root: tempfile::TempDir,
    folder: Folder,
}

impl Pair {
    /// Saves two checkpoints, of steps 1 and 2.
    fn saved() -> Self {
        Self::with_chunks_of(CHUNK_BYTES)
    }

    fn with_chunks_of(bytes: u64) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let mut folder = open(root.path());
        folder.chunk_bytes = bytes;
        save(&folder, 1);
        save(&folder, 2);
        Self { _root: root, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        checkpoint_path(&self.folder, 2).join(name)
    }

    fn manifest(&self) -> Manifest {
        Manifest::from_bytes(&fs::read(self.file(MANIFEST)).expect("there")).expect("whole")
    }

    /// Returns the names of the files of step 2.
    fn files(&self) -> Vec<String> {
        let listed = fs::read_dir(checkpoint_path(&self.folder, 2)).expect("a folder");
        let mut files: Vec<_> =
            listed.map(|file| file.expect("readable").file_name().into_string().expect("UTF-8")).collect();
        files.sort();
        files
    }
}

#[test]
fn a_flip_of_any_bit_of_any_file_is_detected() {
    let stored = Pair::with_chunks_of(48);
    let files = stored.files();
    let whole: Vec<_> = files.iter().map(|name| fs::read(stored.file(name)).expect("readable")).collect();
    let bits = whole.iter().map(Vec::len).sum::<usize>() * 8;
    // The step shares no factor with the number of bits. It visits every bit before it repeats one.
    let stride = (bits / 2 + 1..).find(|stride| gcd(*stride, bits) == 1).expect("a greater prime exists");
    let mut detected = 0;
    for flip in 0..FLIPS {
        let mut at = flip * stride % bits;
        let which = whole.iter().position(|bytes| {
            let here = at < bytes.len() * 8;
            at -= if here { 0 } else { bytes.len() * 8 };
            here
        });
        let which = which.expect("a file");
        let file = OpenOptions::new().write(true).open(stored.file(&files[which])).expect("opened");
        let byte = whole[which][at / 8];
        file.write_all_at(&[byte ^ 1 << (at % 8)], at as u64 / 8).expect("flipped");
        assert_eq!(newest(&stored.folder), (Some(1), vec![2]), "{} bit {at}", files[which]);
        file.write_all_at(&[byte], at as u64 / 8).expect("restored");
        detected += 1;
    }
    assert_eq!(newest(&stored.folder), (Some(2), vec![]), "the undamaged one is whole");
    println!("{detected} of {FLIPS} flipped bits detected, in {} files of {bits} bits", files.len());
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn an_unreadable_file_is_an_error_and_no_older_checkpoint_is_loaded() {
    let stored = Pair::saved();
    for name in stored.files() {
        let aside = stored.file("aside");
        fs::rename(stored.file(&name), &aside).expect("moved");
        // A link to itself fails for every reader, whatever its rights.
        std::os::unix::fs::symlink(stored.file(&name), stored.file(&name)).expect("linked");
        let error = load(&stored.folder, &SampleState::at(0).identity).expect_err("not given").to_string();
        assert!(error.contains("reading") && error.contains("check the storage"), "{error}");
        fs::remove_file(stored.file(&name)).expect("removed");
        fs::rename(&aside, stored.file(&name)).expect("moved back");
    }
}

#[test]
fn a_file_that_is_cut_or_too_long_is_detected() {
    let stored = Pair::saved();
    for name in stored.files() {
        let whole = fs::read(stored.file(&name)).expect("readable");
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(stored.file(&name), &whole[..length]).expect("written");
            assert_eq!(newest(&stored.folder), (Some(1), vec![2]), "{name} cut to {length}");
        }
        fs::write(stored.file(&name), [&whole[..], b"\n"].concat()).expect("written");
        assert_eq!(newest(&stored.folder), (Some(1), vec![2]), "{name} with a byte more");
        fs::write(stored.file(&name), &whole).expect("restored");
    }
}

#[test]
fn the_first_damaged_chunk_is_reported_in_any_order_of_reading() {
    let stored = Pair::saved();
    let chunks = stored.manifest().chunks;
    for chunk in &chunks[1..] {
        fs::write(stored.file(&chunk.file()), vec![0; chunk.bytes as usize]).expect("damaged");
    }
    for _ in 0..100 {
        let skipped = load(&stored.folder, &SampleState::at(0).identity).expect("ours").skipped;
        assert!(skipped[0].reason.contains(&chunks[1].file()), "{skipped:?}");
    }
}

/// A destination that finds another state in its memory than the digest says.
struct Suspicious {
    memory: Tensors,
    digest: String,
}

impl Destination for Suspicious {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        self.memory.buffers(layout)
    }

    fn accept(&mut self, state_digest: &str) -> Result<(), String> {
        if state_digest == self.digest { Err("the state is another one".to_owned()) } else { Ok(()) }
    }
}

#[test]
fn a_state_that_the_destination_rejects_counts_as_damaged() {
    let stored = Pair::saved();
    let mut suspicious = Suspicious { memory: Tensors::default(), digest: SampleState::at(2).digest };
    let newest = stored.folder.newest(&SampleState::at(0).identity, &mut suspicious).expect("ours");
    assert_eq!(newest.checkpoint.map(|found| found.position.step), Some(1));
    assert_eq!(newest.skipped.iter().map(|skipped| &*skipped.reason).collect::<Vec<_>>(), ["the state is another one"]);
    assert_eq!(suspicious.memory.weights[0].values, SampleState::at(1).tensors[0].values);
}

/// One memory for all checkpoints that are tried.
struct Model(Vec<Vec<f32>>);

impl Destination for Model {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        let lengths: Vec<usize> = layout.tensors().map(|(_, shape)| shape.iter().product()).collect();
        assert_eq!(self.0.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        Ok(self.0.iter_mut().map(Vec::as_mut_slice).collect())
    }
}

#[test]
fn a_damaged_checkpoint_leaves_no_value_in_the_models_memory() {
    let stored = Pair::with_chunks_of(8);
    let chunks = stored.manifest().chunks;
    let last = chunks.last().expect("at least one chunk");
    fs::write(stored.file(&last.file()), vec![0; last.bytes as usize]).expect("damaged");
    let lengths = SampleState::at(1).tensors.each_ref().map(|tensor| tensor.values.len());
    let mut model = Model(lengths.map(|length| vec![f32::NAN; length]).into());
    let newest = stored.folder.newest(&SampleState::at(0).identity, &mut model).expect("ours");
    assert_eq!(newest.checkpoint.map(|found| found.position.step), Some(1));
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let expected = SampleState::at(1).tensors.map(|tensor| bits(&tensor.values));
    assert_eq!(model.0.iter().map(|values| bits(values)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_missing_file_is_named() {
    for name in Pair::saved().files() {
        let stored = Pair::saved();
        fs::remove_file(stored.file(&name)).expect("removed");
        let skipped = load(&stored.folder, &super::SampleState::at(0).identity).expect("ours").skipped;
        assert!(skipped[0].reason.contains(&name), "{skipped:?}");
    }
}

/// Changes the manifest of step 2 and gives it a matching digest. Returns the reason why it is
/// skipped.
fn forge(stored: &Pair, change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = stored.manifest();
    change(&mut manifest);
    fs::write(stored.file("manifest.json"), manifest.to_bytes().expect("serialises")).expect("written");
    let skipped = load(&stored.folder, &super::SampleState::at(0).identity).expect("ours").skipped;
    skipped.into_iter().next().expect("step 2 is skipped").reason
}

#[test]
fn a_forged_manifest_is_refused_for_absurd_sizes_and_other_files() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 10] = [
        ("a weight follows a slot", |manifest| manifest.tensors.reverse()),
        ("where byte 0 is next", |manifest| manifest.chunks[0].start = 4),
        ("where byte 16 is next", |manifest| {
            manifest.chunks.remove(1);
        }),
        ("for tensors of", |manifest| manifest.chunks.truncate(1)),
        ("a chunk of 18446744073709551612 bytes", |manifest| manifest.chunks[0].bytes = u64::MAX - 3),
        ("a chunk of 0 bytes", |manifest| manifest.chunks[0].bytes = 0),
        ("too large to store", |manifest| manifest.tensors[0].shape = vec![usize::MAX, usize::MAX]),
        ("a weight and a slot are named", |manifest| manifest.tensors[0].name = "momentum.conv1.bias".into()),
        ("cannot be read", |manifest| manifest.chunks[0].digest = "0".repeat(32).parse().expect("a digest")),
        ("of step 9", |manifest| manifest.position.step = 9),
    ];
    for (expected, change) in cases {
        let reason = forge(&Pair::saved(), change);
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn an_unknown_field_is_ignored() {
    let stored = Pair::saved();
    let manifest = stored.manifest();
    let text = String::from_utf8(manifest.to_bytes().expect("serialises")).expect("JSON");
    let body = text.split(",\n  \"digest\"").next().expect("a body").replacen('{', "{\n  \"later\": [1],", 1);
    let digest = blake3::hash(body.as_bytes()).to_hex();
    fs::write(stored.file("manifest.json"), format!("{body},\n  \"digest\": \"{digest}\"\n}}\n")).expect("written");
    assert_eq!(newest(&stored.folder), (Some(2), vec![]));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_as_a_manifest(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::from_bytes(&bytes).is_err());
    }
}

#[test]
fn a_flip_of_any_bit_of_a_note_is_detected() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let state = SampleState::at(1);
    let receipt = state.write(&folder, 0, number(1)).expect("written");
    let part =
        CheckpointPart { position: state.position, layout: Arc::new(state.layout()), writer: 0, writers: number(1) };
    folder.leave_note(&part, &Note { receipt: receipt.clone(), digest: "of its values".into() }).expect("stored");
    let notes = || folder.notes(state.position, number(1), &AtomicBool::new(true));
    assert_eq!(notes().expect("whole")[0].receipt, receipt);
    let path = staging(&folder, 1, 1).join("part-0-of-1.json");
    let whole = fs::read(&path).expect("readable");
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    for bit in 0..whole.len() * 8 {
        file.write_all_at(&[whole[bit / 8] ^ 1 << (bit % 8)], bit as u64 / 8).expect("flipped");
        let text = notes().expect_err("detected").to_string();
        assert!(text.contains("part-0-of-1.json") && text.contains("does not have the digest"), "bit {bit}: {text}");
        file.write_all_at(&whole[bit / 8..=bit / 8], bit as u64 / 8).expect("restored");
    }
}
