//! Identifiers: members, and digests of states.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// One process of one pod. A new process of the same pod is another member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// The name of the pod.
    pub pod: String,
    /// The process within the pod.
    pub incarnation: Incarnation,
}

/// Distinguishes the processes of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(Uuid);

impl Incarnation {
    /// Returns an incarnation that no other process has.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the incarnation with this number.
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(Uuid::from_u128(number))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pod, self.incarnation)
    }
}

/// A blake3 digest of a state, a workload or a manifest. It prints as 64 hexadecimal digits, and
/// with `{:.12}` as the first twelve.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest that stands for no state: nothing is trained yet.
    pub const NONE: Self = Self([0; 32]);

    /// Returns the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the digest with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:.12}")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| format!("`{text}` is not 64 hexadecimal digits"))?;
        Ok(Self(*hash.as_bytes()))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

/// Compares pod names for the order of ranks. A number inside a name counts as a number, so
/// `worker-2` comes before `worker-10`.
#[must_use]
pub fn rank_order(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left, right);
    while !a.is_empty() && !b.is_empty() {
        let (run_a, run_b) = (leading_run(a), leading_run(b));
        let order = match (starts_with_digit(run_a), starts_with_digit(run_b)) {
            (true, true) => by_number(run_a, run_b),
            _ => run_a.cmp(run_b),
        };
        if order.is_ne() {
            return order;
        }
        (a, b) = (&a[run_a.len()..], &b[run_b.len()..]);
    }
    a.len().cmp(&b.len()).then_with(|| left.cmp(right))
}

/// Returns the longest prefix that consists of digits only, or of other characters only.
fn leading_run(text: &str) -> &str {
    let digits = starts_with_digit(text);
    let end = text.find(|character: char| character.is_ascii_digit() != digits).unwrap_or(text.len());
    &text[..end]
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|character: char| character.is_ascii_digit())
}

/// Compares two numbers of any length. Without leading zeros, the longer one is greater.
fn by_number(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_ranked_by_their_numbers() {
        let mut pods = ["x-worker-10", "x-worker-2", "x-worker-02", "x-worker", "x-worker-1", "a-worker-99"];
        pods.sort_by(|a, b| rank_order(a, b));
        assert_eq!(pods, ["a-worker-99", "x-worker", "x-worker-1", "x-worker-02", "x-worker-2", "x-worker-10"]);
    }

    #[test]
    fn a_digest_is_hexadecimal_in_json_and_bytes_on_the_wire() {
        let digest = Digest::of(b"state");
        let json = serde_json::to_string(&digest).expect("serializes");
        assert_eq!(json, format!("\"{digest}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).expect("reads back"), digest);
        assert_eq!(postcard::to_stdvec(&digest).expect("serializes"), digest.as_bytes());
        assert_eq!(format!("{digest:.12}").len(), 12);
    }
}
