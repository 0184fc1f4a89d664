//! The files for a Prometheus and a Grafana: alert rules, runbooks, dashboards.

mod answers;
mod boards;
mod files;
mod names;
mod rules;
mod scrape;
