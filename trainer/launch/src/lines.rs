//! Files of JSON lines to which processes that may be killed at any moment add: a torn line spoils no other, and a line that was added
//! stays.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// Some hundred lines.
const LAST_BYTES: u64 = 64 << 10;

/// Adds a line; returns once the storage has it for good. Makes the file where there is none; its folder must be there.
///
/// # Errors
/// What the storage says; part of the line may be there then.
pub fn append(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let is_new = file.seek(SeekFrom::End(0))? == 0;
    let mut line = Vec::new();
    if !is_new {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        // Whoever wrote before was killed in the middle of its line.
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

/// The values of all lines, torn ones left out; none where there is no file.
///
/// # Errors
/// What the storage says.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    values_behind(path, |_| 0)
}

/// As [`read`], of the whole lines in the last 64 KiB of a file that may be long.
///
/// # Errors
/// What the storage says.
pub fn read_last<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    values_behind(path, |length| length.saturating_sub(LAST_BYTES))
}

/// The values of the lines behind the place that `begins` says for a file of so many bytes.
fn values_behind<T: DeserializeOwned>(path: &Path, begins: impl Fn(u64) -> u64) -> io::Result<Vec<T>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let begin = begins(file.metadata()?.len());
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    // The first one may have begun before.
    let lines = text.split(|byte| *byte == b'\n').skip(usize::from(begin > 0));
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_that_is_torn_anywhere_spoils_no_other() {
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
    fn of_a_long_file_only_the_end_is_read_and_no_half_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        assert_eq!(read_last::<u32>(&path).expect("readable"), [0; 0]);
        // Parts of such lines are numbers too.
        let lines: Vec<String> = (100_000..120_000).map(|number| format!("{number}\n")).collect();
        fs::write(&path, lines.concat()).expect("written");
        let whole = LAST_BYTES / lines[0].len() as u64;
        let expected: Vec<u64> = (120_000 - whole..120_000).collect();
        assert_eq!(read_last::<u64>(&path).expect("readable"), expected);
        fs::write(&path, lines[..5].concat()).expect("written");
        assert_eq!(read_last::<u64>(&path).expect("readable").len(), 5, "all of it is the end");
    }
}
