//! Downloads that go on where they were cut.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::info;

use super::{
    archive::ArchiveKind,
    error::{FetchError, Tries, Trouble, disk_error},
    index::{Entry, Index, sha256_of},
    limits::{AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE},
    progress::Progress,
    remote_file::{Body, RemoteFile},
    source::Source,
    sums::SUMS,
};
use crate::{CREDENTIALS_FRACTION, Limits, failure::FailureCause, random_part};

/// The letters of the name of a file that is under way.
const NAME_LETTERS: usize = 32;

/// Fetches files of a place.
pub(super) struct Downloads<'a> {
    pub(super) source: &'a Source,
    pub(super) limits: Limits,
    /// The folder for what is under way.
    pub(super) arriving: PathBuf,
}

/// Decides when a failed request is repeated. Progress begins the time anew.
struct Patience {
    begun: Instant,
    count: u32,
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        Self { begun: Instant::now(), count: 0, pause: FIRST_PAUSE }
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// `trouble`, if there is none.
    async fn wait(&mut self, trouble: Trouble, at: &str, limits: Limits) -> Result<(), Trouble> {
        self.count += 1;
        let needs_nobody = matches!(&trouble, Trouble::Request(cause) if cause.is_passing());
        let limit = limits.tries / if needs_nobody { 1 } else { CREDENTIALS_FRACTION };
        if !trouble.may_pass_soon() || self.count > 1 && self.begun.elapsed() > limit {
            return Err(trouble);
        }
        info!(at, tries = self.count, ?trouble, "repeating a request for the data set");
        sleep(self.pause.mul_f64(1.0 + random_part())).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn tries(&self) -> Tries {
        Tries { count: self.count, duration: self.begun.elapsed() }
    }
}

impl Downloads<'_> {
    /// Lists the files at the place.
    pub(super) async fn list(&self) -> Result<Vec<RemoteFile>, FetchError> {
        let mut patience = Patience::new();
        let at = self.source.shown();
        loop {
            let trouble = match self.source.list().await {
                Ok(files) => return Ok(files),
                Err(trouble) => trouble,
            };
            if let Err(trouble) = patience.wait(trouble, &at, self.limits).await {
                let at = match (&trouble, self.source) {
                    (Trouble::Missing, Source::Web(_)) if !is_archive(&at) => format!("{at}/{}", SUMS),
                    _ => at,
                };
                return Err(trouble.error("listing", &at, self.source.service(), patience.tries()));
            }
        }
    }

    /// Fetches these files into a folder, several at once, and enters each into the index.
    pub(super) async fn fetch_all(
        &self,
        files: Vec<RemoteFile>,
        folder: &Path,
        index: &mut Index,
    ) -> Result<Vec<Entry>, FetchError> {
        let known: u64 = files.iter().filter_map(|file| file.bytes).sum();
        self.check_space(known)?;
        info!(place = self.source.shown(), files = files.len(), bytes = known, into = %folder.display(), "fetching the data set");
        let progress = Progress::new(files.len());
        let fetched =
            stream::iter(files).map(|file| self.fetch_into(file, folder, &progress)).buffer_unordered(AT_ONCE);
        let mut entries = Vec::new();
        let mut fetched = std::pin::pin!(fetched);
        while let Some(entry) = fetched.try_next().await? {
            index.add(&entry)?;
            progress.is_whole();
            entries.push(entry);
        }
        progress.end();
        Ok(entries)
    }

    /// Fetches one file. Returns its path in the folder for what is under way.
    pub(super) async fn fetch_one(&self, file: &RemoteFile) -> Result<PathBuf, FetchError> {
        self.check_space(file.bytes.unwrap_or_default())?;
        info!(place = self.source.shown(), bytes = file.bytes, into = %self.arriving.display(), "fetching the data set");
        let progress = Progress::new(1);
        let path = self.arrive(file, &progress).await?;
        progress.is_whole();
        progress.end();
        Ok(path)
    }

    async fn fetch_into(&self, file: RemoteFile, folder: &Path, progress: &Progress) -> Result<Entry, FetchError> {
        let arrived = self.arrive(&file, progress).await?;
        let (version, path) = (file.version(), folder.join(&file.name));
        let shown = path.clone();
        let kept = spawn_blocking(move || -> io::Result<Entry> {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            File::open(&arrived)?.sync_data()?;
            fs::rename(&arrived, &path)?;
            Entry::of(file.name, version, &path)
        });
        let kept = kept.await.map_err(|error| FetchError::passing(format!("keeping {}: {error}", shown.display())))?;
        kept.map_err(|error| disk_error("keeping", &shown, &error))
    }

