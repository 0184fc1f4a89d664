//! On a real Kubernetes: the local cluster itself, and jobs on it from `helm install` on.

mod faults;
mod harness;
mod jobs;
mod owner;
mod pods;
mod reader;
mod shared;
