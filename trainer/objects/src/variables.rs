//! The variables that name endpoint and credentials. Each is read and checked once, before the
//! first request.
//!
//! The client library trusts some of them, and panics or sends nonsense later. An error here names
//! the variable.

use std::{fs::File, str::FromStr};

use lockstep_launch::ObjectService;
use object_store::{aws::AmazonS3ConfigKey, azure::AzureConfigKey, gcp::GoogleConfigKey};
use reqwest::Url;
use tracing::warn;

/// A variable that is missing or wrong. It shows no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub(crate) struct WrongVariable {
    name: String,
    problem: String,
}

/// The kind of value that a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Address,
    Switch,
    /// A part of a host's name.
    Word,
    Base64,
    /// The path of a file that is read later.
    Path,
    Json,
    /// A text that goes into a header unchanged.
    Text,
}

/// Returns the settings of one service from these variables, without white space around them.
///
/// # Errors
/// The first variable that cannot be used.
pub(crate) fn settings<K: FromStr>(
    service: ObjectService,
    variables: &[(String, String)],
) -> Result<Vec<(K, String)>, WrongVariable> {
    let mut settings = Vec::new();
    let mut names = Vec::new();
    let prefix = prefix(service);
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with(prefix)) {
        let Ok(key) = name.to_ascii_lowercase().parse() else { continue };
        let trimmed = value.trim();
        if trimmed.is_empty() {
            continue;
        }
        if trimmed.len() != value.len() {
            warn!(variable = name, "removing the white space around the value; was it made by `echo` without `-n`?");
        }
        check(name, trimmed).map_err(|problem| WrongVariable { name: name.clone(), problem })?;
        names.push((name.as_str(), trimmed));
        settings.push((key, trimmed.to_owned()));
    }
    check_together(service, &names)?;
    Ok(settings)
}

const fn prefix(service: ObjectService) -> &'static str {
    match service {
        ObjectService::S3 => "AWS_",
        ObjectService::GoogleCloud => "GOOGLE_",
        ObjectService::Azure => "AZURE_",
    }
}

fn kind(name: &str) -> ValueKind {
    let lower = name.to_ascii_lowercase();
    let word = lower.split_once('_').map_or("", |(_, word)| word);
    if matches!(lower.parse(), Ok(AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint))
        || matches!(lower.parse(), Ok(AzureConfigKey::Endpoint | AzureConfigKey::AuthorityHost))
        || matches!(lower.parse(), Ok(GoogleConfigKey::BaseUrl))
    {
        return ValueKind::Address;
    }
    match word {
        "endpoint_url_sts" | "metadata_endpoint" | "container_credentials_full_uri" | "proxy_url" => ValueKind::Address,
        "msi_endpoint" | "identity_endpoint" | "fabric_token_service_url" => ValueKind::Address,
        "allow_http"
        | "allow_invalid_certificates"
        | "bucket_key_enabled"
        | "disable_bulk_delete"
        | "disable_tagging"
        | "http1_only"
        | "http2_only"
        | "imdsv1_fallback"
        | "randomize_addresses"
        | "request_payer"
        | "s3_express"
        | "skip_signature"
        | "storage_use_emulator"
        | "unsigned_payload"
        | "use_azure_cli"
        | "use_fabric_endpoint"
        | "virtual_hosted_style_request" => ValueKind::Switch,
        "region" | "default_region" | "storage_account_name" => ValueKind::Word,
        "storage_account_key" | "storage_access_key" | "storage_master_key" => ValueKind::Base64,
        "service_account" | "service_account_path" | "application_credentials" => ValueKind::Path,
        "web_identity_token_file" | "container_authorization_token_file" | "federated_token_file" => ValueKind::Path,
        "service_account_key" => ValueKind::Json,
        _ => ValueKind::Text,
    }
}

