//! NetworkPolicies of the cluster that deny egress.

use std::collections::BTreeMap;

use k8s_openapi::{api::networking::v1::NetworkPolicy, apimachinery::pkg::apis::meta::v1::LabelSelector};
use lockstep_api::label;

/// Selects the pods of a namespace whose connections a policy restricts to what some policy names.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressDenied(LabelSelector);

impl EgressDenied {
    /// Reads the restriction of a policy. A job's own policy counts as none.
    #[must_use]
    pub fn of(policy: &NetworkPolicy) -> Option<Self> {
        let is_ours = policy.metadata.labels.iter().flatten().any(|(key, _)| key == label::JOB_UID);
        let spec = policy.spec.as_ref().filter(|_| !is_ours)?;
        let closes = spec.policy_types.iter().flatten().any(|kind| kind == "Egress");
        closes.then(|| Self(spec.pod_selector.clone().unwrap_or_default()))
    }

    /// True if the restriction applies to pods with these labels.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_that_closes_egress_applies_to_the_pods_that_it_selects() {
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
    fn policies_of_ingress_and_of_a_job_close_no_egress_for_others() {
        for policy in [
            json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
            json!({"metadata": {"labels": {label::JOB_UID: "u"}}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}),
        ] {
            assert_eq!(EgressDenied::of(&serde_json::from_value(policy.clone()).expect("a policy")), None, "{policy}");
        }
    }
}
