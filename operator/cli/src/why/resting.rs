//! Jobs on which nobody works: another controller has them, they are suspended, or no operator
//! runs.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{ConditionType, MANAGED_BY, Phase, label};

use super::{
    facts::{Facts, OperatorSeen},
    finding::Finding,
    words::{ago, said},
};

/// Label with which a job names its queue to Kueue.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// An operator that did nothing about a job for this long does not run.
const OPERATOR_ANSWERS: SignedDuration = SignedDuration::from_secs(15);
/// A status that is older than the coordinator's report by this time is not written any more.
const STATUS_FOLLOWS: SignedDuration = SignedDuration::from_secs(45);

/// Finds another controller, from which this operator keeps its hands.
pub(super) fn foreign(facts: &Facts) -> Option<Finding> {
    let manager = &facts.spec().managed_by;
    if manager == MANAGED_BY {
        return None;
    }
    let name = facts.name();
    let finding = Finding::new(format!("{name} is left to another controller, {manager}, as spec.managedBy says."))
        .seen("Lockstep's operator makes no pods for it.")
        .seen("With a queue such as MultiKueue, the job runs in another cluster, and its status is copied from there.");
    Some(
        finding
            .next(facts.kubectl(&format!("describe tj {name}")), "what that controller has said about it")
            .next(facts.kubectl("get workloads"), "if it is Kueue: whether the job is admitted, and where")
            .next(
                facts.kubectl(&format!("delete tj {name}")),
                "spec.managedBy cannot change: to run it here, create it again without that field",
            ),
    )
}

/// Finds a suspension, begun or complete.
pub(super) fn suspended(facts: &Facts) -> Option<Finding> {
    if !facts.spec().suspend {
        return None;
    }
    let name = facts.name();
    let queue = facts.job.metadata.labels.as_ref().and_then(|labels| labels.get(KUEUE_QUEUE));
    let is_over = facts.is_in(Phase::Suspended) || (facts.pods.is_empty() && facts.status().phase.is_none());
    let failing = facts.condition(ConditionType::CheckpointsFailing);
    let is_stuck = !is_over && failing.is_some_and(|condition| condition.status == "True");
    let finding = match (queue, is_over) {
        (Some(queue), true) => {
            Finding::new(format!("{name} waits in the queue {queue}: it is suspended until Kueue has room for it."))
        }
        (None, true) => Finding::new(format!("{name} rests because spec.suspend is true.")),
        (_, false) if is_stuck => {
            Finding::new(format!("{name} cannot be suspended yet, because its state cannot be saved."))
        }
        (_, false) => Finding::new(format!("{name} is being suspended.")),
    };
    let finding = match is_over {
        true => finding.seen_all(said(facts.message(ConditionType::Suspended))),
        false if is_stuck => finding.seen_all(said(facts.message(ConditionType::CheckpointsFailing))),
        false => finding.seen_all(said(facts.message(ConditionType::Running))),
    };
    let finding = match queue {
        Some(queue) => finding
            .next(facts.kubectl("get workloads"), "its place in the queue, and why it is not admitted")
            .next(facts.kubectl(&format!("describe localqueue {queue}")), "what the queue has left"),
        None => {
            let resume = format!("patch tj {name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'");
            finding.next(facts.kubectl(&resume), "let it go on")
        }
    };
    let unsaved = || {
        let command = facts.kubectl(&format!("annotate tj {name} {}=true", label::SUSPEND_UNSAVED));
        (command, "suspend it at once, and give up the steps since its newest checkpoint".to_owned())
    };
    Some(finding.next_if(is_stuck.then(unsaved)))
}

/// Finds an operator that does not answer. Training itself goes on without it.
pub(super) fn silent_operator(facts: &Facts) -> Option<Finding> {
    let silence = silence(facts)?;
    let finding = Finding::new(format!("Lockstep's operator does not answer: {silence}."));
    let finding = match facts.operators.as_deref() {
        None => finding.seen("You may not list deployments, so ask whoever installed Lockstep to look."),
        Some([]) => finding.seen("There is no deployment of the operator in this cluster."),
        Some(operators) => finding.seen_all(operators.iter().map(|operator| {
            let (ready, wanted) = (operator.ready, operator.wanted);
            format!("Deployment {}/{} has {ready} of {wanted} pods ready.", operator.namespace, operator.name)
        })),
    };
    let finding = match facts.is_in(Phase::Running) {
        true => finding.seen("Its workers train on meanwhile; nobody replaces one that is lost."),
        false => finding,
    };
    let operators = facts.operators.as_deref();
    let lacking = operators.and_then(|all| all.iter().find(|operator| !operator.is_ready()));
    Some(match (operators, lacking.or(operators.and_then(<[_]>::first))) {
        (_, Some(OperatorSeen { namespace, name, .. })) => {
            let finding = match lacking {
                Some(_) => finding.next(
                    format!("kubectl -n {namespace} describe deployment {name}"),
                    "why not all its pods are ready",
                ),
                None => {
                    finding.seen(format!("It may not watch namespace {}: see its --namespace.", facts.namespace)).next(
                        format!("kubectl -n {namespace} get deployment {name} -o yaml"),
                        "the namespaces that it watches",
                    )
                }
            };
            finding.next(format!("kubectl -n {namespace} logs deployment/{name} --tail=50"), "what it says")
        }
        (None, None) => {
            finding.next("helm list --all-namespaces --filter lockstep", "whether Lockstep is installed, and where")
        }
        (Some(_), None) => finding
            .next("helm list --all-namespaces --filter lockstep", "whether Lockstep is installed, and where")
            .next(
                "helm install lockstep charts/lockstep --namespace lockstep-system --create-namespace",
                "install it; jobs that exist go on by themselves",
            ),
    })
}

fn silence(facts: &Facts) -> Option<String> {
    let (metadata, status, now) = (&facts.job.metadata, facts.status(), facts.now);
    let name = facts.name();
    if status.phase.is_none() {
        let created = metadata.creation_timestamp.as_ref()?.0;
        let is_old = now.duration_since(created) > OPERATOR_ANSWERS;
        return is_old.then(|| format!("{name} was created {} ago and has no status", ago(created, now)));
    }
    if status.observed_generation < metadata.generation {
        return Some(format!("it has not seen the newest change of {name}"));
    }
    let told = status.progress.as_ref()?;
    let reported = facts.group.as_ref()?.progress.as_ref()?;
    let (written, measured) = (told.last_update_time.as_ref()?.0, reported.time.as_ref()?.parse::<Timestamp>().ok()?);
    let is_behind = reported.step > told.step && measured.duration_since(written) > STATUS_FOLLOWS;
    is_behind.then(|| {
        format!(
            "the status is {} old and shows step {}; the coordinator is at step {}",
            ago(written, now),
            told.step,
            reported.step
        )
    })
}
