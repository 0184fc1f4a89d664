//! Reads the files of a checkpoint into memory. Every byte is verified. Lengths are verified before
//! memory is reserved for them.

use std::{
    fmt, io,
    ops::Range,
    panic::resume_unwind,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{
    CheckpointError, Destination, Layout, LoadRefusal, Piece,
    backend::Backend,
    chunk::{Chunk, ChunkHasher},
    format::MANIFEST,
    layout::VALUE_BYTES,
    manifest::{MAX_MANIFEST_BYTES, Manifest},
    read_error::ReadError,
};

pub(crate) fn read_manifest(backend: &dyn Backend, folder: &Path) -> Result<(Manifest, [u8; 32], u64), ReadError> {
    let bytes = read_file(backend, &folder.join(MANIFEST), |length| {
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
    backend: &dyn Backend,
    folder: &Path,
    manifest: &Manifest,
    at_once: usize,
    into: &mut impl Destination,
) -> Result<(), ReadError> {
    let layout = Layout::of(manifest.tensors.clone()).map_err(ReadError::Damaged)?;
    check_lengths(backend, folder, &manifest.chunks)?;
    read_chunks(backend, folder, &manifest.chunks, &layout, buffers_in(into, folder, &layout)?, at_once)
}

/// Returns a buffer for each tensor and checks their lengths.
fn buffers_in<'a>(
    into: &'a mut impl Destination,
    folder: &Path,
    layout: &Layout,
) -> Result<Vec<&'a mut [f32]>, ReadError> {
    let buffers = into.buffers(layout).map_err(|problem| match problem {
        LoadRefusal::Memory(problem) => lacks_memory(folder, &problem),
        LoadRefusal::Misfit(problem) => {
            ReadError::Unread(Box::new(CheckpointError::Misfit { path: folder.to_owned(), problem }))
        }
    })?;
    let expected = layout.tensors().map(|(_, shape)| shape.iter().product::<usize>());
    assert!(buffers.iter().map(|buffer| buffer.len()).eq(expected), "buffers for {layout:?}");
    Ok(buffers)
}

pub(crate) fn verify_state(
    backend: &dyn Backend,
    folder: &Path,
    manifest: &Manifest,
    at_once: usize,
) -> Result<(), ReadError> {
    check_lengths(backend, folder, &manifest.chunks)?;
    let chunks = manifest.chunks.iter().map(|chunk| (chunk, ())).collect();
    each_chunk(chunks, at_once, |chunk, ()| read_known_chunk(backend, folder, chunk, &mut |_| {}))
}

pub(crate) fn read_range(
    backend: &dyn Backend,
    folder: &Path,
    manifest: &Manifest,
    range: Range<u64>,
) -> Result<Vec<f32>, ReadError> {
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    let overlapping = |chunk: &&Chunk| chunk.start < range.end && range.start < chunk.range().end;
    for chunk in manifest.chunks.iter().filter(overlapping) {
        bytes.clear();
        read_chunk(backend, folder, chunk, &mut |block| bytes.extend_from_slice(block))?;
        let within = |at: u64| (at.clamp(chunk.start, chunk.range().end) - chunk.start) as usize;
        extend(&mut values, bytes[within(range.start)..within(range.end)].as_chunks().0);
    }
    Ok(values)
}

fn extend(values: &mut Vec<f32>, bytes: &[[u8; VALUE_BYTES as usize]]) {
    values.extend(bytes.iter().map(|value| f32::from_le_bytes(*value)));
}

/// Fills `unassigned`, the buffers of all tensors. The chunks are known to cover the layout.
fn read_chunks(
    backend: &dyn Backend,
    folder: &Path,
    chunks: &[Chunk],
    layout: &Layout,
    mut unassigned: Vec<&mut [f32]>,
    at_once: usize,
) -> Result<(), ReadError> {
    // Chunks are in the order of the values, so each takes its buffers from the front.
    let buffers = chunks.iter().map(|chunk| {
        let buffer =
            |piece: Piece<'_>| unassigned[piece.tensor].split_off_mut(..piece.values.len()).unwrap_or_default();
        (chunk, layout.pieces(chunk.range()).map(buffer).collect::<Vec<_>>())
    });
    each_chunk(buffers.collect(), at_once, |chunk, buffers| {
        let mut buffers = buffers.into_iter();
        let mut buffer: &mut [f32] = &mut [];
        let mut put = |block: &[u8]| {
            let mut values = block.as_chunks().0;
            while !values.is_empty() {
                if buffer.is_empty() {
                    let Some(next) = buffers.next() else { break };
                    buffer = next;
                }
                let length = buffer.len().min(values.len());
                let filled = buffer.split_off_mut(..length).unwrap_or_default();
                let (now, later) = values.split_at(length);
                filled.iter_mut().zip(now).for_each(|(buffer, value)| *buffer = f32::from_le_bytes(*value));
                values = later;
            }
        };
        read_known_chunk(backend, folder, chunk, &mut put)
    })
}

/// Calls `act` for each chunk on `at_once` threads, so that one verifies while others read. Several
/// chunks may be unusable; the error is that of the first one.
fn each_chunk<T: Send>(
    chunks: Vec<(&Chunk, T)>,
    at_once: usize,
    act: impl Fn(&Chunk, T) -> Result<(), ReadError> + Sync,
) -> Result<(), ReadError> {
    let threads = at_once.min(chunks.len());
    let remaining = Mutex::new(chunks.into_iter());
    let remaining = || remaining.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let Some((chunk, with)) = remaining().next() else { return Ok(()) };
            act(chunk, with).map_err(|unusable| {
                // The other chunks are not needed any more.
                *remaining() = Vec::new().into_iter();
                (chunk.start, unusable)
            })?;
        }
    };
    let failed = thread::scope(|scope| {
        // If the system refuses a thread, those that run already do all the work.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..threads).map_while(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|cause| resume_unwind(cause)));
        [work()].into_iter().chain(joined).filter_map(Result::err).min_by_key(|(start, _)| *start)
    });
    failed.map_or(Ok(()), |(_, unusable)| Err(unusable))
}

