use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    checkpoint_path, leftovers, newest, number, open, open_performed_by, save, save_in_parts, staging,
    state::{SampleState, load},
    steps,
};
use crate::{
    CheckpointError, Destination, Folder, Layout, LoadRefusal, PartReceipt, Tensor, TrainingIdentity, export_model,
    file_operation::{FileOperation, FileSystem, PathKind, Perform},
    manifest::Manifest,
};

fn error_of<T>(result: Result<T, CheckpointError>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn a_foreign_checkpoint_is_refused_with_both_values_and_untouched() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 4);
    let ours = SampleState::at(4).identity;
    let cases = [
        TrainingIdentity { model: "mlp-2e".into(), ..ours.clone() },
        TrainingIdentity { workload_digest: "cd34".into(), ..ours.clone() },
    ];
    for (theirs, (found, expected)) in cases.iter().zip([("lenet5-1f", "mlp-2e"), ("ab12", "cd34")]) {
        let mut state = SampleState::at(4);
        state.identity = theirs.clone();
        let refusals = [
            error_of(load(&folder, theirs)),
            error_of(folder.prune(number(1), theirs)),
            error_of(state.with_snapshot(|snapshot| folder.save(snapshot))),
            error_of(
                state
                    .write(&folder, 0, number(1))
                    .and_then(|receipt| folder.commit(&state.facts(), &state.layout(), &[receipt])),
            ),
        ];
        for text in refusals {
            assert!(text.contains(&format!("`{found}`")) && text.contains(&format!("`{expected}`")), "{text}");
            assert!(text.contains("step-00000004") && text.contains("nothing was overwritten"), "{text}");
        }
    }
    assert_eq!(newest(&folder), (Some(4), vec![]));
}

/// A model with other tensors than the checkpoint, or without memory for them.
struct Refusing(LoadRefusal);

impl Destination for Refusing {
    fn buffers(&mut self, _: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        Err(self.0.clone())
    }
}

#[test]
fn a_whole_checkpoint_that_does_not_fit_is_named_and_no_older_one_is_loaded() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 4);
    save(&folder, 5);
    let identity = SampleState::at(5).identity;
    let refusal = |why| error_of(folder.newest(&identity, &mut Refusing(why)));
    let misfit = refusal(LoadRefusal::Misfit("tensor fc9.bias is missing".into()));
    assert!(misfit.contains("step-00000005 does not fit the model: tensor fc9.bias is missing"), "{misfit}");
    let lacking = refusal(LoadRefusal::Memory("tensor fc1.weight cannot be held".into()));
    assert!(lacking.contains("step-00000005: tensor fc1.weight cannot be held: not enough memory"), "{lacking}");
    assert_eq!(newest(&folder), (Some(5), vec![]));
}

#[test]
fn another_jobs_older_checkpoint_survives_pruning() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut other = SampleState::at(1);
    other.identity.workload_digest = "cd34".into();
    other.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    save(&folder, 2);
    save(&folder, 3);
    let pruned = folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, steps(&folder)), (vec![2], vec![3, 1]));
}

/// A file system that refuses to look at this path and below it.
#[derive(Debug)]
struct Blind(PathBuf);

impl Perform for Blind {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        FileSystem.perform(operation)
    }

    fn look(&self, path: &Path) -> io::Result<PathKind> {
        match path.starts_with(&self.0) {
            true => Err(io::Error::other("input/output error")),
            false => FileSystem.look(path),
        }
    }

    fn read(&self, path: &Path, most: u64, act: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        match path.starts_with(&self.0) {
            true => Err(io::Error::other("input/output error")),
            false => FileSystem.read(path, most, act),
        }
    }
}

#[test]
fn an_unreadable_checkpoint_counts_neither_as_absent_nor_as_damaged() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 1);
    save(&folder, 2);
    let unseen = checkpoint_path(&folder, 2);
    let blind = open_performed_by(Arc::new(Blind(unseen.clone())), root.path());
    let state = SampleState::at(2);
    let refusals = [
        error_of(load(&blind, &state.identity)),
        error_of(blind.prune(number(1), &state.identity)),
        error_of(state.with_snapshot(|snapshot| blind.save(snapshot))),
    ];
    for text in refusals {
        let named = text.starts_with(&format!("reading {}", unseen.display()));
        assert!(named && text.contains("input/output error"), "{text}");
    }
    let listed = blind.list().expect("the others are there");
    let readable: Vec<_> = listed.iter().map(|listed| (listed.step, listed.described.is_ok())).collect();
    assert_eq!(readable, [(2, false), (1, true)]);
    let reason = listed[0].described.as_ref().expect_err("not read");
    assert!(reason.contains("input/output error"), "{reason}");
    assert_eq!((newest(&folder), steps(&folder)), ((Some(2), vec![]), vec![2, 1]));
}

