mod abandoned_steps;
mod best;
mod crash;
mod damage;
mod kill;
mod object_backend;
mod refusal;
mod reshard;
mod shared_chunks;
mod simulation;
mod snapshotter;
mod state;

use std::{
    collections::BTreeMap,
    fs, io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use self::state::{SampleState, load};
use crate::{
    CheckpointError, Folder, PartReceipt, Position, Saved, Snapshot, Tensor, Tensors,
    checkpoint_id::{CheckpointId, Leftover},
    export_model,
    file_backend::FileBackend,
    file_operation::{BLOCK_BYTES, FileOperation, FileSystem, Perform},
};

/// The length of a chunk in most of these tests. A small state then has many chunks.
const CHUNK_BYTES: u64 = 16;

fn open(path: &Path) -> Folder {
    open_performed_by(Arc::new(FileSystem), path)
}

fn open_performed_by(performer: Arc<dyn Perform>, path: &Path) -> Folder {
    Folder::open(path).expect("opens");
    let mut folder = Folder::on(Arc::new(FileBackend::performed_by(performer, path.to_owned())));
    folder.chunk_bytes = CHUNK_BYTES;
    folder
}

/// Returns the path of a step's checkpoint.
fn checkpoint_path(folder: &Folder, step: u64) -> PathBuf {
    folder.path_of(CheckpointId { step, generation: None })
}

/// Returns the path of an unfinished save.
fn staging(folder: &Folder, step: u64, generation: u64) -> PathBuf {
    folder.backend.staging(Position { step, generation, ..Position::default() })
}

/// Returns the steps that have a checkpoint, whole or damaged.
fn steps(folder: &Folder) -> Vec<u64> {
    folder.backend.ids().expect("listed").into_iter().map(|id| id.step).collect()
}

fn leftovers(folder: &Folder) -> Vec<Leftover> {
    folder.backend.leftovers().expect("listed")
}

fn number(of: u32) -> NonZeroU32 {
    NonZeroU32::new(of).expect("not zero")
}

fn save(folder: &Folder, step: u64) {
    SampleState::at(step).with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
}

/// Saves in `writers` parts. Their receipts travel as JSON.
fn save_in_parts(folder: &Folder, step: u64, writers: u32) -> Result<Saved, CheckpointError> {
    let state = SampleState::at(step);
    let receipts = (0..writers).map(|writer| {
        let receipt = state.write(folder, writer, number(writers))?;
        let sent = serde_json::to_vec(&receipt).expect("JSON");
        Ok(serde_json::from_slice::<PartReceipt>(&sent).expect("JSON"))
    });
    let receipts = receipts.collect::<Result<Vec<_>, CheckpointError>>()?;
    folder.commit(&state.facts(), &state.layout(), &receipts)
}

/// Returns the step of the newest checkpoint and the skipped steps. Checks that the checkpoint
/// holds the state of its step.
fn newest(folder: &Folder) -> (Option<u64>, Vec<u64>) {
    let newest = load(folder, &SampleState::at(0).identity).expect("not foreign");
    let step = newest.checkpoint.map(|checkpoint| {
        let step = checkpoint.position.step;
        assert!(SampleState::at(step).is(&checkpoint), "{checkpoint:?}");
        step
    });
    (step, newest.skipped.iter().map(|skipped| skipped.step).collect())
}

#[test]
fn a_saved_state_loads_bit_for_bit() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    assert_eq!(newest(&folder), (None, vec![]));
    let state = SampleState::at(120);
    let saved = state.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let loaded = load(&folder, &state.identity).expect("ours").checkpoint.expect("whole");
    assert!(state.is(&loaded), "{loaded:?}");
    assert_eq!(loaded.saved(), saved);
    assert_eq!(saved.path, root.path().join("checkpoints/step-00000120"));
    let stored = fs::read_dir(&saved.path).expect("a folder").map(|file| file.expect("a file").metadata());
    assert_eq!(saved.bytes, stored.map(|file| file.expect("readable").len()).sum::<u64>());
}

#[test]
fn tensors_load_bit_for_bit_wherever_they_lie_in_a_block() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    let state = SampleState::at(1);
    let block = BLOCK_BYTES / size_of::<f32>();
    let tensors = [0, block - 1, 1, 3 * block + 5, 7].map(|length| (0..length).map(|value| value as f32).collect());
    let tensors: [Vec<f32>; 5] = tensors;
    let names = ["a", "b", "c", "d", "e"];
    let shapes = tensors.each_ref().map(|values| [values.len()]);
    let borrowed: Vec<_> =
        (0..5).map(|tensor| Tensor { name: names[tensor], shape: &shapes[tensor], values: &tensors[tensor] }).collect();
    let (weights, slots) = borrowed.split_at(3);
    state.with_snapshot(|snapshot| folder.save(&Snapshot { weights, slots, ..*snapshot })).expect("saved");
    let loaded = load(&folder, &state.identity).expect("ours").checkpoint.expect("whole");
    let Tensors { weights, slots } = loaded.tensors;
    let loaded: Vec<_> = weights.into_iter().chain(slots).map(|tensor| tensor.values).collect();
    assert!(loaded == tensors, "{:?}", loaded.iter().map(Vec::len).collect::<Vec<_>>());
}

