//! A job's own NetworkPolicies of egress. Policies only add to each other. If another policy closes
//! the network, the job's own opens what the job needs. If none does, the job's own would close the
//! rest, so it is left out.

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use lockstep_api::ValidJob;
use lockstep_launch::Ports;

use super::{
    owned,
    pods::{job_labels, objects, role_labels},
};
use crate::{PodRole, pod_name};

const DNS: u16 = 53;
/// Ports of the API server: that of its Service, and that of its process for policies that see the
/// Service's target.
const API_SERVER: [u16; 2] = [443, 6443];
const HTTPS: u16 = 443;

/// Opens what all of a job's pods need: each other, DNS and the object store, if there is one.
pub(super) fn open(job: &ValidJob, policy: &mut NetworkPolicy) {
    let Some(spec) = &mut policy.spec else { return };
    spec.policy_types.get_or_insert_default().push("Egress".to_owned());
    let peers = NetworkPolicyPeer { pod_selector: spec.pod_selector.clone(), ..NetworkPolicyPeer::default() };
    let Ports { control, data, metrics: _ } = Ports::POD;
    let mut rules = vec![
        NetworkPolicyEgressRule { to: Some(vec![peers]), ports: Some(vec![port("TCP", control), port("TCP", data)]) },
        NetworkPolicyEgressRule { to: None, ports: Some(vec![port("UDP", DNS), port("TCP", DNS)]) },
    ];
    if objects(job).is_some() {
        rules.push(NetworkPolicyEgressRule { to: None, ports: Some(vec![port("TCP", HTTPS)]) });
    }
    spec.egress = Some(rules);
}

/// Opens the API server to the coordinator, which keeps its record there. A policy cannot name the
/// server's address.
pub(super) fn of_coordinator(job: &ValidJob) -> NetworkPolicy {
    let mut pods = job_labels(job);
    pods.extend(role_labels(PodRole::Coordinator));
    let ports = API_SERVER.map(|number| port("TCP", number)).to_vec();
    NetworkPolicy {
        metadata: owned(job, &pod_name(job, PodRole::Coordinator)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(pods), match_expressions: None }),
            policy_types: Some(vec!["Egress".to_owned()]),
            ingress: None,
            egress: Some(vec![NetworkPolicyEgressRule { to: None, ports: Some(ports) }]),
        }),
    }
}

fn port(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { port: Some(IntOrString::Int(port.into())), protocol: Some(protocol.to_owned()), end_port: None }
}
