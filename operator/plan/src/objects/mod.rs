//! The objects of a job: its pods, its record, the coordinator's name and identity, and network
//! policies.

mod egress;
mod gang;
mod pods;

use k8s_openapi::{
    api::{
        core::v1::{Pod, Service, ServiceAccount, ServicePort, ServiceSpec},
        networking::v1::{
            NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
        },
        rbac::v1::{PolicyRule, Role as RbacRole, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use lockstep_api::{TrainingGroup, TrainingGroupSpec, ValidJob};
use lockstep_launch::{Ports, training_group};

pub use gang::PodGroup;
pub use pods::labels_of_pods;
pub(crate) use pods::{pod, worker_selector};

use pods::{COORDINATOR_ACCOUNT, credentials_name, encrypts, job_labels, owner, role_labels};

use crate::{PodRole, pod_name};

/// An object to make.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is the Kubernetes object of its name")]
pub enum Child {
    Group(Box<TrainingGroup>),
    ServiceAccount(Box<ServiceAccount>),
    Role(Box<RbacRole>),
    RoleBinding(Box<RoleBinding>),
    Service(Box<Service>),
    NetworkPolicy(Box<NetworkPolicy>),
    PodGroup(Box<PodGroup>),
    /// The Secret of the workers' credentials. Its content is generated when it is made.
    Credentials(Box<ObjectMeta>),
    Pod(Box<Pod>),
}

/// Describes every object that the pods need, except the pods.
pub(crate) fn surroundings(job: &ValidJob, with_group: bool, egress_denied: bool) -> Vec<Child> {
    let record = with_group.then(|| Child::Group(Box::new(training_group(job))));
    let mut policy = network_policy(job);
    let mut of_coordinator = None;
    if egress_denied {
        egress::open(job, &mut policy);
        of_coordinator = Some(Child::NetworkPolicy(Box::new(egress::of_coordinator(job))));
    }
    let others = [
        Child::ServiceAccount(Box::new(account(job))),
        Child::Role(Box::new(role(job))),
        Child::RoleBinding(Box::new(role_binding(job))),
        Child::Service(Box::new(service(job))),
        Child::NetworkPolicy(Box::new(policy)),
    ];
    let gang = gang::pod_group(job, || owned(job, &job.name)).map(|group| Child::PodGroup(Box::new(group)));
    let credentials = encrypts(job).then(|| Child::Credentials(Box::new(owned(job, &credentials_name(job)))));
    record.into_iter().chain(others).chain(of_coordinator).chain(gang).chain(credentials).collect()
}

fn training_group(job: &ValidJob) -> TrainingGroup {
    TrainingGroup { metadata: owned(job, &job.name), spec: TrainingGroupSpec::default(), status: None }
}

fn account(job: &ValidJob) -> ServiceAccount {
    ServiceAccount {
        metadata: shared(job),
        // Only pods that ask for a token get one, and the coordinator's pod asks.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

fn role(job: &ValidJob) -> RbacRole {
    let rule = |resource: String, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![training_group::API_GROUP.to_owned()]),
        resources: Some(vec![resource]),
        verbs: verbs.iter().copied().map(str::to_owned).collect(),
        ..PolicyRule::default()
    };
    // It replaces its record under the version that it read, and applies its progress.
    let record = rule(training_group::PLURAL.to_owned(), &["get", "update"]);
    let progress = rule(format!("{}/status", training_group::PLURAL), &["get", "patch"]);
    RbacRole { metadata: shared(job), rules: Some(vec![record, progress]) }
}

fn role_binding(job: &ValidJob) -> RoleBinding {
    RoleBinding {
        metadata: shared(job),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: COORDINATOR_ACCOUNT.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: COORDINATOR_ACCOUNT.to_owned(),
            namespace: Some(job.namespace.clone()),
            ..Subject::default()
        }]),
    }
}

/// The coordinator's name in the cluster's DNS. It must resolve before the coordinator is ready,
/// because workers look for the coordinator before.
fn service(job: &ValidJob) -> Service {
    let mut selector = job_labels(job);
    selector.extend(role_labels(PodRole::Coordinator));
    Service {
        metadata: owned(job, &pod_name(job, PodRole::Coordinator)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(vec![ServicePort {
                name: Some("control".to_owned()),
                port: Ports::POD.control.into(),
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(Ports::POD.control.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn network_policy(job: &ValidJob) -> NetworkPolicy {
    let pods = LabelSelector { match_labels: Some(job_labels(job)), match_expressions: None };
    let port = |port: u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    let Ports { control, data, metrics } = Ports::POD;
    let peers = NetworkPolicyPeer { pod_selector: Some(pods.clone()), ..NetworkPolicyPeer::default() };
    NetworkPolicy {
        metadata: owned(job, &job.name),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { from: Some(vec![peers]), ports: Some(vec![port(control), port(data)]) },
                // This port is open to all. It serves metrics only, and neither the labels of the
                // cluster's Prometheus nor the address of the probing kubelet are known here.
                NetworkPolicyIngressRule { from: None, ports: Some(vec![port(metrics)]) },
            ]),
            egress: None,
        }),
    }
}

/// Metadata of an object that belongs to this job alone.
fn owned(job: &ValidJob, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(job.namespace.clone()),
        labels: Some(job_labels(job)),
        owner_references: Some(vec![owner(job)]),
        ..ObjectMeta::default()
    }
}

/// Metadata of an object that belongs to all jobs of the namespace.
fn shared(job: &ValidJob) -> ObjectMeta {
    ObjectMeta {
        name: Some(COORDINATOR_ACCOUNT.to_owned()),
        namespace: Some(job.namespace.clone()),
        owner_references: Some(vec![OwnerReference { controller: None, block_owner_deletion: None, ..owner(job) }]),
        ..ObjectMeta::default()
    }
}
