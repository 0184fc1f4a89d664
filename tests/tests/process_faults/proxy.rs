//! A proxy that flips two bits: one on the way there and, on another connection, one on the way
//! back.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use lockstep_tests::namespaces;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::network::{DATA, Host, Network};

const PORT: u16 = 7999;
/// Far behind the greetings, in the middle of the gradients.
const CLEAN_BYTES: usize = 300_001;

/// A proxy between two workers.
pub(crate) struct Proxy {
    flipped: Arc<AtomicU32>,
}

impl Proxy {
    /// Puts a proxy into every new connection that `from` makes to `to`.
    pub(crate) fn start(network: &Network, from: Host, to: Host) -> Self {
        let address = network.divert(from, to, PORT);
        let middle = File::open(namespaces::path(&network.middle())).expect("the bridge's namespace");
        let flipped = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&flipped);
        let (ready, begun) = std::sync::mpsc::channel();
        // A thread may be on another host than its process. Its sockets are then on that host too.
        thread::spawn(move || {
            move_into_link_name_space(middle.as_fd(), Some(LinkNameSpaceType::Network)).expect("on the bridge");
            let listener = TcpListener::bind(address).expect("a port");
            ready.send(()).expect("the test waits");
            let to = SocketAddr::from((to.address(), DATA));
            // The loop runs until the process ends. The network's end closes the connections.
            for caller in listener.incoming().flatten() {
                if let Ok(called) = TcpStream::connect(to) {
                    join(&caller, &called, &counted);
                }
            }
        });
        begun.recv().expect("the proxy listens");
        Self { flipped }
    }

    /// Returns the number of flipped bits.
    pub(crate) fn flipped(&self) -> u32 {
        self.flipped.load(Ordering::SeqCst)
    }
}

fn join(caller: &TcpStream, called: &TcpStream, flipped: &Arc<AtomicU32>) {
    for (from, to, turn) in [(caller, called, 0), (called, caller, 1)] {
        let (from, to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
        let flipped = Arc::clone(flipped);
        thread::spawn(move || pass(from, to, turn, &flipped));
    }
}

/// Forwards bytes. Flips a bit of the byte after [`CLEAN_BYTES`] if it is this direction's turn.
fn pass(mut from: TcpStream, mut to: TcpStream, turn: u32, flipped: &AtomicU32) {
    let mut bytes = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if (passed..passed + count).contains(&CLEAN_BYTES)
            && flipped.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            bytes[CLEAN_BYTES - passed] ^= 0x10;
        }
        passed += count;
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either side may be gone; the other side learns it by this.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
