mod abandoned_steps;
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

/// Bytes of a chunk in most of these tests, so that a small state has many.
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

/// The folder of a step's checkpoint.
fn checkpoint_path(folder: &Folder, step: u64) -> PathBuf {
    folder.path_of(CheckpointId { step, generation: None })
}

/// Where the parts of a checkpoint lie until it is whole.
fn staging(folder: &Folder, step: u64, generation: u64) -> PathBuf {
    folder.backend.staging(Position { step, generation, ..Position::default() })
}

/// The steps that have a checkpoint, whole or not.
fn steps(folder: &Folder) -> Vec<u64> {
    folder.backend.ids().expect("listed").into_iter().map(|slot| slot.step).collect()
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

/// Saves in `writers` parts, whose receipts travel as JSON.
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

/// The step of the newest checkpoint, which must hold the state of that step, and the steps that were skipped.
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
fn what_is_saved_is_loaded_bit_for_bit() {
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
fn tensors_that_begin_and_end_anywhere_within_what_is_read_at_a_time_are_loaded_bit_for_bit() {
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
fn a_step_that_is_saved_twice_is_kept() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let state = SampleState::at(3);
    let [first, second] = [(); 2].map(|()| state.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved"));
    assert_eq!(first, second);
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn pruning_keeps_the_newest_and_clears_what_torn_saves_left() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=5).for_each(|step| save(&folder, step));
    let unknown = root.path().join("checkpoints/.tmp-step-6-0123456789abcdef");
    for torn in [unknown, staging(&folder, 4, 1), staging(&folder, 6, 0)] {
        fs::create_dir_all(torn.join("inner")).expect("a torn save");
    }
    fs::write(root.path().join(".tmp-file-0123456789abcdef"), "half a model").expect("a torn export");
    let under_way = staging(&folder, 6, 1);
    fs::create_dir(&under_way).expect("a save under way");
    let pruned = folder.prune(number(2), &SampleState::at(0).identity).expect("pruned");
    assert_eq!((pruned.steps, pruned.leftovers), (vec![3, 2, 1], 4));
    assert_eq!(steps(&folder), [5, 4]);
    let left: Vec<_> = leftovers(&folder).into_iter().map(|leftover| leftover.path).collect();
    assert_eq!(left, [under_way]);
}

/// A disk that is full after so many files were written whole.
#[derive(Debug)]
struct Small(AtomicUsize);

impl Perform for Small {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        let FileOperation::Write(path, _) = operation else { return FileSystem.perform(operation) };
        let room = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1));
        if room.is_ok() {
            return FileSystem.perform(operation);
        }
        fs::write(path, [0; 4]).expect("some of it");
        Err(CheckpointError::of("writing", path.clone(), io::ErrorKind::StorageFull.into()))
    }
}

#[test]
fn a_part_for_which_there_is_no_room_keeps_only_what_the_next_attempt_need_not_write() {
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
    state.write(&folder, 0, number(1)).expect("room for the others");
}

#[test]
fn the_first_writer_clears_what_earlier_generations_have_left() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    for torn in [staging(&folder, 4, 0), staging(&folder, 9, 0)] {
        fs::create_dir_all(torn.join("inner")).expect("a torn save");
    }
    save(&folder, 5);
    assert_eq!(leftovers(&folder).len(), 0);
}

#[test]
fn nothing_is_pruned_while_no_newer_checkpoint_is_whole() {
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
fn a_checkpoint_whose_manifest_is_damaged_takes_no_place_of_a_whole_one() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=4).for_each(|step| save(&folder, step));
    fs::write(checkpoint_path(&folder, 3).join("manifest.json"), "damaged").expect("written");
    assert_eq!(folder.prune(number(2), &SampleState::at(0).identity).expect("pruned").steps, [3, 1]);
    assert_eq!(steps(&folder), [4, 2]);
}

/// A disk on which these stay where they are.
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
fn what_cannot_be_deleted_keeps_nothing_else_from_being() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=4).for_each(|step| save(&folder, step));
    let torn = [1, 2].map(|step| staging(&folder, step, 0));
    torn.iter().for_each(|torn| fs::create_dir(torn).expect("a torn save"));
    let [first, last] = torn;
    let stuck = Stuck(vec![first.clone(), checkpoint_path(&folder, 3)]);
    let folder = open_performed_by(Arc::new(stuck), root.path());
    let error = folder.prune(number(1), &SampleState::at(0).identity).expect_err("told").to_string();
    assert!(error.contains(&first.display().to_string()), "{error}");
    assert_eq!((steps(&folder), first.exists(), last.exists()), (vec![4, 3], true, false));
}

#[test]
fn two_checkpoints_of_a_step_are_kept_as_one() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    (1..=3).for_each(|step| save(&folder, step));
    let twin = checkpoint_path(&folder, 2).with_extension("g7");
    fs::create_dir(&twin).expect("made");
    fs::copy(checkpoint_path(&folder, 2).join("manifest.json"), twin.join("manifest.json")).expect("copied");
    assert_eq!(folder.prune(number(2), &SampleState::at(0).identity).expect("pruned").steps, [1]);
    assert_eq!(folder.prune(number(1), &SampleState::at(0).identity).expect("pruned").steps, [2, 2]);
}

/// Somebody else saves step 2 and deletes what is older before the first file is read.
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
fn a_load_during_which_its_checkpoint_gives_way_to_a_newer_one_finds_that() {
    let root = tempfile::tempdir().expect("a folder");
    save(&open(root.path()), 1);
    let overtaken = Overtaken { root: root.path().to_owned(), begun: AtomicBool::new(false) };
    assert_eq!(newest(&open_performed_by(Arc::new(overtaken), root.path())), (Some(2), vec![]));
}

#[test]
fn a_model_file_is_the_same_bytes_each_time_and_replaced_at_once() {
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
fn a_probe_is_seen_in_the_same_folder_only() {
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
