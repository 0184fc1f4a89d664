//! The number of connections of each pair of ranks.

/// The most connections that a pair of ranks may have.
pub const MAX_SOCKETS: usize = 8;

/// The number of connections of each pair of ranks, from 1 to [`MAX_SOCKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets(usize);

impl Sockets {
    /// One connection, which is enough if it fills the line.
    pub const ONE: Self = Self(1);

    /// Returns this number, or `None` for 0 and for more than [`MAX_SOCKETS`].
    pub const fn new(sockets: usize) -> Option<Self> {
        if matches!(sockets, 1..=MAX_SOCKETS) { Some(Self(sockets)) } else { None }
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_from_one_connection_up_to_the_limit() {
        let counts: Vec<usize> = (0..20).filter_map(Sockets::new).map(Sockets::get).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
