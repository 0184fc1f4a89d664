//! Certificates, keys and kubeconfigs of a cluster. Each cluster gets new ones.

use std::{fs, net::IpAddr, path::Path};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::json;

use super::{Cluster, network};

/// Names by which pods and people reach the API server.
const API_SERVER_NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
/// The group whose members may do everything.
const ADMINISTRATORS: &str = "system:masters";

impl Cluster {
    /// Makes the credentials of the control plane, the nodes and the administrator.
    pub(super) fn make_pki(&self) -> anyhow::Result<()> {
        let folder = self.state.pki();
        let authority = Authority::new(&folder)?;
        authority.certificate("apiserver", "kube-apiserver", None, &api_server_addresses()?)?;
        authority.certificate("apiserver-kubelet", "kube-apiserver-kubelet-client", Some(ADMINISTRATORS), &[])?;
        authority.certificate("front-proxy", "front-proxy", None, &[])?;
        let signing = KeyPair::generate()?;
        authority.write("sa.key", &signing.serialize_pem())?;
        authority.write("sa.pub", &signing.public_key_pem())?;

        let inside = format!("https://{}:6443", network::CONTROL_PLANE);
        let mut users = vec![("admin".to_owned(), "admin".to_owned(), Some(ADMINISTRATORS))];
        for (name, user) in [
            ("controller-manager", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("proxy", "system:kube-proxy"),
        ] {
            users.push((name.to_owned(), user.to_owned(), None));
        }
        users.extend(
            self.nodes().map(|node| (format!("n{node}"), format!("system:node:n{node}"), Some("system:nodes"))),
        );
        for (name, user, group) in users {
            authority.certificate(&name, &user, group, &[])?;
            let kubeconfig = authority.kubeconfig(&name, &inside)?;
            authority.write(&format!("{name}.kubeconfig"), &kubeconfig)?;
        }
        Ok(())
    }

    /// Writes the administrator's kubeconfig for the host, where the API server is a loopback port.
    pub(super) fn write_kubeconfig(&self, port: u16) -> anyhow::Result<()> {
        let text = kubeconfig(&self.state.pki(), "admin", &format!("https://127.0.0.1:{port}"))?;
        Ok(fs::write(self.state.kubeconfig(), text)?)
    }

    /// Returns the path of a file in the folder of keys.
    pub(super) fn pki_file(&self, name: &str) -> String {
        self.state.pki().join(name).display().to_string()
    }
}

struct Authority<'a> {
    folder: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(folder: &'a Path) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = valid("lockstep-ca", None)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        fs::create_dir_all(folder)?;
        let (key_pem, certificate_pem) = (key.serialize_pem(), certificate.pem());
        let authority = Self { folder, issuer: Issuer::new(params, key) };
        authority.write("ca.key", &key_pem)?;
        authority.write("ca.crt", &certificate_pem)?;
        Ok(authority)
    }

    /// Writes NAME.crt and NAME.key: for a server if there are addresses, for a client otherwise.
    fn certificate(&self, name: &str, user: &str, group: Option<&str>, addresses: &[SanType]) -> anyhow::Result<()> {
        let mut params = valid(user, group)?;
        params.subject_alt_names = addresses.to_vec();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match addresses {
            [] => ExtendedKeyUsagePurpose::ClientAuth,
            [..] => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let key = KeyPair::generate()?;
        self.write(&format!("{name}.crt"), &params.signed_by(&key, &self.issuer)?.pem())?;
        self.write(&format!("{name}.key"), &key.serialize_pem())
    }

    fn kubeconfig(&self, user: &str, server: &str) -> anyhow::Result<String> {
        kubeconfig(self.folder, user, server)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let file = self.folder.join(name);
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }
}

/// Returns a subject that is valid for a hundred years.
fn valid(user: &str, group: Option<&str>) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2125, 1, 1);
    Ok(params)
}

fn api_server_addresses() -> anyhow::Result<Vec<SanType>> {
    let mut addresses = Vec::new();
    for name in API_SERVER_NAMES {
        addresses.push(SanType::DnsName(name.try_into()?));
    }
    for address in ["127.0.0.1", network::CONTROL_PLANE, network::API_SERVICE] {
        addresses.push(SanType::IpAddress(address.parse::<IpAddr>()?));
    }
    Ok(addresses)
}

/// Returns a kubeconfig as JSON, which is also YAML. It refers to no other file, so it may be
/// copied anywhere.
fn kubeconfig(folder: &Path, user: &str, server: &str) -> anyhow::Result<String> {
    let pem = |name: String| -> anyhow::Result<String> {
        let file = folder.join(name);
        let text = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(base64(&text))
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lockstep",
        "clusters": [{"name": "lockstep", "cluster": {
            "server": server,
            "certificate-authority-data": pem("ca.crt".to_owned())?,
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": pem(format!("{user}.crt"))?,
            "client-key-data": pem(format!("{user}.key"))?,
        }}],
        "contexts": [{"name": "lockstep", "context": {"cluster": "lockstep", "user": user}}],
    });
    Ok(serde_json::to_string_pretty(&config)?)
}

/// Encodes bytes as RFC 4648, section 4, defines it.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, index| bits << 8 | u32::from(three.get(index).copied().unwrap_or(0)));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit > three.len() { '=' } else { char::from(DIGITS[index as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_lengths_that_are_no_multiple_of_three() {
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, coded) in vectors {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
