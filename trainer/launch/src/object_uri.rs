//! Prefixes in object stores: `s3://BUCKET/PREFIX`, and the same with `gs` and `az`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Accepted form of a URI, for people.
pub const OBJECT_URI_ACCEPTED: &str = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, such as s3://models/lenet; buckets have 3 to 63 \
     lower-case letters, digits, `-`, `_` and `.`, the parts of a prefix letters, digits, `-`, `_`, `=` and `.`";
/// Accepted form of a URI, as a regular expression for the whole text.
pub const OBJECT_URI_PATTERN: &str =
    "^(s3|gs|az)://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[-_=A-Za-z0-9][-_=.A-Za-z0-9]*)*/?$";

/// A prefix in an object store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ObjectUri {
    service: ObjectService,
    bucket: String,
    prefix: String,
}

/// The protocol of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectService {
    /// Amazon S3 and the stores that speak its protocol.
    S3,
    /// Google Cloud Storage.
    GoogleCloud,
    /// Azure Blob Storage.
    Azure,
}

impl ObjectService {
    const ALL: [Self; 3] = [Self::S3, Self::GoogleCloud, Self::Azure];

    const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::GoogleCloud => "gs://",
            Self::Azure => "az://",
        }
    }
}

impl ObjectUri {
    /// Returns true if `text` begins like such a URI.
    #[must_use]
    pub fn begins(text: &str) -> bool {
        ObjectService::ALL.iter().any(|service| text.starts_with(service.scheme()))
    }

    /// Returns the protocol of the store.
    #[must_use]
    pub fn service(&self) -> ObjectService {
        self.service
    }

    /// Returns the bucket. At Azure it is the container.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the prefix of all keys, without a `/` at either end. It may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the prefix `name` below this one.
    ///
    /// # Panics
    /// `name` is no part of a prefix.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        assert!(is_part(name), "`{name}` is no part of a prefix");
        let Self { service, bucket, prefix } = self.clone();
        let prefix = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        Self { service, bucket, prefix }
    }
}

impl FromStr for ObjectUri {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let service = ObjectService::ALL.into_iter().find(|service| text.starts_with(service.scheme()));
        let service = service.ok_or(OBJECT_URI_ACCEPTED)?;
        let place = &text[service.scheme().len()..];
        let place = place.strip_suffix('/').unwrap_or(place);
        let (bucket, prefix) = place.split_once('/').map_or((place, None), |(bucket, prefix)| (bucket, Some(prefix)));
        if !is_bucket(bucket) || !prefix.is_none_or(|prefix| prefix.split('/').all(is_part)) {
            return Err(OBJECT_URI_ACCEPTED);
        }
        Ok(Self { service, bucket: bucket.to_owned(), prefix: prefix.unwrap_or_default().to_owned() })
    }
}

impl fmt::Display for ObjectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, bucket, prefix } = self;
        let slash = if prefix.is_empty() { "" } else { "/" };
        write!(f, "{}{bucket}{slash}{prefix}", service.scheme())
    }
}

impl From<ObjectUri> for String {
    fn from(uri: ObjectUri) -> Self {
        uri.to_string()
    }
}

impl TryFrom<String> for ObjectUri {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

fn is_bucket(name: &str) -> bool {
    let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name.chars().all(|c| end(c) || "-_.".contains(c))
        && name.starts_with(end)
        && name.ends_with(end)
}

fn is_part(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_reads_back_from_its_text() {
        for text in ["s3://models", "gs://a.b-c_d/x", "az://abc/team=a/run.1/_"] {
            let uri: ObjectUri = text.parse().expect("a URI");
            assert_eq!(uri.to_string(), text);
            assert_eq!(uri.join("lenet-0a1b").to_string(), format!("{text}/lenet-0a1b"));
        }
    }

    #[test]
    fn a_slash_at_the_end_changes_nothing() {
        for (text, plain) in [("s3://models/", "s3://models"), ("az://models/team/run/", "az://models/team/run")] {
            assert_eq!(text.parse::<ObjectUri>().map(|uri| uri.to_string()), Ok(plain.to_owned()));
        }
    }

    #[test]
    fn a_text_that_is_no_uri_is_refused_with_an_example() {
        for text in [
            "s3://",
            "s3:///a",
            "s3://ab",
            "s3://-abc",
            "s3://Models",
            "s3://models//",
            "s3://models//a",
            "s3://models/a//",
            "s3://models/../a",
            "s3://models/.",
            "s3://models/a b",
            "s3://models/ä",
            "http://models",
            "models",
            "S3://models",
        ] {
            let problem = text.parse::<ObjectUri>().expect_err(text);
            assert!(problem.contains("s3://models/lenet"), "{problem}");
        }
        assert!(format!("s3://{}", "a".repeat(64)).parse::<ObjectUri>().is_err());
    }
}