#[test]
fn the_newest_is_the_greatest_step_even_past_eight_digits() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    for step in [99_999_999, 5, 100_000_000, 70] {
        save(&folder, step);
    }
    assert_eq!(newest(&folder), (Some(100_000_000), vec![]));
}

#[test]
fn a_step_saved_twice_keeps_its_first_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let state = SampleState::at(3);
    let [first, second] = [(); 2].map(|()| state.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved"));
    assert_eq!(first, second);
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn pruning_keeps_the_newest_and_deletes_unfinished_saves() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=5).for_each(|step| save(&folder, step));
    let unknown = root.path().join("checkpoints/.tmp-step-6-0123456789abcdef");
    for unfinished in [unknown, staging(&folder, 4, 1), staging(&folder, 6, 0)] {
        fs::create_dir_all(unfinished.join("inner")).expect("an unfinished save");
    }
    fs::write(root.path().join(".tmp-file-0123456789abcdef"), "half a model").expect("an unfinished export");
    let under_way = staging(&folder, 6, 1);
    fs::create_dir(&under_way).expect("a save under way");
    let pruned = folder.prune(number(2), &SampleState::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, pruned.leftovers), (vec![3, 2, 1], 4));
    assert_eq!(steps(&folder), [5, 4]);
    let left: Vec<_> = leftovers(&folder).into_iter().map(|leftover| leftover.path).collect();
    assert_eq!(left, [under_way]);
}

/// A disk that is full after so many files.
#[derive(Debug)]
struct Small(AtomicUsize);

impl Perform for Small {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        let FileOperation::Write(path, _) = operation else { return FileSystem.perform(operation) };
        let room = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1));
        if room.is_ok() {
            return FileSystem.perform(operation);
        }
        fs::write(path, [0; 4]).expect("half written");
        Err(CheckpointError::of("writing", path.clone(), io::ErrorKind::StorageFull.into()))
    }
}

#[test]
fn a_part_that_fills_the_disk_keeps_only_its_whole_chunks() {
    let root = tempfile::tempdir().expect("a folder");
    let state = SampleState::at(1);
    let small = Arc::new(Small(AtomicUsize::new(2)));
    let folder = open_performed_by(Arc::clone(&small) as Arc<dyn Perform>, root.path());
    let full = state.write(&folder, 0, number(1)).expect_err("no room");
    assert!(matches!(full, CheckpointError::Full { .. }), "{full:?}");
    let kept = || fs::read_dir(staging(&folder, 1, 1)).expect("begun").flatten().collect::<Vec<_>>();
    let chunks = state.layout().bytes().div_ceil(CHUNK_BYTES) as usize;
    assert!(chunks > 3 && kept().len() == 2, "{chunks} chunks, {:?}", kept());
    small.0.store(chunks - 2, Ordering::Relaxed);
    state.write(&folder, 0, number(1)).expect("enough space for the other chunks");
}

#[test]
fn the_first_writer_deletes_unfinished_saves_of_earlier_generations() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    for unfinished in [staging(&folder, 4, 0), staging(&folder, 9, 0)] {
        fs::create_dir_all(unfinished.join("inner")).expect("an unfinished save");
    }
    save(&folder, 5);
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn a_whole_checkpoint_is_not_pruned_while_all_newer_ones_are_damaged() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=3).for_each(|step| save(&folder, step));
    for step in [2, 3] {
        fs::write(checkpoint_path(&folder, step).join("manifest.json"), "damaged").expect("written");
    }
    let pruned = folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
    assert_eq!(pruned.steps, Vec::<u64>::new());
    assert_eq!(newest(&folder), (Some(1), vec![3, 2]));
}

#[test]
fn a_checkpoint_with_a_damaged_manifest_does_not_count_as_kept() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=4).for_each(|step| save(&folder, step));
    fs::write(checkpoint_path(&folder, 3).join("manifest.json"), "damaged").expect("written");
    assert_eq!(folder.prune(number(2), &SampleState::at(0).identity).expect("pruned").steps, [3, 1]);
    assert_eq!(steps(&folder), [4, 2]);
}

