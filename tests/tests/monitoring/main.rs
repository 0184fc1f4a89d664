//! What a platform team installs for its Prometheus and Grafana: alert rules, runbooks, dashboards.

mod boards;
mod files;
mod names;
mod rules;