#[test]
fn an_unreadable_old_checkpoint_stops_neither_load_nor_save() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=2).for_each(|step| save(&folder, step));
    let blind = open_performed_by(Arc::new(Blind(checkpoint_path(&folder, 1))), root.path());
    assert_eq!(newest(&blind), (Some(2), vec![]));
    save(&blind, 3);
    assert_eq!(newest(&blind), (Some(3), vec![]));
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 1);
    let path = checkpoint_path(&folder, 1).join("manifest.json");
    let mut manifest = Manifest::from_bytes(&fs::read(&path).expect("there")).expect("whole");
    (manifest.format_version, manifest.readable_from) = (3, 3);
    let bytes = manifest.to_bytes().expect("serialises");
    fs::write(&path, &bytes).expect("written");
    let text = error_of(load(&folder, &SampleState::at(0).identity));
    assert!(text.contains("format version 3") && text.contains("it reads version 2"), "{text}");
    let text = error_of(SampleState::at(1).with_snapshot(|snapshot| folder.save(snapshot)));
    assert!(text.contains("format version 3"), "{text}");
    let text = error_of(save_in_parts(&folder, 1, 2));
    assert!(text.contains("format version 3"), "{text}");
    assert_eq!(fs::read(&path).expect("there"), bytes);
}

#[test]
fn a_checkpoint_of_format_1_is_refused_by_its_version() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 1);
    let path = checkpoint_path(&folder, 1).join("manifest.json");
    // Version 1 stored whole tensors and did not say which programs read it.
    let body = "{\n  \"format_version\": 1,\n  \"objects\": []";
    let digest = blake3::hash(body.as_bytes()).to_hex();
    fs::write(&path, format!("{body},\n  \"digest\": \"{digest}\"\n}}\n")).expect("written");
    let text = error_of(load(&folder, &SampleState::at(0).identity));
    assert!(text.contains("format version 1, which this program does not know"), "{text}");
    let text = error_of(SampleState::at(1).with_snapshot(|snapshot| folder.save(snapshot)));
    assert!(text.contains("format version 1"), "{text}");
}

#[test]
fn a_newer_format_readable_from_this_version_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 1);
    let path = checkpoint_path(&folder, 1).join("manifest.json");
    let mut manifest = Manifest::from_bytes(&fs::read(&path).expect("there")).expect("whole");
    (manifest.format_version, manifest.readable_from) = (3, 2);
    fs::write(&path, manifest.to_bytes().expect("serialises")).expect("written");
    assert_eq!(newest(&folder), (Some(1), vec![]));
}

