//! The use of a trained model: predictions, evaluation and export.

mod confusion;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod predict;
mod problem;
mod replica;
mod source;
mod torch_module;

#[cfg(test)]
mod pytorch_tests;
