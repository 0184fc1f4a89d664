//! The pods: the launch contract written into the user's template.

mod situations;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use lockstep_api::{ValidJob, label};
use lockstep_launch::{Encryption, Launch, Task, readiness::MAX_AWAITED_SECONDS};
use lockstep_plan::{Child, Observed, PodGroup, plan};
use serde_json::{Value, json};
use situations::{UID, benchmark, default_image, job, now};

fn pods(job: &ValidJob) -> Vec<Pod> {
    let next = plan(job, &Observed::default(), &default_image(), now());
    next.create.into_iter().filter_map(|child| if let Child::Pod(pod) = child { Some(*pod) } else { None }).collect()
}

fn with_template(template: Value) -> ValidJob {
    let mut job = job();
    job.template = serde_json::from_value::<PodTemplateSpec>(template).expect("a template");
    job
}

fn value(pod: &Pod) -> Value {
    serde_json::to_value(pod).expect("JSON")
}

#[test]
fn a_pod_gets_everything_that_the_trainer_reads() {
    for (pod, job, output) in [
        pods(&job()).into_iter().map(|pod| (pod, job(), "/checkpoints/lenet-0a1b2c3d")).collect::<Vec<_>>(),
        pods(&benchmark()).into_iter().map(|pod| (pod, benchmark(), "")).collect(),
    ]
    .concat()
    {
        let pod = value(&pod);
        let env = pod["spec"]["containers"][0]["env"].as_array().expect("variables").clone();
        let launch = Launch::read(|name| {
            let variable = env.iter().find(|variable| variable["name"] == name)?;
            // The kubelet replaces the references like this.
            Some(match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => pod["metadata"]["name"].as_str()?.to_owned(),
                Some("status.podIP") => "10.0.0.7".to_owned(),
                _ => variable["value"].as_str()?.to_owned(),
            })
        })
        .expect("complete");
        assert_eq!(launch.job.uid, UID);
        assert_eq!(launch.member, pod["metadata"]["name"]);
        assert_eq!(launch.coordinator.to_string(), "lenet-coordinator.team.svc:7070");
        assert_eq!(launch.output.to_str(), Some(output));
        assert_eq!((launch.replicas, launch.attempt), (2, 0));
        assert_eq!(launch.task, job.task);
    }
}

#[test]
fn a_pod_is_probed_once_it_can_answer_and_is_never_ended_for_waiting() {
    for pod in pods(&job()) {
        let pod = value(&pod);
        let trainer = &pod["spec"]["containers"][0];
        let (startup, readiness) = (&trainer["startupProbe"], &trainer["readinessProbe"]);
        assert_eq!(startup["httpGet"]["path"], "/readyz?await");
        assert!(startup["initialDelaySeconds"].as_u64() >= Some(1), "{startup}");
        assert!(startup["timeoutSeconds"].as_u64() > Some(u64::from(MAX_AWAITED_SECONDS)), "{startup}");
        assert_eq!(startup["failureThreshold"], i32::MAX);
        assert_eq!((&readiness["httpGet"]["path"], &readiness["timeoutSeconds"]), (&json!("/readyz"), &json!(1)));
    }
}

#[test]
fn a_process_knows_how_long_its_pod_has_to_end() {
    let grace = |spec: Value| {
        let pod = value(&pods(&with_template(json!({ "spec": spec })))[1]);
        let env = pod["spec"]["containers"][0]["env"].as_array().expect("variables").clone();
        let orders = env.iter().find(|variable| variable["name"] == "LOCKSTEP_LAUNCH").expect("its orders");
        let orders: Value = serde_json::from_str(orders["value"].as_str().expect("a value")).expect("JSON");
        (pod["spec"]["terminationGracePeriodSeconds"].clone(), orders["graceSeconds"].clone())
    };
    let containers = json!([{"name": "trainer"}]);
    assert_eq!(grace(json!({ "containers": containers })), (json!(null), json!(30)), "what Kubernetes gives");
    for (given, told) in [(600, 600), (0, 0), (-5, 1)] {
        let spec = json!({ "containers": containers, "terminationGracePeriodSeconds": given });
        assert_eq!(grace(spec), (json!(given), json!(told)));
    }
}