/// Checks one value. Returns the problem.
fn check(name: &str, value: &str) -> Result<(), String> {
    match kind(name) {
        ValueKind::Address => check_address(value),
        ValueKind::Switch => match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" | "y" | "0" | "false" | "off" | "no" | "n" => Ok(()),
            _ => Err(format!("`{value}` is neither `true` nor `false`")),
        },
        ValueKind::Word => match value.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)) {
            None => Ok(()),
            Some(other) => Err(format!("`{}` has {other:?}; it takes letters, digits and `-`", value.escape_debug())),
        },
        ValueKind::Base64 => {
            let body = value.trim_end_matches('=');
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
            match value.len().is_multiple_of(4) && value.len() - body.len() <= 2 && body.chars().all(plain) {
                true => Ok(()),
                false => Err("the key is not base64, as the store's portal shows it".to_owned()),
            }
        }
        ValueKind::Path => {
            File::open(value).map(drop).map_err(|error| format!("the file {value} cannot be read: {error}"))
        }
        ValueKind::Json if value.starts_with('{') && value.ends_with('}') => Ok(()),
        ValueKind::Json => Err("it must be the JSON text of a service account's key, not a path".to_owned()),
        // The value may be a secret, so the error tells only the position.
        ValueKind::Text => match value.chars().position(|c| !(' '..='~').contains(&c)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "character {} of the value is a line break, a control character or not ASCII; make the Secret again, \
                 with `kubectl create secret generic` or `echo -n`",
                at + 1
            )),
        },
    }
}

fn check_address(value: &str) -> Result<(), String> {
    let shown = if value.contains('@') { "the address" } else { value };
    let address = match Url::parse(value) {
        Ok(address) if matches!(address.scheme(), "http" | "https") => address,
        _ if !value.contains("://") => {
            return Err(format!(
                "`{shown}` has no scheme: write `https://{shown}`, or `http://{shown}` for plain http"
            ));
        }
        Ok(address) => return Err(format!("`{}://` is no scheme of an object store: https or http", address.scheme())),
        Err(error) => return Err(format!("`{shown}` is no address: {error}; such as https://minio.example:9000")),
    };
    match address.host_str() {
        Some(host) if !host.is_empty() => Ok(()),
        _ => Err(format!("`{shown}` names no host; such as https://minio.example:9000")),
    }
}

