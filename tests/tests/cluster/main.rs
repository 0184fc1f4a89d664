//! On a real Kubernetes: the local cluster itself, and jobs on it from `helm install` on.

mod harness;
mod shared;
