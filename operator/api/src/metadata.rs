//! The API server's rules for metadata, for manifests that never reach an API server.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_launch::InvalidField;

use crate::rules::{MAX_NAME_LENGTH, NAME_ACCEPTED};

/// The API server adds this many characters to `metadata.generateName`.
const ADDED: &str = "xxxxx";
const BEGINNING_ACCEPTED: &str = "a lower-case letter, then lower-case letters, digits and `-`, at most 45 characters";
/// Longest value of a label, and longest part of a key after its `/`.
const MAX_LABEL_LENGTH: usize = 63;
/// Longest part of a key before its `/`.
const MAX_PREFIX_LENGTH: usize = 253;
/// Most bytes that the keys and values of all annotations have together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
const KEY_ACCEPTED: &str = "a key of at most 63 letters, digits, `-`, `_` and `.`, with or without a domain and `/` before it, such as example.com/team";
const VALUE_ACCEPTED: &str =
    "at most 63 letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit";

/// Returns the job's name. A manifest may leave the end of the name to the API server. Then this is
/// the beginning.
pub(crate) fn name(metadata: &ObjectMeta) -> Result<String, InvalidField> {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    match (given(&metadata.name), given(&metadata.generate_name)) {
        (Some(name), _) if is_name(&name) => Ok(name),
        (None, Some(beginning)) if is_name(&format!("{beginning}{ADDED}")) => {
            Ok(beginning.trim_end_matches('-').to_owned())
        }
        (None, Some(beginning)) => {
            Err(InvalidField::new("metadata.generateName", quoted(&beginning), BEGINNING_ACCEPTED))
        }
        (name, _) => Err(InvalidField::new("metadata.name", quoted(&name.unwrap_or_default()), NAME_ACCEPTED)),
    }
}

/// Lists labels and annotations that the API server refuses.
pub(crate) fn wrong_labels(metadata: &ObjectMeta) -> Vec<InvalidField> {
    let none = BTreeMap::new();
    let labels = metadata.labels.as_ref().unwrap_or(&none);
    let annotations = metadata.annotations.as_ref().unwrap_or(&none);
    let mut wrong = Vec::new();
    for (field, pairs) in [("metadata.labels", labels), ("metadata.annotations", annotations)] {
        let refused = pairs.keys().filter(|key| !is_key(key));
        wrong.extend(refused.map(|key| InvalidField::new(field, quoted(key), KEY_ACCEPTED)));
    }
    let refused = labels.iter().filter(|(_, value)| !value.is_empty() && !is_word(value));
    wrong.extend(
        refused.map(|(key, value)| InvalidField::new(&format!("metadata.labels.{key}"), quoted(value), VALUE_ACCEPTED)),
    );
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        let accepted = format!("at most {MAX_ANNOTATION_BYTES} bytes");
        wrong.push(InvalidField::new("metadata.annotations", format!("{bytes} bytes"), accepted));
    }
    wrong
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= MAX_NAME_LENGTH
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(inner)
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, word)) => is_domain(prefix) && is_word(word),
        None => is_word(key),
    }
}

fn is_word(text: &str) -> bool {
    let ends = |byte: &u8| byte.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    text.len() <= MAX_LABEL_LENGTH
        && bytes.first().is_some_and(ends)
        && bytes.last().is_some_and(ends)
        && bytes.iter().all(|byte| ends(byte) || b"-_.".contains(byte))
}

fn is_domain(text: &str) -> bool {
    let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(ends)
            && bytes.last().is_some_and(ends)
            && bytes.iter().all(|byte| ends(byte) || *byte == b'-')
    };
    text.len() <= MAX_PREFIX_LENGTH && text.split('.').all(is_part)
}
