//! A real S3 server over a folder: versitygw, built once from Go into the user's cache.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use crate::{cluster::wait_for, go_programs};

/// How long it may take to listen.
const UP_WITHIN: Duration = Duration::from_secs(30);
const ACCESS_KEY: &str = "lockstep";
const SECRET_KEY: &str = "known-to-the-tests";

/// The server. It ends when this is dropped.
#[derive(Debug)]
pub struct ObjectStore {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl ObjectStore {
    /// Starts a server that keeps its buckets in `folder`.
    ///
    /// # Errors
    /// The reason why it cannot run here, for people.
    pub fn start(folder: &Path) -> Result<Self, String> {
        Self::started(folder).map_err(|error| format!("{error:#}"))
    }

    fn started(folder: &Path) -> anyhow::Result<Self> {
        let program = go_programs::object_store()?;
        let buckets = folder.join("buckets");
        fs::create_dir_all(&buckets)?;
        // Another process may take the port in between. The server then fails and logs why.
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
            .context("starting versitygw with setpriv")?;
        let store = Self { process, address, folder: buckets };
        let up = wait_for("the object store", UP_WITHIN, || TcpStream::connect(address).is_ok());
        up.with_context(|| format!("see {}", folder.join("server.log").display()))?;
        Ok(store)
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a bucket and returns its folder.
    ///
    /// # Panics
    /// The folder cannot be made.
    pub fn bucket(&self, name: &str) -> PathBuf {
        let bucket = self.folder.join(name);
        fs::create_dir_all(&bucket).unwrap_or_else(|error| panic!("{}: {error}", bucket.display()));
        bucket
    }

    /// Returns the environment of a client that reaches the server at `address`.
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
        // It may have ended by itself; a test would have noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
