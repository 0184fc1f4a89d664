//! One machine's mathematics: a graph of layers with explicit backward over flat arenas, behind one
//! device trait.
//!
//! Nothing here knows how many machines exist, opens a socket, reads the environment or the clock.
//! A [`Graph`] of [`layers`] is checked while it is built and becomes a [`Network`]. A [`Replica`]
//! plans it once on a [`Device`]: memory for values, gradients and parameters, and lists of
//! operations ([`op::Op`]). Its steps only enqueue these. It announces each bucket of gradients as
//! soon as the device has been told to compute it; what the caller does with a bucket (average it
//! over a group, or nothing) happens while backward goes on.
//!
//! A new layer is one file under `layers`, its line in the list of layers, and the operations that
//! no other layer has, in `op` and `device/cpu`.
//!
//! ```
//! use lockstep_nn::{Cpu, Optimizer, Replica, models, optimizers::Sgd};
//!
//! let network = models::mlp(4, &[8], 2);
//! let buckets = network.table().ready_order();
//! let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false };
//! let mut replica = Replica::new(Cpu::new(), network, Optimizer::Sgd(sgd), 16, buckets)?;
//! replica.initialise(7);
//! replica.begin_step();
//! replica.micro_batch(&[0.0, 1.0, 0.5, -1.0], &[1], 1.0, true, &mut |_bucket, _gradient| {});
//! replica.update(1, 0.1);
//! let result = replica.finish_step();
//! assert!(result.loss_sum.is_finite());
//! # Ok::<(), lockstep_nn::Error>(())
//! ```

pub mod arena;
mod batch;
mod description;
pub mod device;
mod diagnosis;
mod dtype;
mod error;
mod evaluation;
mod fusion;
mod gradient;
mod gradient_memory;
mod gradient_sharing;
mod graph;
mod kernels;
pub mod layers;
mod lifetimes;
mod loss_scale;
mod masters;
mod memory;
mod memory_plan;
pub mod models;
mod noise_scale;
pub mod op;
pub mod optimizers;
mod parameters;
mod parts;
mod placement;
mod plan;
mod planner;
mod precision;
mod replica;
mod schedule;
mod shape;
mod state;
mod summary;
pub mod testing;

pub use arena::{Arena, Lease};
pub use batch::Batch;
pub use description::{Description, LayerSpec, LossSpec};
pub use device::{Cpu, Device, Event, Values};
pub use diagnosis::NotFinite;
pub use dtype::{DType, Element};
pub use error::Error;
pub use gradient::Gradient;
pub use graph::{Criterion, Graph, Network, Node, Value};
pub use kernels::Instructions;
pub use loss_scale::{LossScale, LossScaling};
pub use noise_scale::{Measured, Noise, NoiseAverage};
pub use optimizers::Optimizer;
pub use parameters::{Initial, Layout, ParamMeta, ParamSpec, ParamTable, Role};
pub use precision::Precision;
pub use replica::{Replica, StepResult};
pub use schedule::{Decay, Scaling, Schedule};
pub use shape::Shape;
pub use state::{DIGEST_BLOCK, StateDigest, StateEntry, StateTensor, WINDOWS, checksum, digest_blocks, window};
pub use summary::{LayerSummary, Summary};
