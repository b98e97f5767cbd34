//! Requests: one function for all of them, with a deadline, on connections that notice when the other side is gone.

use super::{ApiError, REQUEST_DEADLINE};
use http::{HeaderValue, Request, header};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Config,
    client::{Body, ConfigExt as _},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{sync::Arc, time::Duration};
use tower::ServiceBuilder;

/// How long TCP and TLS may take together.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection on which nothing came for this long is pinged, and closed when there is no answer in time: kube-apiserver is known
/// to be away after 8 s, where the kubelet's 30 s and 15 s take 45.
const PING_AFTER: Duration = Duration::from_secs(5);
const PING_ANSWER: Duration = Duration::from_secs(3);
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// GET
    Get,
    /// POST
    Create,
    /// PUT
    Replace,
    /// PATCH, a strategic merge
    Patch,
    /// DELETE
    Delete,
}

impl Verb {
    fn method(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Create => http::Method::POST,
            Self::Replace => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }
}

/// The way to the API server, as one set of credentials opens it. Each of the two clients keeps one connection.
#[derive(Clone)]
pub struct Clients {
    /// For the lease alone, so that nothing is ever in its way.
    pub heartbeat: kube::Client,
    /// For all else.
    pub main: kube::Client,
    /// The server's URL, for people.
    pub server: Arc<str>,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Clients {
    /// Two clients with the credentials of `config`. Nothing is connected before the first request.
    pub(super) fn new(config: &Config) -> Result<Self, kube::Error> {
        Ok(Self {
            heartbeat: client(config)?,
            main: client(config)?,
            server: config.cluster_url.to_string().trim_end_matches('/').into(),
        })
    }
}

fn client(config: &Config) -> Result<kube::Client, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    // For a server that speaks no HTTP/2, where there are no pings.
    http.set_keepalive(Some(PING_AFTER));
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut https = hyper_rustls::HttpsConnector::from((http, tls));
    https.enforce_https();
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(Some(CONNECT));
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_ANSWER)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(client);
    Ok(kube::Client::new(service, &config.default_namespace))
}

/// One request. `path` begins with `/api` and may have a query.
///
/// # Errors
/// When the API server refuses it, or does not answer within [`REQUEST_DEADLINE`].
///
/// # Cancel safety
/// Dropping it leaves open whether the request was carried out.
pub async fn call<T: DeserializeOwned>(
    client: &kube::Client,
    verb: Verb,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, ApiError> {
    let failed = |error: &dyn std::error::Error| ApiError::Failed(error.to_string());
    let bytes = body.map(serde_json::to_vec).transpose().map_err(|error| failed(&error))?;
    let content = match verb {
        Verb::Patch => STRATEGIC_MERGE,
        Verb::Get | Verb::Create | Verb::Replace | Verb::Delete => JSON,
    };
    let request = Request::builder()
        .method(verb.method())
        .uri(path)
        .header(header::CONTENT_TYPE, HeaderValue::from_static(content))
        .header(header::ACCEPT, HeaderValue::from_static(JSON))
        .body(bytes.unwrap_or_default())
        .map_err(|error| failed(&error))?;
    match tokio::time::timeout(REQUEST_DEADLINE, client.request(request)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ApiError::Late(REQUEST_DEADLINE)),
    }
}
