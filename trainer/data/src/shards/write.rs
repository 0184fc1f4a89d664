//! Folders of pictures as archives, for tests and examples.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use tar::{Builder, Header};

use crate::DataError;

/// Writes pictures with their labels as archives `PREFIX-NUMBER.tar` of `each` samples. The same
/// pictures give the same bytes.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When archives are to have no samples.
pub fn write(folder: &Path, prefix: &str, pictures: &[(PathBuf, u32)], each: usize) -> Result<(), DataError> {
    assert!(each > 0, "archives of no samples");
    fs::create_dir_all(folder).map_err(|source| DataError::Write { path: folder.to_owned(), source })?;
    for (number, run) in pictures.chunks(each).enumerate() {
        let path = folder.join(format!("{prefix}-{number:06}.tar"));
        let written = archive(&path, run, number * each);
        written.map_err(|source| DataError::Write { path, source })?;
    }
    Ok(())
}

fn archive(path: &Path, pictures: &[(PathBuf, u32)], first: usize) -> io::Result<()> {
    let mut archive = Builder::new(File::create(path)?);
    for (index, (picture, label)) in pictures.iter().enumerate() {
        let end = picture.extension().and_then(|end| end.to_str()).unwrap_or("jpg");
        let key = first + index;
        append(&mut archive, &format!("{key:08}.{end}"), &fs::read(picture)?)?;
        append(&mut archive, &format!("{key:08}.cls"), label.to_string().as_bytes())?;
    }
    archive.finish()
}

fn append(archive: &mut Builder<File>, name: &str, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, content)
}
