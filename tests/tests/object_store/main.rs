//! Checkpoints in a real S3 server, behind 503s and behind slow and cut connections.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    num::NonZeroU32,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use lockstep_checkpoint::{
    About, CheckpointError, CheckpointPart, Created, Facts, Folder, Layout, Objects, PartReceipt, Position, Saved,
    Tensor, Tensors, TrainingIdentity,
};
use lockstep_objects::{JobObjects, Limits};
use lockstep_tests::{
    object_store::ObjectStore,
    object_store_proxy::{Fate, Proxy},
    skip,
};

/// Five blocks of a state, so that two writers have parts of it.
const VALUES: usize = 70_000;
const LIMITS: Limits = Limits { request: Duration::from_secs(1), tries: Duration::from_secs(20) };

/// A server with an empty bucket `models`.
struct Server {
    store: ObjectStore,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server. If it cannot run here, prints one loud line and returns `None`.
    fn start(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        match ObjectStore::start(folder.path()) {
            Ok(store) => {
                store.bucket("models");
                Some(Self { store, _folder: folder })
            }
            Err(why) => {
                skip(test, &why);
                None
            }
        }
    }
}

/// Opens a job's prefix at `address`, which is the server or a proxy.
fn open_prefix(address: SocketAddr, bucket: &str) -> Arc<dyn Objects> {
    open_prefix_with(&ObjectStore::variables(address), bucket, LIMITS)
}

fn open_prefix_with(variables: &[(String, String)], bucket: &str, limits: Limits) -> Arc<dyn Objects> {
    let uri = format!("s3://{bucket}/team/lenet-0a1b").parse().expect("a URI");
    Arc::new(JobObjects::open(&uri, variables, limits).expect("its variables are right"))
}

/// A state in which every value follows from the step.
struct State {
    step: u64,
    values: Vec<f32>,
}

impl State {
    fn at(step: u64) -> Self {
        Self { step, values: (0..VALUES).map(|at| (at as u64 * 31 + step) as f32).collect() }
    }

    fn layout() -> Layout {
        Layout::new([("fc.weight", &[VALUES][..])], []).expect("fits")
    }

    fn identity() -> TrainingIdentity {
        TrainingIdentity { model: "mlp".into(), workload_digest: "ab12".into() }
    }

    fn position(&self) -> Position {
        Position { step: self.step, generation: 1, ..Position::default() }
    }

    fn write(&self, folder: &Folder, writer: u32, writers: u32) -> Result<PartReceipt, CheckpointError> {
        let (layout, writers) = (Arc::new(Self::layout()), NonZeroU32::new(writers).expect("not zero"));
        let range = layout.part(writer, writers);
        let values = &self.values[range.start as usize / 4..range.end as usize / 4];
        folder.write_part(&CheckpointPart { position: self.position(), layout, writer, writers }, &[values])
    }

    fn commit(&self, folder: &Folder, digest: &str, receipts: &[PartReceipt]) -> Result<Saved, CheckpointError> {
        let facts = Facts {
            identity: Self::identity(),
            position: self.position(),
            state_digest: digest.to_owned(),
            time: "2026-11-22T12:00:00Z".to_owned(),
            communication: None,
            about: About::default(),
        };
        folder.commit(&facts, &Self::layout(), receipts)
    }

    fn save(&self, folder: &Folder) -> Saved {
        let receipts: Vec<_> = (0..2).map(|writer| self.write(folder, writer, 2).expect("written")).collect();
        self.commit(folder, "digest", &receipts).expect("saved")
    }

    fn is_newest(&self, folder: &Folder) {
        let mut tensors = Tensors::default();
        let newest = folder.newest(&Self::identity(), &mut tensors).expect("ours");
        let checkpoint = newest.checkpoint.expect("whole");
        assert_eq!((checkpoint.position, newest.skipped.len()), (self.position(), 0));
        assert!(tensors.weights[0].values == self.values, "other values came back");
    }
}

