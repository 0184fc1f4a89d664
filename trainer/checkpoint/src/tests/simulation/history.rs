//! Records the saves and promises of the checkpoint code. Every restart is checked against them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    disk::{Disk, Inode, ROOT},
    machine::{Machine, checkpoint_path},
    state::state,
};
use crate::{
    Checkpoint, Folder, Saved, Skipped,
    checkpoint_id::{CheckpointId, Staged},
    file_backend::TEMPORARY,
    tests::state::{Loaded, SampleState, Whole, load},
};

#[derive(Debug, Default)]
pub(super) struct History {
    /// The tried commits by step and digest: the state's number, and the generations that tried.
    tried: BTreeMap<(u64, String), (u64, BTreeSet<u64>)>,
    /// Checkpoints that were promised to survive, or that replaced one of those, with the least
    /// generation of their state.
    promised: BTreeMap<CheckpointId, u64>,
    /// Checkpoints that were deleted and have not come back.
    deleted: BTreeSet<CheckpointId>,
    /// The generation of each checkpoint's folder.
    generations: BTreeMap<Inode, u64>,
    /// Folders of checkpoints that were being deleted.
    condemned: BTreeSet<Inode>,
    pub(super) violations: Vec<String>,
}

impl History {
    pub(super) fn is_tried(&mut self, state: &SampleState, number: u64) {
        let tried = self.tried.entry((state.position.step, state.digest.clone()));
        tried.or_insert((number, BTreeSet::new())).1.insert(state.position.generation);
    }

    /// A commit returned. A newer one may already have deleted its checkpoint.
    pub(super) fn is_promised(&mut self, disk: &Disk, saved: &Saved, generation: u64) {
        let id = id_of(&saved.path);
        if disk.inode(&saved.path).is_some() || !self.deleted.contains(&id) {
            self.deleted.remove(&id);
            self.promised.insert(id, generation);
        }
    }

    /// A checkpoint gets its name or loses it.
    pub(super) fn is_moved(&mut self, disk: &Disk, from: &Path, to: &Path, since: u64) -> Result<(), String> {
        let is_to_go = to.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY));
        self.condemned.extend(disk.inode(from).filter(|_| is_to_go));
        let name = from.file_name().and_then(|name| name.to_str()?.strip_prefix(TEMPORARY));
        self.generations.extend(disk.inode(from).zip(name.and_then(Staged::of_name).map(|staged| staged.generation)));
        self.is_deleted(disk, from, since)
    }

    /// Moves the promise of a deleted checkpoint to the newest one, or to that of a group that
    /// returned to an earlier step. That checkpoint must have been whole when the deleting process
    /// began to verify.
    pub(super) fn is_deleted(&mut self, disk: &Disk, path: &Path, since: u64) -> Result<(), String> {
        let id = path.file_name().and_then(|name| CheckpointId::of_name(name.to_str()?));
        let Some(id) = id.filter(|_| disk.inode(path).is_some()) else { return Ok(()) };
        let generation = |id: CheckpointId| self.generations.get(&disk.inode(&checkpoint_path(id))?);
        let replaces = |other: &CheckpointId| *other > id || generation(*other) > generation(id);
        let newer = ids(disk)
            .into_iter()
            .rfind(|other| replaces(other) && disk.is_intact_until(&checkpoint_path(*other), since));
        let newer = newer.ok_or_else(|| format!("{id} was deleted while no newer checkpoint was whole"))?;
        self.deleted.insert(id);
        if self.promised.remove(&id).is_some() {
            self.promised.entry(newer).or_default();
        }
        Ok(())
    }

    /// No disk keeps data that it never stored, even if its sync lied.
    pub(super) fn lose_power(&mut self, disk: &Disk) {
        let lied = disk.is_betrayed(&checkpoints());
        self.promised.retain(|id, _| !lied && !disk.is_hit(&checkpoint_path(*id)));
    }

    /// Returns the oldest checkpoint that may be the newest one now.
    pub(super) fn floor(&self, disk: &Disk) -> Option<CheckpointId> {
        self.promised.keys().rfind(|id| !disk.is_hit(&checkpoint_path(**id))).copied()
    }

    /// Returns the number of the state that a checkpoint holds. Every bit must belong to that
    /// state.
    pub(super) fn identify(&self, checkpoint: &Whole) -> Result<u64, String> {
        let Checkpoint { position, state_digest, .. } = &checkpoint.checkpoint;
        let tried = self.tried.get(&(position.step, state_digest.clone()));
        let tried = tried.filter(|(_, generations)| generations.contains(&position.generation));
        let (number, _) = tried.ok_or_else(|| format!("no process committed {position:?} {state_digest}"))?;
        if !state(*position, *number).is(checkpoint) {
            return Err(format!("{position:?} {state_digest} has other values than the saved ones"));
        }
        Ok(*number)
    }

    /// True if a damaged checkpoint may exist there: a fault hit it, or it was being deleted at a
    /// power failure.
    fn is_excused(&self, disk: &Disk, path: &Path) -> bool {
        disk.is_hit(path) || disk.inode(path).is_some_and(|inode| self.condemned.contains(&inode))
    }

    /// Checks a load against the recorded events while no process works.
    fn check(&self, disk: &Disk, newest: &Loaded) -> Result<(), String> {
        let (found, floor) = (newest.checkpoint.as_ref(), self.floor(disk));
        let id = found.map(|found| id_of(&found.path));
        if id < floor {
            return Err(format!("{floor:?} was promised, the newest is {id:?}; {:?}", newest.skipped));
        }
        let Some(found) = found else { return Ok(()) };
        self.identify(found)?;
        let promised = self.promised.get(&id_of(&found.path)).filter(|_| !disk.is_hit(&found.path));
        if promised.is_some_and(|generation| found.position.generation < *generation) {
            return Err(format!("{:?} is loaded, generation {promised:?} was promised", found.position));
        }
        Ok(())
    }
}

