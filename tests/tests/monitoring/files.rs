//! The files under test, as values, and promtool.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use lockstep_tests::{chart, root, skip};
use serde_json::Value;

/// Reads a file; the path begins at the root.
pub(crate) fn read(path: &str) -> String {
    let path = root().join(Path::new(path));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a YAML or JSON file; the path begins at the root.
pub(crate) fn value(path: &str) -> Value {
    lockstep_api::manifest::parse(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the items of a list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// Returns the text of a value.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Runs promtool at the root, and expects success. Returns what it says. If this machine has none,
/// prints one loud line and returns `None`.
pub(crate) fn promtool(test: &str, words: &[&str]) -> Option<String> {
    let promtool = chart::promtool().map_err(|why| skip(test, &format!("{why:#}"))).ok()?;
    let ended = Command::new(promtool).args(words).current_dir(root()).output().expect("promtool starts");
    let Output { status, stdout, stderr } = &ended;
    assert!(status.success(), "{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    Some(String::from_utf8_lossy(stdout).into_owned())
}
