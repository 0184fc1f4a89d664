//! lockstep-plan
