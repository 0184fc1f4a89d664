//! The facts that are read from a pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::{Reason, TRAINER_CONTAINER, label};
use lockstep_plan::{PodImage, PodSeen, PodState};
use serde_json::{Value, json};

fn time(second: u32) -> Value {
    json!(format!("2026-11-23T20:{:02}:{:02}Z", second / 60, second % 60))
}

fn at(second: u32) -> Timestamp {
    time(second).as_str().and_then(|text| text.parse().ok()).expect("a time")
}

/// A worker whose trainer runs since second 10 and is not ready since second `unready`.
fn running(unready: u32, containers_ready: bool) -> Value {
    json!({
        "metadata": {"name": "lenet-worker-0", "uid": "u", "labels": {
            "lockstep.dev/role": "worker", "lockstep.dev/index": "0", "lockstep.dev/attempt": "0",
        }},
        "spec": {"nodeName": "n1", "containers": [{"name": TRAINER_CONTAINER, "image": "trainer:1"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": TRAINER_CONTAINER, "image": "trainer:1", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"running": {"startedAt": time(10)}},
            }],
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": time(unready)},
                {"type": "ContainersReady", "status": if containers_ready { "True" } else { "False" }},
            ],
        },
    })
}

fn seen(pod: Value) -> PodSeen {
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    PodSeen::of(&pod).expect("a job's")
}

#[test]
fn a_pod_was_ready_if_it_ceased_to_be_after_its_trainer_began() {
    for (unready, was_ready) in [(9, false), (10, false), (11, true)] {
        let pod = seen(running(unready, false));
        assert_eq!((pod.state, pod.ready, pod.unready_since), (PodState::Running, false, Some(at(unready))));
        assert_eq!(pod.was_ready, was_ready, "unready since second {unready}");
        let mut ended = running(unready, false);
        ended["status"]["containerStatuses"][0]["state"] =
            json!({"terminated": {"exitCode": 75, "startedAt": time(10), "finishedAt": time(20)}});
        let pod = seen(ended);
        assert_eq!((pod.was_ready, pod.unready_since), (was_ready, None), "ended, unready since second {unready}");
    }
}

#[test]
fn the_image_of_a_trainer_is_read_from_its_pod() {
    let mut pod = running(10, false);
    pod["status"]["containerStatuses"][0]["imageID"] = "docker.io/library/trainer@sha256:ab".into();
    let PodImage { name, pull_policy, id } = seen(pod).image.expect("an image");
    assert_eq!((name.as_str(), pull_policy), ("trainer:1", None));
    assert_eq!(id.as_deref(), Some("docker.io/library/trainer@sha256:ab"));
}

/// A native sidecar that ended with code 3 and was restarted `restarts` times.
fn sidecar(restarts: u32, state: &Value, started: bool) -> Value {
    json!([{
        "name": "proxy", "image": "proxy:2", "imageID": "", "ready": false, "started": started, "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no certificate\n"}},
    }])
}

#[test]
fn a_sidecar_that_ends_again_and_again_is_named_with_its_exit_code() {
    let backs_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let runs = json!({"running": {"startedAt": time(20)}});
    let words = "container proxy: image proxy:2: CrashLoopBackOff: it was started 4 times and ended with exit code 3 (Error): no certificate";
    // Between two pauses the sidecar runs for a moment.
    for state in [&backs_off, &runs] {
        let mut pod = running(10, false);
        pod["status"]["phase"] = "Pending".into();
        pod["status"]["initContainerStatuses"] = sidecar(3, state, false);
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "PodInitializing"}});
        let PodState::Pending(Some(waiting)) = seen(pod).state else { panic!("it waits: {state}") };
        assert_eq!((waiting.reason, waiting.container.as_deref()), (Reason::ContainerCrashes, Some("proxy")));
        assert_eq!(waiting.message, words);
    }
    let mut beside = running(10, false);
    beside["status"]["initContainerStatuses"] = sidecar(3, &backs_off, false);
    let pod = seen(beside);
    assert_eq!((pod.state, pod.beside.map(|waiting| waiting.message)), (PodState::Running, Some(words.to_owned())));
    let mut well = running(10, false);
    well["status"]["initContainerStatuses"] = sidecar(3, &runs, true);
    assert_eq!(seen(well).beside, None, "it has recovered");
}

#[test]
fn a_reporting_node_has_the_whole_grace_period_and_another_one_at_most_a_minute() {
    // The deletion was asked for in second 100.
    for (grace, unreachable, stuck) in [(30, false, 160), (30, true, 140), (300, false, 410), (300, true, 160)] {
        let mut pod = running(50, unreachable);
        pod["metadata"]["deletionTimestamp"] = time(100 + grace);
        pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        let pod = seen(pod);
        assert_eq!((pod.unreachable, pod.stuck_at), (unreachable, Some(at(stuck))), "{grace} s, {unreachable}");
    }
}

#[test]
fn a_container_that_its_node_lost_has_no_exit_code_of_its_own() {
    for (reason, code, own) in
        [("Error", 255, Some(255)), ("Unknown", 255, None), ("ContainerStatusUnknown", 137, None)]
    {
        let mut pod = running(10, false);
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": code, "reason": reason}});
        let PodState::Ended(ended) = seen(pod).state else { panic!("{reason}: it has ended") };
        assert_eq!((ended.code, ended.reason.as_deref()), (own, Some(reason)));
    }
}

#[test]
fn a_pod_that_is_deleted_is_stuck_after_the_seconds_that_its_job_gives_its_node() {
    let deleted = |timeout: Option<&str>, unreachable: bool| {
        let mut pod = running(11, unreachable);
        pod["metadata"]["deletionTimestamp"] = time(130);
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        if let Some(seconds) = timeout {
            pod["metadata"]["annotations"] = json!({label::TERMINATING_TIMEOUT: seconds});
        }
        seen(pod).stuck_at.expect("it is being deleted")
    };
    // The deletion was asked for at second 100. The pod's own grace ends at 130, and with 10 s of
    // slack at 140.
    for (timeout, unreachable, stuck) in [
        (None, false, 160),
        (Some("600"), false, 700),
        (Some("20"), false, 140),
        (Some("20"), true, 120),
        (Some("600"), true, 140),
        (Some("soon"), false, 160),
    ] {
        assert_eq!(deleted(timeout, unreachable), at(stuck), "{timeout:?}, unreachable: {unreachable}");
    }
}
