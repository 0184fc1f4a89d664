//! The mathematics of one worker beside what it trains: its state, its recipe, and numbers about
//! both. It knows nothing of other workers.

pub(crate) mod baseline;
mod evaluated;
pub(crate) mod fingerprint;
pub(crate) mod memory;
pub(crate) mod payload;
pub(crate) mod recipe;
pub(crate) mod state_digest;
mod trained;
pub(crate) mod training_state;
pub(crate) mod update_rule;
