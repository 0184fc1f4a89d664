//! The repository as its own tools see it: its folders, and its way to call cargo.

pub mod cargo;
pub mod folders;
