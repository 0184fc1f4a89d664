//! Names of files that others chose.

use super::limits::MAX_NAME_BYTES;

/// Refuses a name that leads out of its folder, or that no reader could use. The error says why.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("the name {name:?} {why}"));
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return refuse(&format!("has {} bytes, accepted are 1 to {MAX_NAME_BYTES}", name.len()));
    }
    if name.starts_with('/') {
        return refuse("is an absolute path; accepted are paths below the folder");
    }
    if name.chars().any(char::is_control) {
        return refuse("has a control character");
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("has a part that is empty, `.` or `..`; accepted are paths below the folder");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_below_its_folder() {
        for good in ["a", "train/cat/1.jpg", "a b/ä.png", "..a", "a..", "x/.hidden"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "/a", "..", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "a\nb", &"a".repeat(1025)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
