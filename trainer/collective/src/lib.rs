//! lockstep-collective
