//! lockstep-api