#[test]
fn checkpoints_are_saved_loaded_pruned_and_listed_through_503s_slow_and_cut_connections() {
    let Some(server) = Server::start("checkpoints through a proxy with faults") else { return };
    let mut number = 0;
    // Two requests pass after each that fails, so a retry can succeed.
    let decide = move |_: &str| {
        number += 1;
        if number % 3 == 0 { Fate::ALL[number / 3 % Fate::ALL.len()] } else { Fate::Passes }
    };
    let proxy = Proxy::start(server.store.address(), decide);
    let folder = Folder::open_bucket(open_prefix(proxy.address, "models")).expect("opens");
    for step in 1..=4 {
        let state = State::at(step);
        state.save(&folder);
        state.is_newest(&folder);
        folder.prune(NonZeroU32::MIN.saturating_add(1), &State::identity()).expect("pruned");
    }
    let listed = folder.list().expect("listed");
    assert_eq!(listed.iter().map(|listed| listed.step).collect::<Vec<_>>(), [4, 3]);
    for listed in &listed {
        folder.verify(listed).expect("read").expect("whole");
    }
    let tensor = Tensor { name: "fc.weight", shape: &[VALUES], values: &State::at(4).values };
    let model = folder.export_model("model.safetensors", &[tensor], &Default::default()).expect("exported");
    assert_eq!(model.to_str(), Some("s3://models/team/lenet-0a1b/model.safetensors"));
    let seen = proxy.seen();
    let fates: BTreeSet<Fate> = seen.iter().map(|(_, fate)| *fate).collect();
    assert_eq!(fates, Fate::ALL.into(), "a fate never occurred");
    let faults = seen.iter().filter(|(_, fate)| !matches!(fate, Fate::Passes | Fate::Slow)).count();
    println!("{} requests, {faults} of them failed on the way", seen.len());

    // Another client, on a connection without faults, sees the same.
    let direct = Folder::open_existing_bucket(open_prefix(server.store.address(), "models")).expect("opens");
    State::at(4).is_newest(&direct);
    let bucket = server.store.bucket("models").join("team/lenet-0a1b");
    let kept: BTreeSet<_> = std::fs::read_dir(bucket.join("checkpoints"))
        .expect("a folder")
        .flatten()
        .collect::<Vec<_>>()
        .iter()
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .collect();
    assert_eq!(kept, ["step-00000003.g1", "step-00000004.g1"].map(str::to_owned).into());
    assert!(std::fs::metadata(bucket.join("model.safetensors")).expect("there").len() > VALUES as u64 * 4);
}

#[test]
fn exactly_one_of_several_simultaneous_creators_of_an_object_succeeds() {
    let Some(server) = Server::start("objects created at once") else { return };
    let address = server.store.address();
    for round in 0..10 {
        let (key, start) = (format!("created-{round}"), Barrier::new(4));
        let created: Vec<(u8, Created)> = thread::scope(|scope| {
            let create = |member: u8| {
                let (key, start) = (&key, &start);
                scope.spawn(move || {
                    // A slow request must not be repeated: the object would then exist already.
                    let limits = Limits { request: Duration::from_secs(10), ..LIMITS };
                    let prefix = open_prefix_with(&ObjectStore::variables(address), "models", limits);
                    start.wait();
                    (member, prefix.create(key, vec![member; 1000]).expect("answered"))
                })
            };
            let members = [0, 1, 2, 3].map(create);
            members.map(|member| member.join().expect("ended")).into()
        });
        let winners: Vec<u8> =
            created.iter().filter(|(_, created)| *created == Created::Now).map(|(member, _)| *member).collect();
        let stored = open_prefix(address, "models").get(&key, 1000).expect("answered").expect("there");
        assert_eq!(winners, [stored[0]], "round {round}: {created:?}");
    }
}

#[test]
fn threads_that_share_a_bucket_each_get_their_own_answers() {
    let Some(server) = Server::start("threads that share one prefix") else { return };
    let mut number = 0;
    let decide = move |_: &str| {
        number += 1;
        if number % 5 == 0 { Fate::Slow } else { Fate::Passes }
    };
    let proxy = Proxy::start(server.store.address(), decide);
    let prefix = open_prefix(proxy.address, "models");
    thread::scope(|scope| {
        for member in 0..4_u8 {
            let prefix = &prefix;
            scope.spawn(move || {
                for round in 0..10 {
                    let (key, bytes) = (format!("of-{member}/{round}"), vec![member; 100_000 + round]);
                    prefix.put(&key, bytes.clone()).expect("stored");
                    assert!(prefix.get(&key, 1 << 20).expect("answered") == Some(bytes), "{key}");
                    assert_eq!(prefix.length(&key), Ok(Some(100_000 + round as u64)));
                }
                assert_eq!(prefix.list(&format!("of-{member}/")).expect("answered").len(), 10);
            });
        }
    });
}

#[test]
fn one_of_two_simultaneous_commits_wins_and_the_other_sees_a_conflict() {
    let Some(server) = Server::start("two that commit at once") else { return };
    let address = server.store.address();
    let folder = Folder::open_bucket(open_prefix(address, "models")).expect("opens");
    for step in 1..=10 {
        let state = State::at(step);
        let receipts = [state.write(&folder, 0, 2).expect("written"), state.write(&folder, 1, 2).expect("written")];
        let start = Barrier::new(2);
        let ended: Vec<_> = thread::scope(|scope| {
            let commit = |digest: &'static str| {
                let (state, receipts, start) = (&state, &receipts, &start);
                let folder = Folder::open_bucket(open_prefix(address, "models")).expect("opens");
                scope.spawn(move || {
                    start.wait();
                    (digest, state.commit(&folder, digest, receipts))
                })
            };
            let committers = ["one", "another"].map(commit);
            committers.map(|committer| committer.join().expect("ended")).into()
        });
        let won: Vec<_> = ended.iter().filter(|(_, result)| result.is_ok()).map(|(digest, _)| *digest).collect();
        let newest =
            folder.newest(&State::identity(), &mut Tensors::default()).expect("ours").checkpoint.expect("whole");
        assert_eq!(won, [newest.state_digest.as_str()], "{ended:?}");
        let error = ended.iter().find_map(|(_, result)| result.as_ref().err()).expect("one commit fails");
        assert!(matches!(error, CheckpointError::Conflict { .. }), "{error}");
        state.is_newest(&folder);
    }
}

