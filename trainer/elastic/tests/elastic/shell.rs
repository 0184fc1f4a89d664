//! The shells over real sockets of this machine.

mod changes;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lockstep_elastic::{
    Admission, Assignment, Break, Change, CheckpointMark, Digest, FileStore, FinalReply, GenerationStore, HeldState,
    Hello, JoinError, Membership, MembershipEvent, Message, Notice, Outcome, Record, StoreError, coordinate,
    coordinator::Config, message::Decoder,
};
use tokio::sync::oneshot;

use crate::fixtures::{NOTHING, config, hello, pod};

/// Far longer than anything here takes. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A coordinator on a thread. A test can stop or kill it.
struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    kill: Option<oneshot::Sender<()>>,
    notices: mpsc::Receiver<String>,
    thread: JoinHandle<Option<Result<Outcome, StoreError>>>,
}

fn start(config: Config, record: &Path) -> Running {
    start_at(SocketAddr::from(([127, 0, 0, 1], 0)), config, record)
}

fn start_at(address: SocketAddr, config: Config, record: &Path) -> Running {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel();
    let (kill, killed) = oneshot::channel();
    let (tell, notices) = mpsc::channel();
    let store = FileStore::new(record.to_owned());
    let thread = thread::spawn(move || {
        let notify = move |notice: Notice<'_>| {
            let text = match notice {
                Notice::Status(status) => status.to_string(),
                Notice::Changed { change: Change { joined, left, lost, .. }, .. } => {
                    format!("{joined:?} {left:?} {lost:?}")
                }
                Notice::Found { change, .. } => format!("found generation {}", change.active.generation),
                Notice::Progress { member, step, payload } => {
                    format!("{} step {step}: {}", member.pod, String::from_utf8_lossy(payload))
                }
            };
            // The test may have seen enough.
            let _ = tell.send(text);
        };
        let stopped = async {
            if stopped.await.is_err() {
                std::future::pending().await
            }
        };
        runtime.block_on(async {
            tokio::select! {
                outcome = coordinate(listener, config, store, notify, stopped) => Some(outcome),
                Ok(()) = killed => None,
            }
        })
    });
    Running { address, stop: Some(stop), kill: Some(kill), notices, thread }
}

impl Running {
    fn outcome(self) -> Outcome {
        self.thread.join().expect("no panic").expect("not killed").expect("a store")
    }

    /// Ends the coordinator like SIGKILL: its sockets close without a message.
    fn kill(mut self) {
        self.kill.take().expect("alive").send(()).expect("listening");
        assert!(self.thread.join().expect("no panic").is_none(), "it ended before it was killed");
    }

    fn until(&self, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let notice = self
                .notices
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("the coordinator never announced: {expected}"));
            if notice.contains(expected) {
                return;
            }
        }
    }
}

/// Joins as a member.
fn join(address: SocketAddr, hello: Hello) -> JoinHandle<Result<(Membership, Assignment), JoinError>> {
    thread::spawn(move || {
        let (membership, admission) = Membership::join(&address.to_string(), hello, NOTHING, PATIENCE)?;
        let group = let_in(&membership, admission, NOTHING)?;
        Ok((membership, group))
    })
}

fn regroup(membership: &Membership, held: HeldState, broken: Option<&str>) -> Result<Assignment, JoinError> {
    let admission = membership.regroup(Some(held), broken.map(Break::from), PATIENCE)?;
    let_in(membership, admission, held)
}

/// Joins a group. A process that is told to follow receives nothing and is let in with its state.
fn let_in(membership: &Membership, admission: Admission, held: HeldState) -> Result<Assignment, JoinError> {
    match admission {
        Admission::Member(group) => Ok(group),
        Admission::Newcomer(_) => regroup(membership, held, None),
    }
}

fn join_all(address: SocketAddr, members: usize) -> Vec<(Membership, Assignment)> {
    let joining: Vec<_> = (0..members).map(|index| join(address, hello(index, 1 + index as u128))).collect();
    joining.into_iter().map(|thread| thread.join().expect("no panic").expect("joined")).collect()
}