#[test]
fn a_path_below_a_file_is_no_folder() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("file");
    fs::write(&file, "").expect("written");
    for path in [file.clone(), file.join("below"), file.join("far/below")] {
        let error = Folder::open(&path).expect_err("no folder");
        assert!(matches!(error, CheckpointError::NotAFolder { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().expect("UTF-8")) && text.contains("spec.checkpoint.uri"), "{text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_where_no_folder_can_be_made_is_unwritable() {
    let text = error_of(Folder::open("/proc/lockstep"));
    assert!(text.contains("/proc/lockstep cannot be written") && text.contains("spec.checkpoint.uri"), "{text}");
}

#[test]
fn a_folder_that_became_unwritable_is_still_read() {
    let root = tempfile::tempdir().expect("a folder");
    save(&open(root.path()), 1);
    let probes = root.path().join("probes");
    fs::remove_dir_all(&probes).expect("made when it was opened");
    // Nothing can be created there.
    symlink("/proc", &probes).expect("a link");
    let again = Folder::open(root.path()).expect("opens");
    assert_eq!(newest(&again), (Some(1), vec![]));

    fs::remove_dir_all(root.path().join("checkpoints")).expect("there");
    assert!(matches!(Folder::open(root.path()), Err(CheckpointError::Unwritable { .. })), "it was never written");
}

#[test]
fn each_refusal_of_the_storage_names_its_remedy() {
    use std::io::{Error, ErrorKind};
    let cases = [
        (ErrorKind::ReadOnlyFilesystem, "read-only file system; mount it writable"),
        (ErrorKind::PermissionDenied, "let the user of this process write there"),
        (ErrorKind::StorageFull, "no space left; free some"),
        (ErrorKind::NotADirectory, "is no folder"),
        (ErrorKind::Other, "check the storage"),
    ];
    for (kind, advice) in cases {
        let text = CheckpointError::of("writing", "/c".into(), Error::from(kind)).to_string();
        assert!(text.contains(advice) && text.contains("/c"), "{text}");
    }
}

#[test]
fn tensors_with_the_same_name_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("model.safetensors");
    let tensor = Tensor { name: "a", shape: &[1], values: &[1.0] };
    let text = error_of(export_model(&path, &[tensor, tensor], &Default::default()));
    assert!(text.contains("two tensors are named a"), "{text}");
    let reserved = Tensor { name: "__metadata__", ..tensor };
    let text = error_of(export_model(&path, &[reserved], &Default::default()));
    assert!(text.contains("reserved"), "{text}");
    let folder = open(root.path());
    let state = SampleState::at(1);
    let text = error_of(state.with_snapshot(|snapshot| {
        let slots = snapshot.weights;
        folder.save(&crate::Snapshot { slots, ..*snapshot })
    }));
    assert!(text.contains("a weight and a slot are named conv1.weight"), "{text}");
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn a_token_that_is_no_plain_name_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    for token in ["", ".", "..", "../x", "a/b", ".hidden", "a b", &"x".repeat(129)] {
        let text = error_of(folder.probe_write(token));
        assert!(text.contains("is no plain name"), "{text}");
    }
}

#[test]
fn a_missing_or_wrong_part_is_named_and_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 1);
    let state = SampleState::at(2);
    let receipts: Vec<_> = (0..4).map(|writer| state.write(&folder, writer, number(4)).expect("written")).collect();
    let commit = |receipts: &[PartReceipt]| error_of(folder.commit(&state.facts(), &state.layout(), receipts));
    let missing = |which: usize| {
        let mut rest = receipts.clone();
        let PartReceipt { range, .. } = rest.remove(which);
        (commit(&rest), format!("the part of bytes {} to {} is missing", range.start, range.end))
    };
    for which in 0..4 {
        let (text, expected) = missing(which);
        assert!(text.contains(&expected) && text.contains("step-00000002.g1"), "{text} lacks {expected}");
    }
    type Change = fn(&mut PartReceipt);
    let changed = |change: Change| {
        let mut receipts = receipts.clone();
        change(&mut receipts[2]);
        commit(&receipts)
    };
    let cases: [(&str, Change); 6] = [
        ("a part is of step 3 and generation 1", |receipt| receipt.step = 3),
        ("a part is of step 2 and generation 0", |receipt| receipt.generation = 0),
        ("are in two parts", |receipt| receipt.range.start -= 4),
        ("is missing", |receipt| receipt.range.start += 4),
        ("has chunks of", |receipt| receipt.chunks.truncate(1)),
        ("is not here, although its writer wrote it", |receipt| {
            receipt.chunks[0].digest = "00000000000000000000000000000000".parse().expect("a digest");
        }),
    ];
    for (expected, change) in cases {
        let text = changed(change);
        assert!(text.contains(expected), "{text} lacks {expected}");
    }
    let file = staging(&folder, 2, 1).join(receipts[3].chunks[0].file());
    fs::write(&file, "short").expect("written");
    let text = commit(&receipts);
    assert!(text.contains("has 5 bytes, its writer wrote"), "{text}");
    fs::remove_file(&file).expect("removed");
    let text = commit(&receipts);
    assert!(text.contains("is not here"), "{text}");
    assert_eq!(newest(&folder), (Some(1), vec![]), "the parts are not taken for a checkpoint");

    let receipt = state.write(&folder, 3, number(4)).expect("written again");
    assert_eq!(receipt.chunks, receipts[3].chunks);
    let twice = [&receipts[..], &[receipt]].concat();
    folder.commit(&state.facts(), &state.layout(), &twice).expect("whole, although one receipt came twice");
    assert_eq!(newest(&folder), (Some(2), vec![]));
}

#[test]
fn a_state_of_an_older_generation_is_replaced_and_a_newer_one_stays() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save(&folder, 2);
    let mut other = SampleState::at(2);
    other.digest = "another".into();
    for (generation, expected) in [(1, "digest-2"), (3, "another"), (2, "another")] {
        other.position.generation = generation;
        other.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
        let found = load(&folder, &other.identity).expect("ours").checkpoint.expect("whole").checkpoint.state_digest;
        assert_eq!(found, expected, "after generation {generation}");
        assert_eq!(leftovers(&folder).iter().filter(|left| left.staged.is_some()).count(), 0);
    }
}

#[test]
fn looking_makes_no_folder_of_checkpoints() {
    let root = tempfile::tempdir().expect("a folder");
    let text = error_of(Folder::open_existing(root.path()));
    assert!(text.contains("is no folder of checkpoints"), "{text}");
    assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
}
