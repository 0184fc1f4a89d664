//! The models that a manifest names or lists, on the data sets that it names: what a worker trains
//! unless its program brings a model of its own. Only this folder knows replicas, their devices and
//! pixels.

mod dataset;
mod description;
mod devices;
mod gradients;
mod initial_weights;
mod judging;
mod model;
mod scaler;
pub(crate) mod summary;
mod trained_network;
pub(crate) mod using;

pub(crate) use self::trained_network::open;
