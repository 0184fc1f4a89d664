//! Downloads from a small web server that cuts connections.

mod server;

use std::{collections::BTreeMap, fs, time::Duration};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

use self::server::{Fault, Server};
use super::*;

const LIMITS: Limits = Limits { request: Duration::from_secs(5), tries: Duration::from_secs(2) };

fn fetched(uri: &str, cache: &Path) -> Result<Fetched, FetchError> {
    fetch_with(&uri.parse().expect("a place"), TarFile::Unpacked, cache, &[], LIMITS)
}

fn problem(uri: &str, cache: &Path) -> String {
    fetched(uri, cache).expect_err("refused").to_string()
}

/// Returns a text that is long enough to be cut.
fn long(seed: u8) -> Vec<u8> {
    (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect()
}

fn sums(files: &[(&str, &[u8])]) -> Vec<u8> {
    let line = |(name, content): &(&str, &[u8])| {
        let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{sum}  ./{name}\n")
    };
    files.iter().map(line).collect::<String>().into_bytes()
}

/// Returns a server of these files and their list.
fn folder(files: &[(&str, &[u8])]) -> Server {
    let server = Server::start();
    files.iter().for_each(|(name, content)| server.put(&format!("/set/{name}"), content));
    server.put("/set/SHA256SUMS", &sums(files));
    server
}

fn read_back(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn visit(folder: &Path, below: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable")) {
            let name = format!("{below}{}", entry.file_name().to_str().expect("UTF-8"));
            match entry.path().is_dir() {
                true => visit(&entry.path(), &format!("{name}/"), found),
                false => drop(found.insert(name, fs::read(entry.path()).expect("readable"))),
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(folder, "", &mut found);
    found
}

#[test]
fn a_download_that_is_cut_goes_on_where_it_ended_and_a_second_one_asks_for_no_file() {
    let cache = tempfile::tempdir().expect("a folder");
    let content = long(0);
    let files: &[(&str, &[u8])] = &[("train/a b/1.jpg", &content), ("train/c/2.jpg", b"two")];
    let server = folder(files);
    server.fault("/set/train/a%20b/1.jpg", Fault::CutAfter(100_000));
    let first = fetched(&server.uri("/set"), cache.path()).expect("fetched");
    let expected: BTreeMap<_, _> = files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect();
    assert_eq!(read_back(&first.folder), expected);
    let seen = server.take_seen();
    let of_first: Vec<_> = seen.iter().filter(|(line, _)| line.contains("1.jpg")).collect();
    assert_eq!(of_first.len(), 2, "{seen:?}");
    assert_eq!(of_first[1].1.as_deref(), Some("bytes=100000-"));

    let second = fetched(&server.uri("/set"), cache.path()).expect("cached");
    assert_eq!(second, first);
    assert_eq!(server.take_seen().iter().map(|(line, _)| &**line).collect::<Vec<_>>(), ["GET /set/SHA256SUMS"]);
}

#[test]
fn a_file_that_changed_at_the_source_or_in_the_cache_is_fetched_anew() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = folder(&[("1.bin", b"one"), ("2.bin", b"two"), ("3.bin", b"three")]);
    let first = fetched(&server.uri("/set"), cache.path()).expect("fetched");
    server.take_seen();
    fs::write(first.folder.join("2.bin"), b"TWO").expect("written");
    fs::write(first.folder.join("foreign"), b"more").expect("written");
    let again = fetched(&server.uri("/set"), cache.path()).expect("fetched");
    assert_eq!(again, first);
    assert_eq!(read_back(&again.folder)["2.bin"], b"two");
    assert!(!again.folder.join("foreign").exists());
    let seen = server.take_seen();
    assert!(seen.len() == 2 && seen.iter().any(|(line, _)| line == "GET /set/2.bin"), "{seen:?}");

    let changed: &[(&str, &[u8])] = &[("1.bin", b"ONE"), ("2.bin", b"two")];
    changed.iter().for_each(|(name, content)| server.put(&format!("/set/{name}"), content));
    server.put("/set/SHA256SUMS", &sums(changed));
    let other = fetched(&server.uri("/set"), cache.path()).expect("fetched");
    assert_ne!(other.digest, first.digest);
    assert_eq!(read_back(&other.folder).into_values().collect::<Vec<_>>(), [b"ONE".to_vec(), b"two".to_vec()]);
    assert!(server.take_seen().iter().all(|(line, _)| !line.contains("2.bin")));
}

/// Returns an archive of these entries, as gzip.
fn archive(entries: &[(&str, &[u8], tar::EntryType)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content, kind) in entries {
        let mut header = tar::Header::new_gnu();
        // `set_path` would refuse what the tests want.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        if *kind == tar::EntryType::Symlink {
            header.set_link_name("/etc/passwd").expect("a link");
        }
        header.set_cksum();
        archive.append(&header, *content).expect("written");
    }
    archive.into_inner().expect("written").finish().expect("written")
}

#[test]
fn an_archive_is_unpacked_once_and_again_when_another_one_lies_there() {
    use tar::EntryType::{Directory, Regular};
    let cache = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    let content = long(1);
    server.put("/pictures.tar.gz", &archive(&[("set", b"", Directory), ("set/cat/1.jpg", &content, Regular)]));
    server.fault("/pictures.tar.gz", Fault::CutAfter(20_000));
    let uri = server.uri("/pictures.tar.gz");
    let first = fetched(&uri, cache.path()).expect("fetched");
    assert!(first.folder.ends_with("files/set"), "{first:?}");
    assert_eq!(read_back(&first.folder), BTreeMap::from([("cat/1.jpg".to_owned(), content)]));
    let ranges: Vec<_> = server.take_seen().into_iter().filter_map(|(_, range)| range).collect();
    assert_eq!(ranges, ["bytes=20000-"]);
    assert_eq!(fetched(&uri, cache.path()).expect("cached"), first);
    assert_eq!(server.take_seen().len(), 1, "a HEAD");

    server.put("/pictures.tar.gz", &archive(&[("set/cat/1.jpg", b"other", Regular)]));
    let other = fetched(&uri, cache.path()).expect("fetched");
    assert_eq!(read_back(&other.folder), BTreeMap::from([("cat/1.jpg".to_owned(), b"other".to_vec())]));
    assert_ne!(other.digest, first.digest);
}

#[test]
fn links_and_names_that_lead_out_of_an_archive_are_refused() {
    use tar::EntryType::{Regular, Symlink};
    for (entry, word) in [
        (("../evil", &b"x"[..], Regular), "`..`"),
        (("/etc/evil", b"x", Regular), "absolute"),
        (("a/link", b"", Symlink), "a link or a device"),
    ] {
        let cache = tempfile::tempdir().expect("a folder");
        let server = Server::start();
        server.put("/a.tgz", &archive(&[("good", b"x", Regular), entry]));
        let said = problem(&server.uri("/a.tgz"), cache.path());
        assert!(said.contains(word) && said.contains("make another archive"), "{said}");
    }
    let (cache, server) = (tempfile::tempdir().expect("a folder"), Server::start());
    let whole = archive(&[("good", &long(2), Regular)]);
    server.put("/a.tgz", &whole[..whole.len() - 1000]);
    assert!(problem(&server.uri("/a.tgz"), cache.path()).contains("damaged archive"));
}

#[test]
fn the_error_says_what_to_do() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = folder(&[("1.bin", b"one")]);
    let said = problem(&server.uri("/elsewhere"), cache.path());
    assert!(said.contains("/elsewhere/SHA256SUMS: it does not exist; make it") && said.contains("sha256sum"), "{said}");
    let said = problem(&server.uri("/absent.tar.gz"), cache.path());
    assert!(said.contains("absent.tar.gz: it does not exist; upload it"), "{said}");
    server.fault("/set/SHA256SUMS", Fault::Status(403));
    let said = problem(&server.uri("/set"), cache.path());
    assert!(said.contains("access denied (403") && said.contains("no user and no password"), "{said}");
    server.put("/set/1.bin", b"own");
    let said = problem(&server.uri("/set"), cache.path());
    assert!(said.contains("1.bin: its SHA-256 is") && said.contains("upload the file again"), "{said}");
    let file = cache.path().join("file");
    fs::write(&file, "x").expect("written");
    let said = problem(&server.uri("/set"), &file);
    assert!(said.contains("set spec.dataset.cache to a folder that the workers can write"), "{said}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let error = fetched(&format!("http://{closed}/set"), cache.path()).expect_err("closed");
    assert!(error.is_passing() && error.to_string().contains("cannot be reached"), "{error}");
}

#[test]
fn of_two_that_fetch_at_once_one_waits_and_finds_all_there() {
    let cache = tempfile::tempdir().expect("a folder");
    let content = long(3);
    let server = folder(&[("1.bin", &content), ("2.bin", b"two")]);
    let both: Vec<_> = std::thread::scope(|scope| {
        let fetch = || fetched(&server.uri("/set"), cache.path()).expect("fetched");
        let threads = [(); 2].map(|()| scope.spawn(fetch));
        threads.into_iter().map(|thread| thread.join().expect("ended")).collect()
    });
    assert_eq!(both[0], both[1]);
    let files = server.take_seen().into_iter().filter(|(line, _)| line.ends_with(".bin")).count();
    assert_eq!(files, 2);
}

#[test]
fn a_damaged_index_costs_a_download_and_no_more() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = folder(&[("1.bin", b"one"), ("2.bin", b"two")]);
    let first = fetched(&server.uri("/set"), cache.path()).expect("fetched");
    let index = first.folder.parent().expect("its folder").join("index.jsonl");
    let text = fs::read_to_string(&index).expect("there");
    for damaged in [&text[..text.len() / 2 + 20], "", "\0\u{1}\n{}\n[3]", &text.replace("2.bin", "../2.bin")] {
        fs::write(&index, damaged).expect("written");
        assert_eq!(fetched(&server.uri("/set"), cache.path()).expect("fetched"), first);
    }
}
