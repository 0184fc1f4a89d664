//! Real processes in network namespaces of their own, with every fault of hosts, links, disks and
//! clocks.
//!
//! Gradients are added as a canonical tree, so every run must end, to the last bit, with the
//! weights of an undisturbed run.

mod catch_up;
mod clocks;
mod disks;
mod hosts;
mod job;
mod links;
mod network;
mod proxy;
mod threads;
