//! The shape of the code: no circle of imports among the modules of a crate, no comment wider than
//! 100 columns, no long product file.
//!
//! How sentences read is not for a test: STYLE.md shows it by pairs of examples.

mod imports;

use std::{
    fs,
    path::{Path, PathBuf},
};

use imports::Module;

/// Circles that stay, as `crate: module module …` in alphabetical order, with the reason.
const CIRCLES: [(&str, &str); 0] = [];
const MOST_CIRCLES: usize = 3;

const COMMENT_COLUMNS: usize = 100;
const FILE_LINES: usize = 500;

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_circle() {
    const { assert!(CIRCLES.len() <= MOST_CIRCLES) };
    let mut found = Vec::new();
    for folder in crates() {
        let source = root().join(&folder).join("src");
        let Some(entry) = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|path| path.exists())
        else {
            panic!("{folder} has neither src/lib.rs nor src/main.rs");
        };
        let module = Module::read(&entry, &source);
        found.extend(module.circles().into_iter().map(|circle| format!("{folder}: {}", circle.join(" "))));
    }
    let unexpected: Vec<_> = found.iter().filter(|circle| CIRCLES.iter().all(|(known, _)| known != circle)).collect();
    assert!(unexpected.is_empty(), "these modules import each other in a circle:\n{unexpected:#?}");
    for (known, _) in CIRCLES {
        assert!(found.iter().any(|circle| circle == known), "{known} is no circle any more: remove it from CIRCLES");
    }
}

#[test]
fn no_comment_is_wider_than_100_columns() {
    let mut wide = Vec::new();
    for path in crates().iter().flat_map(|folder| rust_files(&root().join(folder))) {
        for (index, line) in read(&path).lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS {
                wide.push(format!("{}:{}", shown(&path), index + 1));
            }
        }
    }
    assert!(
        wide.is_empty(),
        "{} comment lines are wider than {COMMENT_COLUMNS} columns:\n{}",
        wide.len(),
        wide.join("\n")
    );
}

#[test]
fn no_product_file_is_longer_than_500_lines() {
    let files = crates()
        .into_iter()
        .filter(|folder| folder.contains('/'))
        .flat_map(|folder| rust_files(&root().join(folder).join("src")));
    let long: Vec<_> = files
        .map(|path| (read(&path).lines().count(), shown(&path)))
        .filter(|(lines, _)| *lines > FILE_LINES)
        .collect();
    assert!(long.is_empty(), "split these files: {long:#?}");
}

/// Returns the folders of the crates, from the root: `trainer/elastic`, `xtask`, …
fn crates() -> Vec<String> {
    let inside = |half: &str| {
        let entries = fs::read_dir(root().join(half)).expect("a half of the product");
        let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
        names.map(|name| format!("{half}/{name}")).collect::<Vec<_>>()
    };
    let mut folders = [inside("operator"), inside("trainer")].concat();
    folders.extend(["lab", "tests", "xtask"].map(str::to_owned));
    folders.sort();
    folders
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> &'static Path {
    lockstep_tests::root()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
