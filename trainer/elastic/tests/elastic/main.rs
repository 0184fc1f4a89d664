//! Tests of the membership: decisions, wire format, record store and real sockets.

mod coordinator;
mod file_store;
mod fixtures;
mod member;
mod message;
mod shell;
