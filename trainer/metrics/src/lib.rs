//! The metrics that Lockstep exports: one table, from which the operator and the trainer register,
//! and from which `docs/metrics.md` is made.

mod job;
mod page;
mod register;
pub mod table;

pub use self::{
    job::{JobSeries, Sample, changes, no_change, progress, reached},
    page::page,
    table::{Exporter, Kind, Metric, Unit},
};
