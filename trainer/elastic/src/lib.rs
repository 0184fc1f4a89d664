//! lockstep-elastic
