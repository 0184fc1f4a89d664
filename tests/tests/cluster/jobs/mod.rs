//! Jobs, from `helm install` on.

mod answers;
mod bad_input;
mod benchmark;
mod chart;
mod elastic;
mod faults;
mod handover;
mod history;
mod installed;
mod job;
mod limits;
mod main_path;
mod metrics;
mod outages;
mod rights;
mod upgrade;
mod used_rights;
