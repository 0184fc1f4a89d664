//! The chart and the plain manifests, without a cluster. The cluster tests ask an API server
//! whether it would take the same objects.

mod manifests;
mod objects;
mod rendered;
mod values;
