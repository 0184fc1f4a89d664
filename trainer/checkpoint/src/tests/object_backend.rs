//! Checkpoints in an object store. Any operation may be the last of its process, and any answer may
//! be lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    CHUNK_BYTES, newest, number, save, save_in_parts,
    state::{SampleState, load},
    steps,
};
use crate::{CheckpointError, Created, Folder, Objects, ObjectsError, Snapshotter, Taken, manifest::Manifest};

const URI: &str = "s3://bucket/job";

/// The objects, shared by all members.
#[derive(Debug, Default)]
struct Store {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Store {
    fn keys(&self) -> Vec<String> {
        self.objects.lock().expect("not poisoned").keys().cloned().collect()
    }

    fn change(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.objects.lock().expect("not poisoned").get_mut(key).expect("it is there"));
    }

    fn remove(&self, key: &str) -> Vec<u8> {
        self.objects.lock().expect("not poisoned").remove(key).expect("it is there")
    }

    fn insert(&self, key: &str, bytes: Vec<u8>) {
        self.objects.lock().expect("not poisoned").insert(key.to_owned(), bytes);
    }
}

/// The fate of one operation and all later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// Operations are done and answered.
    #[default]
    Well,
    /// The process has ended. No operation is done.
    Ended,
    /// This operation is done and its answer is lost. Later ones go well.
    AnswerLost,
}

/// The connection of one member to the store.
#[derive(Debug, Default)]
struct Connection {
    /// Another process stores these objects at the next listing.
    overtaken_by: Mutex<BTreeMap<String, Vec<u8>>>,
    store: Arc<Store>,
    fate: Fate,
    /// The number of operations before the fault.
    after: usize,
    begun: AtomicUsize,
}

impl Connection {
    /// Performs a change unless the fault prevents it.
    fn change<T>(&self, act: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> Result<T, ObjectsError> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut objects = self.store.objects.lock().expect("not poisoned");
        match self.fate {
            Fate::Ended if number >= self.after => Err(ObjectsError::passing("the process has ended")),
            Fate::AnswerLost if number == self.after => {
                act(&mut objects);
                Err(ObjectsError::passing("no answer"))
            }
            _ => Ok(act(&mut objects)),
        }
    }

    fn look<T>(&self, act: impl FnOnce(&BTreeMap<String, Vec<u8>>) -> T) -> Result<T, ObjectsError> {
        Ok(act(&self.store.objects.lock().expect("not poisoned")))
    }
}

impl Objects for Connection {
    fn uri(&self) -> &str {
        URI
    }

    fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError> {
        self.change(|objects| drop(objects.insert(key.to_owned(), bytes)))
    }

    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError> {
        self.change(|objects| match objects.contains_key(key) {
            true => Created::Before,
            false => {
                objects.insert(key.to_owned(), bytes);
                Created::Now
            }
        })
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, ObjectsError> {
        let found = self.look(|objects| objects.get(key).cloned())?;
        match found {
            Some(bytes) if bytes.len() as u64 > most => Err(ObjectsError::passing(format!("{key} is longer"))),
            found => Ok(found),
        }
    }

    fn length(&self, key: &str) -> Result<Option<u64>, ObjectsError> {
        self.look(|objects| objects.get(key).map(|bytes| bytes.len() as u64))
    }

    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError> {
        for (key, bytes) in std::mem::take(&mut *self.overtaken_by.lock().expect("not poisoned")) {
            self.store.insert(&key, bytes);
        }
        self.look(|objects| {
            let below = objects.iter().filter(|(key, _)| key.starts_with(folder));
            below.map(|(key, bytes)| (key.clone(), bytes.len() as u64)).collect()
        })
    }

    fn delete(&self, key: &str) -> Result<(), ObjectsError> {
        self.change(|objects| drop(objects.remove(key)))
    }
}

fn open(store: &Arc<Store>) -> Folder {
    open_with(store, Fate::Well, 0).0
}

fn open_with(store: &Arc<Store>, fate: Fate, after: usize) -> (Folder, Arc<Connection>) {
    Folder::open_bucket(Arc::new(Connection { store: Arc::clone(store), ..Connection::default() })).expect("opens");
    let connection = Arc::new(Connection { store: Arc::clone(store), fate, after, ..Connection::default() });
    let objects: Arc<dyn Objects> = connection.clone();
    let mut folder = Folder::open_existing_bucket(objects.clone()).unwrap_or_else(|_| {
        // Opens without the trial, so that the store is still empty.
        Folder::on(Arc::new(crate::object_backend::ObjectBackend::of(objects)))
    });
    folder.chunk_bytes = CHUNK_BYTES;
    (folder, connection)
}

fn manifest_of(step: u64, generation: u64) -> String {
    format!("checkpoints/step-{step:08}.g{generation}/manifest.json")
}

/// Meets a process with `fate` at each operation of `act`, which follows `before`. Returns the
/// newest checkpoint after each. Then saves the step after all.
fn reached(fate: Fate, before: impl Fn(&Folder), act: impl Fn(&Folder)) -> Vec<u64> {
    let mut reached = Vec::new();
    for after in 0.. {
        let store = Arc::new(Store::default());
        before(&open(&store));
        let (folder, connection) = open_with(&store, fate, after);
        act(&folder);
        let folder = open(&store);
        let (found, skipped) = newest(&folder);
        assert_eq!(skipped, Vec::<u64>::new(), "half a checkpoint is visible after {fate:?} at operation {after}");
        reached.push(found.expect("one is whole"));
        save_in_parts(&folder, 2, 3).expect("saved again");
        assert_eq!(newest(&folder), (Some(2), vec![]), "saved again after {fate:?} at operation {after}");
        // The first clearing leaves an empty manifest, and the second deletes it.
        for _ in 0..2 {
            folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
        }
        let left = store.keys();
        let of_step_2 = |key: &String| key.starts_with("checkpoints/step-00000002.g1/");
        assert!(left.iter().all(of_step_2), "leftovers after {fate:?} at operation {after}: {left:?}");
        if connection.begun.load(Ordering::Relaxed) <= after {
            break;
        }
    }
    println!("{fate:?} at each of {} operations", reached.len() - 1);
    reached
}

#[test]
fn a_state_saved_in_a_bucket_loads_bit_for_bit() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    assert_eq!((newest(&folder), store.keys()), ((None, vec![]), vec![]));
    let state = SampleState::at(120);
    let saved = state.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    let loaded = load(&folder, &state.identity).expect("ours").checkpoint.expect("whole");
    assert!(state.is(&loaded), "{loaded:?}");
    assert_eq!(loaded.saved(), saved);
    assert_eq!(saved.path.to_str(), Some("s3://bucket/job/checkpoints/step-00000120.g1"));
    let stored = store.objects.lock().expect("not poisoned").values().map(|bytes| bytes.len() as u64).sum::<u64>();
    assert_eq!(saved.bytes, stored);
}

#[test]
fn a_process_that_ends_at_any_operation_leaves_the_previous_checkpoint_or_the_new_one() {
    for writers in [1, 3] {
        let found = reached(Fate::Ended, |folder| save(folder, 1), |folder| drop(save_in_parts(folder, 2, writers)));
        // The manifest is the last object.
        assert_eq!(found, [vec![1; found.len() - 1], vec![2]].concat());
    }
}

#[test]
fn a_process_that_ends_while_pruning_leaves_the_newest_checkpoint_whole() {
    let before = |folder: &Folder| (0..=2).for_each(|step| save(folder, step));
    let found = reached(Fate::Ended, before, |folder| drop(folder.prune(number(1), &SampleState::at(0).identity)));
    assert_eq!(found, vec![2; found.len()]);
}

#[test]
fn a_lost_answer_leaves_no_half_checkpoint() {
    let found = reached(Fate::AnswerLost, |folder| save(folder, 1), |folder| drop(save_in_parts(folder, 2, 3)));
    // The committer recognises its own manifest, even if that answer is lost.
    assert_eq!(found[found.len() - 2..], [2, 2]);
}

