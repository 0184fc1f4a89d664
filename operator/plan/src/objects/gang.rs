//! Gang scheduling: the `PodGroup` of the job's back end, and what the pods need to belong to it.
//!
//! The group starts with `elastic.minReplicas` workers and the coordinator, without which they
//! could not train. Further workers come one by one.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use lockstep_api::{Gang, ValidJob, label};
use serde_json::{Map, Value, json};

use crate::judgement::least_workers;

/// Volcano's mark of a pod, and its name of a queue.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";
/// The scheduler plugins' mark of a pod.
const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// KAI's mark of a pod, and its name of a queue.
const KAI_GROUP: &str = "pod-group-name";
const KAI_QUEUE: &str = "kai.scheduler/queue";

/// A group of pods that a scheduler starts together.
#[derive(Clone, Debug, PartialEq)]
pub struct PodGroup {
    /// The back end, as the job names it.
    pub gang: &'static str,
    /// The group of the API.
    pub api_group: &'static str,
    /// Versions of the API that have such an object, the preferred one first.
    pub versions: &'static [&'static str],
    /// The software that a cluster without this API lacks.
    pub missing: &'static str,
    /// Name, namespace, labels and owner.
    pub metadata: ObjectMeta,
    /// Its content.
    pub spec: Value,
}

/// Describes the job's group, if it has one.
pub(super) fn pod_group(job: &ValidJob, metadata: impl FnOnce() -> ObjectMeta) -> Option<PodGroup> {
    let least = least_workers(job) + 1;
    let (gang, api_group, versions, missing, spec): (_, _, &[&str], _, _) = match job.scheduling_policy.gang {
        Gang::None => return None,
        Gang::Native => (
            "native",
            "scheduling.k8s.io",
            &["v1beta1", "v1alpha2"],
            "use Kubernetes 1.36 or later with the feature gate GenericWorkload",
            json!({"schedulingPolicy": {"gang": {"minCount": least}}}),
        ),
        Gang::Volcano => (
            "volcano",
            "scheduling.volcano.sh",
            &["v1beta1"],
            "install Volcano",
            in_queue(job, least, annotation(job, VOLCANO_QUEUE)),
        ),
        Gang::Coscheduling => (
            "coscheduling",
            "scheduling.x-k8s.io",
            &["v1alpha1"],
            "install the scheduler plugins with coscheduling",
            json!({"minMember": least}),
        ),
        Gang::Kai => (
            "kai",
            "scheduling.run.ai",
            &["v2alpha2"],
            "install KAI Scheduler",
            in_queue(job, least, template_label(job, KAI_QUEUE)),
        ),
    };
    Some(PodGroup { gang, api_group, versions, missing, metadata: metadata(), spec })
}

/// Marks a pod as a member of the job's group.
pub(super) fn mark(
    job: &ValidJob,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
    spec: &mut PodSpec,
) {
    let (marks, key, scheduler) = match job.scheduling_policy.gang {
        Gang::None => return,
        Gang::Native => (annotations, label::SCHEDULING_GROUP, None),
        Gang::Volcano => (annotations, VOLCANO_GROUP, Some("volcano")),
        Gang::Coscheduling => (labels, COSCHEDULING_GROUP, None),
        Gang::Kai => (annotations, KAI_GROUP, Some("kai-scheduler")),
    };
    marks.insert(key.to_owned(), job.name.clone());
    if let Some(scheduler) = scheduler {
        spec.scheduler_name.get_or_insert_with(|| scheduler.to_owned());
    }
}

fn in_queue(job: &ValidJob, least: u32, queue: Option<&String>) -> Value {
    let priority = job.template.spec.as_ref().and_then(|spec| spec.priority_class_name.as_ref());
    let mut spec = Map::from_iter([("minMember".to_owned(), least.into())]);
    for (name, value) in [("queue", queue), ("priorityClassName", priority)] {
        if let Some(value) = value {
            spec.insert(name.to_owned(), value.as_str().into());
        }
    }
    spec.into()
}

fn annotation<'a>(job: &'a ValidJob, key: &str) -> Option<&'a String> {
    job.template.metadata.as_ref()?.annotations.as_ref()?.get(key)
}

fn template_label<'a>(job: &'a ValidJob, key: &str) -> Option<&'a String> {
    job.template.metadata.as_ref()?.labels.as_ref()?.get(key)
}
