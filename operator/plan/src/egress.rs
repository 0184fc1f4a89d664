//! Where NetworkPolicies let a job's pods connect to. Policies only add to each other: one of the
//! job's own opens what the job needs where another one closes the rest, and would itself close the
//! rest where none does.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use lockstep_api::{ValidJob, label};
use lockstep_launch::Ports;

use crate::{
    Role,
    children::owned,
    pod_name,
    pods::{job_labels, objects, role_labels},
};

const DNS: u16 = 53;
/// Ports of the API server: its Service's, and that of the process, which counts where a policy
/// sees what the Service leads to.
const API_SERVER: [u16; 2] = [443, 6443];
const HTTPS: u16 = 443;

/// The pods of a namespace that a policy lets connect only to what some policy names.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressDenied(LabelSelector);

impl EgressDenied {
    /// What a policy closes, unless it is a job's own.
    #[must_use]
    pub fn of(policy: &NetworkPolicy) -> Option<Self> {
        let is_ours = policy.metadata.labels.iter().flatten().any(|(key, _)| key == label::JOB_UID);
        let spec = policy.spec.as_ref().filter(|_| !is_ours)?;
        let closes = spec.policy_types.iter().flatten().any(|kind| kind == "Egress");
        closes.then(|| Self(spec.pod_selector.clone().unwrap_or_default()))
    }

    /// Whether it is about pods of these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let LabelSelector { match_labels, match_expressions } = &self.0;
        match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().flatten().all(|rule| {
                let found = labels.get(&rule.key);
                let is_among = found.is_some_and(|found| rule.values.iter().flatten().any(|value| value == found));
                match rule.operator.as_str() {
                    "In" => is_among,
                    "NotIn" => !is_among,
                    "Exists" => found.is_some(),
                    _ => found.is_none(),
                }
            })
    }
}

/// Adds to the policy of all of a job's pods what each of them needs: the others and DNS, and the
/// object store where there is one.
pub(crate) fn open(job: &ValidJob, policy: &mut NetworkPolicy) {
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

/// Opens the API server, whose address a policy cannot name, to the coordinator, which keeps its
/// record there.
pub(crate) fn of_coordinator(job: &ValidJob) -> NetworkPolicy {
    let mut pods = job_labels(job);
    pods.extend(role_labels(Role::Coordinator));
    let ports = API_SERVER.map(|number| port("TCP", number)).to_vec();
    NetworkPolicy {
        metadata: owned(job, &pod_name(job, Role::Coordinator)),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_that_closes_egress_is_about_the_pods_that_it_selects() {
        let labels = BTreeMap::from([
            ("team".to_owned(), "a".to_owned()),
            ("lockstep.dev/role".to_owned(), "worker".to_owned()),
        ]);
        for (selector, selects) in [
            (json!({}), true),
            (json!({"matchLabels": {"team": "a"}}), true),
            (json!({"matchLabels": {"team": "b"}}), false),
            (json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}), true),
            (json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), true),
        ] {
            let policy = json!({"spec": {"podSelector": selector, "policyTypes": ["Egress"]}});
            let denied =
                EgressDenied::of(&serde_json::from_value(policy).expect("a policy")).expect("it closes egress");
            assert_eq!(denied.selects(&labels), selects, "{selector}");
        }
    }

    #[test]
    fn a_policy_of_ingress_and_one_of_a_job_close_no_egress_for_others() {
        for policy in [
            json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
            json!({"metadata": {"labels": {label::JOB_UID: "u"}}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}),
        ] {
            assert_eq!(EgressDenied::of(&serde_json::from_value(policy.clone()).expect("a policy")), None, "{policy}");
        }
    }
}
