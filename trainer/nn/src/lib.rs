//! lockstep-nn
