//! The meaning of the facts: which pods are lost and why, how the group does, and what keeps pods
//! from their work. Nothing here changes a status.

mod attendance;
mod coordinator;
mod failure;
mod hindrance;
mod image;
mod losses;
mod pod_end;
mod pulse;
mod situation;
mod unsaved;
mod verdict;

pub(crate) use attendance::{attendance, joined, least_workers};
pub(crate) use coordinator::{lacks_record, replaces_coordinator};
pub(crate) use failure::{describe, failure_of};
pub(crate) use hindrance::hindrance;
pub(crate) use image::{image_begun_with, image_of_new_pods, outdated_pods};
pub(crate) use losses::{Loss, Losses};
pub(crate) use pod_end::{has_drained, is_alive, is_done};
pub(crate) use pulse::{Pulse, pulse, reported_at};
pub(crate) use situation::Situation;
pub(crate) use unsaved::{lost_steps, suspension_waits, unsaved};
pub(crate) use verdict::{Verdict, verdict};
