//! Files of a web server. A folder there has a file SHA256SUMS, as `sha256sum` prints it.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use lockstep_launch::WebUri;
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode, Url,
    header::{
        ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE, LAST_MODIFIED, RANGE,
    },
};

use super::{
    archive::ArchiveKind,
    error::{FetchError, Trouble},
    limits::MAX_LIST_BYTES,
    names::check_name,
    remote_file::{Body, RemoteFile},
    sums::{SUMS, listed},
};
use crate::failure::{FailureCause, chain};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const AGENT: &str = concat!("lockstep/", env!("CARGO_PKG_VERSION"));

/// A folder or an archive on a web server.
pub(super) struct Web {
    uri: WebUri,
    client: Client,
}

impl Web {
    pub(super) fn open(uri: &WebUri) -> Result<Self, FetchError> {
        // It fails if another library has installed the same provider first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let is_plain = uri.as_str().starts_with("http://");
        let builder = Client::builder().user_agent(AGENT).connect_timeout(CONNECT_TIMEOUT).https_only(!is_plain);
        let builder = if uri.is_local() { builder.no_proxy() } else { builder };
        let client = builder
            .build()
            .map_err(|error| FetchError::lasting(format!("the client of web servers: {}", chain(&error))))?;
        Ok(Self { uri: uri.clone(), client })
    }

    pub(super) fn shown(&self) -> &str {
        self.uri.as_str()
    }

    pub(super) async fn list(&self) -> Result<Vec<RemoteFile>, Trouble> {
        let folder = Url::parse(self.uri.as_str()).map_err(|error| Trouble::Refused(error.to_string()))?;
        if ArchiveKind::of(self.uri.as_str()).is_some() {
            return Ok(vec![self.archive(&folder).await?]);
        }
        let sums = below(&folder, SUMS)?;
        let mut answer = checked(self.request(Method::GET, &sums).send().await.map_err(failed)?)?;
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            text.extend_from_slice(&chunk);
            if text.len() as u64 > MAX_LIST_BYTES {
                return Err(Trouble::Refused(format!("{SUMS} has more than {MAX_LIST_BYTES} bytes")));
            }
        }
        let listed = listed(&text).map_err(Trouble::Refused)?;
        let file = |(name, sum): (String, String)| {
            let at = below(&folder, &name)?.to_string();
            Ok(RemoteFile { name, at, bytes: None, mark: None, sha256: Some(sum) })
        };
        listed.into_iter().map(file).collect()
    }

    async fn archive(&self, url: &Url) -> Result<RemoteFile, Trouble> {
        let name = url.path_segments().and_then(Iterator::last).unwrap_or_default().to_owned();
        check_name(&name).map_err(Trouble::Refused)?;
        let answer = self.request(Method::HEAD, url).send().await.map_err(failed)?;
        let asks_in_vain = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED].contains(&answer.status());
        let (bytes, mark) = if asks_in_vain {
            (None, None)
        } else {
            let answer = checked(answer)?;
            (text(answer.headers(), CONTENT_LENGTH).and_then(|length| length.parse().ok()), mark(answer.headers()))
        };
        Ok(RemoteFile { name, at: url.to_string(), bytes, mark, sha256: None })
    }

    pub(super) async fn body(&self, file: &RemoteFile, start: u64) -> Result<Body, Trouble> {
        let url = Url::parse(&file.at).map_err(|error| Trouble::Refused(error.to_string()))?;
        let mut request = self.request(Method::GET, &url);
        if start > 0 {
            request = request.header(RANGE, format!("bytes={start}-"));
            if let Some(mark) = &file.mark {
                request = request.header(IF_RANGE, mark);
            }
        }
        let answer = request.send().await.map_err(failed)?;
        let (start, whole) = match answer.status() {
            // There is no byte with that number: all are here, or those of another version are.
            StatusCode::RANGE_NOT_SATISFIABLE if unsatisfied(answer.headers()) == Some(start) => {
                return Ok(Body { start, whole: Some(start), chunks: stream::empty().boxed() });
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(Trouble::Changed("it is shorter".to_owned())),
            StatusCode::PARTIAL_CONTENT => range(answer.headers())
                .ok_or_else(|| Trouble::failed("the answer does not say which bytes it holds"))?,
            _ => (0, text(answer.headers(), CONTENT_LENGTH).and_then(|length| length.parse().ok())),
        };
        let answer = checked(answer)?;
        if file.mark.is_some() && mark(answer.headers()).is_some_and(|found| Some(found) != file.mark) {
            return Err(Trouble::Changed("its entity tag or its date is another".to_owned()));
        }
        let chunks = stream::try_unfold(answer, async |mut answer: Response| {
            let chunk = answer.chunk().await.map_err(failed)?;
            Ok(chunk.map(|chunk| (chunk.to_vec(), answer)))
        });
        Ok(Body { start, whole, chunks: chunks.boxed() })
    }

    fn request(&self, method: Method, url: &Url) -> RequestBuilder {
        // Ranges and lengths are those of the file, not of a compressed one.
        self.client.request(method, url.clone()).header(ACCEPT_ENCODING, "identity")
    }
}

/// Returns the address of a file below a folder.
fn below(folder: &Url, name: &str) -> Result<Url, Trouble> {
    let mut url = folder.clone();
    match url.path_segments_mut() {
        Ok(mut path) => _ = path.pop_if_empty().extend(name.split('/')),
        Err(()) => return Err(Trouble::Refused("the address has no folders".to_owned())),
    }
    Ok(url)
}

/// Refuses an answer that does not hold the file.
fn checked(answer: Response) -> Result<Response, Trouble> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let said = status.to_string();
    Err(match status.as_u16() {
        404 | 410 => Trouble::Missing,
        401 | 403 | 407 => Trouble::Request(FailureCause::Denied(said)),
        408 | 429 | 500.. => Trouble::Request(FailureCause::Failed(said)),
        _ => Trouble::Request(FailureCause::Refused(said)),
    })
}

fn failed(error: reqwest::Error) -> Trouble {
    let error = error.without_url();
    let said = chain(&error);
    Trouble::Request(if said.contains("invalid peer certificate") {
        FailureCause::Untrusted(said)
    } else if error.is_connect() {
        FailureCause::Unreachable(said)
    } else if error.is_builder() || error.is_redirect() {
        FailureCause::Refused(said)
    } else {
        FailureCause::Failed(said)
    })
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Returns what tells a version from others: a strong entity tag, or else a date.
fn mark(headers: &HeaderMap) -> Option<String> {
    text(headers, ETAG).filter(|tag| !tag.starts_with("W/")).or_else(|| text(headers, LAST_MODIFIED))
}

/// Returns the first byte and the whole length of `bytes 5-9/10`.
fn range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = text(headers, CONTENT_RANGE)?;
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, whole.parse().ok()))
}

/// Returns the whole length of `bytes */10`.
fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_RANGE)?.strip_prefix("bytes */")?.parse().ok()
}
