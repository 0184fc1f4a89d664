//! The rights to write records.

use crate::pods::restricted;

use super::{
    installed::any_cluster,
    job::{Job, glyphs},
};

#[test]
fn only_its_own_coordinator_writes_a_record() {
    let Some((cluster, _turn)) = any_cluster("only_its_own_coordinator_writes_a_record") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "rights");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_step(1);
    let account = format!("--as=system:serviceaccount:{}:lockstep-coordinator", namespace.name());
    let group = format!("--as-group=system:serviceaccounts:{}", namespace.name());
    let write = |pod: &str| {
        let as_pod = format!("--as-user-extra=authentication.kubernetes.io/pod-name={pod}");
        let change = r#"{"metadata":{"labels":{"seen":"yes"}}}"#;
        let words =
            ["-n", namespace.name(), &account, &group, &as_pod, "patch", "traininggroup", "lenet", "-p", change];
        client.kubectl(&[&words[..], &["--type=merge"]].concat())
    };
    let refused = write("other-coordinator").expect_err("another job's coordinator").to_string();
    assert!(refused.contains("TrainingGroup lenet is written by the pod lenet-coordinator only"), "{refused}");
    write("lenet-coordinator").expect("its own coordinator");
}
