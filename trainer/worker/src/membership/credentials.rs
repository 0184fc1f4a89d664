//! The credentials by which a worker proves that it belongs to its job.

use std::{fs, path::Path};

use lockstep_collective::{CredentialPart, Credentials, Identity};
use lockstep_launch::{CredentialFile, Encryption, Launch, WORKER_NAME};

use crate::failure::Failure;

/// Reads the credentials if the job encrypts.
pub(crate) fn identity(launch: &Launch) -> Result<Option<Identity>, Failure> {
    match (launch.task.communication().encryption, &launch.credentials) {
        (Encryption::None, _) => Ok(None),
        (Encryption::Tls, Some(folder)) => read(folder).map(Some),
        (Encryption::Tls, None) => {
            Err(Failure::fatal("the job encrypts, but its launcher has named no folder of credentials"))
        }
    }
}

fn read(folder: &Path) -> Result<Identity, Failure> {
    let pem = |file: CredentialFile| {
        let path = file.path(folder);
        fs::read(&path).map_err(|error| Failure::fatal(format!("cannot read {}: {error}", path.display())))
    };
    let [authority, certificates, key] =
        [pem(CredentialFile::Authority)?, pem(CredentialFile::Certificate)?, pem(CredentialFile::Key)?];
    let credentials = Credentials { name: WORKER_NAME, certificates: &certificates, key: &key, authority: &authority };
    Identity::new(credentials).map_err(|error| {
        let file = match error.part {
            CredentialPart::Authority => CredentialFile::Authority,
            CredentialPart::Certificates | CredentialPart::Name => CredentialFile::Certificate,
            CredentialPart::Key => CredentialFile::Key,
        };
        Failure::fatal(format!("{} cannot be used: {error}", file.path(folder).display()))
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// Returns the error for a folder that a test has changed.
    fn said(change: impl FnOnce(&Path)) -> Result<Identity, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (file, text) in lockstep_launch::make_credentials(SystemTime::now()).expect("credentials") {
            fs::write(file.path(folder.path()), text).expect("written");
        }
        change(folder.path());
        read(folder.path()).map_err(|failure| match failure {
            Failure::Fatal(said) => said,
            other => panic!("a file does not mend itself: {other}"),
        })
    }

    #[test]
    fn the_credentials_that_a_launcher_makes_are_an_identity() {
        assert!(said(|_| {}).is_ok());
    }

    #[test]
    fn a_file_that_is_missing_or_wrong_is_named() {
        for file in CredentialFile::ALL {
            let missing = said(|folder| fs::remove_file(file.path(folder)).expect("removed")).unwrap_err();
            assert!(missing.contains("cannot read") && missing.contains(file.name()), "{missing}");
            let wrong = said(|folder| fs::write(file.path(folder), "-----BEGIN").expect("written")).unwrap_err();
            assert!(wrong.contains(file.name()) && wrong.contains("cannot be used"), "{wrong}");
        }
    }

    #[test]
    fn a_key_of_another_job_is_named() {
        let other = lockstep_launch::make_credentials(SystemTime::now()).expect("credentials");
        let key = CredentialFile::Key;
        let wrong = said(|folder| fs::write(key.path(folder), &other[&key]).expect("written")).unwrap_err();
        assert!(wrong.contains(key.name()), "{wrong}");
    }
}
