//! The environment of a trainer process. Whoever starts one writes it with [`Launch::variables`], the process reads it with
//! [`Launch::read`]; both go through [`Variable`], so no name is spelled twice.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, str::FromStr};

use crate::Workload;

/// Everything that a coordinator or worker process is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Whose process this is.
    pub job: Job,
    /// How often all processes of the job were started anew, 0 at first.
    pub attempt: u32,
    /// Name of this member: its pod's name. Empty for none (a coordinator needs no name of its own).
    pub member: String,
    /// Workers that make up the group.
    pub replicas: u32,
    /// Where the coordinator listens.
    pub coordinator: Address,
    /// The address that this process listens on and tells its peers.
    pub address: IpAddr,
    /// Its ports.
    pub ports: Ports,
    /// Folder for checkpoints, model and metrics; every member sees the same one.
    pub output: PathBuf,
    /// Where the coordinator keeps the durable record.
    pub store: Store,
    /// File that takes the process's [`crate::Ending`].
    pub ending: PathBuf,
    /// What to train.
    pub workload: Workload,
}

/// Whose process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Namespace of the `TrainingJob`; `local` without a cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another job of the same name has another one.
    pub uid: String,
}

/// Ports that a process listens on; 0 lets the system choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// DNS name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Where the durable record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
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

/// Set besides the others by a parent that a process must not outlive: the parent's process id.
pub const PARENT: &str = "LOCKSTEP_PARENT";

/// The names of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the field of `Launch` of the same name")]
pub enum Variable {
    JobNamespace,
    JobName,
    JobUid,
    Attempt,
    Member,
    Replicas,
    Coordinator,
    Address,
    ControlPort,
    DataPort,
    MetricsPort,
    Output,
    Store,
    Ending,
    Workload,
}

impl Variable {
    /// As the process sees it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobNamespace => "LOCKSTEP_JOB_NAMESPACE",
            Self::JobName => "LOCKSTEP_JOB_NAME",
            Self::JobUid => "LOCKSTEP_JOB_UID",
            Self::Attempt => "LOCKSTEP_ATTEMPT",
            Self::Member => "LOCKSTEP_MEMBER",
            Self::Replicas => "LOCKSTEP_REPLICAS",
            Self::Coordinator => "LOCKSTEP_COORDINATOR",
            Self::Address => "LOCKSTEP_ADDRESS",
            Self::ControlPort => "LOCKSTEP_CONTROL_PORT",
            Self::DataPort => "LOCKSTEP_DATA_PORT",
            Self::MetricsPort => "LOCKSTEP_METRICS_PORT",
            Self::Output => "LOCKSTEP_OUTPUT",
            Self::Store => "LOCKSTEP_STORE",
            Self::Ending => "LOCKSTEP_ENDING",
            Self::Workload => "LOCKSTEP_WORKLOAD",
        }
    }
}

