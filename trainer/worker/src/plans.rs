//! `plans.jsonl`: a line for each way in which each membership summed, which `lockstep replay` follows.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use lockstep_launch::{PLANS_FILE, Planned};

/// Adds a line; returns once the storage has it for good.
pub(crate) fn keep(folder: &Path, planned: &Planned) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(folder.join(PLANS_FILE))?;
    let mut line = Vec::new();
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        // Whoever wrote before was killed in the middle of its line.
        if last != *b"\n" {
            line.push(b'\n');
        }
    }
    serde_json::to_writer(&mut line, planned)?;
    line.push(b'\n');
    let is_new = file.stream_position()? == 0;
    file.write_all(&line)?;
    file.sync_data()?;
    if is_new { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_torn_line_spoils_no_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let planned = |generation| Planned { generation, workers: 2, step: 7, plan: "{}".into() };
        keep(folder.path(), &planned(1)).expect("written");
        let path = folder.path().join(PLANS_FILE);
        let mut torn = fs::read(&path).expect("readable");
        torn.extend(b"{\"genera");
        fs::write(&path, torn).expect("written");
        keep(folder.path(), &planned(3)).expect("written");
        let text = fs::read_to_string(&path).expect("readable");
        let read: Vec<Planned> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(read, [planned(1), planned(3)]);
    }
}
