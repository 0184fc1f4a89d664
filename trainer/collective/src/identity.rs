use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A rank's proof that it belongs to its job, which it also demands of all others: a certificate
/// that the job's own authority signed.
#[derive(Clone)]
pub struct Identity {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// The name in every rank's certificate.
    pub(crate) name: ServerName<'static>,
}

/// The PEM files of an [`Identity`]. All ranks of a job may hold the same ones.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The DNS name in the certificates of all ranks.
    pub name: &'a str,
    /// This rank's certificate, followed by intermediate ones, if any.
    pub certificates: &'a [u8],
    /// The private key of the first certificate.
    pub key: &'a [u8],
    /// The certificate of the job's authority, the only one that is trusted.
    pub authority: &'a [u8],
}

/// The reason why credentials make no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct IdentityError {
    /// The faulty part.
    pub part: CredentialPart,
    /// The fault.
    pub problem: String,
}

/// A part of [`Credentials`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of credentials are the documentation")]
pub enum CredentialPart {
    Name,
    Certificates,
    Key,
    Authority,
}

impl Identity {
    /// Makes an identity of credentials.
    ///
    /// # Errors
    /// The part that is no PEM of its kind, or does not match the others.
    pub fn new(credentials: Credentials<'_>) -> Result<Self, IdentityError> {
        let Credentials { name, certificates, key, authority } = credentials;
        let name = ServerName::try_from(name.to_owned()).map_err(|error| wrong(CredentialPart::Name, error))?;
        let chain = certificates_of(certificates, CredentialPart::Certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(CredentialPart::Key, error))?;
        let mut trusted = RootCertStore::empty();
        for certificate in certificates_of(authority, CredentialPart::Authority)? {
            trusted.add(certificate).map_err(|error| wrong(CredentialPart::Authority, error))?;
        }
        let (trusted, provider) = (Arc::new(trusted), Arc::new(provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&trusted), Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(CredentialPart::Authority, error))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong(CredentialPart::Key, error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| wrong(CredentialPart::Key, error))?;
        // No connection resumes another one.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong(CredentialPart::Key, error))?
            .with_root_certificates(trusted)
            .with_client_auth_cert(chain, key)
            .map_err(|error| wrong(CredentialPart::Key, error))?;
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name })
    }
}

/// Returns the fastest ciphers: one for processors with instructions for it, one for the others.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256],
        ..ring::default_provider()
    }
}

fn certificates_of(pem: &[u8], part: CredentialPart) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| wrong(part, error))?;
    if certificates.is_empty() { Err(wrong(part, "it holds no certificate in PEM form")) } else { Ok(certificates) }
}

fn wrong(part: CredentialPart, problem: impl fmt::Display) -> IdentityError {
    IdentityError { part, problem: problem.to_string() }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}