#[test]
fn a_commit_succeeds_although_its_answer_is_lost() {
    let store = Arc::new(Store::default());
    let state = SampleState::at(1);
    let receipt = state.write(&open(&store), 0, number(1)).expect("written");
    // Creating the manifest is the only change of a commit.
    let (folder, connection) = open_with(&store, Fate::AnswerLost, 0);
    let saved = folder.commit(&state.facts(), &state.layout(), &[receipt]).expect("found");
    assert_eq!((saved.step, connection.begun.load(Ordering::Relaxed), newest(&folder).0), (1, 1, Some(1)));
}

#[test]
fn two_commits_of_the_same_state_both_succeed() {
    let store = Arc::new(Store::default());
    let state = SampleState::at(1);
    let receipt = state.write(&open(&store), 0, number(1)).expect("written");
    let commit = |time: &str| {
        let facts = crate::Facts { time: time.to_owned(), ..state.facts() };
        open(&store).commit(&facts, &state.layout(), std::slice::from_ref(&receipt))
    };
    let (first, second) = (commit("2026-11-21T12:00:00Z").expect("saved"), commit("2026-11-21T12:00:01Z"));
    assert_eq!(second.expect("kept"), first);
}

#[test]
fn a_different_state_of_the_same_generation_is_a_conflict() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    save(&folder, 1);
    let mut other = SampleState::at(1);
    other.digest = "another".into();
    other.tensors[3].values = vec![0.25];
    let receipt = other.write(&folder, 0, number(1)).expect("written");
    let error = folder.commit(&other.facts(), &other.layout(), &[receipt]).expect_err("refused");
    assert!(matches!(error, CheckpointError::Conflict { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("s3://bucket/job/checkpoints/step-00000001.g1") && text.contains("nothing was overwritten"));
    assert_eq!(newest(&folder), (Some(1), vec![]));
}

#[test]
fn a_committer_overtaken_before_its_manifest_deletes_nothing() {
    let (store, elsewhere) = (Arc::new(Store::default()), Arc::new(Store::default()));
    save(&open(&elsewhere), 1);
    let theirs = elsewhere.objects.lock().expect("not poisoned").clone();
    let mut other = SampleState::at(1);
    other.digest = "another".into();
    other.tensors[0].values.fill(0.5);
    let (folder, connection) = open_with(&store, Fate::Well, 0);
    let receipt = other.write(&folder, 0, number(1)).expect("written");
    *connection.overtaken_by.lock().expect("not poisoned") = theirs;
    let error = folder.commit(&other.facts(), &other.layout(), &[receipt]).expect_err("refused");
    assert!(matches!(error, CheckpointError::Conflict { .. }), "{error:?}");
    assert_eq!(newest(&folder), (Some(1), vec![]), "theirs is whole");
}

#[test]
fn the_later_generation_of_a_step_is_newer_and_the_older_one_replaces_it_if_damaged() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    let mut state = SampleState::at(2);
    for (generation, digest) in [(1, "older"), (3, "newest"), (2, "between")] {
        (state.position.generation, state.digest) = (generation, digest.to_owned());
        state.with_snapshot(|snapshot| folder.save(snapshot)).expect("saved");
    }
    let found = |folder: &Folder| {
        let newest = load(folder, &state.identity).expect("ours");
        (newest.checkpoint.expect("whole").checkpoint.state_digest, newest.skipped.len())
    };
    assert_eq!(found(&folder), ("newest".to_owned(), 0));
    store.change(&manifest_of(2, 3), |bytes| bytes[40] ^= 1);
    assert_eq!(found(&folder), ("between".to_owned(), 1));
    assert_eq!(folder.prune(number(1), &state.identity).expect("pruned").steps, [2]);
    assert_eq!(steps(&folder), [2, 2], "a newer damaged checkpoint stays");
}

#[test]
fn a_late_committer_cannot_commit_parts_that_a_later_generation_cleared() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    save(&folder, 1);
    let late = SampleState::at(2);
    let receipts: Vec<_> = (0..2).map(|writer| late.write(&folder, writer, number(2)).expect("written")).collect();
    let parts: Vec<_> = store.keys().into_iter().filter(|key| key.contains("step-00000002.g1")).collect();
    let parts: Vec<_> = parts.into_iter().map(|key| (store.objects.lock().expect("here")[&key].clone(), key)).collect();
    folder.clear_generations_before(2).expect("cleared");
    // The committer looked for its parts before they were deleted.
    parts.into_iter().for_each(|(bytes, key)| store.insert(&key, bytes));
    let error = folder.commit(&late.facts(), &late.layout(), &receipts).expect_err("refused");
    assert!(matches!(error, CheckpointError::Conflict { .. }), "{error:?}");
    assert_eq!(newest(&folder), (Some(1), vec![]));
    for _ in 0..2 {
        folder.clear_generations_before(2).expect("cleared");
    }
    assert!(store.keys().iter().all(|key| !key.contains("step-00000002")), "{:?}", store.keys());
}