impl Launch {
    /// The environment that says all this. A pod replaces [`Variable::Member`] and [`Variable::Address`] by references to
    /// its own name and IP.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<Variable, String> {
        let Self { job, attempt, member, replicas, coordinator, address, ports, output, store, ending, workload } =
            self;
        let Job { namespace, name, uid } = job;
        let Ports { control, data, metrics } = ports;
        BTreeMap::from([
            (Variable::JobNamespace, namespace.clone()),
            (Variable::JobName, name.clone()),
            (Variable::JobUid, uid.clone()),
            (Variable::Attempt, attempt.to_string()),
            (Variable::Member, member.clone()),
            (Variable::Replicas, replicas.to_string()),
            (Variable::Coordinator, coordinator.to_string()),
            (Variable::Address, address.to_string()),
            (Variable::ControlPort, control.to_string()),
            (Variable::DataPort, data.to_string()),
            (Variable::MetricsPort, metrics.to_string()),
            (Variable::Output, output.display().to_string()),
            (Variable::Store, store.to_string()),
            (Variable::Ending, ending.display().to_string()),
            (Variable::Workload, serde_json::to_string(workload).unwrap_or_default()),
        ])
    }

    /// Reads the environment through `lookup`, which is `std::env::var` in a process.
    ///
    /// # Errors
    /// The first variable that is missing or malformed.
    pub fn read(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, LaunchError> {
        let text = |variable: Variable| {
            lookup(variable.name())
                .ok_or_else(|| LaunchError { variable: variable.name(), problem: "missing".to_owned() })
        };
        let workload: Workload = serde_json::from_str(&text(Variable::Workload)?)
            .map_err(|error| LaunchError { variable: Variable::Workload.name(), problem: error.to_string() })?;
        workload
            .check()
            .map_err(|error| LaunchError { variable: Variable::Workload.name(), problem: error.to_string() })?;
        Ok(Self {
            job: Job {
                namespace: text(Variable::JobNamespace)?,
                name: text(Variable::JobName)?,
                uid: text(Variable::JobUid)?,
            },
            attempt: parse(Variable::Attempt, &text(Variable::Attempt)?)?,
            member: text(Variable::Member)?,
            replicas: parse(Variable::Replicas, &text(Variable::Replicas)?)?,
            coordinator: parse(Variable::Coordinator, &text(Variable::Coordinator)?)?,
            address: parse(Variable::Address, &text(Variable::Address)?)?,
            ports: Ports {
                control: parse(Variable::ControlPort, &text(Variable::ControlPort)?)?,
                data: parse(Variable::DataPort, &text(Variable::DataPort)?)?,
                metrics: parse(Variable::MetricsPort, &text(Variable::MetricsPort)?)?,
            },
            output: text(Variable::Output)?.into(),
            store: parse(Variable::Store, &text(Variable::Store)?)?,
            ending: text(Variable::Ending)?.into(),
            workload,
        })
    }
}

fn parse<T: FromStr>(variable: Variable, text: &str) -> Result<T, LaunchError>
where
    T::Err: fmt::Display,
{
    text.parse().map_err(|error| LaunchError { variable: variable.name(), problem: format!("`{text}`: {error}") })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text.rsplit_once(':').ok_or("expected HOST:PORT")?;
        if host.is_empty() {
            return Err("expected HOST:PORT".to_owned());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| "expected a port from 0 to 65535")? })
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubernetes => f.write_str("kubernetes"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("file:")) {
            ("kubernetes", _) => Ok(Self::Kubernetes),
            (_, Some(path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err("expected kubernetes or file:PATH".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            job: Job { namespace: "team".into(), name: "lenet".into(), uid: "1-2".into() },
            attempt: 3,
            member: "lenet-worker-1".into(),
            replicas: 4,
            coordinator: Address { host: "lenet-coordinator.team.svc".into(), port: 7070 },
            address: IpAddr::from([127, 0, 0, 1]),
            ports: Ports::POD,
            output: "/checkpoints/lenet".into(),
            store: Store::File("/tmp/record.json".into()),
            ending: "/dev/termination-log".into(),
            workload: serde_json::from_value(serde_json::json!({
                "model": {"name": "mlp", "hidden": [32]}, "dataset": {"format": "glyphs"}, "training": {},
                "communication": {"bucketBytes": "64Ki"}, "checkpoint": {"uri": "file:///c"},
            }))
            .expect("valid"),
        }
    }

    fn by_name(launch: &Launch) -> BTreeMap<&'static str, String> {
        launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)).collect()
    }

    #[test]
    fn what_the_starter_writes_is_what_the_process_reads() {
        for store in [Store::Kubernetes, Store::File("/tmp/record.json".into())] {
            let launch = Launch { store, ..launch() };
            let environment = by_name(&launch);
            assert_eq!(Launch::read(|name| environment.get(name).cloned()), Ok(launch));
        }
    }

    #[test]
    fn each_missing_variable_is_named() {
        let whole = by_name(&launch());
        for missing in whole.keys() {
            let error = Launch::read(|name| whole.get(name).filter(|_| name != *missing).cloned()).expect_err(missing);
            assert!(error.to_string().contains(missing), "{error}");
        }
    }

    #[test]
    fn a_malformed_value_is_quoted() {
        let mut environment = by_name(&launch());
        environment.insert("LOCKSTEP_REPLICAS", "four".into());
        let error = Launch::read(|name| environment.get(name).cloned()).expect_err("not a number");
        assert!(error.to_string().contains("LOCKSTEP_REPLICAS: `four`"), "{error}");
    }
}
