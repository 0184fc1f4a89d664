//! Data sets that lie in an object store.

use std::path::Path;

use lockstep_data::{
    cifar::{Cifar, draw},
    imagefolder,
};
use lockstep_tests::{
    object_store::ObjectStore,
    object_store_proxy::{Fate, Proxy},
    skip,
};

use crate::run::{Manifest, Run, alone};

const CLASSES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
/// A picture that is cut on the way.
const CUT: &str = "GET /pictures/digits/train/";

fn manifest() -> Manifest {
    let dataset = "{format: imagefolder, uri: \"s3://pictures/digits\", image: {height: 28, width: 28}}";
    Manifest::with(dataset, 2)
}

/// Runs a job with two workers whose cache lies in `cache`. Returns the run and the requests for
/// pictures.
fn run(name: &str, store: &ObjectStore, cache: &Path) -> (Run, Vec<String>) {
    let mut was_cut = false;
    let proxy = Proxy::start(store.address(), move |request| {
        let is_it = request.starts_with(CUT);
        if is_it && !std::mem::replace(&mut was_cut, true) { Fate::AnswerCut } else { Fate::Passes }
    });
    let mut variables = ObjectStore::variables(proxy.address);
    variables.push(("XDG_CACHE_HOME".to_owned(), cache.display().to_string()));
    let run = Run::with_variables(name, &manifest(), &["--workers", "2"], variables).finished();
    let pictures = proxy.seen().into_iter().map(|(request, _)| request);
    (run, pictures.filter(|request| request.starts_with("GET /pictures/digits/")).collect())
}

#[test]
fn a_folder_of_jpegs_in_a_bucket_is_fetched_once_through_a_cut_connection_and_trains_two_workers() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let store = match ObjectStore::start(scratch.path()) {
        Ok(store) => store,
        Err(why) => return skip("a folder of pictures in a bucket", &why),
    };
    let folder = store.bucket("pictures").join("digits");
    imagefolder::write(&folder, &draw(Cifar::Ten, 600, 3, 0.2), &CLASSES, 3).expect("written");
    let (first, pictures) = run("first", &store, scratch.path());
    assert_eq!(first.code, Some(0), "{}", first.said());
    assert_eq!(pictures.len(), 601, "each once, and the one that was cut a second time");
    let logs = first.log("worker-0") + &first.log("worker-1");
    for phrase in ["fetching the data set", "the data set is fetched", "the data set is in the cache"] {
        assert_eq!(logs.matches(phrase).count(), 1, "one worker fetches, the other finds all there: {phrase}\n{logs}");
    }
    let (second, pictures) = run("second", &store, scratch.path());
    assert_eq!((second.code, pictures), (Some(0), Vec::new()), "{}", second.said());
    assert_eq!(second.steps().last().map(|line| line.loss), first.steps().last().map(|line| line.loss));
}

#[test]
fn a_data_set_that_is_not_there_or_not_allowed_fails_the_job_at_once_with_advice() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let store = match ObjectStore::start(scratch.path()) {
        Ok(store) => store,
        Err(why) => return skip("a data set that is not in its bucket", &why),
    };
    let mut variables = ObjectStore::variables(store.address());
    variables.push(("XDG_CACHE_HOME".to_owned(), scratch.path().display().to_string()));
    let said = |variables: &[(String, String)]| {
        let run = Run::with_variables("absent", &manifest(), &["--workers", "2"], variables.to_vec()).finished();
        assert_eq!(run.code, Some(1), "{}", run.said());
        let said = run.said();
        assert!(!said.contains("takes its place") && said.contains("spec.dataset.uri: s3://pictures/digits"), "{said}");
        said
    };
    assert!(said(&variables).contains("the bucket does not exist"));
    store.bucket("pictures");
    assert!(said(&variables).contains("no object lies there; set spec.dataset.uri"));
    let secret = variables.iter_mut().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY").expect("a secret");
    secret.1 = "wrong".to_owned();
    assert!(said(&variables).contains("check that AWS_ACCESS_KEY_ID"));
}
