//! The files at a place, and their bytes.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use lockstep_launch::{DataUri, ObjectService, ObjectUri};
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, path::Path};

use super::{
    archive::ArchiveKind,
    error::{FetchError, Trouble},
    limits::MAX_FILES,
    names::check_name,
    remote_file::{Body, RemoteFile},
    web::Web,
};
use crate::{
    connect::{ConnectError, connect},
    failure::{self, FailureCause},
};

/// A place that can be read.
pub(super) enum Source {
    Objects { uri: ObjectUri, store: Arc<dyn ObjectStore> },
    Web(Web),
}

impl Source {
    pub(super) fn open(place: &DataUri, variables: &[(String, String)]) -> Result<Self, FetchError> {
        match place {
            DataUri::Folder(folder) => {
                Err(FetchError::lasting(format!("{}: a folder needs no download", folder.display())))
            }
            DataUri::Objects(uri) => {
                let store = connect(uri, variables).map_err(|unusable| {
                    FetchError::lasting(match unusable {
                        ConnectError::Variable(wrong) => wrong.to_string(),
                        ConnectError::Settings(error) => failure::settings_error(uri, &error),
                    })
                })?;
                Ok(Self::Objects { uri: uri.clone(), store })
            }
            DataUri::Web(uri) => Ok(Self::Web(Web::open(uri)?)),
        }
    }

    /// Returns the protocol of an object store.
    pub(super) fn service(&self) -> Option<ObjectService> {
        match self {
            Self::Objects { uri, .. } => Some(uri.service()),
            Self::Web(_) => None,
        }
    }

    /// Returns the place, for people.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Objects { uri, .. } => uri.to_string(),
            Self::Web(web) => web.shown().to_owned(),
        }
    }

    /// Returns the place of a file, for people.
    pub(super) fn shown_file(&self, file: &RemoteFile) -> String {
        match self {
            Self::Objects { uri, .. } if file.at == uri.prefix() => uri.to_string(),
            Self::Objects { uri, .. } => format!("{uri}/{}", file.name),
            Self::Web(_) => file.at.clone(),
        }
    }

    /// Lists the files. A place that names an archive has one.
    pub(super) async fn list(&self) -> Result<Vec<RemoteFile>, Trouble> {
        match self {
            Self::Objects { uri, store } if ArchiveKind::of(uri.prefix()).is_some() => {
                Ok(vec![archive(uri, store).await?])
            }
            Self::Objects { uri, store } => list_objects(uri, store).await,
            Self::Web(web) => web.list().await,
        }
    }

    /// Asks for the bytes of a file from number `start` on. The answer may begin with the first.
    pub(super) async fn body(&self, file: &RemoteFile, start: u64) -> Result<Body, Trouble> {
        match self {
            Self::Objects { store, .. } => object_body(store, file, start).await,
            Self::Web(web) => web.body(file, start).await,
        }
    }
}

fn trouble(error: Error) -> Trouble {
    match error {
        Error::NotFound { .. } if failure::only_the_object_is_missing(clone_of(&error)).is_ok() => Trouble::Missing,
        other => Trouble::Request(FailureCause::of(other)),
    }
}

/// Returns an error with the same text: the store's errors cannot be cloned.
fn clone_of(error: &Error) -> Error {
    Error::Generic { store: "store", source: failure::chain(error).into() }
}

async fn archive(uri: &ObjectUri, store: &Arc<dyn ObjectStore>) -> Result<RemoteFile, Trouble> {
    let path = Path::parse(uri.prefix()).map_err(|error| Trouble::Refused(error.to_string()))?;
    let found = store.head(&path).await.map_err(trouble)?;
    let name = path.filename().unwrap_or_default().to_owned();
    check_name(&name).map_err(Trouble::Refused)?;
    Ok(of_object(name, found))
}

fn of_object(name: String, found: ObjectMeta) -> RemoteFile {
    let ObjectMeta { location, size, e_tag, version: _, last_modified: _ } = found;
    RemoteFile { name, at: location.to_string(), bytes: Some(size), mark: e_tag, sha256: None }
}

async fn list_objects(uri: &ObjectUri, store: &Arc<dyn ObjectStore>) -> Result<Vec<RemoteFile>, Trouble> {
    let prefix = Path::from(uri.prefix());
    let mut listed = store.list(Some(&prefix));
    let mut files: Vec<RemoteFile> = Vec::new();
    while let Some(found) = listed.next().await {
        let found = found.map_err(trouble)?;
        let location = found.location.to_string();
        let name = location.strip_prefix(uri.prefix()).map(|name| name.trim_start_matches('/'));
        let name = name.filter(|name| !name.is_empty()).unwrap_or_default().to_owned();
        // A console makes objects of no bytes for folders.
        if name.is_empty() {
            continue;
        }
        check_name(&name).map_err(Trouble::Refused)?;
        if files.len() == MAX_FILES {
            return Err(Trouble::Refused(format!(
                "it holds more than {MAX_FILES} objects, the most that are accepted"
            )));
        }
        files.push(of_object(name, found));
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let files = without_folder_marks(files);
    if files.is_empty() {
        let told = "no object lies there; set spec.dataset.uri to the prefix of the data set's objects";
        return Err(Trouble::Refused(told.to_owned()));
    }
    Ok(files)
}

/// Leaves out empty objects that stand for a folder: other names continue theirs.
fn without_folder_marks(sorted: Vec<RemoteFile>) -> Vec<RemoteFile> {
    let folders: std::collections::BTreeSet<String> = sorted
        .iter()
        .flat_map(|file| file.name.match_indices('/').map(|(end, _)| file.name[..end].to_owned()))
        .collect();
    sorted.into_iter().filter(|file| file.bytes != Some(0) || !folders.contains(&file.name)).collect()
}

async fn object_body(store: &Arc<dyn ObjectStore>, file: &RemoteFile, start: u64) -> Result<Body, Trouble> {
    let path = Path::parse(&file.at).map_err(|error| Trouble::Refused(error.to_string()))?;
    let range = (start > 0).then_some(GetRange::Offset(start));
    let options = GetOptions { range, if_match: file.mark.clone(), ..GetOptions::default() };
    let found = match store.get_opts(&path, options).await {
        Err(Error::Precondition { .. }) => return Err(Trouble::Changed("its entity tag is another".to_owned())),
        other => other.map_err(trouble)?,
    };
    if file.mark.is_some() && found.meta.e_tag.is_some() && found.meta.e_tag != file.mark {
        return Err(Trouble::Changed("its entity tag is another".to_owned()));
    }
    if Some(found.meta.size) != file.bytes {
        return Err(Trouble::Changed(format!("it has {} bytes", found.meta.size)));
    }
    let (start, whole) = (found.range.start, Some(found.meta.size));
    let chunks = found.into_stream().map_ok(|chunk| chunk.to_vec()).map_err(trouble).boxed();
    Ok(Body { start, whole, chunks })
}
