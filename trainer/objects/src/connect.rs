//! Connects to the store that a URI and the environment name.

use std::{sync::Arc, time::Duration};

use lockstep_launch::{ObjectService, ObjectUri};
use object_store::{
    ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
};

use crate::variables::{WrongVariable, settings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is not watched and may already be closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no store to connect to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Variable(#[from] WrongVariable),
    /// The client library refuses the settings and names no variable.
    #[error(transparent)]
    Settings(#[from] object_store::Error),
}

/// Makes the client of a store from these variables.
///
/// # Errors
/// A variable, or several together, cannot be used.
pub(crate) fn connect(uri: &ObjectUri, variables: &[(String, String)]) -> Result<Arc<dyn ObjectStore>, ConnectError> {
    // It fails if another library has installed the same provider first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(match uri.service() {
        ObjectService::S3 => {
            let builder = AmazonS3Builder::new().with_client_options(client()).with_retry(once());
            let settings = settings(uri.service(), variables)?.into_iter();
            let builder = settings.fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Arc::new(builder.with_bucket_name(uri.bucket()).build()?)
        }
        ObjectService::GoogleCloud => {
            let builder = GoogleCloudStorageBuilder::new().with_client_options(client()).with_retry(once());
            let settings = settings(uri.service(), variables)?.into_iter();
            let builder = settings.fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Arc::new(builder.with_bucket_name(uri.bucket()).build()?)
        }
        ObjectService::Azure => {
            let builder = MicrosoftAzureBuilder::new().with_client_options(client()).with_retry(once());
            let settings = settings(uri.service(), variables)?.into_iter();
            let builder = settings.fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Arc::new(builder.with_container_name(uri.bucket()).build()?)
        }
    })
}

fn client() -> ClientOptions {
    // The time of a request depends on its bytes, so the sender limits it.
    ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout_disabled()
        .with_pool_idle_timeout(IDLE_TIMEOUT)
}

/// The library must not repeat requests. One place decides that for all requests.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(uri: &str, variables: &[(&str, &str)]) -> Result<Arc<dyn ObjectStore>, ConnectError> {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        connect(&uri.parse().expect("a place"), &variables)
    }

    #[test]
    fn each_service_connects_with_its_own_variables() {
        let keys = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_REGION", "eu-central-1")];
        let shown = connected("s3://models/team", &keys).expect("connected").to_string();
        assert!(shown.contains("models"), "{shown}");
        let account = [("AZURE_STORAGE_ACCOUNT_NAME", "team"), ("AZURE_STORAGE_ACCOUNT_KEY", "aGlkZGVu")];
        let shown = connected("az://models/team", &account).expect("connected").to_string();
        assert!(shown.contains("team") && shown.contains("models"), "{shown}");
        let shown = connected("gs://models", &[("GOOGLE_SKIP_SIGNATURE", "true")]).expect("connected").to_string();
        assert!(shown.contains("models"), "{shown}");
    }

    #[test]
    fn a_missing_or_wrong_variable_is_refused() {
        assert!(connected("az://models", &[]).is_err(), "an account is needed");
        assert!(connected("s3://models", &[("AWS_ALLOW_HTTP", "perhaps")]).is_err());
    }
}