fn heard(membership: &Membership) -> mpsc::Receiver<MembershipEvent> {
    let (tell, events) = mpsc::channel();
    membership.on_event(move |event| {
        // The test may have seen enough.
        let _ = tell.send(event.clone());
    });
    events
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record.json");
    (folder, record)
}

fn stored(record: &Path) -> Record {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(FileStore::new(record.to_owned()).load()).expect("readable").expect("a record").0
}

/// Reports for all members at the same time that they are done.
fn finish(members: Vec<(Membership, Assignment)>, digest: &'static [u8]) {
    let finishing: Vec<_> = members
        .into_iter()
        .map(|(membership, _)| thread::spawn(move || membership.finished(9, Digest::of(digest), vec![1], PATIENCE)))
        .collect();
    for thread in finishing {
        assert_eq!(thread.join().expect("no panic"), Ok(FinalReply::Recorded));
    }
}

#[test]
fn four_workers_form_report_and_finish() {
    let (_folder, record) = folder();
    let coordinator = start(config(4), &record);
    let members = join_all(coordinator.address, 4);
    for (rank, (_, group)) in members.iter().enumerate() {
        assert_eq!((group.generation, group.rank as usize, group.world), (1, rank, 4));
        assert_eq!(group.pods, [pod(0), pod(1), pod(2), pod(3)]);
        assert_eq!(group.addresses[rank], hello(rank, 0).address);
    }
    coordinator.until("generation 1 runs with 4 workers");
    members[0].0.progress(5, b"half".to_vec());
    coordinator.until("x-worker-0 step 5: half");
    members[0].0.checkpoint(5, Digest::of(b"manifest"));
    finish(members, b"model");
    let finished = Outcome::Finished { step: 9, digest: Digest::of(b"model"), payload: vec![1] };
    assert_eq!(coordinator.outcome(), finished);
    let mark = CheckpointMark { step: 5, manifest_digest: Digest::of(b"manifest") };
    assert_eq!(stored(&record).last_durable_checkpoint, Some(mark));
}

#[test]
fn training_outlives_its_coordinator_and_the_next_one_takes_over() {
    let (_folder, record) = folder();
    let first = start(config(3), &record);
    let address = first.address;
    let members = join_all(address, 3);
    let events: Vec<_> = members.iter().map(|(membership, _)| heard(membership)).collect();
    first.kill();
    for events in &events {
        assert_eq!(events.recv_timeout(PATIENCE), Ok(MembershipEvent::CoordinatorLost));
    }
    members[1].0.checkpoint(7, Digest::of(b"meanwhile"));
    let second = start_at(address, config(3), &record);
    for events in &events {
        assert_eq!(events.recv_timeout(PATIENCE), Ok(MembershipEvent::CoordinatorFound));
    }
    second.until("generation 1 runs with 3 workers");
    finish(members, b"model");
    assert!(matches!(second.outcome(), Outcome::Finished { .. }));
    let record = stored(&record);
    assert_eq!(record.alloc_generation, 1, "no new generation was needed");
    assert_eq!(record.last_durable_checkpoint.map(|mark| mark.step), Some(7));
}

