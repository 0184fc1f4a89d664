//! A newcomer takes the state over from members while they train.

pub(crate) mod receive;
pub(crate) mod send;
