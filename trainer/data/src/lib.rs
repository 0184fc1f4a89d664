//! lockstep-data
