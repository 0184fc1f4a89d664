//! The files by which the workers of a job prove to each other that they belong to it. In a cluster
//! a Secret holds them.

use std::path::PathBuf;

/// The name in every worker's certificate. Jobs differ by their authorities.
pub const WORKER_NAME: &str = "worker";

/// A file of credentials in PEM.
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
    /// All files.
    pub const ALL: [Self; 3] = [Self::Authority, Self::Certificate, Self::Key];

    /// The file's name in the folder, as Kubernetes names such files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authority => "ca.crt",
            Self::Certificate => "tls.crt",
            Self::Key => "tls.key",
        }
    }

    /// Returns the file's path in `folder`.
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
    /// Clocks of hosts may differ by this much.
    const BEFORE: Duration = DAY;
    /// Nothing renews a certificate while the job runs.
    const LIFE: Duration = Duration::from_secs(10 * 365 * DAY.as_secs());

    /// Makes an authority that signs one certificate for the workers of one job. The authority's
    /// key is then forgotten, so nobody else can become a worker of that job.
    ///
    /// # Errors
    /// The system grants no randomness.
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
