use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Folder, Tensor, backend::Backend, file_backend::FileBackend, file_operation::Contents,
    safetensors_file,
};

/// Linux lists the open files of each process in this folder.
const PROCESSES: &str = "/proc";
/// The system follows no more links than this.
const MAX_LINKS: usize = 40;

/// The outcome of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// The tensors are now the whole content of a file.
    File,
    /// The tensors were written into an open file or into something that is not a file: a pipe, a
    /// terminal, a process's standard output.
    Stream,
}

impl Folder {
    /// Writes `tensors` as a safetensors file of this name and returns its path. Replaces an
    /// existing file in one instant. Equal tensors and metadata give equal bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Tensors`], or any error of the storage. An existing file then stays as it
    /// was.
    ///
    /// # Panics
    /// If the number of values of a tensor does not fit its shape.
    pub fn export_model(
        &self,
        name: &str,
        tensors: &[Tensor<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<PathBuf, CheckpointError> {
        let path = self.path().join(name);
        let bytes = to_bytes(&path, tensors, metadata)?;
        self.backend.store(&path, Contents::Bytes(&bytes))?;
        Ok(path)
    }
}

/// Writes `tensors` to any path of the file system. A pipe or character device receives the bytes
/// and stays what it is. If the path is a link, its target is replaced, and the link stays.
///
/// # Errors
/// See [`Folder::export_model`], and [`CheckpointError::NotAFile`].
///
/// # Panics
/// See [`Folder::export_model`].
pub fn export_model(
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Exported, CheckpointError> {
    let bytes = to_bytes(path, tensors, metadata)?;
    let failed = |action| move |source| CheckpointError::of(action, path.to_owned(), source);
    match target(path)? {
        Target::File(file) => {
            let folder = folder_of(&file);
            fs::create_dir_all(&folder).map_err(failed("creating the folder of"))?;
            let file = folder.join(file.file_name().unwrap_or_default());
            FileBackend::at(folder).store(&file, Contents::Bytes(&bytes))?;
            Ok(Exported::File)
        }
        Target::Stream => {
            // Standard output may be a file that already has content.
            let opened: io::Result<File> = OpenOptions::new().append(true).open(path);
            opened.and_then(|mut stream| stream.write_all(&bytes)).map_err(failed("writing"))?;
            Ok(Exported::Stream)
        }
    }
}

/// How a path receives the tensors.
enum Target {
    /// The tensors become a file at this path. The path is not a link.
    File(PathBuf),
    /// The tensors are appended to what the path names.
    Stream,
}

fn target(path: &Path) -> Result<Target, CheckpointError> {
    let refused = |found| Err(CheckpointError::NotAFile { path: path.to_owned(), found });
    match fs::metadata(path).map(|found| found.file_type()) {
        Ok(found) if found.is_dir() => refused("a folder"),
        Ok(found) if found.is_block_device() => refused("a block device"),
        Ok(found) if found.is_socket() => refused("a socket"),
        Ok(found) if !found.is_file() || is_open_file(path) => Ok(Target::Stream),
        Ok(_) => {
            path.canonicalize().map(Target::File).map_err(|error| CheckpointError::of("reading", path.into(), error))
        }
        Err(_) if path.is_symlink() => refused("a link to nothing"),
        // The later attempt to make the file reports why that is impossible.
        Err(_) => Ok(Target::File(path.to_owned())),
    }
}

/// True if a path names an open file of a process, as `/dev/stdout` does. The process keeps its
/// open file, so it would never see a replacement.
fn is_open_file(path: &Path) -> bool {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(folder) = folder_of(&path).canonicalize() else { return false };
        if folder.starts_with(PROCESSES) {
            return true;
        }
        let Some(Ok(link)) = path.file_name().map(|name| fs::read_link(folder.join(name))) else { return false };
        path = folder.join(link);
    }
    false
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn to_bytes(
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, CheckpointError> {
    safetensors_file::to_bytes(tensors, metadata)
        .map_err(|problem| CheckpointError::Tensors { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsRawFd as _, os::unix::fs::symlink, thread};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn export_to(path: &Path) -> Result<Exported, CheckpointError> {
        let tensors = [Tensor { name: "w", shape: &[2], values: &[1.0, 2.0] }];
        export_model(path, &tensors, &BTreeMap::new())
    }

    fn has_values(bytes: &[u8]) -> bool {
        bytes.ends_with(&[1.0_f32, 2.0].map(f32::to_le_bytes).concat())
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        // The reader opens both ends, so that neither side waits for the other.
        let mut reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("opens");
        let reading = thread::spawn(move || {
            let mut bytes = [0; 4096];
            let count = io::Read::read(&mut reader, &mut bytes).expect("readable");
            bytes[..count].to_vec()
        });
        let exported = export_to(&pipe).expect("written");
        let is_pipe = fs::symlink_metadata(&pipe).expect("there").file_type().is_fifo();
        assert!(exported == Exported::Stream && is_pipe);
        assert!(has_values(&reading.join().expect("read")));
    }

    #[test]
    fn an_open_file_of_a_process_is_appended_to() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"before ").expect("written");
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("stdout");
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &link).expect("linked");
        assert_eq!(export_to(&link).expect("written"), Exported::Stream);
        assert!(link.is_symlink());
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).expect("at its beginning");
        io::Read::read_to_end(&mut file, &mut bytes).expect("readable");
        assert!(bytes.starts_with(b"before ") && has_values(&bytes));
    }

    #[test]
    fn a_link_keeps_its_target_when_the_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let [link, file] = ["link", "file"].map(|name| folder.path().join(name));
        fs::write(&file, "older").expect("written");
        symlink("file", &link).expect("linked");
        assert_eq!(export_to(&link).expect("written"), Exported::File);
        assert!(link.is_symlink() && has_values(&fs::read(&file).expect("readable")));
    }

    #[test]
    fn a_folder_and_a_link_to_nothing_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        symlink("nothing", &link).expect("linked");
        for (path, found) in [(folder.path(), "is a folder"), (&link, "is a link to nothing")] {
            let refused = export_to(path).expect_err("refused").to_string();
            assert!(refused.contains(found) && refused.contains("name a file"), "{refused}");
        }
        assert!(link.is_symlink());
    }
}
