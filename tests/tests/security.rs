//! docs/security.md names the test of each claim, and those tests exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use lockstep_tests::root;

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the threat model");
    let is_test =
        |word: &&str| word.matches('_').count() > 3 && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let named: BTreeSet<&str> = page.split('`').filter(is_test).collect();
    assert!(named.len() > 7, "{named:?}");
    let mut sources = String::new();
    for folder in ["operator", "trainer", "tests"] {
        collect(&root().join(folder), &mut sources);
    }
    let absent: Vec<_> = named.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(absent.is_empty(), "docs/security.md names tests that do not exist: {absent:?}");
}

fn collect(folder: &Path, sources: &mut String) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.expect("readable").path()).collect::<Vec<PathBuf>>() {
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(&path).expect("text"));
        }
    }
}