#[test]
fn a_job_with_an_object_store_needs_no_volume_and_keeps_its_own_secrets() {
    let mut job = with_template(json!({"spec": {"containers": [
        {"name": "trainer", "envFrom": [{"secretRef": {"name": "object-store"}}]}
    ]}}));
    if let Task::Train(workload) = &mut job.task {
        workload.checkpoint.uri = "s3://models/team".into();
    }
    let pods: Vec<Value> = pods(&job).iter().map(value).collect();
    for worker in &pods[1..] {
        let trainer = &worker["spec"]["containers"][0];
        assert_eq!(trainer["envFrom"], json!([{"secretRef": {"name": "object-store"}}]));
        let variables = trainer["env"].as_array().expect("variables");
        let launch = variables.iter().find(|variable| variable["name"] == "LOCKSTEP_LAUNCH").expect("its orders");
        let launch: Value = serde_json::from_str(launch["value"].as_str().expect("a value")).expect("JSON");
        assert_eq!(launch["objects"], "s3://models/team/lenet-0a1b2c3d");
        assert_eq!(launch["output"], "/run/lockstep/run");
        assert_eq!(worker["spec"]["volumes"], json!([{"name": "lockstep-run", "emptyDir": {}}]));
        assert_eq!(trainer["volumeMounts"], json!([{"name": "lockstep-run", "mountPath": "/run/lockstep/run"}]));
    }
    assert_eq!(pods[0]["spec"]["volumes"], json!(null), "the coordinator keeps nothing");
}

#[test]
fn workers_that_fetch_their_data_set_have_room_for_it_unless_the_job_names_a_folder() {
    let launched = |cache: Option<&str>| {
        let mut job = job();
        if let Task::Train(workload) = &mut job.task {
            let cache = cache.map(|cache| json!(cache));
            let dataset = json!({"format": "imagefolder", "uri": "s3://pictures/cats", "cache": cache});
            workload.dataset = serde_json::from_value(dataset).expect("a data set");
        }
        let worker = value(&pods(&job)[1]);
        let env = worker["spec"]["containers"][0]["env"].as_array().expect("variables").clone();
        let launch = env.iter().find(|variable| variable["name"] == "LOCKSTEP_LAUNCH").expect("its orders");
        let launch: Value = serde_json::from_str(launch["value"].as_str().expect("a value")).expect("JSON");
        let volumes = worker["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let has_room = volumes.contains(&json!({"name": "lockstep-data", "emptyDir": {}}));
        (launch["task"]["train"]["dataset"]["cache"].clone(), has_room)
    };
    assert_eq!(launched(None), (json!("file:///run/lockstep/data"), true));
    assert_eq!(launched(Some("file:///cache")), (json!("file:///cache"), false));
}

#[test]
fn workers_of_an_encrypting_job_find_credentials_that_only_they_may_read() {
    let mut job = job();
    if let Task::Train(workload) = &mut job.task {
        workload.communication.encryption = Encryption::Tls;
    }
    let next = plan(&job, &Observed::default(), &default_image(), now());
    let secret = next.create.iter().find_map(|child| match child {
        Child::Credentials(metadata) => Some((**metadata).clone()),
        _ => None,
    });
    let secret = secret.expect("a secret");
    assert_eq!(secret.name.as_deref(), Some("lenet-0a1b2c3d-tls"));
    assert_eq!(secret.owner_references.expect("owned")[0].uid, UID);
    let pods: Vec<Value> = pods(&job).iter().map(value).collect();
    let mounted = |pod: &Value| pod["spec"]["containers"][0]["volumeMounts"].clone();
    assert_eq!(mounted(&pods[0]), json!(null), "the coordinator needs none");
    for worker in &pods[1..] {
        let volume = json!({"name": "lockstep-credentials",
                            "secret": {"secretName": "lenet-0a1b2c3d-tls", "defaultMode": 0o440}});
        assert_eq!(worker["spec"]["volumes"], json!([volume]));
        let mount = json!({"name": "lockstep-credentials", "mountPath": "/run/lockstep/credentials", "readOnly": true});
        assert_eq!(mounted(worker), json!([mount]));
        assert_eq!(worker["spec"]["securityContext"]["fsGroup"], 65532);
        let env = worker["spec"]["containers"][0]["env"].as_array().expect("variables");
        let told = env.iter().any(|variable| variable.to_string().contains("/run/lockstep/credentials"));
        assert!(told, "{env:?}");
    }
}

#[test]
fn each_pod_runs_the_command_of_its_role() {
    let words: Vec<Value> =
        pods(&job()).iter().map(|pod| value(pod)["spec"]["containers"][0]["args"].clone()).collect();
    assert_eq!(words, [json!(["coordinator"]), json!(["worker"]), json!(["worker"])]);
}

#[test]
fn only_the_coordinator_has_a_token() {
    for pod in pods(&job()) {
        let pod = value(&pod);
        let coordinator = pod["metadata"]["labels"]["lockstep.dev/role"] == "coordinator";
        assert_eq!(pod["spec"]["automountServiceAccountToken"], coordinator);
        assert_eq!(pod["spec"]["serviceAccountName"] == "lockstep-coordinator", coordinator);
    }
}

#[test]
fn pods_satisfy_the_restricted_pod_security_standard() {
    let template =
        json!({"spec": {"initContainers": [{"name": "data"}], "containers": [{"name": "trainer"}, {"name": "b"}]}});
    for pod in pods(&with_template(template)) {
        let spec = value(&pod)["spec"].clone();
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let lists = ["containers", "initContainers"].map(|list| spec[list].as_array().cloned().unwrap_or_default());
        for container in lists.concat() {
            assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false, "{container}");
            assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]), "{container}");
        }
    }
}

