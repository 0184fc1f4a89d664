//! The IDX reader takes whatever lies in the folder: it never panics and never reserves more than
//! the file can hold.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};
use lockstep_data::{DataError, Dataset, idx};
use proptest::prelude::*;

/// A file of some hundred bytes expands to less than this, and the reader's buffers with it.
const MOST_RESERVED_KIB: u64 = 32 << 10;

fn read(folder: &Path, images: &[u8], labels: &[u8]) -> Result<Dataset, DataError> {
    fs::write(folder.join("train-images-idx3-ubyte"), images).expect("written");
    fs::write(folder.join("train-labels-idx1-ubyte"), labels).expect("written");
    idx::read(folder, 0.1, Some(10))
}

/// The most address space that this process ever had, in KiB; memory that is reserved and never
/// touched counts.
#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("a line of it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[cfg(not(target_os = "linux"))]
fn peak() -> u64 {
    0
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(bytes).expect("in memory");
    gzip.finish().expect("in memory")
}

#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Cut(usize),
    Append(Vec<u8>),
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        match change {
            Change::Set(at, to) if !bytes.is_empty() => {
                let at = at % bytes.len();
                bytes[at] = *to;
            }
            Change::Set(..) => {}
            Change::Cut(at) => bytes.truncate(at % (bytes.len() + 1)),
            Change::Append(more) => bytes.extend(more),
        }
    }
    bytes
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        // The header, where every bit counts, more often than the rest.
        (0_usize..32, any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        any::<usize>().prop_map(Change::Cut),
        proptest::collection::vec(any::<u8>(), 1..20).prop_map(Change::Append),
    ]
}

#[test]
fn any_bytes_are_read_or_refused_within_bounded_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = [&[0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 3][..], &[7; 180]].concat();
    let labels = [&[0, 0, 8, 1, 0, 0, 0, 20][..], &[9; 20]].concat();
    assert_eq!(read(folder.path(), &images, &labels).expect("valid").train.len(), 18);
    assert_eq!(read(folder.path(), &gzip(&images), &gzip(&labels)).expect("valid").train.len(), 18);
    let before = peak();
    // 4 GiB in a file of 196 bytes.
    let promises = [&[0, 0, 8, 3, 0, 0, 16, 0, 0, 0, 4, 0, 0, 0, 4, 0][..], &[7; 180]].concat();
    for bytes in [promises.clone(), gzip(&promises)] {
        assert!(matches!(read(folder.path(), &bytes, &labels), Err(DataError::Truncated { .. })));
    }

    proptest!(ProptestConfig::with_cases(1500), |(
        raw in proptest::collection::vec(any::<u8>(), 0..400),
        changes in proptest::collection::vec(change(), 0..4),
        source in 0..4_u8,
    )| {
        let bytes = match source {
            0 => raw,
            1 => changed(images.clone(), &changes),
            2 => changed(gzip(&images), &changes),
            _ => gzip(&changed(images.clone(), &changes)),
        };
        if let Ok(dataset) = read(folder.path(), &bytes, &labels) {
            prop_assert_eq!((dataset.train.len(), dataset.evaluation.len()), (18, 2));
        }
        let label_bytes = changed(if source % 2 == 0 { labels.clone() } else { gzip(&labels) }, &changes);
        if let Ok(dataset) = read(folder.path(), &images, &label_bytes) {
            prop_assert!(dataset.train.labels().iter().all(|label| *label < 10));
        }
    });
    let grown = peak() - before;
    assert!(grown < MOST_RESERVED_KIB, "{grown} KiB more address space, {MOST_RESERVED_KIB} are enough");
}
