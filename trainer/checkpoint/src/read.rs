//! A checkpoint's files ↔ memory: each byte is verified, and lengths before memory is reserved for them.

use std::{
    fmt, io,
    ops::Range,
    panic::resume_unwind,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{
    CheckpointError, Destination, Layout, NoPlace, Piece,
    chunk::{Chunk, Seen},
    layout::VALUE_BYTES,
    manifest::{MANIFEST, MAX_MANIFEST_BYTES, Manifest, Unusable},
    medium::Medium,
};

pub(crate) fn read_manifest(medium: &dyn Medium, folder: &Path) -> Result<(Manifest, [u8; 32], u64), Unusable> {
    let bytes = read_file(medium, &folder.join(MANIFEST), |length| {
        if length <= MAX_MANIFEST_BYTES {
            return Ok(());
        }
        Err(format!("{MANIFEST} has {length} bytes, at most {MAX_MANIFEST_BYTES} are read"))
    });
    let bytes = bytes?;
    let manifest = Manifest::from_bytes(&bytes)?;
    Ok((manifest, *blake3::hash(&bytes).as_bytes(), bytes.len() as u64))
}

pub(crate) fn read_state(
    medium: &dyn Medium,
    folder: &Path,
    manifest: &Manifest,
    at_once: usize,
    into: &mut impl Destination,
) -> Result<(), Unusable> {
    let layout = Layout::of(manifest.tensors.clone()).map_err(Unusable::Damaged)?;
    // Before memory is reserved for what a manifest says.
    look_at_all(medium, folder, &manifest.chunks)?;
    read_chunks(medium, folder, &manifest.chunks, &layout, places_in(into, folder, &layout)?, at_once)
}

/// A place for each tensor, as long as it is.
fn places_in<'a>(
    into: &'a mut impl Destination,
    folder: &Path,
    layout: &Layout,
) -> Result<Vec<&'a mut [f32]>, Unusable> {
    let places = into.places(layout).map_err(|problem| match problem {
        NoPlace::Memory(problem) => lacks_memory(folder, &problem),
        NoPlace::Misfit(problem) => {
            Unusable::Unread(Box::new(CheckpointError::Misfit { path: folder.to_owned(), problem }))
        }
    })?;
    let expected = layout.tensors().map(|(_, shape)| shape.iter().product::<usize>());
    assert!(places.iter().map(|place| place.len()).eq(expected), "places for {layout:?}");
    Ok(places)
}

pub(crate) fn verify_state(
    medium: &dyn Medium,
    folder: &Path,
    manifest: &Manifest,
    at_once: usize,
) -> Result<(), Unusable> {
    look_at_all(medium, folder, &manifest.chunks)?;
    let chunks = manifest.chunks.iter().map(|chunk| (chunk, ())).collect();
    each_chunk(chunks, at_once, |chunk, ()| read_known_chunk(medium, folder, chunk, &mut |_| {}))
}

pub(crate) fn read_range(
    medium: &dyn Medium,
    folder: &Path,
    manifest: &Manifest,
    range: Range<u64>,
) -> Result<Vec<f32>, Unusable> {
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    let overlapping = |chunk: &&Chunk| chunk.start < range.end && range.start < chunk.range().end;
    for chunk in manifest.chunks.iter().filter(overlapping) {
        bytes.clear();
        read_chunk(medium, folder, chunk, &mut |block| bytes.extend_from_slice(block))?;
        let within = |at: u64| (at.clamp(chunk.start, chunk.range().end) - chunk.start) as usize;
        extend(&mut values, bytes[within(range.start)..within(range.end)].as_chunks().0);
    }
    Ok(values)
}

fn extend(values: &mut Vec<f32>, bytes: &[[u8; VALUE_BYTES as usize]]) {
    values.extend(bytes.iter().map(|value| f32::from_le_bytes(*value)));
}

/// Fills the places of the tensors that `layout` names from chunks that are known to tile it.
fn read_chunks(
    medium: &dyn Medium,
    folder: &Path,
    chunks: &[Chunk],
    layout: &Layout,
    mut unread: Vec<&mut [f32]>,
    at_once: usize,
) -> Result<(), Unusable> {
    // Chunks come in order, and so do the values of each tensor.
    let places = chunks.iter().map(|chunk| {
        let place = |piece: Piece<'_>| unread[piece.tensor].split_off_mut(..piece.values.len()).unwrap_or_default();
        (chunk, layout.pieces(chunk.range()).map(place).collect::<Vec<_>>())
    });
    each_chunk(places.collect(), at_once, |chunk, places| {
        let mut places = places.into_iter();
        let mut place: &mut [f32] = &mut [];
        let mut put = |block: &[u8]| {
            let mut values = block.as_chunks().0;
            while !values.is_empty() {
                if place.is_empty() {
                    let Some(next) = places.next() else { break };
                    place = next;
                }
                let length = place.len().min(values.len());
                let filled = place.split_off_mut(..length).unwrap_or_default();
                let (now, later) = values.split_at(length);
                filled.iter_mut().zip(now).for_each(|(place, value)| *place = f32::from_le_bytes(*value));
                values = later;
            }
        };
        read_known_chunk(medium, folder, chunk, &mut put)
    })
}

