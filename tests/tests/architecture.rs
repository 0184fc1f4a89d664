//! The arrows of ARCHITECTURE.md: the crates that each crate may use.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// `user ──► used`, the complete list.
const ARROWS: [(&str, &[&str]); 14] = [
    ("lockstep-launch", &[]),
    ("lockstep-lifecycle", &["lockstep-launch"]),
    ("lockstep-api", &["lockstep-launch", "lockstep-lifecycle"]),
    ("lockstep-plan", &["lockstep-api", "lockstep-launch", "lockstep-lifecycle"]),
    ("lockstep-controller", &["lockstep-api", "lockstep-launch", "lockstep-metrics", "lockstep-plan"]),
    ("lockstep-cli", &["lockstep-api", "lockstep-launch", "lockstep-lifecycle", "lockstep-metrics", "lockstep-plan"]),
    ("lockstep-metrics", &["lockstep-launch"]),
    ("lockstep-data", &[]),
    ("lockstep-nn", &[]),
    ("lockstep-collective", &[]),
    ("lockstep-elastic", &["lockstep-collective"]),
    ("lockstep-checkpoint", &[]),
    ("lockstep-objects", &["lockstep-checkpoint", "lockstep-launch"]),
    (
        "lockstep-worker",
        &[
            "lockstep-checkpoint",
            "lockstep-collective",
            "lockstep-data",
            "lockstep-elastic",
            "lockstep-launch",
            "lockstep-metrics",
            "lockstep-nn",
            "lockstep-objects",
        ],
    ),
];

/// Crates that a part of the product must never link, directly or through others.
const ABSENCES: [(&str, &[&str]); 10] = [
    ("lockstep-lifecycle", &["tokio", "kube-client", "kube-core", "k8s-openapi"]),
    ("lockstep-api", &["tokio", "kube-client"]),
    ("lockstep-plan", &["tokio", "kube-client"]),
    ("lockstep-controller", &["lockstep-nn", "lockstep-collective", "lockstep-elastic"]),
    ("lockstep-cli", &["lockstep-nn", "lockstep-collective", "lockstep-elastic"]),
    ("lockstep-nn", &["lockstep-collective", "lockstep-elastic", "tokio", "kube"]),
    ("lockstep-collective", &["lockstep-nn", "tokio", "kube"]),
    ("lockstep-elastic", &["kube"]),
    ("lockstep-checkpoint", &["tokio", "kube", "object_store"]),
    ("lockstep-worker", &["openssl-sys", "aws-lc-rs"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live in the workspace")
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

#[test]
fn every_crate_uses_only_the_crates_that_its_arrows_allow() {
    let metadata = metadata();
    for (user, allowed) in ARROWS {
        let package = metadata["packages"]
            .as_array()
            .expect("packages")
            .iter()
            .find(|package| package["name"] == user)
            .unwrap_or_else(|| panic!("{user} has an arrow but no Cargo.toml"));
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            let inside = used.starts_with("lockstep-") || used == "xtask";
            assert!(!inside || allowed.contains(used), "{user} ──► {used} is no arrow of ARCHITECTURE.md");
        }
    }
}

#[test]
fn every_crate_of_the_product_has_an_arrow() {
    let named: BTreeSet<&str> = ARROWS.iter().map(|(user, _)| *user).collect();
    for half in ["operator", "trainer"] {
        for entry in fs::read_dir(root().join(half)).expect("a half of the product") {
            let manifest = entry.expect("readable").path().join("Cargo.toml");
            let text = fs::read_to_string(&manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
            let name =
                text.lines().find_map(|line| line.strip_prefix("name = ")).expect("a package name").trim_matches('"');
            assert!(named.contains(name), "{name} is missing from the arrows");
        }
    }
}

#[test]
fn architecture_md_draws_the_arrows() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for (user, used) in ARROWS {
        for used in used {
            let (user, used) = (user.trim_start_matches("lockstep-"), used.trim_start_matches("lockstep-"));
            let drawn = page.split(['\n', ';']).filter_map(|line| line.split_once("──►")).any(|(from, to)| {
                from.split(',').any(|name| name.split_whitespace().last() == Some(used))
                    && to.split(',').any(|name| name.split_whitespace().next() == Some(user))
            });
            assert!(drawn, "{used} ──► {user} is allowed by the test but not drawn in ARCHITECTURE.md");
        }
    }
}

#[test]
fn no_crate_links_a_crate_that_it_must_never_link() {
    for (user, absent) in ABSENCES {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", user])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8_lossy(&output.stdout);
        let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(linked.contains(user), "cargo tree does not print {user}");
        for absent in absent {
            assert!(!linked.contains(absent), "{user} links {absent}");
        }
    }
}

#[test]
fn programs_contain_no_folder_of_the_machine_that_built_them() {
    let config = fs::read_to_string(root().join(".cargo/config.toml")).expect("the configuration of cargo");
    assert!(config.contains("rustc-wrapper = \".cargo/rustc\""), "{config}");
    let output = Command::new(root().join(".cargo/rustc"))
        .args(["echo", "main.rs"])
        .env("CARGO_HOME", "/home/builder/cargo")
        .output()
        .expect("the wrapper starts");
    let called = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(called, "main.rs --remap-path-prefix /home/builder/cargo/registry/src=registry");
}

/// Words that only one folder of the worker may use: what is trained stands behind a trait.
const ONLY_IN_NETWORKS: [&str; 3] = ["Cpu", "Replica", "lockstep_nn::Device"];

#[test]
fn only_the_workers_networks_know_replicas_and_their_devices() {
    let source = root().join("trainer/worker/src");
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the worker") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path.strip_prefix(&source).expect("below the worker");
            if inside.starts_with("networks") || inside == Path::new("networks.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let words: BTreeSet<&str> =
                text.split(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter))).collect();
            let found = ONLY_IN_NETWORKS.into_iter().find(|word| words.contains(word));
            assert!(found.is_none(), "{} names {}", inside.display(), found.unwrap_or_default());
        }
    }
}
