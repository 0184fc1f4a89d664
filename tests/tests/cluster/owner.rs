//! A cluster has one owner and ends with it.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use lockstep_tests::{
    cluster::{Cluster, SHELL_IMAGE, Settings, wait_for},
    skip,
};

use crate::shared::{PATIENCE, cluster};

#[test]
fn a_second_cluster_of_the_same_name_is_refused() {
    let Some(_cluster) = cluster("a_second_cluster_of_the_same_name_is_refused") else { return };
    let error = format!("{:#}", Cluster::start_guarded(Settings::tests(1)).expect_err("two of a name"));
    assert!(error.contains(&format!("belongs to process {}", std::process::id())), "{error}");
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    if let Err(why) = Cluster::available() {
        return skip("a_killed_owner_leaves_nothing_behind", &why);
    }
    let mut owner = Command::new(env::current_exe().expect("this test's binary"))
        .args(["--ignored", "--exact", "owner::an_owner_that_waits_to_be_killed", "--nocapture"])
        .env(OWNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("an owner starts");
    let state = Path::new("/var/lib/lockstep").join(ORPHAN.name);
    wait_for("the owner's cluster", Duration::from_secs(120), || {
        assert!(owner.try_wait().expect("the owner").is_none(), "the owner ended by itself");
        state.join(IS_UP).exists()
    })
    .expect("up");
    assert!(left_behind().iter().any(|what| what.starts_with("process")), "a cluster runs: {:?}", left_behind());
    owner.kill().expect("killed");
    owner.wait().expect("dead");
    wait_for("the guard to remove everything", Duration::from_secs(60), || left_behind().is_empty())
        .unwrap_or_else(|error| panic!("{error}: {:#?}", left_behind()));
}

/// A variable of the process that owns a cluster and will be killed.
const OWNER: &str = "LOCKSTEP_TEST_OWNER";
const ORPHAN: Settings = Settings::named("orphan", 1, 16446);
const IS_UP: &str = "is-up";

#[test]
#[ignore = "is started, and killed, by another test"]
fn an_owner_that_waits_to_be_killed() {
    if env::var_os(OWNER).is_none() {
        return;
    }
    let cluster = Cluster::start_guarded(ORPHAN).expect("a cluster");
    cluster.kubectl(&["create", "deployment", "idle", "--image", SHELL_IMAGE, "--", "sleep", "1000"]).expect("a pod");
    let folder = cluster.kubeconfig().parent().expect("a state folder").to_owned();
    wait_for("a container", PATIENCE, || {
        cluster
            .kubectl(&["get", "deployment", "idle", "-o", "jsonpath={.status.readyReplicas}"])
            .is_ok_and(|ready| ready == "1")
    })
    .expect("runs");
    fs::write(folder.join(IS_UP), "").expect("written");
    // The test that started this process holds the other end.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("waited");
}

/// Returns the remains of the orphan: processes, namespaces, control groups, mounts, files.
fn left_behind() -> Vec<String> {
    let mut left = Vec::new();
    let state = format!("/var/lib/lockstep/{}", ORPHAN.name);
    let mark = format!("lockstep-{}", ORPHAN.name);
    for process in entries("/proc").filter(|path| path.join("environ").exists()) {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let group = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        let marked =
            environment.split(|byte| *byte == 0).any(|entry| entry == format!("LOCKSTEP_CLUSTER={state}").as_bytes());
        if marked || group.contains(&mark) {
            left.push(format!("process {}", process.display()));
        }
    }
    left.extend(
        entries("/run/netns")
            .filter(|path| is_called(path, &format!("{mark}-")))
            .map(|path| format!("namespace {path:?}")),
    );
    for hierarchy in entries("/sys/fs/cgroup").chain(["/sys/fs/cgroup".into()]) {
        let group = hierarchy.join(&mark);
        if group.exists() {
            left.push(format!("control group {}", group.display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    left.extend(
        mounts.lines().filter(|line| line.contains(&state) || line.contains(&mark)).map(|line| format!("mount {line}")),
    );
    if Path::new(&state).exists() {
        left.push(format!("files in {state}"));
    }
    left
}

fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_called(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}
