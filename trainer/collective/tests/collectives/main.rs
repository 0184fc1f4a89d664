//! Real sockets in one process, threads as ranks.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

mod abort;
mod faults;
mod forming;
mod group;
mod impostor;
mod memory;
mod one_core;
mod operations;
mod origin;
mod split;
mod stripes;
mod sums;
mod tls;
mod turns;
mod wire;
