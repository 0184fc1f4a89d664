//! The repository as its own tools see it: where its folders are, and how this project calls cargo.

pub mod cargo;
pub mod folders;
