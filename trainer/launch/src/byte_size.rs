use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, written like a Kubernetes quantity: `65536`, `64Ki`, `25Mi`, `1Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

const UNITS: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

impl ByteSize {
    /// Makes a size of `count` bytes.
    #[must_use]
    pub const fn bytes(count: u64) -> Self {
        Self(count)
    }

    /// Makes a size of `count` MiB.
    #[must_use]
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A text that is not a size.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write a whole number of bytes, or one with Ki, Mi or Gi such as 25Mi")]
pub struct ByteSizeError(String);

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, unit) =
            UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit))).unwrap_or((text, 1));
        let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let count = if whole { digits.parse::<u64>().ok() } else { None };
        count.and_then(|count| count.checked_mul(unit)).map(Self).ok_or_else(|| ByteSizeError(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(count) => Ok(Self(count)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^[0-9]+(Ki|Mi|Gi)?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_in_the_form_of_kubernetes() {
        for (text, bytes) in [("0", 0), ("65536", 65536), ("64Ki", 65536), ("25Mi", 25 << 20), ("2Gi", 2 << 30)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!(serde_json::from_str::<ByteSize>("4096").expect("a number"), ByteSize(4096));
    }

    #[test]
    fn a_size_is_written_in_its_largest_whole_unit() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (65536, "64Ki"), (25 << 20, "25Mi"), (3 << 30, "3Gi")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_text_that_is_no_size_is_refused() {
        for text in ["", "Mi", "1.5Mi", "-1", "+1", "25MB", "99999999999999999999", "18446744073709551615Gi"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ByteSizeError(text.to_owned())), "{text}");
        }
    }
}
