//! Tests on a real Kubernetes: the local cluster itself, and jobs on it after `helm install`.

mod jobs;
mod local_cluster;
mod nodes;
mod owner;
mod pods;
mod reader;
mod shared;