    /// Refuses a data set for which the disk has no room.
    fn check_space(&self, bytes: u64) -> Result<(), FetchError> {
        let free = rustix::fs::statvfs(&self.arriving).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
        match free {
            Ok(free) if free < bytes => Err(FetchError::lasting(format!(
                "{bytes} bytes are to be fetched, and {} has {free} bytes free; free space there, or set spec.dataset.cache \
                 to a folder on a larger disk",
                self.arriving.display()
            ))),
            // A file system that does not say is tried.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Fetches a file until it is whole. Returns its path in the folder for what is under way.
    async fn arrive(&self, file: &RemoteFile, progress: &Progress) -> Result<PathBuf, FetchError> {
        let mark = blake3::hash(format!("{} {}", file.at, file.version()).as_bytes()).to_hex();
        let path = self.arriving.join(&mark[..NAME_LETTERS]);
        let at = self.source.shown_file(file);
        let mut was_wrong = false;
        loop {
            self.download(file, &path, &at, progress).await?;
            let Some(expected) = file.sha256.clone() else { return Ok(path) };
            let read = path.clone();
            let found = spawn_blocking(move || sha256_of(&read)).await.map_err(io::Error::other).flatten();
            let found = found.map_err(|error| disk_error("reading", &path, &error))?;
            if found == expected {
                return Ok(path);
            }
            fs::remove_file(&path).map_err(|error| disk_error("removing", &path, &error))?;
            if was_wrong {
                return Err(FetchError::lasting(format!(
                    "reading {at}: its SHA-256 is {found}, and {} says {expected}; upload the file again, or make the list anew",
                    SUMS
                )));
            }
            info!(at, found, expected, "the checksum is wrong; fetching the file again");
            was_wrong = true;
        }
    }

    async fn download(&self, file: &RemoteFile, path: &Path, at: &str, progress: &Progress) -> Result<(), FetchError> {
        let mut patience = Patience::new();
        loop {
            let before = length(path);
            let trouble = match self.attempt(file, path, progress).await {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            };
            if length(path) > before {
                patience = Patience::new();
            }
            if matches!(trouble, Trouble::Changed(_)) {
                // Nothing of another version may stay.
                let _ = fs::remove_file(path);
            }
            if let Err(trouble) = patience.wait(trouble, at, self.limits).await {
                return Err(trouble.error("reading", at, self.source.service(), patience.tries()));
            }
        }
    }

    /// Asks for what is missing of a file, and writes what comes.
    async fn attempt(&self, file: &RemoteFile, path: &Path, progress: &Progress) -> Result<(), Trouble> {
        let disk = |error: io::Error| Trouble::Disk(disk_error("writing", path, &error));
        let mut out = File::options().write(true).create(true).truncate(false).open(path).map_err(disk)?;
        let mut here = out.metadata().map_err(disk)?.len();
        if file.bytes == Some(here) {
            return Ok(());
        }
        if file.bytes.is_some_and(|bytes| bytes < here) {
            here = 0;
        }
        let wait = self.limits.request;
        let slow = |_| Trouble::Request(FailureCause::Slow(wait));
        let Body { start, whole, mut chunks } = timeout(wait, self.source.body(file, here)).await.map_err(slow)??;
        if start != 0 && start != here {
            return Err(Trouble::failed(format!("bytes from {start} on came, and {here} was asked for")));
        }
        let whole = file.bytes.or(whole);
        out.set_len(start).map_err(disk)?;
        out.seek(SeekFrom::Start(start)).map_err(disk)?;
        let mut here = start;
        while let Some(chunk) = timeout(wait, chunks.next()).await.map_err(slow)? {
            let chunk = chunk?;
            here += chunk.len() as u64;
            if whole.is_some_and(|whole| here > whole) {
                return Err(Trouble::Changed(format!("more than {} bytes came", whole.unwrap_or_default())));
            }
            out.write_all(&chunk).map_err(disk)?;
            progress.came(chunk.len() as u64);
        }
        match whole {
            Some(whole) if whole != here => Err(Trouble::failed(format!("{here} of {whole} bytes came"))),
            Some(_) | None => Ok(()),
        }
    }
}

fn is_archive(at: &str) -> bool {
    ArchiveKind::of(at).is_some()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
