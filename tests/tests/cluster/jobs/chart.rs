//! A real API server takes everything that the chart makes, and `helm test` passes.

use lockstep_tests::{
    chart::{self, NAMESPACE, RELEASE, variants::VARIANTS},
    root,
};

use crate::pods::restricted;

use super::installed::cluster;

#[test]
fn the_api_server_takes_every_variant_of_the_chart() {
    let Some(cluster) = cluster("the_api_server_takes_every_variant_of_the_chart") else { return };
    let client = cluster.client();
    let (one, two) = (restricted(client, "one"), restricted(client, "two"));
    let crds = chart::monitoring_crds().expect("the Prometheus operator's CRDs").map(|path| path.display().to_string());
    let files = crds.iter().flat_map(|path| ["-f", path.as_str()]);
    // Too large for client-side apply.
    client.kubectl(&["apply", "--server-side"].into_iter().chain(files).collect::<Vec<_>>()).expect("CRDs");
    client.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"]).expect("served");
    for variant in VARIANTS {
        let words: Vec<String> = variant.words.iter().map(|word| with_names(word, one.name(), two.name())).collect();
        // The pod of `helm test` needs its service account, which a dry run does not create.
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["--skip-tests"]).collect();
        // Another release than the installed one: nothing of it may decide here.
        let objects = chart::rendered("other", &words).expect("helm renders");
        client.would_apply(&objects).unwrap_or_else(|error| panic!("{}: {error:#}", variant.name));
    }
    let plain = client.kubectl(&["kustomize", &root().join("deploy").display().to_string()]);
    client.would_apply(&plain.expect("kubectl builds")).expect("the plain manifests");
    let names = crds.iter().flat_map(|path| ["-f", path.as_str()]);
    client.kubectl(&["delete"].into_iter().chain(names).collect::<Vec<_>>()).expect("deleted");
}

/// Puts namespaces that exist in for those of a variant.
fn with_names(word: &str, one: &str, two: &str) -> String {
    let listed = word.replace("{one,two}", &format!("{{{one},{two}}}")).replace("{one}", &format!("{{{one}}}"));
    listed.replace("namespace=two", &format!("namespace={two}"))
}

#[test]
fn helm_test_passes() {
    let Some(cluster) = cluster("helm_test_passes") else { return };
    let told = cluster.client().helm(&["test", RELEASE, "--namespace", NAMESPACE, "--timeout", "90s"]);
    let told = told.expect("the test passes");
    assert!(told.contains("Succeeded"), "{told}");
}