/// Passes the bytes of a chunk to `act` in blocks that fit a core's cache. Only the whole chunk can
/// be verified, so the caller must discard the bytes on an error.
pub(crate) fn read_chunk(
    backend: &dyn Backend,
    folder: &Path,
    chunk: &Chunk,
    act: &mut dyn FnMut(&[u8]),
) -> Result<(), ReadError> {
    checked_length(backend, &folder.join(chunk.file()), |length| chunk.accept(length))?;
    read_known_chunk(backend, folder, chunk, act)
}

/// Works as [`read_chunk`], for a file that is known to have the chunk's length.
fn read_known_chunk(
    backend: &dyn Backend,
    folder: &Path,
    chunk: &Chunk,
    act: &mut dyn FnMut(&[u8]),
) -> Result<(), ReadError> {
    let (file, mut seen) = (chunk.file(), ChunkHasher::from(chunk.start));
    read_blocks(backend, &folder.join(&file), chunk.bytes, &mut |block| {
        seen.add(block);
        act(block);
    })?;
    chunk.check(&seen.chunk()).map_err(|problem| ReadError::Damaged(format!("{file} {problem}")))
}

/// Reads a regular file of a length that `accept` allows. Reserves only that much memory and fails
/// if there is not enough.
pub(crate) fn read_file(
    backend: &dyn Backend,
    path: &Path,
    accept: impl FnOnce(u64) -> Result<(), String>,
) -> Result<Vec<u8>, ReadError> {
    let length = checked_length(backend, path, accept)?;
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(length as usize);
    reserved.map_err(|error| lacks_memory(path, &error))?;
    read_blocks(backend, path, length, &mut |block| bytes.extend_from_slice(block))?;
    Ok(bytes)
}

fn read_blocks(backend: &dyn Backend, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), ReadError> {
    let mut read = 0;
    backend.read(path, length, &mut |block| {
        read += block.len() as u64;
        act(block);
    })?;
    if read != length {
        return Err(ReadError::Damaged(format!("{} shrank while it was read", file_name(path))));
    }
    Ok(())
}

/// Returns an error that does not call the file damaged: only this process lacks memory.
fn lacks_memory(path: &Path, problem: &dyn fmt::Display) -> ReadError {
    let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("{problem}: not enough memory"));
    ReadError::Unread(Box::new(CheckpointError::Storage { action: "reading", path: path.to_owned(), source }))
}

/// Checks the length of each chunk's file.
fn check_lengths(backend: &dyn Backend, folder: &Path, chunks: &[Chunk]) -> Result<(), ReadError> {
    chunks.iter().try_for_each(|chunk| {
        checked_length(backend, &folder.join(chunk.file()), |length| chunk.accept(length)).map(drop)
    })
}

/// Returns the length of a regular file if `accept` allows it.
fn checked_length(
    backend: &dyn Backend,
    path: &Path,
    accept: impl FnOnce(u64) -> Result<(), String>,
) -> Result<u64, ReadError> {
    let missing = || ReadError::Damaged(format!("{} cannot be read: it is missing", file_name(path)));
    let length = backend.length(path)?.ok_or_else(missing)?;
    accept(length).map_err(ReadError::Damaged)?;
    Ok(length)
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}
