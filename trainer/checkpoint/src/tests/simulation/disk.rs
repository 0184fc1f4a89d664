//! A disk that keeps stored data apart from cached data, as POSIX allows and the literature on
//! crash consistency describes (Pillai et al., OSDI 2014; Rebello et al., ATC 2020).
//!
//! A sync of a file stores its bytes. A sync of a folder stores its names. At a power failure, any
//! part of the bytes without a sync may survive. Names without a sync survive unless they build on
//! a lost one: a rename happens or it does not. A failed sync may lose the bytes, and the next sync
//! reports nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::Path,
};

use super::dice::{Dice, mixed};
use crate::{
    file_operation::{FileOperation, PathKind},
    format::MANIFEST,
};

pub(super) const ROOT: &str = "/disk";

/// A sector is stored or lost as a whole.
const SECTOR_BYTES: usize = 16;

pub(super) type Inode = u64;

#[derive(Debug)]
pub(super) struct Disk {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
    /// The number of performed operations.
    pub(super) clock: u64,
}

#[derive(Debug)]
enum Node {
    File(File),
    Folder(Folder),
}

#[derive(Debug, Default)]
struct File {
    /// The content that a reader gets.
    cached: Vec<u8>,
    /// The content after a power failure, once the file is `clean`.
    stored: Vec<u8>,
    clean: bool,
    /// The time when one of its bits was flipped, or when a sync lied.
    hit: Option<u64>,
    /// The digest of the written content.
    written: u64,
}

#[derive(Debug, Default)]
struct Folder {
    cached: BTreeMap<String, Inode>,
    stored: BTreeMap<String, Inode>,
    /// The changes that are not stored yet, in order.
    changes: Vec<Change>,
    /// A sync of it lied, and no later sync was honest.
    betrayed: bool,
    /// It lost names that a sync had called stored.
    hit: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Put(String, Inode),
    Take(String),
    Move(String, String, Inode),
}

/// The share of an operation that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    None,
    Half,
    All,
}

impl Disk {
    /// Makes a disk with an empty folder of checkpoints.
    pub(super) fn new() -> Self {
        let checkpoints = BTreeMap::from([("checkpoints".to_owned(), 1)]);
        let root = Folder { cached: checkpoints.clone(), stored: checkpoints, ..Folder::default() };
        let nodes = [(0, Node::Folder(root)), (1, Node::Folder(Folder::default()))];
        Self { nodes: nodes.into(), next: 2, clock: 0 }
    }

    pub(super) fn perform(&mut self, operation: &FileOperation<'_>) -> io::Result<()> {
        self.clock += 1;
        match operation {
            FileOperation::Create(path) => self.create(path),
            FileOperation::Write(path, contents) => self.write(path, &contents.to_vec()),
            FileOperation::Link(from, to) => self.link(from, to),
            FileOperation::Sync(path) => self.sync(path),
            FileOperation::Rename(from, to) => self.rename(from, to),
            FileOperation::Remove(path) => self.remove(path, usize::MAX),
        }
    }

    /// Performs the share of an operation that is done when its process ends or the space runs out.
    pub(super) fn perform_partly(&mut self, operation: &FileOperation<'_>, extent: Extent) -> io::Result<()> {
        match (extent, operation) {
            (Extent::None, _) => Ok(()),
            (Extent::All, _) => self.perform(operation),
            (Extent::Half, FileOperation::Write(path, contents)) => {
                let bytes = contents.to_vec();
                self.write(path, &bytes[..bytes.len() / 2])
            }
            (Extent::Half, FileOperation::Remove(path)) => {
                let files = self.folder_at(path).map_or(0, |folder| folder.cached.len());
                self.remove(path, files / 2)
            }
            // These operations cannot be done by half.
            (
                Extent::Half,
                FileOperation::Create(_) | FileOperation::Link(..) | FileOperation::Sync(_) | FileOperation::Rename(..),
            ) => Ok(()),
        }
    }

    pub(super) fn look(&self, path: &Path) -> io::Result<PathKind> {
        Ok(match self.node(self.find(path)?) {
            Node::File(file) => PathKind::File { bytes: file.cached.len() as u64 },
            Node::Folder(_) => PathKind::Folder,
        })
    }

    pub(super) fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        match self.node(self.find(path)?) {
            Node::File(file) => Ok(file.cached.iter().take(most as usize).copied().collect()),
            Node::Folder(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self.folder_at(path)?.cached.keys().cloned().collect())
    }

