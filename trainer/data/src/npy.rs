//! NumPy's file of one array (`numpy.save`): a header, then the values.

pub(crate) mod header;

use std::{fs, io::Write as _, path::Path};

use crate::DataError;
use header::{Header, MAGIC};

/// The most bytes of a file.
const MAX_BYTES: u64 = 4 << 30;

/// An array of bytes, last dimension fastest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Reads an array of bytes. Values of more bits are accepted as long as each is a whole number from
/// 0 to 255.
///
/// # Errors
/// [`DataError::Read`] and [`DataError::NoArray`].
pub(crate) fn read_bytes(path: &Path) -> Result<Array, DataError> {
    let failed = |source| DataError::Read { path: path.to_owned(), source };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > MAX_BYTES {
        return Err(no_array(path, format!("it has {size} bytes, accepted are {MAX_BYTES}")));
    }
    let file = fs::read(path).map_err(failed)?;
    parsed(&file).map_err(|reason| no_array(path, reason))
}

fn no_array(path: &Path, reason: String) -> DataError {
    DataError::NoArray { path: path.to_owned(), reason }
}

fn parsed(file: &[u8]) -> Result<Array, String> {
    let mut values = file;
    let Header { kind, big_endian, shape, length: _ } = header::read(&mut values)?;
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    let count = count.ok_or_else(|| format!("its shape {shape:?} is too large"))?;
    let accepted = "accepted are uint8, bool, and int8 to int64 with values from 0 to 255";
    let width = match kind.as_str() {
        "u1" | "b1" | "i1" => 1,
        "u2" | "i2" if !big_endian => 2,
        "u4" | "i4" if !big_endian => 4,
        "u8" | "i8" if !big_endian => 8,
        _ => return Err(format!("its values are {}{kind}; {accepted}", if big_endian { ">" } else { "" })),
    };
    if count.checked_mul(width) != Some(values.len()) {
        return Err(format!("{} bytes follow its header, and {shape:?} of {kind} need {count}·{width}", values.len()));
    }
    let bytes = if width == 1 {
        values.to_vec()
    } else {
        // A number from 0 to 255 has its first byte only.
        values
            .chunks_exact(width)
            .filter_map(|value| value[1..].iter().all(|byte| *byte == 0).then_some(value[0]))
            .collect()
    };
    let is_signed = kind == "i1";
    if bytes.len() != count || (is_signed && bytes.iter().any(|byte| *byte > 127)) {
        return Err(format!("a value is not in 0 to 255; {accepted}"));
    }
    Ok(Array { shape, bytes })
}

/// Writes an array of bytes.
///
/// # Errors
/// [`DataError::Write`].
pub(crate) fn write_bytes(path: &Path, shape: &[usize], bytes: &[u8]) -> Result<(), DataError> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The values begin at a multiple of 64, behind a line break.
    let filled = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 5;
    header = format!("{header:<filled$}\n");
    let write = || {
        let mut file = fs::File::create(path)?;
        file.write_all(MAGIC)?;
        file.write_all(&[1, 0])?;
        file.write_all(&(header.len() as u16).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(bytes)
    };
    write().map_err(|source| DataError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, values: &[u8]) -> Vec<u8> {
        [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), values].concat()
    }

    fn header(kind: &str, shape: &str) -> String {
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n")
    }

    #[test]
    fn an_array_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        let bytes: Vec<u8> = (0..24).collect();
        write_bytes(&path, &[2, 3, 4], &bytes).expect("written");
        assert_eq!(read_bytes(&path).expect("read"), Array { shape: vec![2, 3, 4], bytes });
    }

    #[test]
    fn classes_of_64_bits_are_those_that_numpy_counts_in() {
        let values: Vec<u8> = [3_i64, 255].iter().flat_map(|value| value.to_le_bytes()).collect();
        let array = parsed(&file(&header("<i8", "(2,)"), &values)).expect("an array");
        assert_eq!(array, Array { shape: vec![2], bytes: vec![3, 255] });
    }

    #[test]
    fn each_fault_is_named() {
        let negative = (-1_i64).to_le_bytes();
        let cases = [
            (b"\x89PNG\r\n\x1a\n".to_vec(), "does not begin"),
            (file(&header("<f4", "(1,)"), &[0; 4]), "its values are f4"),
            (file(&header(">i8", "(1,)"), &[0; 8]), "its values are >i8"),
            (file(&header("|u1", "(2, 2)"), &[0; 3]), "3 bytes follow"),
            (file(&header("<i8", "(1,)"), &negative), "not in 0 to 255"),
            (file(&header("|u1", "2"), &[0; 2]), "lacks a `(`"),
            (file(&header("|u1", "(2,)").replace("False", "True"), &[0; 2]), "Fortran"),
            (file(&header("|u1", &format!("({0}, {0}, {0})", usize::MAX)), &[]), "too large"),
        ];
        for (bytes, expected) in cases {
            let error = parsed(&bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
            let _ = parsed(&bytes);
            let good = file(&header("|u1", "(64, 2)"), &bytes);
            let _ = parsed(&good[..cut.min(good.len())]);
            let _ = parsed(&[MAGIC, &bytes].concat());
        }
    }
}
