//! The plain manifests for `kubectl apply -k deploy/` are those of the chart.

use std::{env, fs};

use lockstep_tests::{
    chart::{self, NAMESPACE, RELEASE},
    root, skip,
};

use super::objects::{kinds, objects};

const FILE: &str = "deploy/operator.yaml";
const HEAD: &str = "\
# The chart's objects with its default values, for clusters without Helm: `kubectl apply -k deploy/`.
# Generated: `UPDATE=1 cargo test --release --workspace --test chart`.
apiVersion: v1
kind: Namespace
metadata:
  name: lockstep-system
  labels:
    app.kubernetes.io/part-of: lockstep
    pod-security.kubernetes.io/enforce: restricted
";

/// Returns the chart's objects without what is Helm's own.
fn plain() -> anyhow::Result<String> {
    let text = chart::rendered(RELEASE, &["--set", "crds.install=false", "--skip-tests"])?;
    let helms = ["# Source: ", "app.kubernetes.io/managed-by: Helm", "helm.sh/chart: "];
    let is_helms = |line: &str| helms.iter().any(|word| line.trim_start().starts_with(word));
    let lines = text.lines().filter(|line| !is_helms(line) && !line.trim().is_empty());
    let body: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
    Ok(format!("{HEAD}{body}"))
}

#[test]
fn the_plain_manifests_are_those_of_the_chart() {
    let expected = match plain() {
        Ok(expected) => expected,
        Err(why) => return skip("the_plain_manifests_are_those_of_the_chart", &format!("{why:#}")),
    };
    let file = root().join(FILE);
    if env::var_os("UPDATE").is_some() {
        fs::write(&file, &expected).expect("written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{FILE} is old: UPDATE=1 cargo test --release --workspace --test chart");
}

#[test]
fn kubectl_builds_the_crds_and_the_operator() {
    let built = match chart::program_of_the_cluster("kubectl", &["kustomize", "deploy"]) {
        Ok(built) => built,
        Err(why) if why.to_string().starts_with("kubectl") => panic!("{why:#}"),
        Err(why) => return skip("kubectl_builds_the_crds_and_the_operator", &format!("{why:#}")),
    };
    assert_eq!(built.matches("\nkind: CustomResourceDefinition\n").count(), 2);
    let objects = objects(&built);
    for kind in ["Namespace", "Deployment", "ServiceAccount", "ClusterRole", "ValidatingAdmissionPolicy"] {
        assert!(kinds(&objects).contains(&kind), "{kind}");
    }
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").expect("the operator");
    assert_eq!(deployment["metadata"]["namespace"], NAMESPACE);
    assert!(!built.contains("Helm"), "a label says that Helm owns an object");
}
