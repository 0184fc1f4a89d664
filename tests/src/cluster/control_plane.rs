//! etcd, API server, controller-manager, scheduler and DNS, each a process in the fabric's namespace.

use std::{fs, process::Command, time::Duration};

use super::{
    Cluster,
    network::{fabric, inside},
    wait_for,
};

/// How long the API server may take to answer after its start.
const READY_WITHIN: Duration = Duration::from_secs(90);
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";

impl Cluster {
    /// Starts what does not run.
    pub(super) fn start_control_plane(&self) -> anyhow::Result<()> {
        self.start_etcd()?;
        self.start_api_server()?;
        self.start_forwarding()?;
        self.wait_for_api_server()?;
        let (own, kubeconfig) = (|name: &str| self.pki.path(&format!("{name}.kubeconfig")), "--kubeconfig");
        let busy = ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", "--bind-address=127.0.0.1"];
        self.process("controller-manager").start(
            self.program("kube-controller-manager")
                .args([kubeconfig, &own("controller-manager")])
                .args(["--authentication-kubeconfig", &own("controller-manager")])
                .args(["--authorization-kubeconfig", &own("controller-manager")])
                .args(["--service-account-private-key-file", &self.pki.path("sa.key")])
                .args(["--root-ca-file", &self.pki.path("ca.crt")])
                .args(["--use-service-account-credentials=true", "--allocate-node-cidrs=false"])
                .args(["--node-eviction-rate=10", "--secondary-node-eviction-rate=10"])
                .args(["--node-monitor-period=2s", "--node-monitor-grace-period=16s"])
                .args(busy),
        )?;
        self.process("scheduler").start(
            self.program("kube-scheduler")
                .args([kubeconfig, &own("scheduler")])
                .args(["--authentication-kubeconfig", &own("scheduler")])
                .args(["--authorization-kubeconfig", &own("scheduler")])
                .args(busy),
        )?;
        let zone = self.state.join("Corefile");
        let text = format!(
            ".:53 {{\n bind {}\n errors\n kubernetes cluster.local {{\n  kubeconfig {}\n  ttl 1\n }}\n}}\n",
            self.settings.addresses.control_plane(),
            own("admin"),
        );
        fs::write(&zone, text)?;
        self.process("dns").start(self.program("coredns").arg("-conf").arg(zone))?;
        self.apply(&self.dns_service())
    }

    /// Ends the API server and starts it again.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart_api_server(&self) -> anyhow::Result<()> {
        self.process("apiserver").kill();
        self.start_api_server()?;
        self.wait_for_api_server()
    }

    /// Ends etcd and starts it again.
    ///
    /// # Errors
    /// The API server does not answer afterwards.
    pub fn restart_etcd(&self) -> anyhow::Result<()> {
        self.process("etcd").kill();
        self.start_etcd()?;
        self.wait_for_api_server()
    }

    fn start_etcd(&self) -> anyhow::Result<()> {
        let mut etcd = self.program("etcd");
        etcd.args(["--name", "lockstep", "--unsafe-no-fsync", "--log-level", "error", "--data-dir"]).arg(self.state.join("etcd"));
        etcd.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--listen-peer-urls", ETCD_PEER]);
        etcd.args(["--initial-advertise-peer-urls", ETCD_PEER, "--initial-cluster", &format!("lockstep={ETCD_PEER}")]);
        self.process("etcd").start(&mut etcd)
    }

    fn start_api_server(&self) -> anyhow::Result<()> {
        let addresses = self.settings.addresses;
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.pki.path(name));
        let mut server = self.program("kube-apiserver");
        server
            .args([format!("--etcd-servers={ETCD}"), format!("--service-cluster-ip-range={}", addresses.services())])
            .args(["bind-address", "advertise-address"].map(|flag| format!("--{flag}={}", addresses.control_plane())))
            .args([file("tls-cert-file", "apiserver.crt"), file("tls-private-key-file", "apiserver.key")])
            .args([file("client-ca-file", "ca.crt"), file("requestheader-client-ca-file", "ca.crt")])
            .args([file("service-account-signing-key-file", "sa.key"), file("service-account-key-file", "sa.pub")])
            .args([file("kubelet-client-certificate", "apiserver-kubelet.crt"), file("kubelet-client-key", "apiserver-kubelet.key")])
            .args([file("proxy-client-cert-file", "front-proxy.crt"), file("proxy-client-key-file", "front-proxy.key")])
            .args(["--requestheader-allowed-names=front-proxy", "--requestheader-username-headers=X-Remote-User"])
            .args(["--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-"])
            .args(["--secure-port=6443", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
            .args(["--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged=true"])
            .args(["--enable-aggregator-routing=true", "--kubelet-preferred-address-types=InternalIP", "--profiling=false"])
            .args(["--default-not-ready-toleration-seconds=20", "--default-unreachable-toleration-seconds=20"]);
        self.process("apiserver").start(&mut server)
    }

    /// The host reaches the API server through its loopback address and a socket file.
    fn start_forwarding(&self) -> anyhow::Result<()> {
        let socket = self.state.join("api.sock");
        let inner = self.process("forward-inside");
        if inner.pid().is_none() && socket.exists() {
            fs::remove_file(&socket)?;
        }
        let mut command = inside(&fabric(&self.settings), "socat");
        command.arg(format!("UNIX-LISTEN:{},fork,backlog=128", socket.display()));
        inner.start(command.arg(format!("TCP:{}:6443,nodelay", self.settings.addresses.control_plane())))?;
        let mut command = Command::new("socat");
        command.arg(format!("TCP-LISTEN:{},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=128", self.settings.port));
        self.process("forward-outside").start(command.arg(format!("UNIX-CONNECT:{}", socket.display())))
    }

    fn wait_for_api_server(&self) -> anyhow::Result<()> {
        wait_for("the API server", READY_WITHIN, || {
            self.kubectl(&["get", "--raw", "/readyz"]).is_ok_and(|answer| answer.trim() == "ok")
        })
    }

    /// A program of the control plane, in its namespace.
    fn program(&self, name: &str) -> Command {
        inside(&fabric(&self.settings), &self.programs.join(name).to_string_lossy())
    }

    /// A service without selector whose endpoint is the DNS server in the fabric.
    fn dns_service(&self) -> String {
        let addresses = self.settings.addresses;
        format!(
            r#"{{apiVersion: v1, kind: Service, metadata: {{name: kube-dns, namespace: kube-system}}, spec: {{clusterIP: {},
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]}}}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {{name: kube-dns-1, namespace: kube-system, labels: {{kubernetes.io/service-name: kube-dns}}}},
  endpoints: [{{addresses: ["{}"], conditions: {{ready: true}}}}],
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]}}
"#,
            addresses.dns_service(),
            addresses.control_plane(),
        )
    }
}