    /// The power fails and comes back. Data that is not stored is lost, in whole or in part.
    pub(super) fn lose_power(&mut self, dice: &mut Dice) {
        // Some failures lose everything and some nothing. The others lose a random part.
        let (bytes_kept, names_kept) = dice.one_of(&[(0, 0), (100, 100), (0, 100), (100, 0), (50, 50), (80, 80)]);
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => {
                    if !file.clean {
                        file.stored = torn(&file.cached, bytes_kept, dice);
                    }
                    file.cached.clone_from(&file.stored);
                    file.clean = true;
                }
                Node::Folder(folder) => {
                    folder.store(|| dice.percent(names_kept));
                    folder.cached.clone_from(&folder.stored);
                    folder.hit |= std::mem::take(&mut folder.betrayed);
                }
            }
        }
        self.forget_unreachable();
    }

    /// The system frees its cache. The next reader gets the stored content.
    pub(super) fn drop_caches(&mut self) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) if file.clean && file.cached != file.stored => {
                    file.cached.clone_from(&file.stored);
                    // An earlier reader saw another content.
                    file.hit = file.hit.map(|_| self.clock);
                }
                Node::File(_) | Node::Folder(_) => {}
            }
        }
    }

    /// Flips a bit of a random stored file. Returns `None` if there is no file.
    pub(super) fn flip(&mut self, dice: &mut Dice) -> Option<Inode> {
        let stored = |(inode, node): (&Inode, &Node)| match node {
            Node::File(file) => (file.clean && !file.stored.is_empty()).then_some(*inode),
            Node::Folder(_) => None,
        };
        let files: Vec<Inode> = self.nodes.iter().filter_map(stored).collect();
        let inode = (!files.is_empty()).then(|| dice.one_of(&files))?;
        let Some(Node::File(file)) = self.nodes.get_mut(&inode) else { return None };
        let at = dice.below(file.stored.len());
        file.stored[at] ^= 1 << dice.below(8);
        file.hit = Some(self.clock);
        // A reader meets the flip now, or once the cache is gone.
        if dice.percent(70) {
            file.cached.clone_from(&file.stored);
        }
        Some(inode)
    }

    /// A sync fails. Bytes that were not stored are lost.
    pub(super) fn fail_to_sync(&mut self, path: &Path, dice: &mut Dice) -> io::Result<()> {
        let inode = self.find(path)?;
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) if !file.clean => {
                file.stored = torn(&file.cached, 50, dice);
                file.clean = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A sync does nothing and reports success.
    pub(super) fn lie_about_sync(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) if !file.clean => file.hit = Some(self.clock),
            Some(Node::Folder(folder)) => folder.betrayed |= !folder.changes.is_empty(),
            Some(Node::File(_)) | None => {}
        }
        Ok(())
    }

    /// True if a sync of the folder lied, and no later sync was honest.
    pub(super) fn is_betrayed(&self, path: &Path) -> bool {
        self.folder_at(path).is_ok_and(|folder| folder.betrayed)
    }

    /// True if a bit of the folder's content was flipped, or if a sync of it lied.
    pub(super) fn is_hit(&self, path: &Path) -> bool {
        let Ok(folder) = self.folder_at(path) else { return false };
        let is_hit = |inode: &Inode| matches!(self.node(*inode), Node::File(File { hit: Some(_), .. }));
        folder.betrayed || folder.hit || folder.cached.values().any(is_hit)
    }

    /// True if all content of a checkpoint's folder was as written until `then` or still is.
    pub(super) fn is_intact_until(&self, path: &Path, then: u64) -> bool {
        let Ok(folder) = self.folder_at(path) else { return false };
        let is_intact = |inode: &Inode| match self.node(*inode) {
            Node::File(file) => digest(&file.cached) == file.written || file.hit.is_some_and(|hit| hit >= then),
            Node::Folder(_) => false,
        };
        folder.cached.contains_key(MANIFEST) && folder.cached.values().all(is_intact)
    }

    pub(super) fn inode(&self, path: &Path) -> Option<Inode> {
        self.find(path).ok()
    }

    fn create(&mut self, path: &Path) -> io::Result<()> {
        match self.find(path).map(|inode| self.node(inode)) {
            Ok(Node::Folder(_)) => Ok(()),
            Ok(Node::File(_)) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => self.add(path, Node::Folder(Folder::default())),
        }
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.find(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.add(path, Node::File(File { cached: bytes.to_owned(), written: digest(bytes), ..File::default() }))
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<()> {
        let inode = self.next;
        let (folder, name) = self.parent(path)?;
        folder.change(Change::Put(name, inode));
        self.nodes.insert(inode, node);
        self.next += 1;
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.find(from)?;
        if self.find(to).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let (folder, name) = self.parent(to)?;
        folder.change(Change::Put(name, inode));
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        match self.nodes.get_mut(&inode) {
            // After the bytes are lost, a sync finds nothing to do.
            Some(Node::File(file)) if !file.clean => {
                file.stored.clone_from(&file.cached);
                (file.clean, file.hit) = (true, None);
            }
            Some(Node::File(_)) | None => {}
            Some(Node::Folder(folder)) => {
                folder.store(|| true);
                folder.betrayed = false;
            }
        }
        Ok(())
    }

    /// Renames within one folder. Nothing else is needed.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        assert_eq!(from.parent(), to.parent(), "moved from one folder to another");
        let moved = self.find(from)?;
        if let Ok(there) = self.find(to) {
            match (self.node(moved), self.node(there)) {
                (Node::Folder(_), Node::Folder(there)) if there.cached.is_empty() => {}
                (Node::Folder(_), Node::Folder(_)) => return Err(ErrorKind::DirectoryNotEmpty.into()),
                (Node::File(_), Node::File(_)) => {}
                (Node::Folder(_), Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                (Node::File(_), Node::Folder(_)) => return Err(ErrorKind::IsADirectory.into()),
            }
        }
        let (_, before) = self.parent(from)?;
        let (folder, after) = self.parent(to)?;
        folder.change(Change::Move(before, after, moved));
        Ok(())
    }

    /// Deletes a file, or so many files of a folder and then the folder if it is empty.
    fn remove(&mut self, path: &Path, most: usize) -> io::Result<()> {
        let Ok(inode) = self.find(path) else { return Ok(()) };
        if let Some(Node::Folder(folder)) = self.nodes.get_mut(&inode) {
            let names: Vec<String> = folder.cached.keys().take(most).cloned().collect();
            names.into_iter().for_each(|name| folder.change(Change::Take(name)));
            if !folder.cached.is_empty() {
                return Ok(());
            }
        }
        let (folder, name) = self.parent(path)?;
        folder.change(Change::Take(name));
        Ok(())
    }

    fn find(&self, path: &Path) -> io::Result<Inode> {
        let names = path.to_str().and_then(|path| path.strip_prefix(ROOT)).ok_or(ErrorKind::NotFound)?;
        let mut inode = 0;
        for name in names.split('/').filter(|name| !name.is_empty()) {
            let Node::Folder(folder) = self.node(inode) else { return Err(ErrorKind::NotADirectory.into()) };
            inode = *folder.cached.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(inode)
    }

    fn folder_at(&self, path: &Path) -> io::Result<&Folder> {
        match self.node(self.find(path)?) {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn parent(&mut self, path: &Path) -> io::Result<(&mut Folder, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?.to_owned();
        let inode = self.find(path.parent().ok_or(ErrorKind::NotFound)?)?;
        match self.nodes.get_mut(&inode) {
            Some(Node::Folder(folder)) => Ok((folder, name)),
            Some(Node::File(_)) | None => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn node(&self, inode: Inode) -> &Node {
        &self.nodes[&inode]
    }

    fn forget_unreachable(&mut self) {
        let (mut reached, mut next) = (BTreeSet::new(), vec![0]);
        while let Some(inode) = next.pop() {
            reached.insert(inode);
            if let Node::Folder(folder) = self.node(inode) {
                next.extend(folder.cached.values().filter(|inode| !reached.contains(inode)));
            }
        }
        self.nodes.retain(|inode, _| reached.contains(inode));
    }
}

impl Folder {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.cached);
        self.changes.push(change);
    }

    /// Stores the changes that are `kept`, unless they build on a lost one. Forgets all changes.
    fn store(&mut self, mut kept: impl FnMut() -> bool) {
        let mut lost = BTreeSet::new();
        for change in std::mem::take(&mut self.changes) {
            let names = change.names();
            if names.iter().any(|name| lost.contains(*name)) || !kept() {
                lost.extend(names.into_iter().map(str::to_owned));
            } else {
                change.apply(&mut self.stored);
            }
        }
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self {
            Self::Put(name, inode) => drop(names.insert(name.clone(), *inode)),
            Self::Take(name) => drop(names.remove(name)),
            Self::Move(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Put(name, _) | Self::Take(name) => vec![name],
            Self::Move(from, to, _) => vec![from, to],
        }
    }
}

/// Returns the surviving content of bytes without a sync: none, all, or for each sector its bytes
/// or zeros, up to some length.
fn torn(bytes: &[u8], percent_kept: usize, dice: &mut Dice) -> Vec<u8> {
    match percent_kept {
        0 => return Vec::new(),
        100 => return bytes.to_owned(),
        _ => {}
    }
    let mut torn = bytes.to_owned();
    for sector in torn.chunks_mut(SECTOR_BYTES) {
        if !dice.percent(percent_kept) {
            sector.fill(0);
        }
    }
    if dice.percent(50) {
        torn.truncate(dice.below(bytes.len() + 1));
    }
    torn
}

pub(super) fn digest(bytes: &[u8]) -> u64 {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    bytes.chunks(8).fold(bytes.len() as u64, |digest, bytes| mixed(digest.rotate_left(7) ^ number(bytes)))
}
