//! The environment of a trainer process. Its starter writes it with [`Launch::variables`], and the
//! process reads it with [`Launch::read`]. Both go through [`Variable`], so no name is spelled
//! twice.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, Ipv4Addr, TcpListener},
    os::fd::AsFd as _,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{DEFAULT_GRACE_SECONDS, Elastic, ObjectUri, Task};

/// Everything that a coordinator or worker process is told at its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// The job that the process belongs to.
    pub job: Job,
    /// Number of earlier starts of the whole job. The first attempt is 0.
    pub attempt: u32,
    /// Name of this member: its pod's name. The coordinator has no name of its own, and leaves it
    /// empty.
    #[serde(skip)]
    pub member: String,
    /// Number of workers that the group begins with.
    pub replicas: u32,
    /// Numbers of workers that the group may have later.
    pub elastic: Elastic,
    /// Address on which the coordinator listens.
    pub coordinator: Address,
    /// Address on which this process listens, and which it tells its peers.
    #[serde(skip, default = "unspecified")]
    pub address: IpAddr,
    /// Ports of this process.
    pub ports: Ports,
    /// True if the coordinator inherits its open control port as its standard input. The port then
    /// stays open, and the same, while one coordinator replaces another.
    pub inherits_listener: bool,
    /// Folder for checkpoints, model and metrics. Every member sees the same folder. A benchmark
    /// keeps nothing in it.
    pub output: PathBuf,
    /// The job's own prefix in an object store, for checkpoints and model. The folder then holds
    /// only metrics, and each member may have its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectUri>,
    /// Storage of the coordinator's durable record.
    pub store: RecordStore,
    /// Folder of this worker's [`crate::CredentialFile`]s; `None` if the job does not encrypt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// Seconds from the request to end until the process is killed.
    #[serde(default = "grace_by_default")]
    pub grace_seconds: u32,
    /// File for the process's [`crate::Ending`].
    pub ending: PathBuf,
    /// Work of the process.
    pub task: Task,
}

/// The identity of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Namespace of the `TrainingJob`; `local` without a cluster.
    pub namespace: String,
    /// Name of the `TrainingJob`.
    pub name: String,
    /// Its uid. Another job of the same name has another uid.
    pub uid: String,
}

/// Ports that a process listens on; 0 lets the system choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Membership messages; only the coordinator listens.
    pub control: u16,
    /// Gradients; only workers listen.
    pub data: u16,
    /// /metrics, /healthz and /readyz.
    pub metrics: u16,
}

impl Ports {
    /// The ports inside a pod.
    pub const POD: Self = Self { control: 7070, data: 7071, metrics: 9464 };
    /// Any free ports, for local processes.
    pub const ANY: Self = Self { control: 0, data: 0, metrics: 0 };
}

/// Host and port; the host may be a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Address {
    /// DNS name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// The place of the durable record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordStore {
    /// The `TrainingGroup` with the job's namespace and name.
    Kubernetes,
    /// A local file.
    File(PathBuf),
}

/// A variable that is missing or cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {variable}: {problem}; the operator and `lockstep run` set it")]
pub struct LaunchError {
    variable: &'static str,
    problem: String,
}

impl LaunchError {
    pub(crate) fn new(variable: &'static str, problem: impl fmt::Display) -> Self {
        Self { variable, problem: problem.to_string() }
    }
}

/// Variable with the parent's process id. A parent that its children must not outlive sets it.
pub const PARENT: &str = "LOCKSTEP_PARENT";

/// The names of the environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variable {
    /// All of [`Launch`] but the two fields that follow, as JSON.
    Launch,
    /// [`Launch::member`].
    Member,
    /// [`Launch::address`].
    Address,
}

impl Variable {
    /// The variable's name in the environment.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Launch => "LOCKSTEP_LAUNCH",
            Self::Member => "LOCKSTEP_MEMBER",
            Self::Address => "LOCKSTEP_ADDRESS",
        }
    }
}

