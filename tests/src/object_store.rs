//! A real S3 server over a folder: versitygw, built once from Go into the user's cache.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use crate::cluster::{ensure_object_store, wait_for};

/// How long it may take to listen.
const UP_WITHIN: Duration = Duration::from_secs(30);
const ACCESS_KEY: &str = "lockstep";
const SECRET_KEY: &str = "known-to-the-tests";

/// The server; ends when this is dropped.
#[derive(Debug)]
pub struct ObjectStore {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl ObjectStore {
    /// Starts one that keeps its buckets in `folder`.
    ///
    /// # Errors
    /// Why it cannot run here, for people.
    pub fn start(folder: &Path) -> Result<Self, String> {
        Self::started(folder).map_err(|error| format!("{error:#}"))
    }

    fn started(folder: &Path) -> anyhow::Result<Self> {
        let program = ensure_object_store()?;
        let buckets = folder.join("buckets");
        fs::create_dir_all(&buckets)?;
        // Somebody else may take the port in between; then it does not come up, and says so.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let log = File::create(folder.join("server.log"))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["--port", &address.to_string(), "posix"])
            .arg(&buckets)
            .env("ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("ROOT_SECRET_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting versitygw by setpriv")?;
        let store = Self { process, address, folder: buckets };
        let up = wait_for("the object store", UP_WITHIN, || TcpStream::connect(address).is_ok());
        up.with_context(|| format!("see {}", folder.join("server.log").display()))?;
        Ok(store)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder of a bucket, which is made.
    ///
    /// # Panics
    /// When it cannot be.
    pub fn bucket(&self, name: &str) -> PathBuf {
        let bucket = self.folder.join(name);
        fs::create_dir_all(&bucket).unwrap_or_else(|error| panic!("{}: {error}", bucket.display()));
        bucket
    }

    /// What a client that reaches the server at `address` has in its environment.
    #[must_use]
    pub fn variables(address: SocketAddr) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("NO_PROXY", address.ip().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        // It may have ended by itself, which a test will have seen.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