/// Looks at the folder while no process works. Loading, listing and partial reading must agree with
/// each other and with the history.
pub(super) fn look(machine: &Arc<Machine>) -> Result<Option<Whole>, String> {
    let folder = machine.folder();
    let identity = state(Default::default(), 0).identity;
    let newest = load(&folder, &identity).map_err(|error| format!("the load failed: {error}"))?;
    {
        let world = machine.world();
        world.history.check(&world.disk, &newest)?;
        if let Some(violation) = world.history.violations.first() {
            return Err(violation.clone());
        }
    }
    agree(machine, &folder, &newest)?;
    let is_damaged = |step| newest.skipped.iter().any(|skipped| skipped.step == step);
    if let Some(found) = newest.checkpoint.as_ref().filter(|found| !is_damaged(found.position.step)) {
        let state = SampleState { position: found.position, ..state(found.position, 0) };
        let bytes = state.layout().bytes();
        let (start, end) = (found.position.step % 7 * 8, bytes - found.position.step % 5 * 12);
        let values = folder.load_range(found.position.step, &identity, start..end);
        let values = values.map_err(|error| error.to_string())??;
        let all = found.tensors.weights.iter().chain(&found.tensors.slots).flat_map(|tensor| &tensor.values);
        let expected = all.skip(start as usize / 4).take((end - start) as usize / 4);
        if !values.iter().map(|value| value.to_bits()).eq(expected.map(|value| value.to_bits())) {
            return Err(format!("a range of step {} differs from the whole checkpoint", found.position.step));
        }
    }
    Ok(newest.checkpoint)
}

/// Checks that the list has the same checkpoints as loading met, in the same order and with the
/// same damage. No checkpoint may be torn.
fn agree(machine: &Machine, folder: &Folder, newest: &Loaded) -> Result<(), String> {
    let listed = folder.list().map_err(|error| error.to_string())?;
    let met: Vec<PathBuf> = newest.skipped.iter().map(|skipped| skipped.path.clone()).collect();
    let met: Vec<_> = met.into_iter().chain(newest.checkpoint.as_ref().map(|found| found.path.clone())).collect();
    let first: Vec<_> = listed.iter().take(met.len()).map(|listed| listed.path.clone()).collect();
    if first != met || newest.checkpoint.is_none() && listed.len() > met.len() {
        return Err(format!("loading met {met:?}, the list has {listed:?}"));
    }
    let mut skipped = newest.skipped.iter();
    for listed in &listed {
        if newest.checkpoint.as_ref().is_some_and(|found| found.path == listed.path) {
            continue;
        }
        let verified = folder.verify(listed).map_err(|error| error.to_string())?;
        let verified = verified.map(|found| found.saved());
        if let Some(Skipped { reason, .. }) = skipped.next()
            && verified.as_ref().err() != Some(reason)
        {
            return Err(format!(
                "{} was skipped because {reason}, but verifying says {verified:?}",
                listed.path.display()
            ));
        }
        let world = machine.world();
        if verified.is_err() && !world.history.is_excused(&world.disk, &listed.path) {
            return Err(format!("{} is torn: {verified:?}", listed.path.display()));
        }
    }
    match (listed.get(newest.skipped.len()), &newest.checkpoint) {
        (Some(listed), Some(found)) => match &listed.described {
            Ok(described) if (described.position, described.bytes) == (found.position, found.bytes) => Ok(()),
            described => Err(format!("{:?} is loaded, the list says {described:?}", found.position)),
        },
        _ => Ok(()),
    }
}

/// Returns the checkpoints, whole or damaged, oldest first.
pub(super) fn ids(disk: &Disk) -> Vec<CheckpointId> {
    let names = disk.names(&checkpoints()).unwrap_or_default();
    let mut ids: Vec<_> = names.iter().filter_map(|name| CheckpointId::of_name(name)).collect();
    ids.sort_unstable();
    ids
}

/// Returns the checkpoint at a path.
pub(super) fn id_of(path: &Path) -> CheckpointId {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(CheckpointId::of_name).unwrap_or_else(|| panic!("{} is no checkpoint", path.display()))
}

pub(super) fn checkpoints() -> PathBuf {
    Path::new(ROOT).join("checkpoints")
}
