//! Boards, rules and runbooks name only metrics that Lockstep exports.

use std::{collections::BTreeSet, fs};

use lockstep_metrics::{Kind, table};
use lockstep_tests::root;

/// Files and folders with metrics' names in them.
const PLACES: [&str; 4] =
    ["charts/lockstep/files/dashboards", "charts/lockstep/files/rules", "docs/runbooks", "docs/on-a-cluster.md"];

#[test]
fn each_metric_that_is_named_is_in_the_table() {
    let mut known: BTreeSet<String> = table::ALL.iter().map(|metric| metric.name.to_owned()).collect();
    for metric in table::ALL.iter().filter(|metric| metric.kind == Kind::Histogram) {
        known.extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name)));
    }
    let mut found = BTreeSet::new();
    for place in PLACES {
        let path = root().join(place);
        let files = match fs::read_dir(&path) {
            Ok(folder) => folder.map(|entry| entry.expect("readable").path()).collect(),
            Err(_) => vec![path],
        };
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            for name in names(&text) {
                assert!(
                    known.contains(name),
                    "{}: {name} is no metric of trainer/metrics/src/table.rs",
                    file.display()
                );
                found.insert(name.to_owned());
            }
        }
    }
    assert!(found.len() > 30, "too few metrics were found to be a check: {found:?}");
}

/// Returns the words of a text that look like a metric of Lockstep.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(move |letter| !is_part(letter))
        .filter(|word| word.strip_prefix("lockstep_").is_some_and(|rest| !rest.is_empty()))
}
