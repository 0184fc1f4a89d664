//! etcd, API server, controller-manager, scheduler and DNS, each a process in the fabric's
//! namespace.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use super::{
    Cluster,
    network::{self, fabric, inside},
    wait_for,
};

/// How long the API server may take to answer after its start.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// More than the defaults of 20 and 30, which would otherwise decide the results of tests.
const QUICK_CLIENT: [&str; 3] = ["--kube-api-qps=1000", "--kube-api-burst=2000", "--leader-elect=false"];
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";
const API_SERVER: &str = "apiserver";
/// The audit log has the requests of all accounts but those of Kubernetes itself.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
                            - {level: None, userGroups: [\"system:serviceaccounts:kube-system\"]}\n\
                            - {level: Metadata, userGroups: [\"system:serviceaccounts\"]}\n- {level: None}\n";
/// Connections that may wait to be forwarded.
const BACKLOG: u32 = 128;
/// The cluster's DNS: a service without a selector, whose endpoint is in the fabric.
const DNS: &str = include_str!("../../../deploy/cluster/dns.yaml");

impl Cluster {
    /// Ends the API server at once and starts it again.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart_api_server(&self) -> anyhow::Result<()> {
        self.stop_api_server();
        self.start_api_server()?;
        self.wait_for_api_server()
    }

    /// Ends the API server at once. Nothing else ends with it.
    fn stop_api_server(&self) {
        self.process(API_SERVER).kill();
    }

    /// Returns the file in which the API server notes each request of an account that is no part of
    /// Kubernetes: an audit event in a line.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.state.folder().join("audit.jsonl")
    }

    /// Starts the API server unless it runs. It answers some seconds later.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start_api_server(&self) -> anyhow::Result<()> {
        let address = network::CONTROL_PLANE;
        let tolerated = self.settings.evicted_after.as_secs();
        let policy = self.state.folder().join("audit-policy.yaml");
        fs::write(&policy, AUDIT_POLICY)?;
        let mut server = self.program("kube-apiserver");
        server
            .args([format!("--etcd-servers={ETCD}"), format!("--service-cluster-ip-range={}", network::SERVICES)])
            .args(["bind-address", "advertise-address"].map(|flag| format!("--{flag}={address}")))
            .args(["not-ready", "unreachable"].map(|taint| format!("--default-{taint}-toleration-seconds={tolerated}")))
            .args([
                format!("--audit-policy-file={}", policy.display()),
                format!("--audit-log-path={}", self.audit_log().display()),
            ])
            .args([
                "--secure-port=6443",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--allow-privileged=true",
                "--enable-aggregator-routing=true",
                "--kubelet-preferred-address-types=InternalIP",
                "--profiling=false",
                "--requestheader-allowed-names=front-proxy",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            ]);
        for (flag, file) in [
            ("tls-cert-file", "apiserver.crt"),
            ("tls-private-key-file", "apiserver.key"),
            ("client-ca-file", "ca.crt"),
            ("requestheader-client-ca-file", "ca.crt"),
            ("proxy-client-cert-file", "front-proxy.crt"),
            ("proxy-client-key-file", "front-proxy.key"),
            ("kubelet-client-certificate", "apiserver-kubelet.crt"),
            ("kubelet-client-key", "apiserver-kubelet.key"),
            ("service-account-signing-key-file", "sa.key"),
            ("service-account-key-file", "sa.pub"),
        ] {
            server.arg(format!("--{flag}={}", self.pki_file(file)));
        }
        self.process(API_SERVER).start(&server)
    }

    /// Waits until the API server says that it is ready.
    ///
    /// # Errors
    /// It has ended, or is not ready in time.
    pub(super) fn wait_for_api_server(&self) -> anyhow::Result<()> {
        let process = self.process(API_SERVER);
        let mut ready = false;
        wait_for("the API server", READY_WITHIN, || {
            ready = self.kubectl(&["get", "--raw", "/readyz"]).is_ok_and(|answer| answer.trim() == "ok");
            ready || process.pid().is_none()
        })?;
        anyhow::ensure!(ready, "the API server ended, see {}", self.logs_dir().join("apiserver.log").display());
        Ok(())
    }

    /// Ends etcd at once and starts it again.
    ///
    /// # Errors
    /// The API server does not answer afterwards.
    pub fn restart_etcd(&self) -> anyhow::Result<()> {
        self.process("etcd").kill();
        self.start_etcd()?;
        self.wait_for_api_server()
    }

    pub(super) fn start_etcd(&self) -> anyhow::Result<()> {
        let mut etcd = self.program("etcd");
        etcd.args(["--name", "lockstep", "--unsafe-no-fsync", "--log-level", "warn", "--data-dir"]);
        etcd.arg(self.state.folder().join("etcd"));
        etcd.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--listen-peer-urls", ETCD_PEER]);
        etcd.args(["--initial-advertise-peer-urls", ETCD_PEER, "--initial-cluster", &format!("lockstep={ETCD_PEER}")]);
        self.process("etcd").start(&etcd)
    }

    pub(super) fn start_controllers(&self) -> anyhow::Result<()> {
        let lost_after = self.settings.node_lost_after.as_secs();
        let mut manager = self.controller("kube-controller-manager", "controller-manager");
        manager
            .arg(format!("--node-monitor-grace-period={lost_after}s"))
            .arg(format!("--service-account-private-key-file={}", self.pki_file("sa.key")))
            .args(
                ["root-ca-file", "cluster-signing-cert-file"]
                    .map(|flag| format!("--{flag}={}", self.pki_file("ca.crt"))),
            )
            .arg(format!("--cluster-signing-key-file={}", self.pki_file("ca.key")))
            .args(["--use-service-account-credentials=true", "--allocate-node-cidrs=false", "--node-monitor-period=2s"])
            // With the default rate, one node is evicted in ten seconds.
            .args(["--node-eviction-rate=10", "--secondary-node-eviction-rate=10"]);
        self.process("controller-manager").start(&manager)?;
        self.process("scheduler").start(&self.controller("kube-scheduler", "scheduler"))
    }

    pub(super) fn start_dns(&self) -> anyhow::Result<()> {
        let corefile = self.state.folder().join("Corefile");
        let (address, kubeconfig) = (network::CONTROL_PLANE, self.pki_file("admin.kubeconfig"));
        let zones = format!(
            ".:53 {{\n bind {address}\n errors\n kubernetes cluster.local {{\n  kubeconfig {kubeconfig}\n  ttl 1\n }}\n}}\n"
        );
        fs::write(&corefile, zones)?;
        self.process("dns").start(self.program("coredns").arg("-conf").arg(corefile))?;
        self.apply(&DNS.replace("@SERVICE@", network::DNS_SERVICE).replace("@ENDPOINT@", address))
    }

    /// Makes the API server reachable from the host: through a loopback port, a socket file and the
    /// fabric's namespace.
    pub(super) fn start_forwarding(&self) -> anyhow::Result<()> {
        let port = free_port(self.settings.port)?;
        self.write_kubeconfig(port)?;
        let socket = self.state.folder().join("api.sock");
        let mut within = inside(&fabric(self.settings.name), "socat");
        within.arg(format!("UNIX-LISTEN:{},fork,backlog={BACKLOG}", socket.display()));
        within.arg(format!("TCP:{}:6443,nodelay", network::CONTROL_PLANE));
        self.process("forward-inside").start(&within)?;
        let mut outside = Command::new("socat");
        outside.arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog={BACKLOG}"));
        outside.arg(format!("UNIX-CONNECT:{}", socket.display()));
        self.process("forward-outside").start(&outside)
    }

    fn controller(&self, program: &str, user: &str) -> Command {
        let kubeconfig = self.pki_file(&format!("{user}.kubeconfig"));
        let mut command = self.program(program);
        command
            .args(
                ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                    .map(|flag| format!("--{flag}={kubeconfig}")),
            )
            .args(QUICK_CLIENT)
            .arg("--bind-address=127.0.0.1");
        command
    }

    /// Returns the command of a control-plane program in the fabric's namespace.
    fn program(&self, name: &str) -> Command {
        inside(&fabric(self.settings.name), self.programs.path(name))
    }
}

/// Returns the wanted loopback port, or any other if the port is taken.
fn free_port(wanted: u16) -> anyhow::Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(listener.local_addr()?.port())
}
