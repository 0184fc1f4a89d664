//! `cargo xtask sbom`: a list of everything that goes into each program, in the CycloneDX format.
//! Source: cargo's own resolution and Cargo.lock. Features are those of the whole workspace, so a
//! list may hold a crate too many, and never one too few.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use xtask::folders;

/// Write a CycloneDX list of each program's crates, with licences and checksums, to target/sbom.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// The programs, each with its package.
const PROGRAMS: [(&str, &str); 3] = [
    ("lockstep", "lockstep-cli"),
    ("lockstep-operator", "lockstep-controller"),
    ("lockstep-trainer", "lockstep-worker"),
];
/// The platform of the programs in the images.
const PLATFORM: &str = "x86_64-unknown-linux-musl";

pub(crate) fn run(Arguments {}: &Arguments) -> anyhow::Result<()> {
    let metadata = metadata()?;
    let checksums = checksums(&fs::read_to_string(folders::root().join("Cargo.lock")).context("read Cargo.lock")?);
    let folder = folders::target().join("sbom");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for (program, package) in PROGRAMS {
        let list = sbom(program, package, &metadata, &checksums)?;
        let crates = list["components"].as_array().map_or(0, Vec::len);
        let file = folder.join(format!("{program}.cdx.json"));
        fs::write(&file, serde_json::to_string_pretty(&list)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        println!("{program}: {crates} crates\n  {}", file.display());
    }
    Ok(())
}

fn metadata() -> anyhow::Result<Value> {
    let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
    let ended = Command::new("cargo").args(words).current_dir(folders::root()).output().context("start cargo")?;
    if !ended.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&ended.stderr).trim());
    }
    serde_json::from_slice(&ended.stdout).context("read cargo's metadata")
}

/// Returns the SHA-256 of each crate in a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        line.strip_suffix('"').map(str::to_owned)
    };
    let packages = lock.split("[[package]]");
    packages
        .filter_map(|package| {
            let named = (field(package, "name")?, field(package, "version")?);
            Some((named, field(package, "checksum")?))
        })
        .collect()
}

/// Lists what goes into a program: its package and everything that this needs to run.
fn sbom(
    program: &str,
    package: &str,
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> anyhow::Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let needs: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let needed = list(&node["deps"]).into_iter().filter(is_needed_to_run).map(|needed| text(&needed["pkg"]));
            (text(&node["id"]), needed.collect())
        })
        .collect();
    let Some((root, described)) = packages.iter().find(|(_, known)| known["name"] == package) else {
        bail!("cargo knows no package {package}");
    };
    let (mut reached, mut open) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(id) = open.pop() {
        if reached.insert(id.clone()) {
            open.extend(needs.get(&id).into_iter().flatten().cloned());
        }
    }
    let reference = |id: &String| packages.get(id).map_or_else(|| id.clone(), purl);
    let components: Vec<Value> = reached
        .iter()
        .filter(|id| *id != root)
        .filter_map(|id| packages.get(id))
        .map(|package| component(package, checksums))
        .collect();
    let dependencies: Vec<Value> = reached
        .iter()
        .map(|id| {
            let needed: Vec<String> = needs.get(id).into_iter().flatten().map(reference).collect();
            json!({"ref": reference(id), "dependsOn": needed})
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application", "name": program, "version": described["version"],
            "bom-ref": reference(root), "licenses": [{"expression": described["license"]}],
        }},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// True if the program needs it to run, not only its build or its tests.
fn is_needed_to_run(needed: &Value) -> bool {
    needed["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let hash = checksums.get(&(name.clone(), version.clone()));
    let hashes: Vec<Value> = hash.into_iter().map(|hash| json!({"alg": "SHA-256", "content": hash})).collect();
    // Older crates separate alternatives by a slash.
    let licence = text(&package["license"]).replace('/', " OR ");
    let licences: Vec<Value> = Some(licence)
        .filter(|licence| !licence.is_empty())
        .map(|licence| json!({"expression": licence}))
        .into_iter()
        .collect();
    json!({
        "type": "library", "name": name, "version": version, "purl": purl(package), "bom-ref": purl(package),
        "licenses": licences, "hashes": hashes,
    })
}

fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_runs_with_licence_and_checksum_and_leaves_out_tools_of_build_and_test() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let packages = ["program", "library", "deep", "builder", "tester"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "program", "deps": [
                    needs("library", Value::Null), needs("builder", json!("build")), needs("tester", json!("dev")),
                ]},
                {"id": "library", "deps": [needs("deep", Value::Null)]},
                {"id": "deep", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n";
        let list = sbom("tool", "program", &metadata, &checksums(lock)).expect("a list");
        let components = list["components"].as_array().expect("components");
        assert_eq!(components.iter().map(|crate_| text(&crate_["name"])).collect::<Vec<_>>(), ["deep", "library"]);
        assert_eq!(components[0]["hashes"][0]["content"], "ab");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(list["metadata"]["component"]["name"], "tool");
        let edges = list["dependencies"].as_array().expect("dependencies");
        assert!(edges.contains(&json!({"ref": "pkg:cargo/library@1.0.0", "dependsOn": ["pkg:cargo/deep@1.0.0"]})));
        assert!(sbom("tool", "absent", &metadata, &BTreeMap::new()).is_err());
    }
}
