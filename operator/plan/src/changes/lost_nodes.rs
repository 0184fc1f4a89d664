//! Nodes that are lost again and again. New pods avoid them for a while, if another node has room.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{ExcludedNode, LastFailure, TrainingJobStatus};
use lockstep_lifecycle::LossKind;

use crate::judgement::Situation;

/// Losses from which on a node is avoided.
const AVOIDED: u32 = 2;
/// Time after its newest loss at which a node is forgotten.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);
/// Pods that a node takes with it are seen one after another. Within this time they are one loss.
const OUTAGE: SignedDuration = SignedDuration::from_secs(60);
/// Greatest number of nodes that are remembered. An anti-affinity costs the scheduler time.
const MAX_NODES: usize = 16;

/// Counts the node of a failure that was just seen, if the node was lost.
pub(crate) fn note_lost_node(situation: &Situation<'_>, mut status: TrainingJobStatus) -> TrainingJobStatus {
    let now = situation.now;
    status.excluded_nodes.retain(|known| now.duration_since(known.last_loss.0) < MEMORY);
    let failure = status.last_failure.as_ref();
    let is_new = failure != situation.seen.status.last_failure.as_ref();
    let Some(node) = failure.filter(|_| is_new).and_then(lost_node) else { return status };
    let earlier = status.excluded_nodes.iter().position(|known| known.node == *node);
    let known = earlier.map(|place| status.excluded_nodes.remove(place));
    status.excluded_nodes.push(match known {
        Some(known) if now.duration_since(known.last_loss.0) < OUTAGE => known,
        known => {
            let losses = known.map_or(0, |known| known.losses).saturating_add(1);
            ExcludedNode { node: node.clone(), losses, last_loss: Time(now) }
        }
    });
    // The newest come last.
    let surplus = status.excluded_nodes.len().saturating_sub(MAX_NODES);
    status.excluded_nodes.drain(..surplus);
    status
}

fn lost_node(failure: &LastFailure) -> Option<&String> {
    let LastFailure { node, reason, .. } = failure;
    node.as_ref().filter(|_| reason.as_deref().map(LossKind::of_taken) == Some(LossKind::NodeLost))
}

/// The nodes that new pods avoid.
pub(crate) fn avoided_nodes(status: &TrainingJobStatus) -> Vec<&str> {
    let nodes = status.excluded_nodes.iter().filter(|known| known.losses >= AVOIDED);
    nodes.map(|known| known.node.as_str()).collect()
}