#[test]
fn a_writer_recognises_its_own_manifest_after_a_lost_answer() {
    let Some(server) = Server::start("a lost answer") else { return };
    let mut lost = false;
    let decide = move |request: &str| {
        let is_it = request.starts_with("PUT ") && request.ends_with("manifest.json");
        if is_it && !std::mem::replace(&mut lost, true) { Fate::AnswerLost } else { Fate::Passes }
    };
    let proxy = Proxy::start(server.store.address(), decide);
    // A slow request must not be repeated.
    let limits = Limits { request: Duration::from_secs(10), ..LIMITS };
    let prefix = open_prefix_with(&ObjectStore::variables(proxy.address), "models", limits);
    let folder = Folder::open_bucket(prefix).expect("opens");
    State::at(1).save(&folder);
    State::at(1).is_newest(&folder);
    let tries = proxy
        .seen()
        .iter()
        .filter(|(request, _)| request.starts_with("PUT ") && request.ends_with("manifest.json"))
        .count();
    assert_eq!(tries, 2, "{:?}", proxy.seen());
}

/// Returns the error of opening a bucket with another value of one variable, and true if the error
/// may pass by itself.
fn refusal(server: &Server, bucket: &str, name: &str, value: &str) -> (String, bool) {
    let mut variables = ObjectStore::variables(server.store.address());
    variables.iter_mut().filter(|(known, _)| known == name).for_each(|(_, given)| *given = value.to_owned());
    let limits = Limits { tries: Duration::from_secs(1), request: Duration::from_secs(10) };
    let uri = format!("s3://{bucket}/team/lenet-0a1b").parse().expect("a URI");
    let opened = JobObjects::open(&uri, &variables, limits).map_err(CheckpointError::from);
    let error = match opened.and_then(|opened| Folder::open_bucket(Arc::new(opened))) {
        Err(CheckpointError::Objects { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    let text = error.to_string();
    let secret = &variables.iter().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY").expect("a secret").1;
    assert!(!text.contains(secret.as_str()), "{text}");
    println!("{text}");
    (text, error.is_passing())
}

#[test]
fn an_error_names_the_remedy_for_a_wrong_key_a_missing_bucket_and_a_wrong_endpoint() {
    let Some(server) = Server::start("errors that name the remedy") else { return };
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address");
    let endpoint = format!("http://{unused}");
    let cases: [(&str, &str, &str, bool, &[&str]); 4] = [
        ("models", "AWS_ACCESS_KEY_ID", "somebody", false, &["access denied", "AWS_ACCESS_KEY_ID"]),
        (
            "models",
            "AWS_SECRET_ACCESS_KEY",
            "guessed-wrong",
            false,
            &["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"],
        ),
        ("missing", "", "", false, &["the bucket does not exist", "NoSuchBucket", "spec.checkpoint.uri"]),
        ("models", "AWS_ENDPOINT_URL", &endpoint, true, &["cannot be reached", "AWS_ENDPOINT_URL", "tried"]),
    ];
    for (bucket, name, value, passing, words) in cases {
        let (text, may_pass) = refusal(&server, bucket, name, value);
        let expected = [&[bucket, "s3://", "creating"], words].concat();
        assert!(expected.iter().all(|word| text.contains(word)), "{name}: {text}");
        assert_eq!(may_pass, passing, "{name}: {text}");
    }
    // A reader gets the same error.
    let text =
        Folder::open_existing_bucket(open_prefix(server.store.address(), "missing")).expect_err("missing").to_string();
    assert!(text.contains("listing s3://missing") && text.contains("the bucket does not exist"), "{text}");
}

/// The variables alone decide, so no request is sent.
#[test]
fn plain_http_is_refused_at_once_unless_a_variable_allows_it() {
    let Some(server) = Server::start("plain http that is not allowed") else { return };
    let (text, may_pass) = refusal(&server, "models", "AWS_ALLOW_HTTP", "false");
    let endpoint = format!("http://{}", server.store.address());
    let expected = ["AWS_ENDPOINT_URL", &endpoint, "plain http", "AWS_ALLOW_HTTP=true"];
    assert!(expected.iter().all(|word| text.contains(word)), "{text}");
    assert!(!may_pass, "{text}");
}

#[test]
fn requests_to_a_store_that_is_always_busy_end_within_the_limit() {
    let Some(server) = Server::start("a store that is always busy") else { return };
    let proxy = Proxy::start(server.store.address(), |_| Fate::Busy);
    let limits = Limits { tries: Duration::from_secs(1), request: Duration::from_secs(10) };
    let prefix = open_prefix_with(&ObjectStore::variables(proxy.address), "models", limits);
    let begun = std::time::Instant::now();
    let error = prefix.put("key", vec![1]).expect_err("busy");
    assert!(error.is_passing() && error.to_string().contains("503") && error.to_string().contains("tried"), "{error}");
    assert!((2..=6).contains(&proxy.seen().len()), "with pauses between: {:?}", proxy.seen());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
