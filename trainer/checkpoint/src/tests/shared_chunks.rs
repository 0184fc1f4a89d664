use std::{fs, os::unix::fs::MetadataExt};

use super::{
    checkpoint_path, newest, number, open,
    state::{SampleState, load},
};
use crate::{Folder, Saved, file_operation::FileOperation};

/// Saves the state of step 1 as that of `step`, with one slot's value replaced by `slot`.
fn save_with_slot(folder: &Folder, step: u64, slot: f32) -> (Saved, u64) {
    let mut state = SampleState::at(1);
    state.position.step = step;
    state.tensors[3].values = vec![slot];
    let receipts: Vec<_> = (0..2).map(|writer| state.write(folder, writer, number(2)).expect("written")).collect();
    let saved = folder.commit(&state.facts(), &state.layout(), &receipts).expect("saved");
    let loaded = load(folder, &state.identity).expect("ours").checkpoint.expect("whole");
    assert_eq!(loaded.position.step, step);
    assert!(state.is(&loaded), "{loaded:?}");
    (saved, receipts.iter().map(|receipt| receipt.unchanged_bytes).sum())
}

/// Returns the number of names of each chunk of `step`.
fn names(folder: &Folder, step: u64) -> Vec<u64> {
    let files = fs::read_dir(checkpoint_path(folder, step)).expect("a folder").map(|file| file.expect("readable"));
    let chunks = files.filter(|file| file.file_name().to_string_lossy().ends_with(".chunk"));
    let mut names: Vec<_> = chunks.map(|file| file.metadata().expect("readable").nlink()).collect();
    names.sort_unstable();
    names
}

#[test]
fn an_unchanged_chunk_is_not_written_again() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let bytes = SampleState::at(1).layout().bytes();
    assert_eq!(save_with_slot(&folder, 1, 0.5).1, 0);
    assert_eq!(save_with_slot(&folder, 2, 0.5).1, bytes);
    let (_, unchanged) = save_with_slot(&folder, 3, 0.25);
    assert!((1..=16).contains(&(bytes - unchanged)), "one chunk is written: {unchanged} of {bytes} were not");
    let mut shared = names(&folder, 3);
    assert_eq!(shared.remove(0), 1, "the new chunk is its own");
    assert!(shared.iter().all(|names| *names == 3), "{shared:?}");
}

#[test]
fn a_shared_chunk_outlives_the_checkpoint_that_wrote_it() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    for step in 1..=4 {
        save_with_slot(&folder, step, if step < 3 { 0.5 } else { 0.25 });
        let pruned = folder.prune(number(1), &SampleState::at(1).identity).expect("pruned");
        assert_eq!(pruned.steps, if step == 1 { vec![] } else { vec![step - 1] });
    }
    let loaded = load(&folder, &SampleState::at(1).identity).expect("ours").checkpoint.expect("whole");
    assert_eq!(loaded.position.step, 4);
    assert!(names(&folder, 4).iter().all(|names| *names == 1), "nothing else is left");
}

#[test]
fn a_damaged_chunk_is_written_again_and_not_referred_to() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    save_with_slot(&folder, 1, 0.5);
    let chunk = fs::read_dir(checkpoint_path(&folder, 1)).expect("a folder").map(|file| file.expect("readable").path());
    let chunk = chunk.into_iter().find(|path| path.extension().is_some_and(|end| end == "chunk")).expect("a chunk");
    let mut bytes = fs::read(&chunk).expect("readable");
    bytes[0] ^= 1;
    fs::write(&chunk, bytes).expect("written");
    let (_, unchanged) = save_with_slot(&folder, 2, 0.5);
    assert!(unchanged < SampleState::at(1).layout().bytes());
    let newest = load(&folder, &SampleState::at(1).identity).expect("ours");
    assert_eq!((newest.checkpoint.expect("whole").position.step, newest.skipped.len()), (2, 0));
}

#[test]
fn damage_to_a_shared_chunk_is_found_in_both_checkpoints() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    super::save(&folder, 0);
    save_with_slot(&folder, 1, 0.5);
    save_with_slot(&folder, 2, 0.5);
    let shared =
        fs::read_dir(checkpoint_path(&folder, 2)).expect("a folder").map(|file| file.expect("readable").path());
    let shared = shared.into_iter().find(|path| path.extension().is_some_and(|end| end == "chunk")).expect("a chunk");
    let mut bytes = fs::read(&shared).expect("readable");
    bytes[1] ^= 0x40;
    fs::write(&shared, bytes).expect("written");
    assert_eq!(newest(&folder), (Some(0), vec![2, 1]));
}

#[test]
fn an_unchanged_chunk_is_written_again_if_files_cannot_have_two_names() {
    #[derive(Debug)]
    struct WithoutLinks;
    impl crate::file_operation::Perform for WithoutLinks {
        fn perform(&self, operation: &FileOperation<'_>) -> Result<(), crate::CheckpointError> {
            match operation {
                FileOperation::Link(_, to) => {
                    let refused = std::io::Error::from(std::io::ErrorKind::Unsupported);
                    Err(crate::CheckpointError::of("linking", to.clone(), refused))
                }
                other => crate::file_operation::FileSystem.perform(other),
            }
        }
    }
    let root = tempfile::tempdir().expect("a folder");
    let folder = super::open_performed_by(std::sync::Arc::new(WithoutLinks), root.path());
    save_with_slot(&folder, 1, 0.5);
    assert_eq!(save_with_slot(&folder, 2, 0.5).1, 0);
    assert!(names(&folder, 2).iter().all(|names| *names == 1));
}
