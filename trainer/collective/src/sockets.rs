//! How many connections each pair of ranks has.

/// The most connections that a pair of ranks may have.
pub const MAX_SOCKETS: usize = 8;

/// How many connections each pair of ranks has: from 1 to [`MAX_SOCKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets(usize);

impl Sockets {
    /// One connection, which is enough where it fills the line.
    pub const ONE: Self = Self(1);

    /// So many; `None` for 0, and for more than [`MAX_SOCKETS`].
    pub const fn new(sockets: usize) -> Option<Self> {
        if matches!(sockets, 1..=MAX_SOCKETS) { Some(Self(sockets)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_one_connection_at_least_and_no_more_than_the_limit() {
        let counts: Vec<usize> = (0..20).filter_map(Sockets::new).map(Sockets::get).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
