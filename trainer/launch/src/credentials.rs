//! The files by which the workers of a job prove to each other that they belong to it. In a cluster they are the entries of a Secret.

use std::path::PathBuf;

/// The name in the certificate of every worker of every job: jobs differ by their authorities.
pub const WORKER_NAME: &str = "worker";

/// A file of credentials, as PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialFile {
    /// The certificate of the job's own authority.
    Authority,
    /// The workers' certificate.
    Certificate,
    /// Its private key.
    Key,
}

impl CredentialFile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Authority, Self::Certificate, Self::Key];

    /// Its name in the folder, those that Kubernetes gives to them.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authority => "ca.crt",
            Self::Certificate => "tls.crt",
            Self::Key => "tls.key",
        }
    }

    /// Its path in a folder.
    #[must_use]
    pub fn path(self, folder: &std::path::Path) -> PathBuf {
        folder.join(self.name())
    }
}

#[cfg(feature = "credentials")]
pub use making::make_credentials;

#[cfg(feature = "credentials")]
mod making {
    use std::{
        collections::BTreeMap,
        time::{Duration, SystemTime},
    };

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    };

    use super::{CredentialFile, WORKER_NAME};

    const DAY: Duration = Duration::from_secs(24 * 3600);
    /// Clocks of hosts may differ by so much.
    const BEFORE: Duration = DAY;
    /// Nothing renews them while the job runs.
    const LIFE: Duration = Duration::from_secs(10 * 365 * DAY.as_secs());

    /// Makes an authority, has it sign a certificate for the workers of one job, and forgets its key: nobody else becomes one of them.
    ///
    /// # Errors
    /// When the system grants no randomness.
    pub fn make_credentials(now: SystemTime) -> Result<BTreeMap<CredentialFile, String>, rcgen::Error> {
        let (authority_key, mut authority) = (KeyPair::generate()?, valid("authority", Vec::new(), now)?);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_certificate = authority.self_signed(&authority_key)?.pem();
        let (key, mut worker) = (KeyPair::generate()?, valid(WORKER_NAME, vec![WORKER_NAME.to_owned()], now)?);
        worker.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        worker.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = worker.signed_by(&key, &Issuer::new(authority, authority_key))?.pem();
        Ok(BTreeMap::from([
            (CredentialFile::Authority, authority_certificate),
            (CredentialFile::Certificate, certificate),
            (CredentialFile::Key, key.serialize_pem()),
        ]))
    }

    fn valid(subject: &str, names: Vec<String>, now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, subject);
        (params.not_before, params.not_after) = ((now - BEFORE).into(), (now + LIFE).into());
        Ok(params)
    }
}