#[test]
fn a_flip_of_any_byte_and_the_loss_of_any_object_is_detected() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    save(&folder, 1);
    save(&folder, 2);
    for key in store.keys().into_iter().filter(|key| key.contains("step-00000002")) {
        let length = store.objects.lock().expect("not poisoned")[&key].len();
        for at in 0..length {
            let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 1 << (at % 8);
            store.change(&key, flip);
            assert_eq!(newest(&folder), (Some(1), vec![2]), "{key} byte {at}");
            store.change(&key, flip);
        }
        let bytes = store.remove(&key);
        let expected = if key.ends_with("manifest.json") { vec![] } else { vec![2] };
        assert_eq!(newest(&folder), (Some(1), expected), "{key} is missing");
        store.insert(&key, [&bytes[..], b"\n"].concat());
        assert_eq!(newest(&folder), (Some(1), vec![2]), "{key} is too long");
        store.insert(&key, bytes);
    }
    assert_eq!(newest(&folder), (Some(2), vec![]));
}

#[test]
fn a_damaged_checkpoint_is_replaced_by_the_same_step_saved_again() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    save(&folder, 1);
    for damaged in store.keys() {
        store.change(&damaged, |bytes| bytes[3] ^= 4);
        save_in_parts(&folder, 1, 2).expect("saved again");
        assert_eq!(newest(&folder), (Some(1), vec![]), "{damaged}");
    }
}

#[test]
fn foreign_checkpoints_and_newer_formats_in_a_bucket_are_refused_and_untouched() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    save(&folder, 4);
    let mut theirs = SampleState::at(4);
    theirs.identity.model = "mlp-2e".into();
    let before = store.objects.lock().expect("not poisoned").clone();
    let refusals = [
        load(&folder, &theirs.identity).expect_err("refused").to_string(),
        folder.prune(number(1), &theirs.identity).expect_err("refused").to_string(),
        theirs.with_snapshot(|snapshot| folder.save(snapshot)).expect_err("refused").to_string(),
    ];
    for text in refusals {
        assert!(
            text.contains("`lenet5-1f`") && text.contains("s3://bucket/job/checkpoints/step-00000004.g1"),
            "{text}"
        );
    }
    assert_eq!(*store.objects.lock().expect("not poisoned"), before);
    store.change(&manifest_of(4, 1), |bytes| {
        let mut manifest = Manifest::from_bytes(bytes).expect("whole");
        (manifest.format_version, manifest.readable_from) = (3, 3);
        *bytes = manifest.to_bytes().expect("serialises");
    });
    let text = load(&folder, &SampleState::at(4).identity).expect_err("refused").to_string();
    assert!(text.contains("format version 3") && text.contains("it reads version 2"), "{text}");
}

#[test]
fn any_number_of_writers_resumes_a_bucket_checkpoint_of_any_number() {
    for (before, after) in [(1, 3), (3, 1), (4, 2), (2, 5)] {
        let folder = open(&Arc::new(Store::default()));
        save_in_parts(&folder, 1, before).expect("saved");
        let (state, layout) = (SampleState::at(1), SampleState::at(1).layout());
        let values: Vec<u32> = (0..after)
            .flat_map(|reader| {
                let range = layout.part(reader, number(after));
                folder.load_range(1, &state.identity, range).expect("ours").expect("whole")
            })
            .map(f32::to_bits)
            .collect();
        assert_eq!(values, state.values().into_iter().map(f32::to_bits).collect::<Vec<_>>(), "{before} to {after}");
        save_in_parts(&folder, 2, after).expect("saved");
        assert_eq!(newest(&folder), (Some(2), vec![]), "{before} to {after}");
    }
}

