//! Certificates, keys and kubeconfigs of a cluster, made anew for each.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Settings, run};

/// A cluster's folder of keys.
#[derive(Clone, Debug)]
pub(crate) struct Pki {
    folder: PathBuf,
}

impl Pki {
    pub(crate) fn in_state(state: &Path) -> Self {
        Self { folder: state.join("pki") }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Makes everything, unless it is made.
    pub(crate) fn make(&self, settings: &Settings) -> anyhow::Result<()> {
        if self.folder.join("made").exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        let addresses = settings.addresses;
        let (inside, outside) =
            (format!("https://{}:6443", addresses.control_plane()), format!("https://127.0.0.1:{}", settings.port));
        self.key("ca")?;
        let (key, certificate) = (self.path("ca.key"), self.path("ca.crt"));
        openssl(&["req", "-x509", "-new", "-subj", "/CN=lockstep-ca", "-days", "3650", "-key", &key, "-out", &certificate])?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
        let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let hosts = ["127.0.0.1".to_owned(), addresses.control_plane(), addresses.api_service()];
        let hosts: Vec<String> = hosts.iter().map(|host| format!("IP:{host}")).collect();
        let alternatives = [names, hosts].concat().join(",");
        self.certificate("apiserver", "/CN=kube-apiserver", &format!("extendedKeyUsage=serverAuth\nsubjectAltName={alternatives}"))?;
        let client = "extendedKeyUsage=clientAuth";
        self.certificate("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client", client)?;
        self.certificate("front-proxy", "/CN=front-proxy", client)?;
        for (name, subject) in [
            ("admin", "/O=system:masters/CN=admin"),
            ("controller-manager", "/CN=system:kube-controller-manager"),
            ("scheduler", "/CN=system:kube-scheduler"),
            ("proxy", "/CN=system:kube-proxy"),
        ] {
            self.certificate(name, subject, client)?;
            self.kubeconfig(name, &inside, &format!("{name}.kubeconfig"))?;
        }
        for node in 1..=settings.nodes {
            let name = format!("n{node}");
            self.certificate(&name, &format!("/O=system:nodes/CN=system:node:{name}"), client)?;
            self.kubeconfig(&name, &inside, &format!("{name}.kubeconfig"))?;
        }
        self.kubeconfig("admin", &outside, "host.kubeconfig")?;
        // API servers sign tokens with RSA by convention; others must be able to read the public half.
        openssl(&["genpkey", "-quiet", "-algorithm", "RSA", "-out", &self.path("sa.key")])?;
        openssl(&["pkey", "-pubout", "-in", &self.path("sa.key"), "-out", &self.path("sa.pub")])?;
        fs::write(self.folder.join("made"), "")?;
        Ok(())
    }

    fn key(&self, name: &str) -> anyhow::Result<()> {
        let file = self.path(&format!("{name}.key"));
        openssl(&["genpkey", "-quiet", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", &file])
    }

    fn certificate(&self, name: &str, subject: &str, extensions: &str) -> anyhow::Result<()> {
        self.key(name)?;
        let file = |suffix: &str| self.path(&format!("{name}.{suffix}"));
        fs::write(file("ext"), format!("keyUsage=digitalSignature,keyEncipherment\n{extensions}\n"))?;
        openssl(&["req", "-new", "-subj", subject, "-key", &file("key"), "-out", &file("csr")])?;
        let (ca, ca_key) = (self.path("ca.crt"), self.path("ca.key"));
        let (request, extensions, certificate) = (file("csr"), file("ext"), file("crt"));
        let files = ["-in", &request, "-extfile", &extensions, "-out", &certificate];
        openssl(&[&["x509", "-req", "-days", "3650", "-CAcreateserial", "-CA", &ca, "-CAkey", &ca_key], &files[..]].concat())
    }

    fn kubeconfig(&self, user: &str, server: &str, file: &str) -> anyhow::Result<()> {
        let (ca, certificate, key) =
            (self.path("ca.crt"), self.path(&format!("{user}.crt")), self.path(&format!("{user}.key")));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lockstep\n\
             clusters: [{{name: lockstep, cluster: {{server: \"{server}\", certificate-authority: \"{ca}\"}}}}]\n\
             users: [{{name: {user}, user: {{client-certificate: \"{certificate}\", client-key: \"{key}\"}}}}]\n\
             contexts: [{{name: lockstep, context: {{cluster: lockstep, user: {user}}}}}]\n"
        );
        fs::write(self.folder.join(file), text)?;
        Ok(())
    }
}

fn openssl(words: &[&str]) -> anyhow::Result<()> {
    run(Command::new("openssl").args(words))
}
