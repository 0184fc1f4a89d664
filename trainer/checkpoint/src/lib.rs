//! lockstep-checkpoint
