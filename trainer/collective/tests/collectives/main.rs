//! Real sockets in one process, threads as ranks.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

mod abort;
mod faults;
mod group;
mod handshake;
mod impostor;
mod one_core;
mod operations;
mod origin;
mod shared_memory;
mod split;
mod stripes;
mod sums;
mod tls;
mod trait_object;
mod turns;
mod wire;
