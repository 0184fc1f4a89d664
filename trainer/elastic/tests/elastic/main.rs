//! Membership: decisions, simulation, the wire, the store, and real sockets.

mod coordinator;
mod file_store;
mod given;
mod member;
mod message;
mod shell;
