//! Groups inside TLS, and groups that do not form because a rank has the wrong identity.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use lockstep_collective::algorithm::{Algorithm, MAX_FRAME};
use lockstep_collective::{
    Abort, CollectiveError, Communicator, CredentialPart, Credentials, Group, Identity, Limits, Listener, Missing,
    Reduction, Tag,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::group::{PATIENT, ends, id, listener, ranks_at, with_sockets};

const NAME: &str = "worker";
/// For tests in which no group forms.
const SHORT: Limits = Limits { forming: Duration::from_secs(2), ..PATIENT };

/// An authority that signs every request.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(Vec::new()).unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// Returns the identity of a rank whose certificate is valid until the first day of a year.
    fn identity(&self, until: i32) -> Identity {
        self.identity_that_trusts(until, self)
    }

    fn identity_that_trusts(&self, until: i32, other: &Self) -> Identity {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(vec![NAME.to_owned()]).unwrap());
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity::new(Credentials {
            name: NAME,
            certificates: certificate.as_bytes(),
            key: key.serialize_pem().as_bytes(),
            authority: other.certificate.as_bytes(),
        })
        .unwrap()
    }
}

/// Runs a `bare_group` with an authority that all ranks trust.
fn encrypted<T: Send>(world: usize, limits: Limits, work: impl Fn(Group, &Listener) -> T + Send + Sync) -> Vec<T> {
    let authority = Authority::new();
    let listeners = (0..world).map(|_| listener().with_identity(authority.identity(2100))).collect();
    ranks_at(listeners, |listener, rank, peers| {
        work(Group::form(listener, id(rank), peers, limits, &Abort::new()).unwrap(), listener)
    })
}

/// Returns the errors of two ranks that form no group.
fn unformed(identities: [Option<Identity>; 2]) -> Vec<CollectiveError> {
    ends(move || {
        let listeners = identities.into_iter().map(|identity| match identity {
            Some(identity) => listener().with_identity(identity),
            None => listener(),
        });
        ranks_at(listeners.collect(), |listener, rank, peers| {
            Group::form(listener, id(rank), peers, SHORT, &Abort::new()).map(drop).unwrap_err()
        })
    })
}

/// Each error must name the other rank and the expected identity.
fn assert_said(errors: &[CollectiveError], expected: [&str; 2]) {
    for (rank, (error, expected)) in errors.iter().zip(expected).enumerate() {
        assert_eq!(error.peer(), Some(1 - rank), "{error}");
        assert!(error.to_string().contains(expected), "rank {rank} says {error}, not {expected}");
    }
}

#[test]
fn every_algorithm_sums_inside_tls() {
    for (world, sockets) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 8), (4, 3)] {
        ends(move || {
            encrypted(world, with_sockets(sockets), |mut group, _| {
                let term = (group.id().rank + 1) as f32;
                let sum = (world * (world + 1) / 2) as f32;
                for length in [1, world, 999, MAX_FRAME + 7] {
                    for algorithm in [
                        Algorithm::Ring,
                        Algorithm::RecursiveDoubling,
                        Algorithm::HalvingDoubling,
                        Algorithm::DoubleTree,
                        Algorithm::Direct,
                    ] {
                        let mut data = vec![term; length];
                        group.all_reduce(algorithm, Tag::default(), &mut data, Reduction::Sum).unwrap();
                        assert!(
                            data.iter().all(|value| *value == sum),
                            "{algorithm:?}, {world} ranks, {sockets} sockets, length {length}"
                        );
                    }
                }
            })
        });
    }
}

#[test]
fn partners_that_exchange_far_more_than_sockets_and_sessions_hold_do_not_wait_for_each_other() {
    for sockets in [1, 3] {
        ends(move || {
            encrypted(3, with_sockets(sockets), |mut group, _| {
                for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
                    let mut data: Vec<f32> = (0..6 << 20).map(|index| (index % 1000) as f32).collect();
                    group.all_reduce(algorithm, Tag::default(), &mut data, Reduction::Sum).unwrap();
                    let right = data.iter().enumerate().all(|(index, value)| *value == 3.0 * (index % 1000) as f32);
                    assert!(right, "{algorithm:?}, {sockets} sockets");
                }
            })
        });
    }
}

