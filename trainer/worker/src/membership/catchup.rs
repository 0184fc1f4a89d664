//! The catch-up of workers that lack the group's state: newcomers while the group trains, and
//! members while it pauses.

pub(crate) mod copy;
mod parcel;
pub(crate) mod receive;
pub(crate) mod send;
