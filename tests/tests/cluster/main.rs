//! Tests on a real Kubernetes: the local cluster itself, and jobs on it after `helm install`.

mod faults;
mod harness;
mod jobs;
mod owner;
mod pods;
mod reader;
mod shared;