/// A disk that refuses to move these paths.
#[derive(Debug)]
struct Stuck(Vec<PathBuf>);

impl Perform for Stuck {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        match operation {
            FileOperation::Rename(from, _) if self.0.contains(from) => {
                Err(CheckpointError::of("renaming", from.clone(), io::ErrorKind::PermissionDenied.into()))
            }
            _ => FileSystem.perform(operation),
        }
    }
}

#[test]
fn a_failed_deletion_does_not_keep_other_checkpoints() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=4).for_each(|step| save(&folder, step));
    let unfinished = [1, 2].map(|step| staging(&folder, step, 0));
    unfinished.iter().for_each(|unfinished| fs::create_dir(unfinished).expect("an unfinished save"));
    let [first, last] = unfinished;
    let stuck = Stuck(vec![first.clone(), checkpoint_path(&folder, 3)]);
    let folder = open_performed_by(Arc::new(stuck), root.path());
    let error = folder.prune(number(1), &SampleState::at(0).identity).expect_err("refused").to_string();
    assert!(error.contains(&first.display().to_string()), "{error}");
    assert_eq!((steps(&folder), first.exists(), last.exists()), (vec![4, 3], true, false));
}

#[test]
fn two_checkpoints_of_a_step_count_as_one() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=3).for_each(|step| save(&folder, step));
    let twin = checkpoint_path(&folder, 2).with_extension("g7");
    fs::create_dir(&twin).expect("made");
    fs::copy(checkpoint_path(&folder, 2).join("manifest.json"), twin.join("manifest.json")).expect("copied");
    assert_eq!(folder.prune(number(2), &SampleState::at(0).identity).expect("pruned").steps, [1]);
    assert_eq!(folder.prune(number(1), &SampleState::at(0).identity).expect("pruned").steps, [2, 2]);
}

/// Another process saves step 2 and prunes before the first file is read.
#[derive(Debug)]
struct Overtaken {
    root: PathBuf,
    begun: AtomicBool,
}

impl Perform for Overtaken {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        FileSystem.perform(operation)
    }

    fn read(&self, path: &Path, most: u64, act: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        if !self.begun.swap(true, Ordering::Relaxed) {
            save(&open(&self.root), 2);
            open(&self.root).prune(number(1), &SampleState::at(0).identity).expect("pruned");
        }
        FileSystem.read(path, most, act)
    }
}

#[test]
fn a_load_whose_checkpoint_is_pruned_meanwhile_finds_the_newer_one() {
    let root = tempfile::tempdir().expect("a folder");
    save(&open(root.path()), 1);
    let overtaken = Overtaken { root: root.path().to_owned(), begun: AtomicBool::new(false) };
    assert_eq!(newest(&open_performed_by(Arc::new(overtaken), root.path())), (Some(2), vec![]));
}

#[test]
fn equal_weights_export_equal_bytes_and_replace_the_file_at_once() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("new/model.safetensors");
    let metadata = BTreeMap::from(["epoch", "accuracy", "job", "model"].map(|key| (key.to_owned(), "1".to_owned())));
    let tensors = [Tensor { name: "fc.weight", shape: &[2, 1], values: &[1.5, -2.0] }];
    let files = [(); 2].map(|()| {
        export_model(&path, &tensors, &metadata).expect("exported");
        fs::read(&path).expect("readable")
    });
    assert_eq!(files[0], files[1]);
    let (_, read) = safetensors::SafeTensors::read_metadata(&files[0]).expect("safetensors");
    assert_eq!(read.metadata().as_ref().map(|read| read.len()), Some(4));
    let file = safetensors::SafeTensors::deserialize(&files[0]).expect("safetensors");
    let view = file.tensor("fc.weight").expect("there");
    assert_eq!((view.shape(), view.data()), (&[2, 1][..], &[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0][..]));
    assert_eq!(fs::read_dir(root.path().join("new")).expect("a folder").count(), 1, "only the model is left");
}

#[test]
fn a_probe_is_seen_only_in_the_same_folder() {
    let roots = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let shared = Folder::open(roots[0].path()).expect("opens");
    let same = Folder::open(roots[0].path()).expect("opens");
    let other = Folder::open(roots[1].path()).expect("opens");
    shared.probe_write("job.1-rank_0").expect("written");
    assert!(same.probe_seen("job.1-rank_0").expect("read"));
    assert!(!other.probe_seen("job.1-rank_0").expect("read"));
    same.probe_clear("job.1-rank_0").expect("cleared");
    same.probe_clear("job.1-rank_0").expect("cleared already");
    assert!(!shared.probe_seen("job.1-rank_0").expect("read"));
}