#[test]
fn the_template_decides_everything_that_the_contract_leaves_open() {
    let job = with_template(json!({
        "metadata": {"labels": {"team": "a", "lockstep.dev/role": "other"}, "annotations": {"b": "c"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "securityContext": {"runAsUser": 7},
            "containers": [
                {"name": "sidecar", "image": "s"},
                {"name": "trainer", "image": "mine:2", "env": [{"name": "A", "value": "1"}, {"name": "LOCKSTEP_LAUNCH", "value": "x"}]},
            ],
        },
    }));
    let worker = value(&pods(&job)[1]);
    assert_eq!(worker["metadata"]["labels"]["team"], "a");
    assert_eq!(worker["metadata"]["labels"]["lockstep.dev/role"], "worker");
    assert_eq!(worker["metadata"]["annotations"]["b"], "c");
    assert_eq!(worker["spec"]["nodeSelector"]["disk"], "fast");
    assert_eq!(worker["spec"]["securityContext"]["runAsUser"], 7);
    let trainer = &worker["spec"]["containers"][0];
    assert_eq!((&trainer["name"], &trainer["image"]), (&json!("trainer"), &json!("mine:2")));
    let env = trainer["env"].as_array().expect("variables");
    assert_eq!(env[0], json!({"name": "A", "value": "1"}));
    let ours: Vec<_> = env.iter().filter(|variable| variable["name"] == "LOCKSTEP_LAUNCH").collect();
    let launch: Value = serde_json::from_str(ours[0]["value"].as_str().expect("text")).expect("JSON");
    assert_eq!((ours.len(), &launch["output"]), (1, &json!("/checkpoints/lenet-0a1b2c3d")));
}

#[test]
fn the_policy_of_a_job_opens_egress_if_another_one_denies_it() {
    let policies = |egress_denied| {
        let next = plan(&job(), &Observed { egress_denied, ..Observed::default() }, &default_image(), now());
        let policies = next.create.into_iter().filter_map(|child| match child {
            Child::NetworkPolicy(policy) => Some(serde_json::to_value(policy).expect("JSON")["spec"].clone()),
            _ => None,
        });
        policies.collect::<Vec<_>>()
    };
    let open = policies(false);
    assert_eq!((open.len(), &open[0]["policyTypes"]), (1, &json!(["Ingress"])), "it would close what was open");
    let [of_all, of_coordinator] = policies(true).try_into().expect("two");
    assert_eq!(of_all["policyTypes"], json!(["Ingress", "Egress"]));
    let tcp = |port: u16| json!({"port": port, "protocol": "TCP"});
    let peers = json!({"to": [{"podSelector": of_all["podSelector"]}], "ports": [tcp(7070), tcp(7071)]});
    let dns = json!({"ports": [{"port": 53, "protocol": "UDP"}, tcp(53)]});
    assert_eq!(of_all["egress"], json!([peers, dns]));
    assert_eq!(of_coordinator["podSelector"]["matchLabels"]["lockstep.dev/role"], "coordinator");
    assert_eq!(of_coordinator["egress"], json!([{"ports": [tcp(443), tcp(6443)]}]));
}

#[test]
fn pods_on_the_hosts_network_resolve_names_of_the_cluster_unless_the_template_says_otherwise() {
    let policy = |spec: Value| value(&pods(&with_template(json!({ "spec": spec })))[1])["spec"]["dnsPolicy"].clone();
    let containers = json!([{"name": "trainer"}]);
    assert_eq!(policy(json!({"containers": containers})), json!(null));
    assert_eq!(policy(json!({"containers": containers, "hostNetwork": true})), "ClusterFirstWithHostNet");
    assert_eq!(policy(json!({"containers": containers, "hostNetwork": true, "dnsPolicy": "Default"})), "Default");
}

#[test]
fn the_coordinator_takes_no_accelerator_and_prepares_no_data() {
    let job = with_template(json!({"spec": {
        "initContainers": [{"name": "data", "image": "d"}],
        "containers": [{"name": "trainer", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "8"}}}, {"name": "b", "image": "b"}],
    }}));
    let made = pods(&job);
    let (coordinator, worker) = (value(&made[0])["spec"].clone(), value(&made[1])["spec"].clone());
    assert_eq!(coordinator["containers"][0]["resources"]["limits"], json!({"cpu": "1"}));
    assert!(coordinator.get("initContainers").is_none());
    assert_eq!(coordinator["containers"].as_array().map(Vec::len), Some(1));
    assert_eq!(worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(worker["initContainers"][0]["name"], "data");
    assert_eq!(worker["containers"].as_array().map(Vec::len), Some(2));
}

