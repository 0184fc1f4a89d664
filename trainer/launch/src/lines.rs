//! Files of JSON lines, to which processes add that may be killed at any moment. A torn line spoils
//! no other, and an added line stays.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// The length of some hundred lines.
const LAST_BYTES: u64 = 64 << 10;

/// Adds a line, and returns once the storage has it for good. Makes the file if it is missing; its
/// folder must exist.
///
/// # Errors
/// The storage fails. Part of the line may be there then.
pub fn append(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let is_new = file.seek(SeekFrom::End(0))? == 0;
    let mut line = Vec::new();
    if !is_new {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        // The last writer was killed in the middle of its line.
        if last != *b"\n" {
            line.push(b'\n');
        }
    }
    serde_json::to_writer(&mut line, value)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()?;
    match path.parent().filter(|_| is_new) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Reads the values of all lines but torn ones. A missing file has none.
///
/// # Errors
/// The storage fails.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    values_behind(path, |_| 0)
}

/// Reads the values of the whole lines in the last 64 KiB of a file that may be long.
///
/// # Errors
/// The storage fails.
pub fn read_last<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    values_behind(path, |length| length.saturating_sub(LAST_BYTES))
}

/// Reads the values of the lines from an offset on; `begins` returns it for a file of so many
/// bytes.
fn values_behind<T: DeserializeOwned>(path: &Path, begins: impl Fn(u64) -> u64) -> io::Result<Vec<T>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let begin = begins(file.metadata()?.len());
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    // The first line may have begun before the offset.
    let lines = text.split(|byte| *byte == b'\n').skip(usize::from(begin > 0));
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_torn_line_spoils_no_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, torn) = (folder.path().join("lines.jsonl"), "\"zweite Zeile, mit ü\"\n".as_bytes());
        assert_eq!(read::<String>(&path).expect("readable"), [""; 0]);
        for cut in 0..torn.len() - 1 {
            let _ = fs::remove_file(&path);
            append(&path, &"first").expect("written");
            let before = fs::read(&path).expect("readable");
            fs::write(&path, [&before[..], &torn[..cut]].concat()).expect("written");
            append(&path, &"third").expect("written");
            assert_eq!(read::<String>(&path).expect("readable"), ["first", "third"], "cut at {cut}");
        }
    }

    #[test]
    fn only_whole_lines_at_the_end_of_a_long_file_are_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        assert_eq!(read_last::<u32>(&path).expect("readable"), [0; 0]);
        // A piece of such a line is a number too.
        let lines: Vec<String> = (100_000..120_000).map(|number| format!("{number}\n")).collect();
        fs::write(&path, lines.concat()).expect("written");
        let whole = LAST_BYTES / lines[0].len() as u64;
        let expected: Vec<u64> = (120_000 - whole..120_000).collect();
        assert_eq!(read_last::<u64>(&path).expect("readable"), expected);
        fs::write(&path, lines[..5].concat()).expect("written");
        assert_eq!(read_last::<u64>(&path).expect("readable").len(), 5, "the whole file is its end");
    }
}