/// Does this for each chunk, so many at once: while one is verified others are read. Where several are of no use the first is told.
fn each_chunk<T: Send>(
    chunks: Vec<(&Chunk, T)>,
    at_once: usize,
    act: impl Fn(&Chunk, T) -> Result<(), Unusable> + Sync,
) -> Result<(), Unusable> {
    let threads = at_once.min(chunks.len());
    let left = Mutex::new(chunks.into_iter());
    let left = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let Some((chunk, with)) = left().next() else { return Ok(()) };
            act(chunk, with).map_err(|unusable| {
                // Nobody needs the others.
                *left() = Vec::new().into_iter();
                (chunk.start, unusable)
            })?;
        }
    };
    let failed = thread::scope(|scope| {
        // Where the system gives no more threads there are enough.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..threads).map_while(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|cause| resume_unwind(cause)));
        [work()].into_iter().chain(joined).filter_map(Result::err).min_by_key(|(start, _)| *start)
    });
    failed.map_or(Ok(()), |(_, unusable)| Err(unusable))
}

/// Gives `act` the bytes of a chunk in blocks, each of which is in a core's cache then. They are not to be used where this fails: only all
/// of them can be verified.
pub(crate) fn read_chunk(
    medium: &dyn Medium,
    folder: &Path,
    chunk: &Chunk,
    act: &mut dyn FnMut(&[u8]),
) -> Result<(), Unusable> {
    look_at(medium, &folder.join(chunk.file()), |length| chunk.accept(length))?;
    read_known_chunk(medium, folder, chunk, act)
}

/// As [`read_chunk`], where the file is known to have the chunk's length.
fn read_known_chunk(
    medium: &dyn Medium,
    folder: &Path,
    chunk: &Chunk,
    act: &mut dyn FnMut(&[u8]),
) -> Result<(), Unusable> {
    let (file, mut seen) = (chunk.file(), Seen::from(chunk.start));
    read_blocks(medium, &folder.join(&file), chunk.bytes, &mut |block| {
        seen.add(block);
        act(block);
    })?;
    chunk.check(&seen.chunk()).map_err(|problem| Unusable::Damaged(format!("{file} {problem}")))
}

/// Reads a regular file whose length `accept`s. Reserves no more than that, and fails where memory cannot hold it.
pub(crate) fn read_file(
    medium: &dyn Medium,
    path: &Path,
    accept: impl FnOnce(u64) -> Result<(), String>,
) -> Result<Vec<u8>, Unusable> {
    let length = look_at(medium, path, accept)?;
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(length as usize);
    reserved.map_err(|error| lacks_memory(path, &error))?;
    read_blocks(medium, path, length, &mut |block| bytes.extend_from_slice(block))?;
    Ok(bytes)
}

fn read_blocks(medium: &dyn Medium, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), Unusable> {
    let mut read = 0;
    medium.read(path, length, &mut |block| {
        read += block.len() as u64;
        act(block);
    })?;
    if read != length {
        return Err(Unusable::Damaged(format!("{} shrank while it was read", name_of(path))));
    }
    Ok(())
}

/// What is too large for this process now may be whole.
fn lacks_memory(path: &Path, problem: &dyn fmt::Display) -> Unusable {
    let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("{problem}: memory lacks"));
    Unusable::Unread(Box::new(CheckpointError::Storage { attempt: "reading", path: path.to_owned(), source }))
}

/// Whether the files of all chunks have their lengths.
fn look_at_all(medium: &dyn Medium, folder: &Path, chunks: &[Chunk]) -> Result<(), Unusable> {
    chunks
        .iter()
        .try_for_each(|chunk| look_at(medium, &folder.join(chunk.file()), |length| chunk.accept(length)).map(drop))
}

/// The length of a regular file, which `accept`s it.
fn look_at(medium: &dyn Medium, path: &Path, accept: impl FnOnce(u64) -> Result<(), String>) -> Result<u64, Unusable> {
    let missing = || Unusable::Damaged(format!("{} cannot be read: it is missing", name_of(path)));
    let length = medium.length(path)?.ok_or_else(missing)?;
    accept(length).map_err(Unusable::Damaged)?;
    Ok(length)
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}
