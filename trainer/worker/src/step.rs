//! One step of all ranks: gradients, the numbers beside them, and the update.

pub(crate) mod bus_bandwidth;
pub(crate) mod efficiency;
pub(crate) mod gradient_noise;
pub(crate) mod rank;
pub(crate) mod rehearsal;
pub(crate) mod step_sync;