impl Launch {
    /// Returns the environment that describes this launch. A pod replaces [`Variable::Member`] and
    /// [`Variable::Address`] by references to its own name and IP.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<Variable, String> {
        BTreeMap::from([
            // All values are text, numbers and UTF-8 paths, as the starter has checked, so this
            // does not fail.
            (Variable::Launch, serde_json::to_string(self).unwrap_or_default()),
            (Variable::Member, self.member.clone()),
            (Variable::Address, self.address.to_string()),
        ])
    }

    /// Reads the environment through `lookup`. A process passes `std::env::var`.
    ///
    /// # Errors
    /// A variable is missing or malformed. The error names the first one.
    pub fn read(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, LaunchError> {
        let wrong = |variable: Variable, problem: String| LaunchError::new(variable.name(), problem);
        let text = |variable: Variable| lookup(variable.name()).ok_or_else(|| wrong(variable, "missing".to_owned()));
        let launch: Self = serde_json::from_str(&text(Variable::Launch)?)
            .map_err(|error| wrong(Variable::Launch, error.to_string()))?;
        launch.task.check().map_err(|error| wrong(Variable::Launch, error.to_string()))?;
        let address = text(Variable::Address)?;
        Ok(Self {
            member: text(Variable::Member)?,
            address: address.parse().map_err(|error| wrong(Variable::Address, format!("`{address}`: {error}")))?,
            ..launch
        })
    }

    /// Returns the coordinator's control port, open and non-blocking: inherited, or opened here.
    ///
    /// # Errors
    /// The port cannot be opened, or the standard input is no listener.
    pub fn control_listener(&self) -> io::Result<TcpListener> {
        let listener = if self.inherits_listener {
            TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            TcpListener::bind((self.address, self.ports.control))?
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

const fn grace_by_default() -> u32 {
    DEFAULT_GRACE_SECONDS
}

fn unspecified() -> IpAddr {
    Ipv4Addr::UNSPECIFIED.into()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).ok_or("expected HOST:PORT")?;
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| "expected a port from 0 to 65535")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Benchmark, Collectives, Communication};

    fn launch() -> Launch {
        Launch {
            job: Job { namespace: "team".into(), name: "lenet".into(), uid: "1-2".into() },
            attempt: 3,
            member: "lenet-worker-1".into(),
            replicas: 4,
            elastic: Elastic { min_replicas: 2, max_replicas: 8 },
            coordinator: Address { host: "lenet-coordinator.team.svc".into(), port: 7070 },
            address: IpAddr::from([127, 0, 0, 1]),
            ports: Ports::POD,
            inherits_listener: false,
            output: "/checkpoints/lenet".into(),
            objects: Some("s3://models/team/lenet".parse().expect("a place")),
            store: RecordStore::File("/tmp/record.json".into()),
            credentials: Some("/run/lockstep".into()),
            grace_seconds: 45,
            ending: "/dev/termination-log".into(),
            task: serde_json::from_value(serde_json::json!({"train": {
                "model": {"name": "mlp", "hidden": [32]}, "dataset": {"format": "glyphs"}, "training": {},
                "communication": {"bucketBytes": "64Ki"}, "checkpoint": {"uri": "file:///c"},
            }}))
            .expect("valid"),
        }
    }

    fn by_name(launch: &Launch) -> BTreeMap<&'static str, String> {
        launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)).collect()
    }

    #[test]
    fn a_launch_reads_back_from_its_own_variables() {
        let benchmark = Task::Benchmark {
            benchmark: Benchmark::Collectives(Collectives::default()),
            communication: Communication::default(),
        };
        let stored = RecordStore::File("/tmp/record.json".into());
        for (store, task) in [(RecordStore::Kubernetes, launch().task), (stored, benchmark)] {
            let launch = Launch { store, task, ..launch() };
            let environment = by_name(&launch);
            assert_eq!(Launch::read(|name| environment.get(name).cloned()), Ok(launch));
        }
    }

    #[test]
    fn the_error_names_a_missing_variable() {
        let whole = by_name(&launch());
        for missing in whole.keys() {
            let error = Launch::read(|name| whole.get(name).filter(|_| name != *missing).cloned()).expect_err(missing);
            assert!(error.to_string().contains(missing), "{error}");
        }
    }

    #[test]
    fn the_error_quotes_a_malformed_value() {
        let mut environment = by_name(&launch());
        let whole = environment["LOCKSTEP_LAUNCH"].replace(r#""replicas":4"#, r#""replicas":"four""#);
        environment.insert("LOCKSTEP_LAUNCH", whole);
        let error = Launch::read(|name| environment.get(name).cloned()).expect_err("not a number");
        assert!(error.to_string().contains(r#"LOCKSTEP_LAUNCH: invalid type: string "four""#), "{error}");
    }
}
