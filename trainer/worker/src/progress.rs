//! Everything that others read about a run: metrics, the metrics log, and reports.

pub(crate) mod job_metrics;
mod log_lines;
pub(crate) mod metrics;
pub(crate) mod metrics_log;
pub(crate) mod phase_clock;
pub(crate) mod publish;
pub(crate) mod report;
pub(crate) mod whole_run;