#[test]
fn parts_of_an_encrypted_group_are_encrypted_groups() {
    ends(|| {
        encrypted(4, PATIENT, |mut group, listener| {
            let colour = (group.id().rank % 2) as u32;
            let mut part = group.split(listener, Some(colour), 0).unwrap().unwrap();
            let mut data = [1.0_f32; 10];
            part.all_reduce(Algorithm::Ring, Tag::default(), &mut data, Reduction::Sum).unwrap();
            group.barrier(Tag::default()).unwrap();
            assert_eq!(data, [2.0; 10]);
        })
    });
}

#[test]
fn a_relay_between_two_ranks_reads_nothing_and_its_changes_are_noticed() {
    const SECRET: f32 = 123.456;
    /// After the greeting, within the sums.
    const CHANGED: usize = 100_000;
    let (errors, seen) = ends(|| {
        let authority = Authority::new();
        let listeners = [(); 2].map(|()| listener().with_identity(authority.identity(2100)));
        let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Rank 0 dials rank 1 through this relay.
        let peers = [listeners[0].address(), between.local_addr().unwrap()];
        let (seen, behind) = (Mutex::new(Vec::new()), listeners[1].address());
        let errors: Vec<CollectiveError> = std::thread::scope(|scope| {
            scope.spawn(|| overhear(&between, behind, CHANGED, &seen));
            let ranks: Vec<_> = listeners
                .iter()
                .enumerate()
                .map(|(rank, listener)| {
                    scope.spawn(move || {
                        let mut group = Group::form(listener, id(rank), &peers, PATIENT, &Abort::new()).unwrap();
                        let mut data = vec![SECRET; 1 << 20];
                        group.all_reduce(Algorithm::Ring, Tag::default(), &mut data, Reduction::Sum).unwrap_err()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        (errors, seen.into_inner().unwrap())
    });
    assert!(matches!(errors[1], CollectiveError::BadRecord { rank: 0, .. }), "{errors:?}");
    // The first of rank 1's alert, its notice and its end may win.
    assert!(
        errors[0].peer() == Some(1) || matches!(errors[0], CollectiveError::PeerGaveUp { rank: 1, .. }),
        "{errors:?}"
    );
    assert!(seen.len() > CHANGED, "{}", seen.len());
    assert!(!seen.windows(8).any(|bytes| bytes == [SECRET.to_le_bytes(); 2].concat()), "it can be read");
}

/// Passes bytes on in both directions. Bytes towards `behind` go through `seen`, and the one at
/// `changed` is changed.
fn overhear(between: &TcpListener, behind: SocketAddr, changed: usize, seen: &Mutex<Vec<u8>>) {
    let (mut called, mut calling) = (between.accept().unwrap().0, TcpStream::connect(behind).unwrap());
    let (mut back, mut answers) = (called.try_clone().unwrap(), calling.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = std::io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = called.read(&mut bytes) {
            let mut seen = seen.lock().unwrap();
            if (seen.len()..seen.len() + count).contains(&changed) {
                bytes[changed - seen.len()] ^= 1;
            }
            seen.extend_from_slice(&bytes[..count]);
            drop(seen);
            if calling.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = calling.shutdown(Shutdown::Both);
    });
}

#[test]
fn a_rank_of_a_foreign_authority_is_refused_and_named() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    // The rank trusts the job's authority, whose certificate is no secret. So only the others can
    // refuse it.
    let caller = unformed([Some(theirs.identity_that_trusts(2100, &ours)), Some(ours.identity(2100))]);
    assert_said(&caller, ["does not accept this rank's certificate", "not signed by this job's authority"]);
    let called = unformed([Some(ours.identity(2100)), Some(theirs.identity_that_trusts(2100, &ours))]);
    assert_said(&called, ["not signed by this job's authority", "does not accept this rank's certificate"]);
}

#[test]
fn an_expired_certificate_is_refused_and_its_rank_is_named() {
    let authority = Authority::new();
    let caller = unformed([Some(authority.identity(2021)), Some(authority.identity(2100))]);
    assert_said(&caller, ["does not accept this rank's certificate: CertificateExpired", "has expired"]);
    let called = unformed([Some(authority.identity(2100)), Some(authority.identity(2021))]);
    assert_said(&called, ["has expired", "does not accept this rank's certificate: CertificateExpired"]);
}

#[test]
fn a_rank_that_does_not_encrypt_and_one_that_does_tell_each_other_apart() {
    let authority = Authority::new();
    let caller = unformed([None, Some(authority.identity(2100))]);
    assert_said(&caller, ["it encrypts, and this rank does not", "it does not speak TLS"]);
    let called = unformed([Some(authority.identity(2100)), None]);
    assert_said(&called, ["all ranks encrypt, or none", "it encrypts, and this rank does not"]);
}

#[test]
fn a_peer_that_proves_no_identity_is_named_at_the_deadline() {
    let error = ends(|| {
        let (first, silent) = (listener(), listener());
        let peers = [first.address(), silent.address()];
        let first = first.with_identity(Authority::new().identity(2100));
        Group::form(&first, id(0), &peers, SHORT, &Abort::new()).map(drop).unwrap_err()
    });
    assert!(matches!(error, CollectiveError::NotFormed { missing: Missing::Unreached { rank: 1, .. }, .. }), "{error}");
}

#[test]
fn an_abort_ends_a_sum_inside_tls_and_closes_towards_the_peer() {
    let errors = ends(|| {
        let authority = Authority::new();
        let listeners = (0..2).map(|_| listener().with_identity(authority.identity(2100))).collect();
        ranks_at(listeners, |listener, rank, peers| {
            let abort = Abort::new();
            let mut communicator = Communicator::form(listener, id(rank), peers, PATIENT, &abort).unwrap();
            communicator.all_reduce_now(1, &mut [1.0]).unwrap();
            if rank == 0 {
                communicator.submit(2, 0, vec![1.0; 1 << 20]);
                abort.abort("enough");
                return communicator.wait().unwrap_err().error;
            }
            // It waits for bytes that the other no longer sends.
            communicator.submit(2, 0, vec![1.0; 1 << 20]);
            communicator.wait().unwrap_err().error
        })
    });
    let error = errors[0].to_string();
    assert!(error.contains("aborted") && error.ends_with(": enough"), "{error}");
    assert!(matches!(errors[1], CollectiveError::PeerClosed { rank: 0, .. }), "{errors:?}");
}

#[test]
fn wrong_credentials_are_an_error_that_names_the_wrong_part() {
    let authority = Authority::new();
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority.issuer).unwrap().pem();
    let (key, other) = (key.serialize_pem(), other.serialize_pem());
    let right = Credentials {
        name: NAME,
        certificates: certificate.as_bytes(),
        key: key.as_bytes(),
        authority: authority.certificate.as_bytes(),
    };
    Identity::new(right).unwrap();
    for (wrong, part) in [
        (Credentials { name: "no name", ..right }, CredentialPart::Name),
        (Credentials { certificates: b"", ..right }, CredentialPart::Certificates),
        (Credentials { certificates: key.as_bytes(), ..right }, CredentialPart::Certificates),
        (Credentials { key: b"-----BEGIN", ..right }, CredentialPart::Key),
        (Credentials { key: other.as_bytes(), ..right }, CredentialPart::Key),
        (Credentials { authority: b"", ..right }, CredentialPart::Authority),
    ] {
        assert_eq!(Identity::new(wrong).unwrap_err().part, part);
    }
}
