//! The list of a folder's files with their checksums, as `sha256sum` prints it.

use std::collections::BTreeSet;

use super::{limits::MAX_FILES, names::check_name};

/// The list of a folder's files.
pub(super) const SUMS: &str = "SHA256SUMS";
/// How to make the list.
pub(super) const HOW_TO_SUM: &str = "make it in the data set's folder with `find . -type f ! -name SHA256SUMS -exec sha256sum {} + > SHA256SUMS`, \
     or set spec.dataset.uri to an archive (.tar, .tar.gz or .tgz)";

/// Returns the names and the checksums of a list, `SUM  NAME` a line, sorted by name.
pub(super) fn listed(text: &[u8]) -> Result<Vec<(String, String)>, String> {
    let text = std::str::from_utf8(text).map_err(|_| format!("{SUMS} is not UTF-8"))?;
    let mut names = BTreeSet::new();
    let mut files = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || format!("line {} of {SUMS} is not `SHA-256  NAME`; {HOW_TO_SUM}", number + 1);
        let (sum, name) = line.split_once(' ').ok_or_else(wrong)?;
        let name = name.strip_prefix([' ', '*']).ok_or_else(wrong)?;
        if sum.len() != 64 || !sum.chars().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let name = name.strip_prefix("./").unwrap_or(name).trim_end_matches('\r');
        check_name(name)?;
        if name == SUMS {
            continue;
        }
        if !names.insert(name) {
            return Err(format!("{SUMS} names {name:?} twice"));
        }
        if files.len() == MAX_FILES {
            return Err(format!("{SUMS} names more than {MAX_FILES} files"));
        }
        files.push((name.to_owned(), sum.to_ascii_lowercase()));
    }
    if files.is_empty() {
        return Err(format!("{SUMS} names no file; {HOW_TO_SUM}"));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_is_read_as_sha256sum_writes_it() {
        let sum = "0".repeat(63) + "A";
        let text = format!("{sum}  ./train/a b/1.jpg\n{sum} *2.bin\r\n\n{sum}  SHA256SUMS\n");
        let expected = ["2.bin", "train/a b/1.jpg"].map(|name| (name.to_owned(), sum.to_lowercase()));
        assert_eq!(listed(text.as_bytes()), Ok(expected.to_vec()));
        for (text, word) in [
            (String::new(), "names no file"),
            (format!("{sum}  ../secret"), "`..`"),
            (format!("{sum}  /etc/passwd"), "absolute"),
            (format!("{sum}  a\n{sum}  a"), "twice"),
            ("abc  a".to_owned(), "line 1"),
            (format!("{sum}\ta"), "sha256sum"),
        ] {
            let problem = listed(text.as_bytes()).expect_err(&text);
            assert!(problem.contains(word), "{problem}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(files) = listed(&text) {
                prop_assert!(files.iter().all(|(name, _)| check_name(name).is_ok()));
            }
        }
    }
}
