//! Places of data sets: a folder, a prefix or an archive in an object store, or a folder or an
//! archive on a web server.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{OBJECT_URI_ACCEPTED, ObjectUri};

/// Accepted form of a web address, for people.
const WEB_URI_ACCEPTED: &str = "https://HOST/ARCHIVE.tar, .tar.gz or .tgz, or https://HOST/FOLDER with a file SHA256SUMS in it, without \
     user, `?`, `#` and `..`; http:// only on localhost";
/// Accepted form of a web address, as a regular expression for the whole text. It lets `..` pass.
pub const WEB_URI_PATTERN: &str =
    "^(https://[-.A-Za-z0-9]+|http://(localhost|127[.][0-9.]+))(:[0-9]{1,5})?(/[-_.~=+,%A-Za-z0-9]+)+/?$";

/// The place of a data set's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataUri {
    /// A folder that the workers see, by its absolute path.
    Folder(PathBuf),
    /// A prefix or one archive in an object store.
    Objects(ObjectUri),
    /// A folder or one archive on a web server.
    Web(WebUri),
}

/// The address of a folder or an archive on a web server, without a `/` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUri(String);

impl WebUri {
    /// Returns the address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the address is of this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let host = self.0.split_once("://").map_or("", |(_, rest)| rest.split(['/', ':']).next().unwrap_or_default());
        host == "localhost" || host.starts_with("127.")
    }
}

impl DataUri {
    /// Returns the accepted forms, for people.
    #[must_use]
    pub fn accepted() -> String {
        format!("file:///FOLDER, an absolute path without `..`, {OBJECT_URI_ACCEPTED}, or {WEB_URI_ACCEPTED}")
    }

    /// Returns true if the files must be fetched before they can be read.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        match self {
            Self::Folder(_) => false,
            Self::Objects(_) | Self::Web(_) => true,
        }
    }
}

impl FromStr for DataUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("file://") {
            let is_good = path.len() > 1 && path.starts_with('/') && !path.split('/').any(|part| part == "..");
            return if is_good { Ok(Self::Folder(path.into())) } else { Err(Self::accepted()) };
        }
        if ObjectUri::begins(text) {
            return text.parse().map(Self::Objects).map_err(|_| Self::accepted());
        }
        match is_web_uri(text) {
            true => Ok(Self::Web(WebUri(text.strip_suffix('/').unwrap_or(text).to_owned()))),
            false => Err(Self::accepted()),
        }
    }
}

impl fmt::Display for DataUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "file://{}", path.display()),
            Self::Objects(uri) => uri.fmt(f),
            Self::Web(WebUri(uri)) => f.write_str(uri),
        }
    }
}

/// Returns true if [`WEB_URI_PATTERN`] matches, and no part is `..`.
fn is_web_uri(text: &str) -> bool {
    let (is_local, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => return false,
    };
    let Some((authority, path)) = rest.split_once('/') else { return false };
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    let is_of = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || more.contains(letter))
    };
    let path = path.strip_suffix('/').unwrap_or(path);
    let numbers = |text: &str| !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    is_of(host, "-.")
        && (!is_local || host == "localhost" || host.strip_prefix("127.").is_some_and(numbers))
        && port.is_none_or(|port| (1..=5).contains(&port.len()) && port.chars().all(|digit| digit.is_ascii_digit()))
        && path.split('/').all(|part| is_of(part, "-_.~=+,%") && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_from_its_text() {
        for text in [
            "file:///data/mnist",
            "s3://pictures/cats",
            "gs://pictures",
            "https://example.org/data/pictures.tar.gz",
            "https://example.org:8443/data/v1.0",
            "http://127.0.0.1:8080/data",
            "http://localhost/data.tar",
        ] {
            let uri: DataUri = text.parse().expect(text);
            assert_eq!(uri.to_string(), text);
            assert_eq!(uri.is_remote(), !text.starts_with("file"), "{text}");
        }
        assert_eq!("https://a.org/b/".parse::<DataUri>().map(|uri| uri.to_string()), Ok("https://a.org/b".to_owned()));
    }

    #[test]
    fn a_text_that_names_no_place_is_refused_with_the_accepted_forms() {
        for text in [
            "/data",
            "file://data",
            "file:///",
            "file:///a/../b",
            "s3://Pictures",
            "https://example.org",
            "https://example.org/",
            "https://user:secret@example.org/data",
            "https://example.org/data?token=1",
            "https://example.org/a/../b",
            "https://example.org//a",
            "http://example.org/data",
            "http://127.evil.org/data",
            "ftp://example.org/data",
        ] {
            let problem = text.parse::<DataUri>().expect_err(text);
            assert!(problem.contains("s3://") && problem.contains("SHA256SUMS"), "{problem}");
        }
    }
}