/// Returns the job's group and its pods under a back end of gang scheduling.
fn ganged(gang: &str, template: Value) -> (Option<PodGroup>, Vec<Value>) {
    let mut job = with_template(template);
    job.scheduling_policy.gang = serde_json::from_value(json!(gang)).expect("a back end");
    (job.elastic.min_replicas, job.elastic.max_replicas) = (2, 8);
    job.replicas = 4.try_into().expect("not 0");
    let made = plan(&job, &Observed::default(), &default_image(), now()).create;
    let group = made.into_iter().find_map(|child| if let Child::PodGroup(group) = child { Some(*group) } else { None });
    (group, pods(&job).iter().map(value).collect())
}

#[test]
fn each_back_end_of_gang_scheduling_gets_its_group_and_its_marks_on_every_pod() {
    let named = |key: &str| (format!("/metadata/annotations/{}", key.replace('/', "~1")), json!("lenet"));
    let cases = [
        (
            "native",
            "scheduling.k8s.io",
            json!({"schedulingPolicy": {"gang": {"minCount": 3}}}),
            None,
            named(label::SCHEDULING_GROUP),
        ),
        (
            "volcano",
            "scheduling.volcano.sh",
            json!({"minMember": 3, "queue": "team", "priorityClassName": "low"}),
            Some("volcano"),
            named("scheduling.k8s.io/group-name"),
        ),
        (
            "coscheduling",
            "scheduling.x-k8s.io",
            json!({"minMember": 3}),
            None,
            ("/metadata/labels/scheduling.x-k8s.io~1pod-group".to_owned(), json!("lenet")),
        ),
        (
            "kai",
            "scheduling.run.ai",
            json!({"minMember": 3, "queue": "research", "priorityClassName": "low"}),
            Some("kai-scheduler"),
            named("pod-group-name"),
        ),
    ];
    let template = json!({
        "metadata": {
            "labels": {"kai.scheduler/queue": "research"},
            "annotations": {"scheduling.volcano.sh/queue-name": "team"},
        },
        "spec": {"priorityClassName": "low", "containers": [{"name": "trainer"}]},
    });
    for (gang, api_group, spec, scheduler, (mark, name)) in cases {
        let (group, pods) = ganged(gang, template.clone());
        let group = group.expect("a group");
        assert_eq!((group.api_group, &group.spec), (api_group, &spec), "{gang}");
        assert_eq!(group.metadata.name.as_deref(), Some("lenet"));
        assert_eq!(group.metadata.owner_references.expect("an owner")[0].uid, UID);
        assert_eq!(pods.len(), 5);
        for pod in pods {
            assert_eq!(pod.pointer(&mark), Some(&name), "{gang}");
            assert_eq!(pod["spec"]["schedulerName"].as_str(), scheduler, "{gang}");
        }
    }
}

#[test]
fn without_gang_scheduling_there_is_no_group() {
    let (group, _) = ganged("none", json!({"spec": {"containers": [{"name": "trainer"}]}}));
    assert_eq!(group, None);
}

#[test]
fn a_template_may_name_the_scheduler_of_a_gang() {
    let template = json!({"spec": {"schedulerName": "volcano-2", "containers": [{"name": "trainer"}]}});
    let (_, pods) = ganged("volcano", template);
    assert!(pods.iter().all(|pod| pod["spec"]["schedulerName"] == "volcano-2"));
}