#[test]
fn all_workers_finish_with_a_coordinator_that_returns_only_at_the_end() {
    let (_folder, record) = folder();
    let first = start(config(2), &record);
    let address = first.address;
    let members = join_all(address, 2);
    first.kill();
    let finishing = thread::spawn(move || finish(members, b"model"));
    let second = start_at(address, config(2), &record);
    finishing.join().expect("all released");
    assert!(matches!(second.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_fatal_error_reaches_coordinator_and_peers() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let members = join_all(coordinator.address, 2);
    let events = heard(&members[0].0);
    assert_eq!(members[1].0.fatal("labels out of range", PATIENCE), Ok(()));
    let abort = MembershipEvent::Abort { reason: "x-worker-1 failed: labels out of range".into() };
    assert_eq!(events.recv_timeout(PATIENCE), Ok(abort));
    assert!(matches!(coordinator.outcome(), Outcome::Fatal { message, .. } if message == "labels out of range"));
}

#[test]
fn a_worker_with_other_data_is_refused_and_a_correct_one_replaces_it() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let first = join(coordinator.address, hello(0, 1));
    coordinator.until("waiting for x-worker-1, with 1 workers here");
    let other = Hello { data: Digest::of(b"mnist"), ..hello(1, 2) };
    let refused = join(coordinator.address, other).join().expect("no panic").expect_err("refused");
    assert!(
        matches!(&refused, JoinError::Refused { reason, may_retry: false } if reason.contains("data set")),
        "{refused}"
    );
    let second = join(coordinator.address, hello(1, 3)).join().expect("no panic").expect("joined");
    let first = first.join().expect("no panic").expect("joined");
    finish(vec![first, second], b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn another_protocol_version_is_refused_with_a_message() {
    let (_folder, record) = folder();
    let mut coordinator = start(config(1), &record);
    let mut stream = TcpStream::connect(coordinator.address).expect("connected");
    let mut frame = Message::Hello(hello(0, 1)).to_frame();
    frame[4..6].copy_from_slice(&99_u16.to_le_bytes());
    stream.write_all(&frame).expect("written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("closed in order");
    let mut decoder = Decoder::default();
    decoder.push(&answer);
    let Ok(Some(Message::Refuse { reason, may_retry: false })) = decoder.next_message() else { panic!("{answer:?}") };
    assert!(reason.contains("version 99"), "{reason}");
    coordinator.stop.take().expect("running").send(()).expect("listening");
    assert_eq!(coordinator.outcome(), Outcome::Stopped);
}

#[test]
fn a_worker_reports_that_the_coordinator_speaks_another_version() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let joining = join(listener.local_addr().expect("an address"), hello(0, 1));
    let (mut stream, _) = listener.accept().expect("it connects");
    let mut frame = Message::Heartbeat.to_frame();
    frame[4..6].copy_from_slice(&99_u16.to_le_bytes());
    stream.write_all(&frame).expect("written");
    let error = joining.join().expect("no panic").expect_err("refused");
    assert!(
        matches!(&error, JoinError::Refused { reason, may_retry: true } if reason.contains("version 99")),
        "{error}"
    );
}

#[test]
fn garbage_on_the_port_closes_that_connection_only() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let first = join(coordinator.address, hello(0, 1));
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 64], &Message::Release.to_frame()] {
        let mut stream = TcpStream::connect(coordinator.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.write_all(garbage).expect("written");
        stream.read_to_end(&mut Vec::new()).expect("closed in order");
    }
    let silent = TcpStream::connect(coordinator.address).expect("connected");
    let second = join(coordinator.address, hello(1, 2)).join().expect("no panic").expect("joined");
    finish(vec![first.join().expect("no panic").expect("joined"), second], b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
    drop(silent);
}

#[test]
fn the_error_for_an_unreachable_coordinator_names_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let error =
        Membership::join(&address.to_string(), hello(0, 1), NOTHING, Duration::from_millis(200)).expect_err("nobody");
    assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn a_worker_finds_a_coordinator_that_starts_later() {
    let (_folder, record) = folder();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let joining = join(address, hello(0, 1));
    let (stream, _) = listener.accept().expect("it tries");
    drop((stream, listener));
    let coordinator = start_at(address, config(1), &record);
    let member = joining.join().expect("no panic").expect("joined");
    finish(vec![member], b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_record_of_a_newer_version_is_left_alone() {
    let (_folder, record) = folder();
    std::fs::write(&record, r#"{"version":99}"#).expect("written");
    let coordinator = start(config(1), &record);
    let error = coordinator.thread.join().expect("no panic").expect("not killed").expect_err("newer");
    assert!(error.to_string().contains("format version 99"), "{error}");
    assert_eq!(std::fs::read_to_string(&record).expect("still there"), r#"{"version":99}"#);
}
