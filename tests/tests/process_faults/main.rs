//! Real processes in network namespaces of their own, and everything that may happen to hosts, lines, disks and clocks. Gradients are
//! added as a canonical tree: whatever happened, the weights are those of a run to which nothing did, to the last bit.

mod clocks;
mod disks;
mod hosts;
mod job;
mod lines;
mod network;
mod proxy;
mod threads;
mod transfers;