/// Checks variables that only work together.
fn check_together(service: ObjectService, set: &[(&str, &str)]) -> Result<(), WrongVariable> {
    let value = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
    let wrong = |name: &str, problem: String| Err(WrongVariable { name: name.to_owned(), problem });
    let allows_http = set.iter().any(|(name, value)| {
        let on = matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y");
        on && (name.ends_with("_ALLOW_HTTP") || name.ends_with("_USE_EMULATOR"))
    });
    let endpoint = |name: &&str| {
        matches!(*name, "AWS_ENDPOINT_URL" | "AWS_ENDPOINT_URL_S3" | "AWS_ENDPOINT" | "GOOGLE_BASE_URL")
            || matches!(*name, "AZURE_STORAGE_ENDPOINT" | "AZURE_ENDPOINT")
    };
    if let Some((name, address)) =
        set.iter().find(|(name, value)| endpoint(name) && value.to_ascii_lowercase().starts_with("http://"))
        && !allows_http
    {
        let shown = if address.contains('@') { "the address" } else { address };
        let switch = format!("{}ALLOW_HTTP=true", prefix(service));
        return wrong(name, format!("`{shown}` is plain http: set {switch} too, or write https://"));
    }
    match service {
        ObjectService::S3 => {
            let (id, secret) = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
            match (value(id), value(secret)) {
                (Some(_), None) => wrong(secret, format!("is not set, although {id} is")),
                (None, Some(_)) => wrong(id, format!("is not set, although {secret} is")),
                (Some(_), Some(_)) | (None, None) => Ok(()),
            }
        }
        ObjectService::Azure if value("AZURE_STORAGE_ACCOUNT_NAME").is_none() && !allows_http => {
            wrong("AZURE_STORAGE_ACCOUNT_NAME", "is not set; it names the storage account".to_owned())
        }
        ObjectService::GoogleCloud | ObjectService::Azure => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(service: ObjectService, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let values = match service {
            ObjectService::S3 => settings::<AmazonS3ConfigKey>(service, &variables).map(values),
            ObjectService::GoogleCloud => settings::<GoogleConfigKey>(service, &variables).map(values),
            ObjectService::Azure => settings::<AzureConfigKey>(service, &variables).map(values),
        };
        values.map_err(|wrong| wrong.to_string())
    }

    fn values<K>(settings: Vec<(K, String)>) -> Vec<String> {
        settings.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn white_space_around_a_value_is_removed() {
        let keys = [
            ("AWS_ACCESS_KEY_ID", "key\n"),
            ("AWS_SECRET_ACCESS_KEY", "hidden\r\n"),
            ("AWS_SESSION_TOKEN", " token\n"),
            ("AWS_REGION", "eu-central-1\n"),
        ];
        assert_eq!(
            read(ObjectService::S3, &keys),
            Ok(["key", "hidden", "token", "eu-central-1"].map(Into::into).into())
        );
        let account = [("AZURE_STORAGE_ACCOUNT_NAME", "team\n"), ("AZURE_STORAGE_ACCOUNT_KEY", "aGlkZGVu\n")];
        assert_eq!(read(ObjectService::Azure, &account), Ok(["team", "aGlkZGVu"].map(Into::into).into()));
    }

    #[test]
    fn an_unusable_variable_is_named_with_its_remedy() {
        use ObjectService::{Azure, GoogleCloud, S3};
        for (service, name, value, words) in [
            (S3, "AWS_ENDPOINT_URL", "minio:9000", ["`minio:9000` has no scheme", "`https://minio:9000`"]),
            (S3, "AWS_ENDPOINT_URL", "10.0.0.1:9000", ["has no scheme", "`http://10.0.0.1:9000`"]),
            (S3, "AWS_ENDPOINT_URL_S3", "minio", ["has no scheme", "https://minio"]),
            (S3, "AWS_ENDPOINT_URL", "ftp://minio", ["`ftp://`", "https or http"]),
            (S3, "AWS_ENDPOINT_URL", "https://mi nio", ["is no address", "https://minio.example:9000"]),
            (S3, "AWS_ENDPOINT_URL", "http://minio:9000", ["is plain http", "AWS_ALLOW_HTTP=true"]),
            (S3, "AWS_ALLOW_HTTP", "perhaps", ["`perhaps`", "`true`"]),
            (S3, "AWS_REGION", "eu central", ["`eu central`", "letters"]),
            (S3, "AWS_SESSION_TOKEN", "hunter\nsecret", ["character 7", "line break"]),
            (S3, "AWS_ACCESS_KEY_ID", "key", ["AWS_SECRET_ACCESS_KEY: is not set", "AWS_ACCESS_KEY_ID"]),
            (GoogleCloud, "GOOGLE_SERVICE_ACCOUNT", "/no/such/file", ["/no/such/file", "cannot be read"]),
            (GoogleCloud, "GOOGLE_SERVICE_ACCOUNT_KEY", "/etc/key.json", ["JSON", "not a path"]),
            (Azure, "AZURE_STORAGE_ACCOUNT_KEY", "not base64", ["the key", "base64"]),
            (Azure, "AZURE_STORAGE_ENDPOINT", "store", ["has no scheme", "https://store"]),
            (Azure, "AZURE_STORAGE_ACCOUNT_KEY", "aGlkZGVu", ["AZURE_STORAGE_ACCOUNT_NAME", "is not set"]),
        ] {
            let shown = read(service, &[(name, value)]).expect_err(name);
            assert!(shown.contains(name) || shown.starts_with("AZURE_STORAGE_ACCOUNT_NAME"), "{shown}");
            assert!(words.iter().all(|word| shown.contains(word)), "{shown}");
            assert!(!shown.contains("hunter"), "a secret is shown: {shown}");
        }
    }

    #[test]
    fn values_that_the_stores_own_tools_take_are_accepted() {
        use ObjectService::{Azure, GoogleCloud, S3};
        for (service, variables) in [
            (S3, &[("AWS_ENDPOINT_URL", "http://minio:9000"), ("AWS_ALLOW_HTTP", "TRUE")][..]),
            (S3, &[("AWS_ENDPOINT_URL", "https://[::1]:9000/base"), ("AWS_REGION", "us-east-1")]),
            (S3, &[("AWS_SESSION_TOKEN", "a/b+c=="), ("AWS_PROFILE", "ünknown to us")]),
            (GoogleCloud, &[("GOOGLE_SERVICE_ACCOUNT_KEY", "{\"private_key\": \"a\\nb\"}\n")]),
            (Azure, &[("AZURE_STORAGE_ACCOUNT_NAME", "team"), ("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=a%2Fb")]),
            (Azure, &[("AZURE_STORAGE_USE_EMULATOR", "true")]),
        ] {
            assert!(read(service, variables).is_ok(), "{variables:?}: {:?}", read(service, variables));
        }
    }
}
