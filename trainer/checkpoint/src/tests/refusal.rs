use std::fs;

use super::{keep, newest, save, state::State};
use crate::{CheckpointError, Folder, Identity, Tensor, export_model, manifest::Manifest};

fn error_of<T>(result: Result<T, CheckpointError>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn a_foreign_checkpoint_is_refused_with_both_values_and_left_alone() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    save(&folder, 4);
    let ours = State::at(4).identity;
    let cases = [
        Identity { model: "mlp-2e".into(), ..ours.clone() },
        Identity { workload_digest: "cd34".into(), ..ours.clone() },
    ];
    for (theirs, (found, expected)) in cases.iter().zip([("lenet5-1f", "mlp-2e"), ("ab12", "cd34")]) {
        let mut state = State::at(4);
        state.identity = theirs.clone();
        let refusals = [
            error_of(folder.newest(theirs)),
            error_of(folder.prune(keep(1), theirs)),
            error_of(state.with_snapshot(|snapshot| folder.save(snapshot))),
        ];
        for text in refusals {
            assert!(text.contains(&format!("`{found}`")) && text.contains(&format!("`{expected}`")), "{text}");
            assert!(text.contains("step-00000004") && text.contains("nothing was overwritten"), "{text}");
        }
    }
    assert_eq!(newest(&folder), (Some(4), vec![]));
}

#[test]
fn another_jobs_older_checkpoint_survives_pruning() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    let mut other = State::at(1);
    other.identity.workload_digest = "cd34".into();
    other.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    save(&folder, 2);
    save(&folder, 3);
    let pruned = folder.prune(keep(1), &State::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, folder.steps().expect("listed")), (vec![2], vec![3, 1]));
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    save(&folder, 1);
    let path = folder.step(1).join("manifest.json");
    let mut manifest = Manifest::from_bytes(&fs::read(&path).expect("there")).expect("whole");
    manifest.format_version = 2;
    let bytes = manifest.to_bytes().expect("serialises");
    fs::write(&path, &bytes).expect("written");
    let text = error_of(folder.newest(&State::at(0).identity));
    assert!(text.contains("format version 2") && text.contains("up to 1"), "{text}");
    let text = error_of(State::at(1).with_snapshot(|snapshot| folder.save(snapshot)));
    assert!(text.contains("format version 2"), "{text}");
    assert_eq!(fs::read(&path).expect("there"), bytes);
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
fn a_place_that_takes_no_folder_is_unwritable() {
    let text = error_of(Folder::open("/proc/lockstep"));
    assert!(text.contains("/proc/lockstep cannot be written") && text.contains("spec.checkpoint.uri"), "{text}");
}

#[test]
fn each_way_that_storage_refuses_has_its_own_advice() {
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
fn tensors_of_one_name_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("model.safetensors");
    let tensor = Tensor { name: "a", shape: &[1], values: &[1.0] };
    let text = error_of(export_model(&path, &[tensor, tensor], &Default::default()));
    assert!(text.contains("two are named a"), "{text}");
    let reserved = Tensor { name: "__metadata__", ..tensor };
    let text = error_of(export_model(&path, &[reserved], &Default::default()));
    assert!(text.contains("reserved"), "{text}");
    let folder = Folder::open(root.path()).expect("opens");
    let state = State::at(1);
    let text = error_of(state.with_snapshot(|snapshot| {
        let slots = snapshot.weights;
        folder.save(&crate::Snapshot { slots, ..*snapshot })
    }));
    assert!(text.contains("a weight and a slot are named conv1.weight"), "{text}");
    assert_eq!(folder.leftovers().expect("listed").len(), 0);
}

#[test]
fn a_token_that_leads_elsewhere_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    for token in ["", ".", "..", "../x", "a/b", ".hidden", "a b", &"x".repeat(129)] {
        let text = error_of(folder.probe_write(token));
        assert!(text.contains("is no plain name"), "{text}");
    }
}