#[test]
fn ranks_save_in_a_bucket_behind_the_training_and_prune_the_oldest() {
    let store = Arc::new(Store::default());
    let folder = open(&store);
    let mut ranks: Vec<_> =
        (0..2).map(|_| Snapshotter::start(folder.clone(), number(2), 0).expect("started")).collect();
    for step in 1..=4 {
        let state = SampleState::at(step);
        for (writer, rank) in (0..).zip(&mut ranks) {
            assert_eq!(state.take(rank, writer, number(2)), Taken::Begun);
        }
        ranks.iter_mut().for_each(|rank| drop(rank.finish()));
        state.commit(&mut ranks[1], number(2));
        ranks[1].finish();
        assert_eq!(newest(&folder), (Some(step), vec![]));
    }
    assert_eq!(steps(&folder), [4, 3]);
    let strangers = |key: &String| !key.ends_with(".chunk") && !key.ends_with("manifest.json");
    assert_eq!(
        store.keys().into_iter().filter(strangers).collect::<Vec<_>>(),
        Vec::<String>::new(),
        "the commit deletes notes"
    );
    // An abandoned checkpoint leaves nothing.
    let state = SampleState::at(5);
    assert_eq!(state.take(&mut ranks[0], 0, number(2)), Taken::Begun);
    drop(ranks[0].finish());
    ranks[0].abandon(state.position);
    drop(ranks[0].finish());
    assert!(store.keys().iter().all(|key| !key.contains("step-00000005")), "{:?}", store.keys());
}

#[test]
fn models_and_probe_tokens_are_objects() {
    let store = Arc::new(Store::default());
    let (folder, other) = (open(&store), open(&store));
    folder.probe_write("job.1-rank_0").expect("written");
    assert!(other.probe_seen("job.1-rank_0").expect("read"));
    assert!(!other.probe_seen("job.1-rank_1").expect("read"));
    other.probe_clear("job.1-rank_0").expect("cleared");
    assert!(!folder.probe_seen("job.1-rank_0").expect("read"));
    let tensor = crate::Tensor { name: "fc.weight", shape: &[1], values: &[1.5] };
    let path = folder.export_model("model.safetensors", &[tensor], &BTreeMap::new()).expect("exported");
    assert_eq!(path.to_str(), Some("s3://bucket/job/model.safetensors"));
    assert_eq!(store.keys(), ["model.safetensors"]);
}

#[test]
fn a_store_that_creates_an_existing_object_is_refused() {
    /// A store that overwrites on creation.
    #[derive(Debug)]
    struct Careless(Connection);
    impl Objects for Careless {
        fn uri(&self) -> &str {
            self.0.uri()
        }
        fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError> {
            self.0.put(key, bytes)
        }
        fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError> {
            self.0.put(key, bytes).map(|()| Created::Now)
        }
        fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, ObjectsError> {
            self.0.get(key, most)
        }
        fn length(&self, key: &str) -> Result<Option<u64>, ObjectsError> {
            self.0.length(key)
        }
        fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError> {
            self.0.list(folder)
        }
        fn delete(&self, key: &str) -> Result<(), ObjectsError> {
            self.0.delete(key)
        }
    }
    let error = Folder::open_bucket(Arc::new(Careless(Connection::default()))).expect_err("refused").to_string();
    assert!(error.contains("If-None-Match") && error.contains(URI) && error.contains("spec.checkpoint.uri"), "{error}");
}

#[test]
fn an_error_speaks_of_untouched_checkpoints_only_after_one_was_seen() {
    let store = Arc::new(Store::default());
    let error = |step| {
        let (folder, _) = open_with(&store, Fate::Ended, 0);
        SampleState::at(step).with_snapshot(|snapshot| folder.save(snapshot)).expect_err("ended").to_string()
    };
    assert_eq!(error(1), "the process has ended");
    save(&open(&store), 1);
    assert_eq!(error(2), "the process has ended; the checkpoints before are untouched");
}

#[test]
fn a_bucket_without_checkpoints_is_refused_for_that() {
    let error = Folder::open_existing_bucket(Arc::new(Connection::default())).expect_err("nothing there");
    assert!(matches!(error, CheckpointError::NoCheckpoints { .. }), "{error:?}");
}
