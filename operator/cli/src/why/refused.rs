//! Pods that the API server does not take: a quota, a LimitRange, Pod Security, a namespace that is
//! being deleted.

use lockstep_api::{ConditionType, Phase};

use super::{
    facts::{Facts, is_worker},
    finding::Finding,
    words::sentence,
};

/// The operator's words before those of the API server.
const REFUSES: &str = "the API server refuses it: ";
/// The words of the API server before the name of an exceeded quota.
const EXCEEDED: &str = "exceeded quota: ";

/// Finds why the API server refused a pod of the job.
pub(super) fn finding(facts: &Facts) -> Option<Finding> {
    if facts.status().phase.is_none_or(Phase::is_finished) {
        return None;
    }
    let message = facts.message(ConditionType::Running);
    let (_, words) = message.split_once(REFUSES)?;
    let opening = facts.opening();
    let said = format!("The API server said: {}", sentence(words));
    if let Some(quota) = Exceeded::read(words) {
        return Some(exceeded(facts, &quota, said));
    }
    if let Some((_, quota)) = words.split_once("failed quota: ") {
        let quota = quota.split(':').next().unwrap_or(quota);
        let again = facts.create_again("those requests and limits in the trainer container of spec.template");
        return Some(
            Finding::new(format!("{opening}: the quota {quota} takes only pods that state what they use."))
                .seen(said)
                .next(facts.kubectl(&format!("describe resourcequota {quota}")), "the resources that it counts")
                .next_if(again),
        );
    }
    if words.contains(" usage per ") {
        let again = facts.create_again("resources within those limits in spec.template");
        let all = facts.limit_ranges.join(" ");
        let finding =
            Finding::new(format!("{opening}: its pods are outside a LimitRange of namespace {}.", facts.namespace));
        let look = format!("describe limitrange {all}");
        return Some(finding.seen(said).next(facts.kubectl(look.trim()), "the limits").next_if(again));
    }
    if words.contains("PodSecurity") {
        let again = facts.create_again("the securityContext that the API server names in spec.template");
        let finding =
            Finding::new(format!("{opening}: the Pod Security of namespace {} refuses its pods.", facts.namespace));
        let look = format!("kubectl get namespace {} --show-labels", facts.namespace);
        return Some(finding.seen(said).next(look, "the level that the namespace enforces").next_if(again));
    }
    if words.contains("is being terminated") {
        let finding = Finding::new(format!("{opening}: the namespace {} is being deleted.", facts.namespace));
        return Some(finding.seen(said).next(
            format!("kubectl get namespace {} -o yaml", facts.namespace),
            "what the deletion waits for; create the job in another namespace",
        ));
    }
    Some(
        Finding::new(format!("{opening}: the API server refuses its pods."))
            .seen(said)
            .next(facts.kubectl(&format!("describe tj {}", facts.name())), "the whole status and its events"),
    )
}

/// A quota without room, in the API server's words.
#[derive(Debug, PartialEq, Eq)]
struct Exceeded<'a> {
    quota: &'a str,
    requested: &'a str,
    used: &'a str,
    limited: &'a str,
}

impl<'a> Exceeded<'a> {
    /// Reads `exceeded quota: NAME, requested: R=1, used: R=7, limited: R=8`.
    fn read(words: &'a str) -> Option<Self> {
        let (_, rest) = words.split_once(EXCEEDED)?;
        let (quota, rest) = rest.split_once(", requested: ")?;
        let (requested, rest) = rest.split_once(", used: ")?;
        let (used, limited) = rest.split_once(", limited: ")?;
        Some(Self { quota, requested, used, limited })
    }

    /// The resources that lack room, each with its three numbers.
    fn resources(&self) -> Vec<[&'a str; 4]> {
        let of = |list: &'a str, name: &str| {
            list.split(',')
                .filter_map(|item| item.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let named = self.requested.split(',').filter_map(|item| item.split_once('='));
        named.filter_map(|(name, asked)| Some([name, asked, of(self.used, name)?, of(self.limited, name)?])).collect()
    }
}

fn exceeded(facts: &Facts, quota: &Exceeded<'_>, said: String) -> Finding {
    let name = quota.quota;
    let there = facts.pods_seen().iter().filter(|pod| is_worker(pod)).count() as u32;
    let room = quota.resources().into_iter().map(|[resource, asked, used, limited]| {
        format!("{resource}: a pod asks for {asked}; {used} of {limited} are in use.")
    });
    let now = facts.quotas.iter().find(|known| known.metadata.name.as_deref() == Some(name)).and_then(|known| {
        let status = known.status.as_ref()?;
        let (hard, used) = (status.hard.as_ref()?, status.used.as_ref()?);
        let all: Vec<String> = hard
            .iter()
            .filter_map(|(resource, hard)| Some(format!("{resource} {} of {}", used.get(resource)?.0, hard.0)))
            .collect();
        Some(format!("In use now: {}.", all.join(", ")))
    });
    let pods = format!(
        "{there} of {} workers' pods exist; the others come by themselves once there is room.",
        facts.spec().replicas
    );
    Finding::new(format!(
        "{}: the quota {name} of namespace {} has no room for its pods.",
        facts.opening(),
        facts.namespace
    ))
    .seen_all(room)
    .seen_all(now)
    .seen(pods)
    .seen(said)
    .next(facts.kubectl("get pods -o wide"), "who uses the quota")
    .next_if(facts.fewer_meanwhile(there))
    .next(facts.kubectl(&format!("describe resourcequota {name}")), "the quota, to ask for more with")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_quota_give_its_numbers() {
        let words = "pods \"l-worker-1\" is forbidden: exceeded quota: team, requested: pods=1,requests.cpu=2, \
                     used: pods=3,requests.cpu=7, limited: pods=3,requests.cpu=8";
        let quota = Exceeded::read(words).expect("a quota");
        assert_eq!(quota.quota, "team");
        assert_eq!(quota.resources(), [["pods", "1", "3", "3"], ["requests.cpu", "2", "7", "8"]]);
        assert_eq!(Exceeded::read("violates PodSecurity"), None);
    }
}
