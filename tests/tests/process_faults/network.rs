//! A bridge and its hosts: one for the coordinator and one for each worker.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsFd as _,
    path::Path,
    process::Command,
};

use lockstep_tests::namespaces::{exists, inside, ip, make, path, remove, run, shape};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The number of workers of every job here.
pub(crate) const WORKERS: u32 = 3;
/// The port on which workers receive gradients.
pub(crate) const DATA: u16 = 7071;
const INTERFACE: &str = "eth0";
/// The address of the bridge.
const MIDDLE: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);

/// A process with a host of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Coordinator,
    Worker(u32),
}

/// A direction that a cut link does not carry any more, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

/// A network that is removed when this is dropped.
pub(crate) struct Network {
    name: &'static str,
}

impl Host {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Coordinator].into_iter().chain((0..WORKERS).map(Self::Worker))
    }

    pub(crate) fn address(self) -> Ipv4Addr {
        let [a, b, c, _] = MIDDLE.octets();
        Ipv4Addr::new(a, b, c, 10 + self.number() as u8)
    }

    fn number(self) -> u32 {
        match self {
            Self::Coordinator => 0,
            Self::Worker(index) => 1 + index,
        }
    }
}

impl Network {
    /// Makes a network whose links carry so many Mb/s each way. Networks of different names are
    /// separate.
    pub(crate) fn of(name: &'static str, megabits: f64) -> Self {
        take_down(name);
        let network = Self { name };
        let middle = network.middle();
        make(&middle).expect("a namespace");
        let bridge = format!("link set lo up\nlink add bridge type bridge\naddr add {MIDDLE}/24 dev bridge\n");
        ip(&middle, &(bridge + "link set bridge up\n")).expect("a bridge");
        for host in Host::all() {
            let (namespace, number, address) = (network.namespace(host), host.number(), host.address());
            make(&namespace).expect("a namespace");
            ip(
                &middle,
                &format!(
                    "link add h{number} type veth peer name {INTERFACE} netns {namespace}\n\
                     link set h{number} master bridge\n\
                     link set h{number} up\n"
                ),
            )
            .expect("a line");
            let own = format!("link set lo up\naddr add {address}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n");
            ip(&namespace, &own).expect("an address");
            network.shape(host, megabits);
        }
        network
    }

    fn namespace(&self, host: Host) -> String {
        namespace(self.name, host)
    }

    /// Returns the name of the bridge's own namespace.
    pub(crate) fn middle(&self) -> String {
        middle(self.name)
    }

    /// Returns a command on a host. It does not outlive the thread that starts it.
    pub(crate) fn command(&self, host: Host, program: &Path) -> Command {
        let mut command = inside(&self.namespace(host), "setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// Moves the calling thread to a host. Sockets that it opens from now on are there.
    pub(crate) fn enter(&self, host: Host) {
        let namespace = File::open(path(&self.namespace(host))).expect("a namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("the thread moves");
    }

    /// Limits the sending of a host to so many Mb/s.
    pub(crate) fn shape(&self, host: Host, megabits: f64) {
        shape(&self.namespace(host), INTERFACE, megabits).expect("a limit");
    }

    /// Limits the receiving of a host to so many Mb/s.
    pub(crate) fn shape_towards(&self, host: Host, megabits: f64) {
        shape(&self.middle(), &format!("h{}", host.number()), megabits).expect("a limit");
    }

    pub(crate) fn cut(&self, host: Host, ways: &[Way]) {
        for way in ways {
            let (chain, side) = match way {
                Way::In => ("INPUT", "-i"),
                Way::Out => ("OUTPUT", "-o"),
            };
            self.iptables(host, &["-A", chain, side, INTERFACE, "-j", "DROP"]);
        }
    }

    /// Drops all packets between two hosts. Both still reach all others.
    pub(crate) fn part(&self, one: Host, other: Host) {
        let other = other.address().to_string();
        self.iptables(one, &["-A", "INPUT", "-s", &other, "-j", "DROP"]);
        self.iptables(one, &["-A", "OUTPUT", "-d", &other, "-j", "DROP"]);
    }

    /// Drops packets between two hosts that are longer than a greeting. A tunnel does this if it
    /// takes shorter packets than its ends believe.
    pub(crate) fn swallow(&self, one: Host, other: Host) {
        let other = other.address().to_string();
        for (chain, end) in [("INPUT", "-s"), ("OUTPUT", "-d")] {
            self.iptables(one, &["-A", chain, end, &other, "-m", "length", "--length", "600:65535", "-j", "DROP"]);
        }
    }

    pub(crate) fn heal(&self, host: Host) {
        self.iptables(host, &["-F"]);
    }

    /// Diverts new connections for gradients from one host to another to this port of the bridge.
    pub(crate) fn divert(&self, from: Host, to: Host, port: u16) -> SocketAddr {
        let middle = SocketAddrV4::new(MIDDLE, port);
        let (to, data, destination) = (to.address().to_string(), DATA.to_string(), middle.to_string());
        let rule = ["-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", &to, "--dport", &data, "-j", "DNAT"];
        self.iptables(from, &[&rule[..], &["--to-destination", &destination]].concat());
        middle.into()
    }

    fn iptables(&self, host: Host, words: &[&str]) {
        run(inside(&self.namespace(host), "iptables").args(words)).expect("a rule");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        take_down(self.name);
    }
}

fn namespace(network: &str, host: Host) -> String {
    format!("lockstep-{network}-{}", host.number())
}

fn middle(network: &str) -> String {
    format!("lockstep-{network}-bridge")
}

/// Removes the network, also one that a killed test left behind.
fn take_down(network: &str) {
    let names = Host::all().map(|host| namespace(network, host)).chain([middle(network)]);
    for name in names.filter(|name| exists(name)) {
        remove(&name).expect("the namespace is removed");
    }
}
